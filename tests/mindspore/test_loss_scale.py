"""Loss scales and levels of mixed precision: steps on ranks, in stages and after a checkpoint are torch's on one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autoshard.mindspore as ms
from autoshard.mindspore import Model, amp, nn, ops
from autoshard.mindspore.dataset import NumpySlicesDataset
from autoshard.trace.function import trace
from autoshard.util.errors import ContextError

pytestmark = pytest.mark.torch
FACTORS = (1.0, np.inf, 1.0, 1.0, 1.0)
"""What the rows of each step are multiplied by: the second one overflows."""
X = np.random.default_rng(3).normal(size=(12, 6)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=(12, 4)).astype(np.float32)


def net() -> nn.SequentialCell:
    values = np.random.default_rng(1)
    made = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 4))
    for one in made.get_parameters():
        one.set_data(values.normal(size=one.shape).astype(np.float32) * 0.5)
    return made


def torchs(cells: Any) -> torch.nn.Sequential:
    made = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    for mine, theirs in zip(cells.get_parameters(), made.parameters(), strict=True):
        theirs.data = torch.tensor(mine.asnumpy().copy())
    return made


def trained(scale: float, window: int, cells: Any) -> tuple[list[np.ndarray], list[tuple[float, float]]]:
    """Parameters, and after each step the loss and the scale, of torch."""
    made, found = torchs(cells), []
    optimizer = torch.optim.SGD(made.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", scale, growth_interval=window)
    for factor in FACTORS:
        optimizer.zero_grad()
        loss = (made(torch.tensor(X) * factor) - torch.tensor(Y)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((loss.item(), scaler.get_scale()))
    return [one.detach().numpy() for one in made.parameters()], found


def rows(factors: tuple[float, ...] = FACTORS) -> Any:
    xs, ys = (np.concatenate(parts) for parts in ([X * one for one in factors], [Y] * len(factors)))
    return NumpySlicesDataset((xs, ys), ["x", "y"], shuffle=False).batch(12)


def assert_parameters(cells: Any, wanted: list[np.ndarray], rtol: float = 2e-5) -> None:
    for ours, theirs in zip(cells.trainable_params(), wanted, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=rtol, atol=1e-6)


def model(cells: Any, manager: Any, **settings: Any) -> Model:
    optimizer = nn.Momentum(cells.trainable_params(), 0.1, 0.9, **settings)
    return Model(cells, nn.MSELoss(), optimizer, loss_scale_manager=manager)


MODES = [
    ({"parallel_mode": "stand_alone"}, "numpy"),
    ({"parallel_mode": "data_parallel", "device_num": 4, "gradients_mean": True}, "torch"),
    ({"parallel_mode": "semi_auto_parallel", "device_num": 4, "enable_parallel_optimizer": True}, "xla"),
    ({"parallel_mode": "semi_auto_parallel", "device_num": 4, "pipeline_stages": 2}, "numpy"),
]


@pytest.mark.parametrize(("settings", "engine"), MODES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_dynamic_scale_skips_halves_and_grows(settings: dict[str, Any], engine: str) -> None:
    cells = net()
    wanted, history = trained(64.0, 2, cells)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(**settings)
    given = nn.PipelineCell(nn.WithLossCell(cells, nn.MSELoss()), 2) if "pipeline_stages" in settings else None
    made = model(cells, ms.DynamicLossScaleManager(64, 2, 2))
    if given is not None:
        made = Model(given, None, made.optimizer, loss_scale_manager=ms.DynamicLossScaleManager(64, 2, 2))
    made.train(1, rows(), engine=engine)
    assert_parameters(cells, wanted)
    assert made.scaling is not None and made.scaling.skipped is not None
    assert float(made.scaling.scale.asnumpy()) == history[-1][1]  # type: ignore[union-attr]
    assert int(made.scaling.skipped.asnumpy()) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_checkpoint_goes_on_with_the_scale(tmp_path: Path) -> None:
    cells = net()
    wanted, history = trained(64.0, 2, cells)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2)
    first = model(cells, ms.DynamicLossScaleManager(64, 2, 2))
    first.train(1, rows(FACTORS[:3]))
    first.save(tmp_path)
    ms.set_auto_parallel_context(device_num=4)
    other = net()
    again = model(other, ms.DynamicLossScaleManager(scale_window=2))
    again.load(tmp_path)
    again.train(1, rows(FACTORS[3:]))
    assert_parameters(other, wanted)
    assert float(again.scaling.scale.asnumpy()) == history[-1][1]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_step_with_a_scale_tells_loss_overflow_and_scale() -> None:
    cells = net()
    wanted, history = trained(2.0, 2, cells)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2)
    update = nn.DynamicLossScaleUpdateCell(2, 2, 2)
    optimizer = nn.Momentum(cells.trainable_params(), 0.1, 0.9)
    step = nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(cells, nn.MSELoss()), optimizer, update)
    told = [step(X * np.float32(factor), Y) for factor in FACTORS]
    assert [bool(overflow) for _, overflow, _ in told] == [False, True, False, False, False]
    np.testing.assert_allclose([(float(loss), float(scale)) for loss, _, scale in told], history, rtol=1e-5)
    assert_parameters(cells, wanted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_scale_does_not_fall_below_1_and_may_be_set() -> None:
    ms.reset_auto_parallel_context()
    cells = net()
    loss, optimizer = nn.WithLossCell(cells, nn.MSELoss()), nn.Momentum(cells.trainable_params(), 0.1, 0.9)
    step = nn.TrainOneStepWithLossScaleCell(loss, optimizer, nn.DynamicLossScaleUpdateCell(1.5, 2, 1000))
    assert float(step(X * np.float32(np.inf), Y)[2]) == 1.0
    fixed = nn.TrainOneStepWithLossScaleCell(loss, optimizer, ms.Tensor([1024.0], ms.float32))
    assert fixed(X, Y)[2].tolist() == [1024.0]
    fixed.set_sense_scale(ms.Tensor([16.0], ms.float32))
    assert fixed(X, Y)[2].tolist() == [16.0]
    with pytest.raises(ContextError, match=r"has no shape \(1,\), as the scale has"):
        fixed.set_sense_scale(ms.Tensor(16.0, ms.float32))


class Thirds(nn.Cell):
    """A cell of a user's: the scale becomes a third after each step that is skipped."""

    def get_loss_scale(self) -> float:
        return 9.0

    def construct(self, loss_scale: Any, overflow: Any) -> Any:
        ops.assign(loss_scale, ops.select(overflow, loss_scale / 3, loss_scale))
        return overflow


