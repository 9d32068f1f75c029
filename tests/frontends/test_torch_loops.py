"""Several steps of a planned step are torch's own loop: rates, clipped gradients, going on elsewhere, evaluation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import autoshard as ash
from autoshard import optim
from autoshard.pipeline import plan_pipeline
from autoshard.util.errors import AutoshardError, ContextError, GraphError, ShapeError

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


def scaled(window: int) -> tuple[list[float], dict[str, torch.Tensor], float]:
    """Losses, state and the last scale of torch's own loop, of 5 steps, whose third one overflows."""
    net, losses = Spoiled(), []
    own = torch.optim.AdamW(net.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=window)
    for ids, factor in spoiled():
        own.zero_grad()
        loss = net(ids, factor)
        scaler.scale(loss).backward()
        scaler.unscale_(own)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.4)
        scaler.step(own)
        scaler.update()
        losses.append(loss.item())
    return losses, copy.deepcopy(net.state_dict()), scaler.get_scale()


class Spoiled(Net):
    def forward(self, ids: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        found = self.down(self.norm(F.gelu(self.up(self.table(ids[:, :-1])))) * factor)
        return F.cross_entropy(found.flatten(0, 1), ids[:, 1:].flatten())


def spoiled() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(7)
    return [(torch.randint(10, (6, 6)), torch.tensor(factor)) for factor in (1.0, 1.0, math.inf, 1.0, 1.0)]


def scaling(scale: Any) -> Any:
    return ash.from_torch(
        Spoiled(), spoiled()[0], loss=lambda loss, *_: loss,
        optimizer=lambda params: optim.AdamW(params, 1e-2, clip_norm=0.4, loss_scale=scale),
    )  # fmt: skip


def assert_scales(
    model: Any, planned: Any, wanted: tuple[list[float], dict[str, torch.Tensor], float], engine: str
) -> None:
    with np.errstate(all="ignore"):
        losses = [float(planned.run(*model.arrays(*row), engine=engine)) for row in spoiled()]
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-5)
    for name, tensor in model.state().items():
        torch.testing.assert_close(tensor, wanted[1][name], rtol=1e-4, atol=1e-5, msg=name)
    scale = model.optimizer.scaling
    assert float(scale.scale.data) == wanted[2] and int(scale.skipped.data) == 1


@pytest.mark.parametrize("engine", ["numpy", "torch", "xla"])
def test_a_dynamic_scale_of_the_loss_is_that_of_torch(engine: str) -> None:
    """A step that overflows is skipped and halves the scale; good ones double it: on every engine, in stages, too."""
    wanted = scaled(window=2)
    for mesh, search in (("dp=3 tp=2", None), ("dp=6", "zero1"), ("dp=2 tp=3", "zero3(dp) + megatron(tp)")):
        model = scaling(optim.DynamicLossScale(256.0, window=2))
        assert_scales(model, ash.plan(model, mesh=mesh, search=search), wanted, engine)
    model = scaling(optim.DynamicLossScale(256.0, window=2))
    planned = plan_pipeline(
        model, mesh="pp=2,dp=3", micro_batches=2, schedule="1f1b", search="zero1(dp)", stages={"table": 0, "down": 1}
    )
    assert_scales(model, planned, wanted, engine)


def test_training_goes_on_with_the_scale_that_it_had() -> None:
    wanted = scaled(window=2)
    model = scaling(optim.DynamicLossScale(256.0, window=2))
    planned, rows = ash.plan(model, mesh="d=2"), spoiled()
    with np.errstate(all="ignore"):
        for row in rows[:3]:
            planned.run(*model.arrays(*row))
        other = scaling(optim.DynamicLossScale(window=2))
        other.load_state(model.training_state())
        planned = ash.plan(other, mesh="d=3", micro_batches=2)
        losses = [float(planned.run(*other.arrays(*row))) for row in rows[3:]]
    np.testing.assert_allclose(losses, wanted[0][3:], rtol=1e-5)
    assert float(other.optimizer.scaling.scale.data) == wanted[2]


def test_updates_that_may_be_skipped_are_done_in_parts() -> None:
    """A choice between new and old values hides no update from named plans."""
    model = scaling(128)
    planned = ash.plan(model, mesh="dp=6", search="zero1")
    layouts = planned.plan.layouts
    found = {str(layout) for value, layout in layouts.items() if value.name.startswith("update.up.weight")}
    assert found == {"dp, -"}
    assert float(model.reference_state()["norm.weight"][0]) != 1.0


