"""Gradients inside of what is trained: losses that hold one, and steps that clip them; on ranks as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import autoshard.mindspore as ms
from autoshard import trace
from autoshard.mindspore import Model, Parameter, Tensor, nn, ops
from autoshard.mindspore.dataset import NumpySlicesDataset
from autoshard.trace.control import while_loop
from autoshard.util.errors import ContextError, GraphError, ShapeError

pytestmark = pytest.mark.torch
X = np.random.default_rng(5).uniform(-1, 1, (12, 10)).astype(np.float32)
MODES = [(mode, n) for mode in ("semi_auto_parallel", "auto_parallel", "data_parallel") for n in (4, 6)]


def net(activation: type) -> nn.SequentialCell:
    ms.set_seed(2)
    return nn.SequentialCell(nn.Dense(10, 8), activation(), nn.Dense(8, 1))


def torchs(cells: nn.SequentialCell, activation: torch.nn.Module) -> torch.nn.Sequential:
    """The same network in torch, with the parameters that it has now."""
    made = torch.nn.Sequential(torch.nn.Linear(10, 8), activation, torch.nn.Linear(8, 1))
    for ours, theirs in zip(cells.trainable_params(), made.parameters(), strict=True):
        theirs.data = torch.tensor(ours.asnumpy().copy())
    return made


class Penalty(nn.Cell):
    """A critic's mean, and how far the slope at each row is from one."""

    def __init__(self, critic: nn.Cell, reduction: str | None = "mean") -> None:
        super().__init__()
        self.critic, self.reduction = critic, reduction

    def construct(self, x: Any) -> Any:
        slope = ms.grad(lambda x: self.critic(x).sum())(x)
        return self.critic(x).mean() + ((ops.sqrt((slope * slope).sum(1)) - 1) ** 2).mean()


