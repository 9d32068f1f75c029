"""`autoshard calibrate`, and plans for what it saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

import autoshard as ash
from autoshard import nn
from autoshard.api import plan
from autoshard.calibrate import (
    FULL,
    QUICK,
    CalibrationError,
    Effort,
    calibrate,
    job_sizes,
    measure,
    measure_collectives,
    planned_steps,
)
from autoshard.core.tensortype import TensorType
from autoshard.partition.program import Collective, Program, walk
from autoshard.runtime.local import LocalComm
from autoshard.util.errors import ContextError, PlanError
from costmodel import Hardware, load, preset, save
from costmodel.measure import alone

MODELS = Path(__file__).with_name("models.py")
TINY = Effort((2**9, 2**12, 2**14), (8,), 1e-4, 1e-4, 1)
SHORT = Effort((2**9, 2**13, 2**17), (48,), 1e-3, 2e-3, 1)


def saved(path: Path) -> Path:
    """Hardware that is ten times as slow for four ranks as for two."""
    cpu = preset("cpu")
    each = tuple((n, Hardware(f"{n} ranks", cpu.device.slowed(t), cpu.topology)) for n, t in ((2, 1), (4, 10)))
    return save(replace(cpu, name="mine", by_ranks=each), path)


@pytest.mark.mpi
def test_calibrate_measures_prints_and_saves(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("autoshard.calibrate.QUICK", SHORT)
    path = tmp_path / "here.json"
    code, out, err = cli("calibrate", "-n", "2", "--quick", "-o", str(path))
    assert code == 0, err
    assert "measuring with 2 ranks" in err
    for row in ("all_reduce of 2", "permute of 2", "MatMul", "Adam", f"saved to {path}; plan with --hardware {path}"):
        assert row in out
    found = load(path)
    assert [ranks for ranks, _ in found.by_ranks] == [2]
    link = found.topology.link(2)
    assert {one.kind for one in link.curves} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"}
    assert {"MatMul", "Add", "Softmax", "Adam", "GatherGrad"} <= {one.operator for one in found.device.operators}
    # What this machine does lies between a slide rule and a cluster.
    assert 1e7 < found.device.peak("f32") < 1e13
    assert 0 < link.latency < 0.1

    code, out, err = cli("plan", f"{MODELS}:free", "-n", "2", "--hardware", str(path), "--json")
    assert code == 0, err
    assert json.loads(out)["hardware"] == "2 ranks"


def test_what_was_measured_is_saved_before_it_is_printed(tmp_path, monkeypatch):
    """As where the reader of a pipe stops in the middle of the tables."""
    from autoshard.calibrate import Calibration
    from autoshard.cli import calibrating
    from costmodel import preset

    def stopped(*_):
        raise BrokenPipeError

    found = Calibration(preset("cpu"), (("operators", ()),))
    monkeypatch.setattr("autoshard.calibrate.calibrate", lambda *_, **__: found)
    monkeypatch.setattr(calibrating, "_show", stopped)
    with pytest.raises(BrokenPipeError):
        calibrating.calibrate(ranks=2, output=tmp_path / "here.json")
    assert load(tmp_path / "here.json").name == "cpu"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("-n", "1"), "cannot calibrate with 1 ranks"),
        (("-n", "65"), "2 to 64"),
        (("-n", "2", "-o", "here.txt"), "ending .json"),
        ((), "-n"),
    ],
)
def test_calibrate_refuses(cli, arguments, words):
    code, _, err = cli("calibrate", *arguments)
    assert code == 2
    assert words in err


def test_a_job_that_fails_is_no_calibration(monkeypatch):
    monkeypatch.setattr("autoshard.calibrate.launch", lambda *_, **__: 3)
    with pytest.raises(CalibrationError, match="measuring with 2 ranks failed: the job ended with exit code 3"):
        calibrate(2)


def test_ranks_are_told_how_much_to_measure():
    assert [Effort.from_text(one.text()) for one in (SHORT, QUICK, FULL)] == [SHORT, QUICK, FULL]
    assert all(small <= large for small, large in zip(astuple(QUICK)[2:], astuple(FULL)[2:], strict=True))


@pytest.mark.parametrize("ranks, sizes", [(2, [2]), (3, [2, 3]), (6, [2, 4, 6]), (8, [2, 4, 8])])
def test_job_sizes(ranks, sizes):
    assert job_sizes(ranks) == sizes


def test_every_kind_is_measured_in_groups_of_every_size():
    found = list(measure_collectives(LocalComm(6), TINY, alone))
    assert {one.ranks for one in found} == {2, 3, 6}
    by_kind = {kind: [one for one in found if one.kind == kind] for kind in dict.fromkeys(one.kind for one in found)}
    assert len(by_kind) == 5
    for samples in by_kind.values():
        assert len(samples) == 9
        assert all(one.seconds > 0 for one in samples)
        # Bytes are those asked for, but for what makes blocks equal.
        assert all(asked / 2 <= one.nbytes <= 2 * asked for asked, one in zip(TINY.nbytes * 3, samples, strict=True))


def test_operators_and_programs_are_measured_as_costmodel_prices_them():
    programs = planned_steps(1, TINY.widths)
    found = measure(LocalComm(1), TINY, programs, operators=True)
    assert not found.collectives
    names = {one.operator for one in found.operators}
    assert {"MatMul", "BatchMatMul", "Einsum", "Softmax", "LayerNorm", "ReduceSum", "Transpose", "Gather"} <= names
    assert {"RmsNorm", "SiLU", "Concat", "Convolution", "SelectAndScatter", "Adam", "SGD"} <= names
    product = next(one for one in found.operators if one.operator == "MatMul")
    assert (product.flops, product.nbytes) == (2 * 16 * 8 * 32, 4 * (16 * 8 + 8 * 32 + 16 * 32))
    kinds = ("layers", "layers of few rows", "layers of many rows", "decoder", "gated decoder", "convolutions")
    assert [one.name for one in programs] == [f"{kind}, 8 wide" for kind in kinds]
    assert len(found.programs) == 6 and min(found.programs) > 0


def test_programs_of_several_ranks_are_split_in_several_ways():
    programs = planned_steps(4, (8,))
    assert [one.ranks for one in programs] == [1, 4, 4, 4] * 5 + [1, 4, 4]
    kinds = {step.kind for one in programs for step in steps_of(one.planned.program) if step.communicates}
    assert {"all_reduce", "all_gather"} <= kinds
    assert {one.planned.program.mesh.devices for one in programs} == {1, 4}


@pytest.mark.parametrize("ranks, has_columns", [(3, True), (6, True), (7, False)])
def test_any_number_of_ranks_shares_the_batches(ranks, has_columns):
    """Plans that do not fit so many are left out, as columns of four heads on six."""
    found = [one.name for one in planned_steps(ranks, (8,)) if one.ranks == ranks]
    assert sum(name.endswith("data_parallel") for name in found) == sum(name.endswith("zero1") for name in found) == 6
    assert any(name.endswith("megatron") for name in found) == has_columns


def steps_of(program: Program) -> Iterator[Any]:
    return (one.step for one in walk(program.instructions) if isinstance(one, Collective))


def dense() -> tuple[nn.Cell, tuple[TensorType, ...]]:
    return nn.Dense(48, 96), (TensorType.of((24, 48), "f32"),)


def test_plans_take_hardware_from_files_by_ranks(tmp_path):
    path = saved(tmp_path / "mine.json")
    two, four = (plan(*dense(), devices=n, hardware=str(path)) for n in (2, 4))
    assert (two.hardware.name, four.hardware.name) == ("2 ranks", "4 ranks")
    assert plan(*dense(), devices=4, hardware=load(path)).cost == four.cost
    # The same share of the work, ten times as slow.
    slow = plan(*dense(), devices=2, hardware=load(path).by_ranks[1][1])
    assert slow.cost.compute_seconds == pytest.approx(10 * two.cost.compute_seconds)


def test_the_name_calibrated(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("AUTOSHARD_CALIBRATION", str(tmp_path / "mine.json"))
    with pytest.raises(PlanError, match="hardware 'calibrated': there is no hardware file"):
        plan(*dense(), devices=2, hardware="calibrated")
    with pytest.raises(ContextError, match="hardware is 'calibrated': there is no hardware file"):
        ash.set_auto_parallel_context(hardware="calibrated")
    saved(tmp_path / "mine.json")
    assert plan(*dense(), devices=2, hardware="calibrated").hardware.name == "2 ranks"
    ash.set_auto_parallel_context(hardware="calibrated")
    ash.reset_auto_parallel_context()
    code, out, _ = cli("plan", f"{MODELS}:free", "-n", "4", "--hardware", "calibrated", "--json")
    assert code == 0
    assert json.loads(out)["hardware"] == "4 ranks"


def test_a_file_that_holds_something_else(tmp_path, cli):
    path = tmp_path / "else.json"
    path.write_text("[]")
    code, _, err = cli("plan", f"{MODELS}:free", "-n", "2", "--hardware", str(path))
    assert code == 2
    assert f"{path} is no hardware file" in err