class OwnManager(amp.LossScaleManager):
    def get_loss_scale(self) -> float:
        return 9.0

    def get_update_cell(self) -> Any:
        return Thirds()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("manager", "scale", "left"),
    [
        (ms.FixedLossScaleManager(32.0), 1.0, 32.0),
        (ms.FixedLossScaleManager(32.0, drop_overflow_update=False), 32.0, None),
        (OwnManager(), 1.0, 3.0),
    ],
)
def test_scales_that_stay_and_scales_of_ones_own(manager: Any, scale: float, left: float | None) -> None:
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2)
    cells = net()
    wanted, _ = trained(64.0, 1000, cells)
    made = model(cells, manager, loss_scale=scale)
    made.train(1, rows(FACTORS if left is not None else (1.0, 1.0, 1.0, 1.0)))
    assert_parameters(cells, wanted)
    if left is not None:
        assert made.scaling is not None and float(np.asarray(made.scaling.scale)) == left


def test_sens_is_divided_by_the_optimizer() -> None:
    ms.reset_auto_parallel_context()
    plain, scaled = net(), net()
    for cells, sens in ((plain, None), (scaled, 8.0)):
        optimizer = nn.SGD(cells.trainable_params(), 0.1, loss_scale=sens or 1.0)
        step = nn.TrainOneStepCell(nn.WithLossCell(cells, nn.MSELoss()), optimizer, sens)
        step(X, Y)
    assert_parameters(scaled, [one.asnumpy() for one in plain.trainable_params()])


class Mixed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.tanh = nn.Dense(6, 8), nn.LayerNorm((8,)), nn.Tanh()
        self.matmul, self.weight = ops.MatMul(), ms.Parameter(np.full((8, 4), 0.1, np.float32))

    def construct(self, x: Any) -> Any:
        return self.matmul(self.tanh(self.norm(self.up(x))), self.weight)


LEVELS = {
    "O0": {"up.matmul": "f32", "norm.layer_norm": "f32", "tanh.tanh": "f32", "matmul": "f32"},
    "O1": {"up.matmul": "f16", "norm.layer_norm": "f32", "tanh.tanh": "f32", "matmul": "f16"},
    "O2": {"up.matmul": "f16", "norm.layer_norm": "f32", "tanh.tanh": "f16", "matmul": "f16"},
    "O3": {"up.matmul": "f16", "norm.layer_norm": "f16", "tanh.tanh": "f16", "matmul": "f16"},
}


@pytest.mark.parametrize("level", LEVELS)
def test_levels_say_what_is_narrow(level: str) -> None:
    cells = Mixed()
    names, wanted = [one.name for one in cells.get_parameters()], cells(X)
    made = amp.auto_mixed_precision(cells, level)
    traced = trace(made, X)
    kinds = {node.name: node.results[0].type.dtype.name for node in traced.graph.nodes}
    assert {name: kinds[name] for name in LEVELS[level]} == LEVELS[level]
    assert traced.graph.outputs[0].type.dtype.name == "f32"
    assert [one.name for one in made.get_parameters()] == names
    np.testing.assert_allclose(made(X), wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("level", LEVELS)
def test_levels_of_a_model_train_beside_float32(level: str) -> None:
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2)
    plain, cells = net(), net()
    Model(plain, nn.MSELoss(), nn.Momentum(plain.trainable_params(), 0.1, 0.9)).train(1, rows((1.0, 1.0)))
    made = Model(cells, nn.MSELoss(), nn.Momentum(cells.trainable_params(), 0.1, 0.9), {"mse"}, amp_level=level)
    assert isinstance(made.scaling, object if level == "O2" else type(None))
    if level == "O2":
        assert made.scaling is not None and float(made.scaling.scale.asnumpy()) == 2**24  # type: ignore[union-attr]
    made.train(1, rows((1.0,) * (2 if level != "O2" else 12)))
    if level != "O2":
        assert_parameters(cells, [one.asnumpy() for one in plain.trainable_params()], rtol=0.02)
    else:  # gradients overflow in float16 until the scale has fallen
        assert 0 < int(made.scaling.skipped.asnumpy()) < 12  # type: ignore[union-attr]
    assert made.eval(rows((1.0,)))["mse"] > 0