def penalized(critic: torch.nn.Module, steps: int) -> list[float]:
    optimizer, losses = torch.optim.SGD(critic.parameters(), 0.2), []
    for _ in range(steps):
        x = torch.tensor(X, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        loss = critic(x).mean() + ((slope.square().sum(1).sqrt() - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


ACTIVATIONS = {
    "Tanh": torch.nn.Tanh(), "GELU": torch.nn.GELU("tanh"), "SiLU": torch.nn.SiLU(), "ReLU": torch.nn.ReLU(),
    "Sigmoid": torch.nn.Sigmoid(), "ELU": torch.nn.ELU(), "Mish": torch.nn.Mish(), "HSwish": torch.nn.Hardswish(),
    "LeakyReLU": torch.nn.LeakyReLU(0.2), "Softsign": torch.nn.Softsign(),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gradient_penalty_trains_as_in_torch(name: str) -> None:
    cells = net(getattr(nn, name))
    want = penalized(torchs(cells, ACTIVATIONS[name]), 3)
    for mode, devices in (("stand_alone", 1), *MODES):
        ms.reset_auto_parallel_context()
        ms.set_auto_parallel_context(parallel_mode=mode, device_num=devices, gradients_mean=mode == "data_parallel")
        cells = net(getattr(nn, name))
        step = nn.TrainOneStepCell(Penalty(cells), nn.SGD(cells.trainable_params(), 0.2))
        np.testing.assert_allclose([float(step(X)) for _ in range(3)], want, rtol=2e-5, err_msg=f"{mode} {devices}")


class Product(nn.Cell):
    """The slopes of a * b * y for a and b, both of which are y: y^2 each, so that their product is y^4."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(10, np.float32)), name="weight")

    def construct(self, x: Any) -> Any:
        y = x * self.weight
        for_a, for_b = ms.grad(lambda a, b: (a * b * y).sum(), (0, 1))(y, y)
        return (for_a * for_b).sum()


def test_arguments_are_others_than_what_a_function_captures() -> None:
    one = Product()
    step = nn.TrainOneStepCell(one, nn.SGD(one.trainable_params(), 0.01))
    assert float(step(X)) == pytest.approx((X.astype(np.float64) ** 4).sum(), rel=1e-5)
    np.testing.assert_allclose(one.weight.asnumpy(), 1 - 0.04 * (X**4).sum(0), rtol=1e-5)


def test_gradients_of_parameters_inside_of_a_model() -> None:
    cells = net(nn.Tanh)

    def norms(x: Any) -> Any:
        value, (slope, weights) = ms.value_and_grad(lambda x: cells(x).mean(), 0, cells.trainable_params())(x)
        return value, slope, *weights

    value, slope, *weights = trace(norms, X)(X)
    critic = torchs(cells, torch.nn.Tanh())
    x = torch.tensor(X, requires_grad=True)
    critic(x).mean().backward()
    assert float(value) == pytest.approx(critic(x).mean().item(), rel=1e-5)
    wanted = [x.grad, *(one.grad for one in critic.parameters())]
    for ours, theirs in zip([slope, *weights], wanted, strict=True):
        assert theirs is not None
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-7)


def test_a_gradient_inside_of_a_loop_is_refused() -> None:
    slope = ms.grad(lambda x: (x * x).sum())
    with pytest.raises(GraphError, match="grad inside of a loop, a branch or a manual computation"):
        trace(lambda x: while_loop(lambda x: x.sum() < 9, lambda x: slope(x), x), X)


class Clipped(nn.Momentum):
    def construct(self, gradients: Any) -> Any:
        return super().construct(ops.clip_by_global_norm(gradients, 0.05))


def clipped(critic: torch.nn.Module) -> list[np.ndarray]:
    optimizer = torch.optim.SGD(critic.parameters(), 0.2, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        (critic(torch.tensor(X)) - 1).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(critic.parameters(), 0.05)
        optimizer.step()
    return [one.detach().numpy() for one in critic.parameters()]


@pytest.mark.parametrize(("mode", "devices"), [("stand_alone", 1), *MODES])
def test_an_optimizer_may_clip_gradients_by_their_global_norm(mode: str, devices: int) -> None:
    cells = net(nn.Tanh)
    want = clipped(torchs(cells, torch.nn.Tanh()))
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=devices, gradients_mean=mode == "data_parallel")
    rows = NumpySlicesDataset((X, np.ones((12, 1), np.float32)), ["x", "y"], shuffle=False).batch(12)
    Model(cells, nn.MSELoss(), Clipped(cells.trainable_params(), 0.2, 0.9)).train(3, rows)
    for ours, theirs in zip(cells.trainable_params(), want, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("call", "text"), [
    (lambda: ops.clip_by_global_norm(X), "takes a tuple of tensors"),
    (lambda: ops.clip_by_global_norm((), 1.0), "takes a tuple of tensors"),
    (lambda: ops.clip_by_global_norm((X,), -1.0), "clip_norm is -1.0; it is a number above 0"),
])  # fmt: skip
def test_clipping_refuses_what_has_no_meaning(call: Callable, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()


def test_a_network_tells_how_its_loss_reduces_rows() -> None:
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", device_num=4)
    one = Penalty(net(nn.Tanh), None)
    with pytest.raises(ContextError, match=r"the loss \(Penalty\) does not tell how it reduces rows"):
        nn.TrainOneStepCell(one, nn.SGD(one.trainable_params(), 0.2))(X)


class Clipping(nn.TrainOneStepCell):
    """A step with gradients of a scaled loss, which it clips."""

    def __init__(self, network: nn.Cell, optimizer: Any, sens: float = 8.0) -> None:
        super().__init__(network, optimizer, sens)
        self.held = ms.ParameterTuple(network.trainable_params())

    def construct(self, *inputs: Any) -> Any:
        loss = self.network(*inputs)
        found = self.grad(self.network, self.held)(*inputs, ops.fill(loss.dtype, loss.shape, self.sens))
        clipped = ops.clip_by_global_norm(self.grad_reducer(found), 0.05 * self.sens)
        return ops.depend(loss, self.optimizer(clipped))


@pytest.mark.parametrize(
    ("mode", "devices"), [one for one in (("stand_alone", 1), *MODES) if one[0] != "data_parallel"]
)
def test_a_step_may_treat_its_gradients_itself(mode: str, devices: int) -> None:
    cells = net(nn.Tanh)
    want = clipped(torchs(cells, torch.nn.Tanh()))
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=devices)
    optimizer = nn.Momentum(cells.trainable_params(), 0.2, 0.9, loss_scale=8.0)
    step = Clipping(nn.WithLossCell(cells, nn.MSELoss()), optimizer)
    losses = [float(step(X, np.ones((12, 1), np.float32))) for _ in range(2)]
    rows = NumpySlicesDataset((X, np.ones((12, 1), np.float32)), ["x", "y"], shuffle=False).batch(12)
    Model(step).train(1, rows)
    assert losses[1] < losses[0]
    for ours, theirs in zip(cells.trainable_params(), want, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=2e-5, atol=1e-6)
    planned = step.model.planned
    assert devices == 1 or any(layout.dims[0] for layout in planned.plan.layouts.values() if layout.dims)


class Whole(nn.TrainOneStepCell):
    def construct(self, *inputs: Any) -> Any:
        return self.network(*inputs)


class Both(Whole):
    def construct(self, *inputs: Any) -> Any:
        return self.network(*inputs), self.sens


class Scaled(nn.TrainOneStepWithLossScaleCell):
    def construct(self, *inputs: Any) -> Any:
        return self.network(*inputs)


@pytest.mark.parametrize(("kind", "given", "settings", "text"), [
    (Whole, (), {}, "Whole: its construct updates no parameter"),
    (Both, (), {}, "Both: its construct returns a tuple; return the loss alone"),
    (Scaled, (Tensor(8.0),), {}, "Scaled: a TrainOneStepWithLossScaleCell with a construct of its own is not offered"),
    (Whole, (), {"parallel_mode": "data_parallel", "device_num": 4}, "Whole: .* and data_parallel cuts the step"),
])  # fmt: skip
def test_a_step_of_ones_own_tells_what_it_cannot(kind: Any, given: tuple, settings: dict, text: str) -> None:
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(**settings)
    one = Penalty(net(nn.Tanh))
    with pytest.raises((GraphError, ContextError), match=text):
        kind(one, nn.SGD(one.trainable_params(), 0.2), *given)(X)
