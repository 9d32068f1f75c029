"""Several steps of a planned step are torch's own loop: rates, clipped gradients, uneven meshes, stages."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import autoshard as ash
from autoshard import optim
from autoshard.pipeline import plan_pipeline
from autoshard.util.errors import AutoshardError, ContextError, GraphError

pytestmark = pytest.mark.torch
STEPS = 3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table = torch.nn.Embedding(10, 18)
        self.up, self.norm, self.down = torch.nn.Linear(18, 42), torch.nn.LayerNorm(42), torch.nn.Linear(42, 10)
        self.unused = torch.nn.Linear(3, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.down(self.norm(F.gelu(self.up(self.table(ids[:, :-1])))))
        return F.cross_entropy(found.flatten(0, 1), ids[:, 1:].flatten())


def batches() -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [torch.randint(10, (6, 6)) for _ in range(STEPS)]


def imported(optimizer: Callable[[list], Any]) -> Any:
    return ash.from_torch(Net(), (batches()[0],), loss=lambda loss, ids: loss, optimizer=optimizer)


def trained(
    optimizer: Callable[[Any], torch.optim.Optimizer],
    rate: Callable[[int], float] | None = None,
    clip: Callable[[Any], Any] = lambda parameters: None,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the state of torch's own loop."""
    net, losses = Net(), []
    own = optimizer(net.parameters())
    for step, ids in enumerate(batches()):
        if rate is not None:
            own.param_groups[0]["lr"] = rate(step)
        own.zero_grad()
        loss = net(ids)
        loss.backward()
        clip(net.parameters())
        own.step()
        losses.append(loss.item())
    return losses, copy.deepcopy(net.state_dict())


def assert_trains(model: Any, planned: Any, wanted: tuple[list[float], dict[str, torch.Tensor]], **engine: str) -> None:
    losses = [float(planned.run(*model.arrays(ids), **engine)) for ids in batches()]
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-5)
    for name, tensor in model.state().items():
        torch.testing.assert_close(tensor, wanted[1][name], rtol=1e-4, atol=1e-5, msg=name)


CLIPPED = {
    "norm": (
        lambda params: optim.SGD(params, 0.5, momentum=0.9, clip_norm=0.4),
        lambda params: torch.optim.SGD(params, 0.5, momentum=0.9),
        lambda params: torch.nn.utils.clip_grad_norm_(params, 0.4),
    ),
    "a norm that few have": (
        lambda params: optim.AdamW(params, 1e-2, clip_norm=100.0),
        lambda params: torch.optim.AdamW(params, 1e-2),
        lambda params: torch.nn.utils.clip_grad_norm_(params, 100.0),
    ),
    "value": (
        lambda params: optim.AdamW(params, 1e-2, eps=1e-4, clip_value=0.005),
        lambda params: torch.optim.AdamW(params, 1e-2, eps=1e-4),
        lambda params: torch.nn.utils.clip_grad_value_(params, 0.005),
    ),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_gradients_are_clipped_as_by_torch(name: str) -> None:
    """Of all parameters together, however they are split, over the stages of a pipeline, too."""
    mine, theirs, clip = CLIPPED[name]
    wanted = trained(theirs, clip=clip)
    for mesh, search, engine in (("dp=3 tp=2", None, "torch"), ("dp=2 tp=3", "zero3(dp) + megatron(tp)", "numpy")):
        model = imported(mine)
        assert_trains(model, ash.plan(model, mesh=mesh, search=search), wanted, engine=engine)
    model = imported(mine)
    planned = plan_pipeline(
        model, mesh="pp=2,dp=3", micro_batches=2, schedule="1f1b", search="zero1(dp)", stages={"table": 0, "down": 1}
    )
    assert_trains(model, planned, wanted)


def test_the_check_of_a_step_clips_as_well() -> None:
    model = imported(CLIPPED["norm"][0])
    wanted = model.reference_state()
    ash.plan(model, mesh="d=2").run(*model.arrays(batches()[0]))
    for name, tensor in model.state().items():
        np.testing.assert_allclose(tensor.numpy(), wanted[name], rtol=1e-4, atol=1e-6)


def test_a_norm_over_differently_split_gradients_is_sent_once() -> None:
    model = imported(CLIPPED["norm"][0])
    planned = ash.plan(model, mesh="dp=2 tp=3", search="zero3(dp) + megatron(tp)")
    moves = [one for one in planned.plan.redistributions if one.value.name.startswith("clip.")]
    assert [one.value.name for one in moves if len(one.after.partial) < len(one.before.partial)] == ["clip.squares"]


@pytest.mark.parametrize("settings", [{"clip_norm": 0.0}, {"clip_value": -1}, {"clip_norm": True}, {"clip_norm": "1"}])
def test_what_clips_is_a_number_above_0(settings: dict[str, Any]) -> None:
    with pytest.raises(ContextError, match="it is a number above 0"):
        imported(lambda params: optim.SGD(params, 0.1, **settings))
    with pytest.raises(ContextError, match="give one of them"):
        imported(lambda params: optim.SGD(params, 0.1, clip_norm=1.0, clip_value=1.0))


@pytest.mark.parametrize(
    "rate, wanted",
    [
        (torch.tensor(0.3), lambda step: 0.3),
        (np.asarray(0.3), lambda step: 0.3),
        (torch.tensor([0.3, 0.1]), lambda step: 0.3 if step == 0 else 0.1),
        (
            lambda step: 0.3 * (1 + ash.ops.cos(math.pi * step / 5)),
            lambda step: 0.3 * (1 + math.cos(math.pi * step / 5)),
        ),
    ],
)
def test_rates_are_numbers_tensors_and_functions(rate: Any, wanted: Callable[[int], float]) -> None:
    model = imported(lambda params: optim.SGD(params, rate))
    assert_trains(model, ash.plan(model, mesh="d=5"), trained(lambda params: torch.optim.SGD(params, 0.3), wanted))


@pytest.mark.parametrize(
    "rate",
    [
        lambda step: 0.1 if step < 2 else 0.01,
        lambda step: 0.1 * math.cos(step),
        lambda step: 0.1 * torch.cos(step),
    ],
)
def test_a_rate_that_looks_at_the_step_says_what_to_write(rate: Any) -> None:
    with pytest.raises(GraphError, match=r"SGD: its learning rate is a function that fails .*\[rate\(i\) for i in"):
        ash.plan(imported(lambda params: optim.SGD(params, rate)), devices=2)


def test_settings_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(AutoshardError, match="weight_decay is 'much'; it is a number"):
        imported(lambda params: optim.AdamW(params, 0.1, weight_decay="much"))