def test_auto_is_the_level_of_the_target() -> None:
    for target, level in ("GPU", "O2"), ("Ascend", "O3"):
        ms.set_context(device_target=target)
        assert (Model(net(), amp_level="auto").scaling is not None) is (level == "O2")
    ms.set_context(device_target="CPU")
    with pytest.raises(ContextError, match="'auto', which is O2 for device_target 'GPU'.* is 'CPU'; name the level"):
        Model(net(), amp_level="auto")


def test_lists_of_ones_own_say_what_is_narrow() -> None:
    white = amp.custom_mixed_precision(net(), white_list=[nn.Dense])
    black = amp.custom_mixed_precision(net(), black_list=amp.get_black_list(), dtype=ms.bfloat16)
    kinds = [{str(node.result_types[0].dtype) for node in trace(one, X).graph.nodes} for one in (white, black)]
    assert "f16" in kinds[0] and "bf16" in kinds[1]
    assert white(X).dtype == np.float32 and np.asarray(black(X)).dtype == np.float32


def test_a_step_is_built_of_a_level() -> None:
    ms.reset_auto_parallel_context()
    plain, cells = net(), net()
    nn.TrainOneStepCell(nn.WithLossCell(plain, nn.MSELoss()), nn.SGD(plain.trainable_params(), 0.1))(X, Y)
    step = amp.build_train_network(
        cells, nn.SGD(cells.trainable_params(), 0.1), nn.MSELoss(), "O3",
        loss_scale_manager=amp.FixedLossScaleManager(128.0),
    )  # fmt: skip
    loss, overflow, scale = step(X, Y)
    assert loss.dtype == np.float32 and not overflow and float(scale) == 128.0
    assert_parameters(cells, [one.asnumpy() for one in plain.trainable_params()], rtol=0.02)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loop_of_ones_own_scales() -> None:
    """Outside of steps: with value_and_grad, as the tutorial of mixed precision does."""
    cells = net()
    wanted, history = trained(64.0, 2, cells)
    scaler, loss_fn = amp.DynamicLossScaler(64, 2, 2), nn.MSELoss()
    optimizer = nn.Momentum(cells.trainable_params(), 0.1, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: scaler.scale(loss_fn(cells(x), y)), None, optimizer.parameters)
    for factor in FACTORS:
        loss, grads = grad_fn(ms.Tensor(X * np.float32(factor)), ms.Tensor(Y))
        finite = amp.all_finite(grads)
        if finite:
            optimizer(scaler.unscale(grads))
        scaler.adjust(finite)
    assert_parameters(cells, wanted)
    assert float(scaler.scale_value.asnumpy()) == history[-1][1]
    assert float(scaler.unscale(loss)) != float(loss)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: amp.custom_mixed_precision(net()), "give one of white_list and black_list"),
    (lambda: amp.custom_mixed_precision(net(), white_list=["x"]), "'x' is no class of cells or primitives"),
    (lambda: amp.custom_mixed_precision(net(), black_list=[ms.ops.ReLU]), "black_list has the primitive ReLU"),
    (lambda: amp.auto_mixed_precision(net(), "auto"), "'auto' is not offered"),
    (lambda: amp.auto_mixed_precision(net(), "O4"), "amp_level is 'O4'; it is one of 'O0', 'O1', 'O2', 'O3'"),
    (lambda: amp.auto_mixed_precision(net(), "O1", ms.int32), "dtype is i32; it is float16 or bfloat16"),
    (lambda: ms.FixedLossScaleManager(-1.0), "loss_scale is -1.0; it is a number above 0"),
    (lambda: ms.DynamicLossScaleManager(scale_factor=1), "factor is 1; it is a number above 1"),
    (lambda: model(net(), 128.0), "loss_scale_manager is 128.0; it is a FixedLossScaleManager"),
    (lambda: Model(net(), amp_level="O9"), "amp_level is 'O9'"),
    (lambda: nn.TrainOneStepCell(net(), None, sens=0), "sens is 0; it is a number above 0"),
    (lambda: nn.TrainOneStepWithLossScaleCell(net(), None, 128), "scale_sense is 128; it is a cell such as"),
    (lambda: nn.FixedLossScaleUpdateCell(0), "loss_scale_value is 0; it is a number above 0"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_what_is_no_scale_and_no_level_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ContextError, match=text):
        call()
