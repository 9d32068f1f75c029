"""MPMD modules: Shardy's own partitioner takes them, leaves stages, meshes, order and transfers as planned, and what it
makes leads to what the step in one piece leads to."""

from __future__ import annotations

from functools import cache

import pytest

from autoshard.pipeline.schedules.action import BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from tests.exporters.stage_models import CASES, assert_close, planned_case, unsplit

pytestmark = pytest.mark.jax
pytest.importorskip("jax")


planned_once = cache(planned_case)


@cache
def partitioned(name):
    from autoshard.pipeline.exports.stage_spec import StagesSpec
    from tests.exporters.mpmd_reader import Partitioned

    planned, _, _ = planned_once(name)
    plan = StagesSpec(planned).plan()
    return Partitioned(planned.export("mpmd"), [grid.axes for grid in plan.grids]), plan


def expected_pieces(planned, group):
    """The fragments of pieces that a group runs for micro batches: (stage, transposed, micro batch), in its order."""
    pieces, found = planned.programs.pieces, []
    for action in planned.schedule.orders[group]:
        kinds = (INPUT_GRADIENT, WEIGHT_GRADIENT) if action.kind == BACKWARD else (action.kind,)
        found += [(action.stage, kind != "F", action.micro) for kind in kinds if (action.stage, kind) in pieces]
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_partitioner_keeps_the_plan(name):
    if name == "words":
        pytest.importorskip("torch")
    planned, given, graph = planned_once(name)
    found, plan = partitioned(name)
    for group in range(planned.schedule.ranks):
        own = [one for one in found.info if one.mesh_name == f"group{group}" and one.call_counter is not None]
        told = [(one.stage_id, bool(one.origins[0].transpose_count), one.call_counter) for one in own]
        assert told == expected_pieces(planned, group)
        names = [one.origins[0].computation_name for one in found.info if one.mesh_name == f"group{group}"]
        called = [one.origin for one in found.calls if one.mesh == f"group{group}"]
        assert len(called) == len(names) and all(f'"{a}"' in b for a, b in zip(names, called, strict=True))
    outputs = found.run(list(given.values()))
    assert_close(dict(zip((one.name for one in plan.outputs), outputs, strict=True)), unsplit(graph, given, 1))


@pytest.mark.parametrize("name", ["zero1", "looped", "zero3"])
def test_transfers_are_the_routes(name):
    """One for each value and micro batch that crosses, in the layout in which it sets out; and one for each input of
    the step that other groups read than that where it lies."""
    planned, _, _ = planned_once(name)
    found, plan = partitioned(name)
    crossing = [one for one in plan.routes if plan.groups[one.source[0]] != plan.groups[one.stage]]
    values = {
        (one.source, one.output, plan.groups[one.stage]): plan.micro_batches if one.repeated and not one.summed else 1
        for one in crossing
    }
    sources = [(one.of, plan.groups[piece.stage]) for piece in plan.pieces for one in piece.sources]
    read = {one.name: {group for of, group in sources if of == one.name} for one in plan.inputs}
    assert len(found.transfers) == sum(values.values()) + sum(max(len(groups) - 1, 0) for groups in read.values())
    assert crossing
    for before, after in found.transfers:
        assert before.split(", ", 1)[1] == after.split(", ", 1)[1] and before != after


def test_shardings_are_the_layouts():
    planned, _, _ = planned_once("zero1")
    text = planned.export("mpmd")
    assert 'sdy.mesh @mesh = <["dp"=2, "tp"=2]>' in text
    assert '"group1" : <["dp"=2, "tp"=2]>' in text and 'unreduced={"dp"}' in text
    assert text.count("mpmd.fragment<") == len([one for one in partitioned("zero1")[0].calls])
    names = [value.name for value in planned.graph.inputs]
    assert [line for line in text.splitlines() if line.startswith("// %arg")] == [
        f"// %arg{i}: {name}" for i, name in enumerate(names)
    ]
