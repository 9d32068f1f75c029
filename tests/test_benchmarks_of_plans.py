"""benchmarks/plans_in_reality.py, contenders.py, large.py, planning_by_axes.py and mindspore_nets.py, in small: what
they judge, plan and refuse; no time is asserted."""

from __future__ import annotations

import pytest

from autoshard.layout.mesh import Mesh
from autoshard.search import evaluate_plan
from benchmarks import large, mindspore_nets, planning_by_axes, plans_in_reality
from benchmarks.contenders import PICK, contenders, meshes
from costmodel import preset


def test_judge_takes_the_ratio_to_the_fastest_of_the_final():
    predicted = {"pick": 1.0, "near": 1.1, "far": 4.0}
    first = {"pick": 2.0, "near": 1.9, "far": 9.0}
    times = {"pick": [2.2, 2.0, 3.0], "near": [2.0, 1.6, 2.0]}
    found = plans_in_reality.judge("p", predicted, first, times)
    assert found.fastest == "near" and found.ratio == pytest.approx(1.25)
    assert [(one.plan, one.final) for one in found.runs] == [("pick", 2.2), ("near", 2.0), ("far", None)]
    assert found.correlation == pytest.approx(0.5)


def test_turns_go_forth_and_back():
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    found = plans_in_reality.in_turns(runs, lambda seconds: max(seconds, plans_in_reality.BLOCK), rounds=3)
    assert "".join(order[2:]) == "abbaab"
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}


def test_options_that_no_run_can_have_are_refused(capsys):
    for words in (["--ranks", "1"], ["--programs", "none"], ["--plans", "1"]):
        with pytest.raises(SystemExit):
            plans_in_reality.parse(words)
    assert "known are wide layers" in capsys.readouterr().err


def test_contenders_begin_with_the_cheapest_and_differ():
    traced = plans_in_reality.programs(quick=True)["wide layers"]()
    pick, *others = contenders(traced, 4, preset("cpu"), 7, quick=True)
    assert pick.name.startswith(PICK) and len(others) == 6
    assert [one.seconds for one in others] == sorted(one.seconds for one in others)
    costs = [evaluate_plan(one.planned.plan, one.planned.hardware) for one in (pick, *others)]
    assert len({(one.seconds, one.bytes_per_device, one.peak_memory_bytes) for one in costs}) == 7
    assert len({one.planned.program.collectives for one in (pick, *others)}) > 3


def test_meshes_have_all_devices():
    found = meshes(8)
    assert [str(mesh) for mesh in found] == [str(Mesh.parse(one)) for one in ("8", "a=4 b=2", "a=2 b=4", "a=2 b=2 c=2")]


def test_a_large_program_is_measured_in_parts():
    row = large.measure(1, "dp=4 tp=4 sp=2", "megatron_sp", "h100")
    assert row["devices"] == 32 and row["collectives"] > 0
    assert row["all"] == pytest.approx(row["planned"] + row["partitioned"] + row["priced"])
    assert row["predicted_seconds"] > sum(row["predicted_axes"].values()) > 0


def test_each_cell_of_planning_by_axes_is_planned_or_says_why_not(capsys):
    block = planning_by_axes.traced_block("forward")
    sizes = planning_by_axes.parse_sizes("2x2")
    cells = {mode: planning_by_axes.measure(block, sizes, mode, "cpu", 60.0) for mode in ("batch", "zero1")}
    assert cells["batch"]["seconds"] > 0 and "training step" in cells["zero1"]["refused"]
    planning_by_axes.show([{"kind": "forward", "mesh": "2x2", "modes": cells}], list(cells))
    assert "zero1: the named plan" in capsys.readouterr().out


def test_nets_in_mindspores_style_are_held_against_nothing_propagated(capsys):
    traced = next(mindspore_nets.families()["tutorial's training, narrow inside"]())
    modes = ["sharding_propagation", "bfs"]
    found = mindspore_nets.measure(traced, 8, "cpu", modes)
    assert all(mindspore_nets.ratio(found, mode) <= 1 + 1e-9 for mode in modes)
    mindspore_nets.show({"tutorial": [found]}, modes)
    assert "bfs: at worst" in capsys.readouterr().out