@pytest.mark.parametrize(("make", "text"), [
    (lambda: optim.LossScale(0), r"LossScale: scale is 0; it is a number above 0"),
    (lambda: optim.SGD([], 0.1, loss_scale=True), r"scale is True; it is a number above 0"),
    (lambda: optim.DynamicLossScale(factor=1), r"DynamicLossScale: factor is 1; it is a number above 1"),
    (lambda: optim.DynamicLossScale(window=0), r"window is 0; it is a whole number of at least 1"),
    (lambda: optim.DynamicLossScale(minimum=-1), r"minimum is -1; it is a number of at least 0"),
])  # fmt: skip
def test_a_scale_is_a_number_above_0(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ContextError, match=text):
        make()


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
        imported(lambda params: optim.AdamW(params, 0.1, weight_decay="much"))  # type: ignore[arg-type]


# -- what goes on elsewhere


def test_training_goes_on_on_other_meshes_engines_and_stages() -> None:
    """Parameters, the optimizer's states and the count of steps are taken up by a fresh import each time."""
    rates = [0.02, 0.01, 0.005]
    wanted = trained(lambda params: torch.optim.AdamW(params, 0.02, eps=1e-5), lambda step: rates[step])
    plans = [
        (lambda one: ash.plan(one, mesh="dp=3 tp=2"), "torch"),
        (lambda one: plan_pipeline(one, mesh="pp=2", micro_batches=3, schedule="gpipe"), "numpy"),
        (lambda one: ash.plan(one, mesh="d=2", search="zero1"), "numpy"),
    ]
    losses: list[float] = []
    state: dict[str, np.ndarray] = {}
    for ids, (plan, engine) in zip(batches(), plans, strict=True):
        model = imported(lambda params: optim.AdamW(params, rates, eps=1e-5))
        if state:
            model.load_state(state)
        losses.append(float(plan(model).run(*model.arrays(ids), engine=engine)))
        state = model.training_state()
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-5)
    assert state["global_step"] == STEPS
    for name, tensor in model.state().items():
        torch.testing.assert_close(tensor, wanted[1][name], rtol=1e-4, atol=1e-5, msg=name)


class Normed(torch.nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(torch.nn.Linear(6, 10), torch.nn.BatchNorm1d(10), torch.nn.Tanh(), torch.nn.Linear(10, 3))


def test_a_model_in_evaluation_takes_over_what_was_trained() -> None:
    """Between the steps: statistics of a batch norm with the weights; averaged weights as well."""
    torch.manual_seed(5)
    rows = torch.randn(3, 6, 6)
    step = ash.from_torch(
        Normed(),
        (rows[0],),
        loss=lambda found, x: found.square().mean(),
        optimizer=lambda params: optim.SGD(params, 0.3, momentum=0.9),
    )
    seen = ash.from_torch(Normed().eval(), (rows[0],))
    trains, evaluates = ash.plan(step, mesh="dp=2 tp=3"), ash.plan(seen, mesh="d=5")
    net, average = Normed(), torch.optim.swa_utils.AveragedModel(Normed())
    own, mean = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9), dict.fromkeys(step.state(), 0.0)
    for count, x in enumerate(rows):
        trains.run(*step.arrays(x))
        seen.load_state(step.state())
        own.zero_grad()
        net.train()(x).square().mean().backward()
        own.step()
        average.update_parameters(net)
        torch.testing.assert_close(
            torch.from_numpy(evaluates.run(*seen.arrays(x))), net.eval()(x), rtol=1e-4, atol=1e-5
        )
        now = {name: value for name, value in step.state().items() if value.is_floating_point()}
        mean = {name: mean[name] + (now[name] - mean[name]) / (count + 1) for name in now}
    seen.load_state(mean)
    for name, one in average.module.named_parameters():
        torch.testing.assert_close(seen.state()[name], one.detach(), rtol=1e-4, atol=1e-5)


