"""What `autoshard run --check` takes for equal: outputs to 1e-4 of the largest, updates to a thousandth of the step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard import Parameter, nn, ops, optim, trace
from autoshard.cli import model_run
from autoshard.cli.agreement import Agreement, compare
from autoshard.cli.module_run import is_narrow
from autoshard.cli.rounding import moved_by_rounding
from autoshard.cli.ties import picked_among_equal
from autoshard.layout.mesh import Mesh
from autoshard.transform.train import train_step


def compared(outputs=(), wanted=(), before=None, after=None, updated=None) -> Agreement:
    return compare([*outputs], [*wanted], before or {}, after or {}, updated or {})


def stepped(error: float, step: float = 1e-3, dtype: type = np.float32) -> Agreement:
    """A tensor of numbers near 1 that moves by a step, the largest element's too far by a share of it."""
    before = np.linspace(-1, 1, 12, dtype=np.float64)
    move = np.linspace(0.1, 1, 12) * step
    found = move.copy()
    found[-1] += error * step
    arrays = {"w": before.astype(dtype)}
    return compared(
        before=arrays, after={"w": (before + found).astype(dtype)}, updated={"w": (before + move).astype(dtype)}
    )


@given(st.floats(1e-4, 10.0), st.floats(3e-3, 1.0))
def test_a_step_is_equal_to_a_thousandth_of_it(step: float, error: float) -> None:
    assert not stepped(0.5e-3, step, np.float64).wrong
    (told,) = stepped(error, step, np.float64).wrong
    assert told.startswith("w after its update, by up to ")


def test_numbers_are_those_of_the_worst() -> None:
    outputs = np.float32([1, 2, 4]), np.int32([3])
    wrong = compared((np.float32([1, 2, 4.2]), np.int32([3])), outputs)
    assert wrong.wrong == ("output 0, float32[3], by up to 0.2; up to 0.0004 is rounding",)
    assert wrong.difference == pytest.approx(0.05, rel=1e-4) and wrong.outputs == 2
    assert str(wrong) == "2 outputs within 5.0e-02 of the largest element"
    close = stepped(0.4e-3, 1.0, np.float64)
    assert close.step_difference == pytest.approx(0.4e-3, rel=0.03)
    assert "1 updated tensor within 4.0e-04 of the step" in str(close) or "3.9e-04" in str(close)


def test_rounding_of_the_element_type_is_no_difference() -> None:
    before = np.ones(4, ml_dtypes.bfloat16)
    one_more = (before.astype(np.float32) + 2.0**-8).astype(ml_dtypes.bfloat16)
    assert not compared(before={"w": before}, after={"w": one_more}, updated={"w": before}).wrong
    far = (before.astype(np.float32) + 0.25).astype(ml_dtypes.bfloat16)
    assert compared(before={"w": before}, after={"w": far}, updated={"w": before}).wrong


def test_a_tensor_that_should_not_move_may_do_so_by_noise_only() -> None:
    before = {"w": np.zeros(3), "bias": np.zeros(3)}
    updated = {"w": np.full(3, 1e-2), "bias": np.zeros(3)}
    assert not compared(before=before, after={**updated, "bias": np.full(3, 5e-8)}, updated=updated).wrong
    assert compared(before=before, after={**updated, "bias": np.full(3, 1e-6)}, updated=updated).wrong


def test_whole_numbers_are_equal_or_not_and_nan_is_nan() -> None:
    counts = {"n": np.int64([4])}
    assert not compared(before=counts, after={"n": np.int64([5])}, updated={"n": np.int64([5])}).wrong
    assert compared(before=counts, after=counts, updated={"n": np.int64([5])}).wrong
    odd = np.float32([np.nan, -np.inf, 1])
    assert not compared((odd,), (odd,)).wrong and compared((odd,), (odd,)).difference == 0
    lost = compared(before={"w": np.zeros(2)}, after={"w": np.full(2, np.nan)}, updated={"w": np.ones(2)})
    assert lost.wrong and lost.step_difference == np.inf


def test_elements_that_rounding_moves_are_no_difference_and_are_counted() -> None:
    before, updated = {"w": np.zeros(4), "bias": np.zeros(3)}, {"w": np.full(4, 1e-2), "bias": np.float64([1e-2, 0, 0])}
    after = {"w": np.full(4, 1e-2), "bias": np.float64([1e-2, 3e-3, -2e-3])}
    strict = compared(before=before, after=after, updated=updated)
    assert strict.wrong_updates == ("bias",) and strict.loose == 0
    loose = {"bias": np.float64([0.0, 1e-3, 1e-3])}
    agreed = compare([], [], before, after, updated, loose)
    assert not agreed.wrong and agreed.loose == 2 and agreed.step_difference < 1e-3
    assert str(agreed).endswith("; rounding decides 2 elements more")
    moved = {**after, "bias": np.float64([2e-2, 3e-3, -2e-3])}
    assert compare([], [], before, moved, updated, loose).wrong_updates == ("bias",)


