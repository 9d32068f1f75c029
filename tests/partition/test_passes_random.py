"""Random programs through all passes: legal, with equal results, no more bytes, no more memory, in every step."""

from __future__ import annotations

import pytest

from autoshard.cost.instructions import Costs
from autoshard.cost.program_memory import program_memory
from autoshard.cost.timeline import step_seconds, timeline
from autoshard.optimize import PASSES, optimize
from autoshard.optimize.pipeline import BUCKET, MORE_MEMORY
from autoshard.optimize.rewrite import without_dead
from autoshard.partition.lower import lower
from autoshard.partition.program import Program, walk
from autoshard.partition.verify import verify_program
from costmodel import preset
from tests.oracle import test_programs as programs
from tests.oracle.check import assert_same
from tests.partition.test_nests_random import Drawn
from tests.partition.uneven_plans import check_equals_whole, random_plan, random_program
from tests.search.plans import array, checked

EVEN, UNEVEN = (4, 6, 10, 12, 24), (5, 6, 7, 9, 10, 13, 24)


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed, monkeypatch):
    monkeypatch.setattr(programs, "SIZES", UNEVEN if seed % 4 == 3 else EVEN)
    rng, mesh, graph, feeds = random_program(seed, 404)
    program = lower(random_plan(graph, mesh, rng))
    more = (1.0, MORE_MEMORY, 1.5)[seed % 3]
    made, savings = optimize(program, preset("cpu").for_ranks(mesh.devices), PASSES, more_memory=more, bucket=0)
    limit = more * savings[0].before.peak
    for one in savings:
        assert one.nbytes > -1e-6 and one.collectives >= 0 and one.after.peak <= limit, one
        assert one.after.overlapped_seconds <= one.before.overlapped_seconds * (1 + 1e-9), one
    for one in (program, made):
        check_costs(one)
    assert without_dead(without_dead(made)) is without_dead(made)
    check_equals_whole(made, graph, feeds)


def check_costs(program: Program) -> None:
    """Prices are the same whatever was priced before, and short cuts give what the long ways give."""
    hardware = preset("cpu").for_ranks(program.mesh.devices)
    costs = Costs(hardware)
    for one in walk(program.instructions):
        assert costs.of(one) == Costs(hardware).of(one)
    total = costs.total(program.instructions)
    assert costs.moved(program.instructions) == (round(total.nbytes, 3), total.collectives)
    assert step_seconds(program, costs) == pytest.approx(timeline(program, costs).seconds, rel=1e-9)
    assert costs.peak(program) == program_memory(program, None).peak


@pytest.mark.parametrize("seed", range(100, 106))
def test_random_nests(seed):
    drawn = Drawn(seed)
    n, m = drawn.shape
    inputs = [array(n, m, seed=seed), array(m, m, seed=seed) / m**0.5]
    mode = ("factor", "bfs", "sharding_propagation", "batch")[seed % 4]
    planned = checked(drawn, inputs, str(drawn.mesh), search=mode, passes=tuple(PASSES))
    before = planned.savings[0].before.peak
    assert planned.savings[-1].after.peak <= max(MORE_MEMORY * before, before + BUCKET)
    check_costs(planned.program)
    again, _ = optimize(planned.program, planned.hardware, ["share"])
    verify_program(again)


def test_passes_are_the_same_every_time():
    drawn = Drawn(11)
    n, m = drawn.shape
    inputs = [array(n, m, seed=1), array(m, m, seed=1) / m**0.5]
    planned = checked(drawn, inputs, str(drawn.mesh), search="batch")
    other = checked(drawn, inputs, str(drawn.mesh), search="batch")
    assert [type(one) for one in planned.program.instructions] == [type(one) for one in other.program.instructions]
    assert [one.after for one in planned.savings] == [one.after for one in other.savings]
    for ours, theirs in zip(planned.run(*inputs), other.run(*inputs), strict=True):
        assert_same(ours, theirs, 0.0, "the same program")
