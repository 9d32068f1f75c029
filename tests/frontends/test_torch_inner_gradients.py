"""Modules whose loss holds a gradient, by torch.func or torch.autograd.grad: they train as in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import autoshard as ash
from autoshard import optim
from autoshard.util.errors import ParseError, ShapeError
from tests.frontends.kept_parameters import kept

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    """Two layers, and a loss of them, x [12, 8] and y [12, 6]."""

    def __init__(self, loss: Callable[[Net, Tensor, Tensor], Tensor], act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.second = torch.nn.Linear(8, 10), torch.nn.LayerNorm(10), torch.nn.Linear(10, 6)
        self.loss, self.act = loss, act

    def net(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self, x, y)


def penalty(m: Net, x: Tensor, y: Tensor) -> Tensor:
    slope = torch.func.grad(lambda x: m.net(x).sum())(x)
    return F.mse_loss(m.net(x), y) + 0.1 * slope.square().mean()


def rows(m: Net, x: Tensor, y: Tensor) -> Tensor:
    slopes = torch.func.vmap(torch.func.grad(lambda row: m.net(row).sum()))(x)
    return (slopes.norm(dim=-1) - 1).square().mean()


def entropy(m: Net, x: Tensor, y: Tensor) -> Tensor:
    labels = y.argmax(-1)
    slope, value = torch.func.grad_and_value(lambda x: F.cross_entropy(m.net(x), labels))(x)
    return value + slope.square().sum()


def normed(m: Net, x: Tensor, y: Tensor) -> Tensor:
    def value(x: Tensor) -> Tensor:
        return (torch.softmax(m.second(m.norm(m.first(x))), -1) * y).sum()

    return value(x) + torch.func.grad(value)(x).square().mean()


def curvature(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """A product with the Hessian."""
    slope = torch.func.grad(lambda x: m.net(x).square().mean())
    return torch.func.jvp(slope, (x,), (y.sum() * torch.ones_like(x),))[1].square().sum()


def physics(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """What is left of an equation with first and second derivatives of each row."""

    def value(row: Tensor) -> Tensor:
        return m.net(row).sum()

    def left(row: Tensor) -> Tensor:
        slope = torch.func.grad(value)
        return slope(row)[0] + value(row) * slope(row)[1] - 0.01 * torch.func.jacfwd(slope)(row)[2, 2]

    return torch.func.vmap(left)(x).square().mean()


def pulled(m: Net, x: Tensor, y: Tensor) -> Tensor:
    found, back, *_ = torch.func.vjp(m.net, x)
    return found.square().mean() + back(y)[0].square().mean()


def adapted(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """Half of the rows adapt the weights that the others are judged by."""

    def loss(held: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        inner = m.act(F.linear(x, held["first.weight"], held["first.bias"]))
        return F.mse_loss(F.linear(inner, held["second.weight"], held["second.bias"]), y)

    held: dict[str, Tensor] = dict(m.named_parameters())
    slopes = torch.func.grad(loss)(held, x[:6], y[:6])
    return loss({name: held[name] - 0.1 * slopes[name] for name in held}, x[6:], y[6:])


def derived(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """No layer inside: what the gradient goes through is made outside of it."""
    weight = m.first.weight.t() * 2
    return torch.func.grad(lambda x: m.act(x @ weight).sum())(x).square().mean()


def by_autograd(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """For a copy, beside what is computed of the tensor itself; once more; and one that gradients stop at."""
    near = x.clone().requires_grad_(True)
    found = m.net(near) + m.net(x).sin()
    (slope,) = torch.autograd.grad(found, near, torch.ones_like(found) * 2, create_graph=True)
    (bend,) = torch.autograd.grad([slope.square().sum()], [near], create_graph=True)
    (fixed,) = torch.autograd.grad(found.sum(), (near,), retain_graph=True)
    return slope.square().mean() + bend.abs().mean() + (fixed * near).mean()


def within(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """Steps of its own parameters, as those that learn to learn take."""
    held, wanted = dict(m.named_parameters()), ("first.weight", "first.bias", "second.weight")

    def loss(x: Tensor, y: Tensor) -> Tensor:
        inner = m.act(F.linear(x, held["first.weight"], held["first.bias"]))
        return F.mse_loss(inner @ held["second.weight"].t(), y)

    for _ in range(2):
        slopes = torch.autograd.grad(loss(x[:6], y[:6]), [held[name] for name in wanted], create_graph=True)
        held |= {name: held[name] - 0.1 * slope for name, slope in zip(wanted, slopes, strict=True)}
    return loss(x, y)


def convolved(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """A penalty as critics of images have it."""
    near = (0.3 * x).requires_grad_(True)
    found = F.conv1d(near[:, None], m.second.weight[:4, None, :3], stride=2, padding=1).tanh().sum((1, 2))
    (slope,) = torch.autograd.grad(found, near, torch.ones_like(found), create_graph=True)
    return found.mean() + (slope.norm(dim=1) - 1).square().mean() + m.net(x).mean()


PROGRAMS: dict[str, Net] = {
    **{f"penalty-{act.__name__}": Net(penalty, act) for act in (torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu,
                                                               F.relu, F.softplus, F.mish)},
    "rows": Net(rows, F.leaky_relu), "entropy": Net(entropy, torch.tanh), "normed": Net(normed, torch.tanh),
    "curvature": Net(curvature, F.silu), "pulled": Net(pulled, F.gelu), "adapted": Net(adapted, torch.tanh),
    "derived": Net(derived, torch.tanh), "physics": Net(physics, torch.tanh),
    "autograd": Net(by_autograd, torch.tanh), "steps": Net(within, torch.sigmoid),
    "convolved": Net(convolved, torch.tanh),
}  # fmt: skip


def example() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(12, 8, generator=generator), torch.randn(12, 6, generator=generator)


def imported(module: torch.nn.Module, args: tuple[Tensor, ...]) -> Any:
    return ash.from_torch(module, args, loss=lambda found, *_: found, optimizer=lambda held: optim.SGD(held, 0.1))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loss_with_a_gradient_trains_as_in_torch(name: str) -> None:
    """Split by each plan, from the same parameters on."""
    module, args = copy.deepcopy(PROGRAMS[name]), example()
    model = imported(module, args)
    wanted = [trained(module, args) for _ in range(2)]
    for mesh, search in (("dp=2 tp=3", "sharding_propagation"), ("d=2", "data_parallel")):
        planned = ash.plan(model, mesh=mesh, search=search)
        with kept(planned.traced.parameters.values()):
            found = [np.ravel(planned.run(*model.arrays(*args)))[-1] for _ in wanted]
        np.testing.assert_allclose(found, wanted, rtol=2e-5, err_msg=mesh)


def trained(module: torch.nn.Module, args: tuple[Tensor, ...], rate: float = 0.1) -> float:
    """The loss, before a step of gradient descent."""
    optimizer = torch.optim.SGD(module.parameters(), rate)
    loss = module(*args)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_autograd_beside_transformations_is_refused() -> None:
    with pytest.raises(ParseError, match=r"say it by torch\.func\.grad"):
        imported(Net(lambda m, x, y: by_autograd(m, x, y) + penalty(m, x, y), torch.tanh), example())


def test_a_gradient_inside_is_compared_where_nothing_is_trained() -> None:
    module = Net(lambda m, x, y: by_autograd(m, x.clone().requires_grad_(), y), torch.tanh)
    model = ash.from_torch(module, example())
    found = ash.plan(model, mesh="d=2").run(*model.example_arrays)
    np.testing.assert_allclose(found, model.reference()[0], rtol=2e-5)


def test_a_gradient_of_a_convolution_inside_is_refused_by_name() -> None:
    def loss(m: Net, x: Tensor, y: Tensor) -> Tensor:
        weight = m.first.weight[:1, :3].reshape(1, 1, 3)
        return torch.func.grad(lambda x: F.conv1d(x, weight).square().sum())(x[:, None]).square().mean()

    with pytest.raises(ShapeError, match="autoshard has no operators for\n.*convolution_backward"):
        ash.plan(imported(Net(loss, torch.tanh), example()), mesh="d=2")