def test_narrow_numbers_on_the_way_allow_more() -> None:
    outputs, wanted = [np.float32([1.0, 2.001])], [np.float32([1.0, 2.0])]
    assert compare(outputs, wanted, {}, {}, {}).wrong and not compare(outputs, wanted, {}, {}, {}, narrow=True).wrong
    far = [np.float32([1.0, 2.1])]
    assert compare(far, wanted, {}, {}, {}, narrow=True).wrong
    x = np.ones((4, 6), np.float32)
    assert is_narrow(trace(lambda x: x.astype("bf16").astype("f32"), x).graph)
    assert not is_narrow(trace(lambda x: x * 2, x).graph)


def last(runs: Iterator[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return [*runs][-1]


def test_rounding_moves_what_adam_makes_of_a_gradient_that_is_zero() -> None:
    """The softmax of x + b does not change with b, so that the gradient of b is rounding."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    bias, weight = (Parameter(rng.normal(size=5).astype(np.float32), name=name) for name in ("bias", "weight"))

    def loss(x):
        every = ops.reduce_sum(bias, keep_dims=True)
        return (ops.softmax(x * weight + every) * x).sum()

    step = train_step(loss, nn.Adam([bias, weight], 0.01), x)
    given = [np.array(one) for one in step.traced.inputs(x)]
    moved = last(moved_by_rounding(step.traced, given, ["bias", "weight", "unknown"]))
    assert set(moved) == {"bias", "weight"}
    assert np.all(moved["weight"] < 1e-5) and np.all(moved["bias"] > 1e-4)


@pytest.mark.filterwarnings("error")
def test_rounding_moves_imaginary_parts_too() -> None:
    x = np.linspace(0.1, 1, 6, dtype=np.float32)
    weight = Parameter(np.exp(1j * np.arange(6)).astype(np.complex64), name="weight")
    adam = optim.Adam([weight], 0.1)
    step = train_step(lambda x: ops.reduce_sum(ops.square(ops.imaginary_part(ops.mul(weight, x)))), adam, x)
    (moved, *_) = moved_by_rounding(step.traced, step.traced.inputs(x), ["weight"])
    assert moved["weight"].dtype == np.float64 and 0 < moved["weight"].max() < 1e-5


def test_a_choice_among_equal_values_is_told() -> None:
    """The first row has two of the second largest element, the other one none that is left out."""
    x = np.float32([[3, 1, 1, 0], [2, 2, 1, 0]])
    traced = trace(lambda x: ops.top_k(x, k=2)[0] * ops.top_k(x * 0, k=4)[0].sum() + ops.top_k(x - x, k=3)[0].sum(), x)
    told = [*picked_among_equal(traced, traced.inputs(x))]
    assert [line.split(" at ")[0] for line in told] == ["top_k (TopK)", "top_k_2 (TopK)"]
    assert [line.rpartition("values ")[2] for line in told] == ["in 1 of 2 rows", "in 2 of 2 rows"]


def test_rounding_moves_sums_that_cancel_out() -> None:
    """Ones and minus ones over a count: exactly zero in this order, and not in that of a split sum."""
    x = np.repeat(np.float32([1, -1]), 21)
    bias = Parameter(np.zeros(1, np.float32), name="bias")
    step = train_step(lambda x: (ops.reduce_mean(x * bias) + ops.square(bias - 1)).sum(), nn.Adam([bias], 0.01), x)
    assert last(moved_by_rounding(step.traced, step.traced.inputs(x), ["bias"]))["bias"].max() < 1e-5
    for narrow in ("f32", "bf16"):
        step = train_step(lambda x, of=narrow: ops.reduce_mean((x * bias).astype(of)), nn.Adam([bias], 0.01), x)
        assert last(moved_by_rounding(step.traced, step.traced.inputs(x), ["bias"]))["bias"].max() > 1e-4


SCRIPT = """
import numpy as np
from autoshard import nn
from autoshard.transform.train import train_step
class Slope:
    def __call__(self, rng, shape):
        return np.linspace(-1, 1, int(np.prod(shape))).reshape(shape)

def step():
    net = nn.Dense(8, 4, weight_init=Slope())
    loss = nn.MSELoss()
    x, y = np.ones((6, 8), np.float32), np.zeros((6, 4), np.float32)
    return train_step(lambda x, y: loss(net(x), y), nn.Adam(net.trainable_params(), 0.1), x, y)
"""


def test_a_step_of_an_own_model_is_compared_with_its_unsplit_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Its initial values are made by the script, which ranks do not load."""
    script = tmp_path / "own_step.py"
    script.write_text(SCRIPT)
    path = model_run.prepare(f"{script}:step", Mesh.parse("dp=2"), None, True, tmp_path)
    del sys.modules["own_step"]
    assert model_run.run_prepared(path) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("\nequal to the unsplit run\n") and "7 updated tensors within" in printed
    told = json.loads(path.with_suffix(".json").read_text())
    assert told["updates"] == 7 and told["wrong"] == [] and told["operators"] >= 10