def test_two_steps_train_parts_of_one_model_in_turn() -> None:
    """A generator and a critic, as of a WGAN: each step leaves the other's weights alone, and takes what it made."""

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.generator, self.critic = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)

        def forward(self, noise: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = self.critic(torch.tanh(self.generator(noise)))
            return made.mean() - torch.tanh(self.critic(x)).mean(), -made.mean()

    torch.manual_seed(8)
    given = [(torch.randn(6, 4), torch.randn(6, 6)) for _ in range(4)]
    steps = []
    for turn, part in enumerate(("critic", "generator")):
        steps.append(
            ash.from_torch(
                Pair(),
                given[0],
                loss=lambda found, *_, turn=turn: found[turn],
                optimizer=lambda params, part=part: optim.AdamW(
                    [one for one in params if one.name.startswith(part)], 1e-2, eps=1e-4
                ),
            )
        )
    plans = [ash.plan(one, mesh="dp=2 tp=3") for one in steps]
    pair, found, wanted = Pair(), [], []
    own = [torch.optim.AdamW(part.parameters(), 1e-2, eps=1e-4) for part in (pair.critic, pair.generator)]
    for turn, data in enumerate(given):
        now, other = turn % 2, 1 - turn % 2
        found.append(float(plans[now].run(*steps[now].arrays(*data))))
        steps[other].load_state(steps[now].state())
        pair.zero_grad()
        loss = pair(*data)[now]
        loss.backward()
        own[now].step()
        wanted.append(loss.item())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_state_that_does_not_fit_says_what_is_missing() -> None:
    model = imported(lambda params: optim.AdamW(params, 1e-2))
    before, state = model.state(), model.training_state()
    with pytest.raises(AutoshardError, match=r"no table.weight and 6 more among the 9 .* has net.table.weight"):
        model.load_state({f"net.{name}": one for name, one in before.items()})
    del state["moment1.up.bias"]
    with pytest.raises(AutoshardError, match=r"there is no moment1.up.bias among .* others of its optimizer's states"):
        model.load_state(state)
    with pytest.raises(AutoshardError, match=r"up.weight is f32\[42, 18\]; it cannot take"):
        model.load_state({**before, "up.weight": torch.ones(18, 42)})
    model.load_state({**before, "something.else": torch.ones(1)})


class Checkpointed(torch.nn.Module):
    """Layers that torch runs again for their gradients, in one of its two ways; the last one is kept."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.reentrant = reentrant
        self.first = torch.nn.Linear(6, 8)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for i, layer in enumerate(self.layers):
            if self.reentrant is None or i == 2:
                x = x + layer(x)
            else:
                x = x + checkpoint(layer.__call__ if i else layer, x, use_reentrant=self.reentrant)
        return x.square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
def test_modules_that_torch_runs_again_are_made_again(reentrant: bool) -> None:
    """In a plan and in its stages: less memory, the same numbers."""
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))

    def imported(way: bool | None) -> Any:
        sgd = lambda params: optim.SGD(params, 0.1)  # noqa: E731
        return ash.from_torch(Checkpointed(way), (x,), loss=lambda loss, *_: loss, optimizer=sgd)

    model, plain = imported(reentrant), imported(None)
    again = [node.name for node in model.traced.graph.nodes if node.name.endswith(".again")]
    assert again and {name.split(".")[1] for name in again} == {"0", "1"}
    plans = [ash.plan(one, mesh="dp=2", search="data_parallel") for one in (model, plain)]
    assert plans[0].cost.peak_memory_bytes < 0.8 * plans[1].cost.peak_memory_bytes
    losses = [
        [float(planned.run(*one.arrays(x))) for _ in range(3)]
        for one, planned in zip((model, plain), plans, strict=True)
    ]
    assert losses[0] == losses[1]
    staged = imported(reentrant)
    pipeline = plan_pipeline(
        staged, mesh="pp=3", micro_batches=4, stages={"layers.0": 0, "layers.1": 1, "layers.2": 2}, schedule="1f1b"
    )
    found = [float(pipeline.run(*staged.arrays(x))) for _ in range(3)]
    np.testing.assert_allclose(found, losses[1], rtol=1e-5)


def test_a_state_that_does_not_fit_is_not_taken_in_part():
    model = ash.from_torch(torch.nn.Linear(6, 4), (torch.ones(2, 6),))
    before = {name: value.clone() for name, value in model.state().items()}
    wrong = {"weight": torch.zeros(4, 6), "bias": torch.zeros(5)}
    with pytest.raises(ShapeError, match="bias"):
        model.load_state(wrong)
    assert all(torch.equal(value, before[name]) for name, value in model.state().items())
