"""The search for stages finds what pricing every choice finds; its bounds and limits; what cannot be searched."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.layout.mesh import Mesh
from autoshard.pipeline import plan_pipeline
from autoshard.pipeline.joint.estimate import StageEstimates
from autoshard.pipeline.joint.guided import Expected, GuidedOrder
from autoshard.pipeline.joint.space import BlockWork, StageChoice, choices, placements, splits
from autoshard.pipeline.schedules import SCHEDULES, Durations, make_schedule, simulate
from autoshard.pipeline.stage_plans import StageMemo, most_memory
from autoshard.search import find_mode
from autoshard.search.problem import Problem
from autoshard.trace import set_seed
from autoshard.transform import train_step
from autoshard.util.errors import AutoshardError, MemoryLimitError, PlanError
from costmodel import format_seconds
from costmodel.preset_table import PRESETS

X = np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32)


def step_of(*widths, rows=2):
    set_seed(1)
    net = nn.SequentialCell(*(nn.Dense(a, b) for a, b in zip(widths, widths[1:], strict=False)))
    return train_step(
        lambda x: ops.reduce_mean(ops.square(net(x))), nn.SGD(net.trainable_params(), 0.1), X.repeat(rows // 2, 0)
    )


MODES = ("sharding_propagation", "bfs", "batch", "zero1", "zero3", "megatron", "megatron_sp")
"""The default, and what the search tries first of a stage on one axis."""


def test_the_fastest_of_all_choices_is_found():
    """All cuts between layers, meshes, micro batches and schedules, each planned and priced by itself."""
    step = step_of(256, 512, 384, 640)
    found = plan_pipeline(step, mesh="2", pipeline="auto", schedule="auto")
    seconds = []
    of_one = [("d=2", (), 1), *(("d=2", (cut,), 2) for cut in (1, 2))]  # one group may run two stages in a loop
    of_two = [("d=1/d=1", (cut,), 1) for cut in (1, 2)]
    for micro, (groups, cuts, chunks) in product((1, 2), of_one + of_two):
        stages = {f"{i}": sum(i >= cut for cut in cuts) for i in range(3)}
        for mode in MODES if "2" in groups else MODES[:1]:  # one device has one plan
            for name in SCHEDULES:
                settings = {"micro_batches": micro, "schedule": name, "search": mode, "chunks": chunks}
                with suppress(AutoshardError):
                    seconds.append(plan_pipeline(step, pipeline=groups, stages=stages, **settings).price.seconds)
    assert len(seconds) > 10
    assert found.price.seconds == pytest.approx(min(seconds), rel=1e-9)
    assert found.searched is not None and found.searched.gap == 0
    assert found.searched.bound <= min(seconds)
    others = found.searched.others
    assert any(one.groups == 1 and one.label.startswith("in one piece") for one in others)
    assert len({one.groups for one in others}) == len(others) > 1
    assert all(one.fits and one.seconds >= found.price.seconds for one in others)
    assert f"others  {format_seconds(others[0].seconds)}: {others[0].label}" in found.report()
    assert [one["label"] for one in found.view().data["pipeline"]["others"]] == [one.label for one in others]
    assert "none of them is faster" in found.report()


@pytest.mark.parametrize("kinds", ["1@h100/1@a100", "1@a100/1@h100"])
def test_the_fastest_on_unlike_devices_is_found(kinds):
    """All cuts, both orders of the kinds along the stages, micro batches and schedules."""
    step = step_of(256, 512, 384, 640)
    found = plan_pipeline(step, pipeline=f"auto:{kinds}", schedule="auto")
    seconds = []
    for groups, cut, micro, name in product(
        ("d=1@h100/d=1@a100", "d=1@a100/d=1@h100"), ((1,), (2,), (1, 2), (1, 2, 2)), (1, 2), SCHEDULES
    ):
        stages = {f"{i}": sum(i >= one for one in cut) for i in range(3)}
        settings = {"micro_batches": micro, "schedule": name, "chunks": (1 + max(stages.values())) // 2}
        with suppress(AutoshardError):
            seconds.append(plan_pipeline(step, pipeline=groups, stages=stages, **settings).price.seconds)
    assert len(seconds) > 10
    assert found.price.seconds <= min(seconds) * (1 + 1e-9)
    assert {group.hardware for group in found.groups} == {"h100", "a100"}
    of = [one.partition("@")[2] for one in kinds.split("/")]
    assert all(of[rank] == group.hardware for group in found.groups for rank in group.ranks)


def test_unlike_devices_are_dealt_by_kind():
    every = list(choices([2, 4], [1.0] * 8, (2,), 6, speeds=(3.0, 1.0)))
    for one in every:
        by_kind = [sum(n for n, kind in zip(one.devices, one.kinds, strict=True) if kind == each) for each in (0, 1)]
        assert by_kind == [2, 4]
    assert {(one.devices, one.kinds) for one in every} >= {((2, 4), (0, 1)), ((4, 2), (1, 0)), ((1, 1, 4), (0, 0, 1))}
    two = [one for one in choices([2, 2], [1.0] * 8, (2,), 2, speeds=(3.0, 1.0), most=4) if one.places == (0, 1)]
    assert {(one.kinds, one.cuts) for one in two} == {((0, 1), (6,)), ((1, 0), (2,))}


def test_least_seconds_are_below_every_schedule():
    rng = np.random.default_rng(3)
    every = list(choices([4], [1.0] * 6, (2, 5), 4))
    for _ in range(100):
        forward, more = rng.uniform(size=6), rng.uniform(size=(2, 6))
        none = (0.0,) * 6
        actions = tuple(forward), tuple(more[0]), tuple(more[1])
        work, choice = BlockWork(actions, none, none, none, (0,) * 6, none, none, none), every[rng.integers(len(every))]
        edges = (0, *choice.cuts, 6)
        spans = [slice(*pair) for pair in zip(edges, edges[1:], strict=False)]
        shares = [choice.devices[group] for group in choice.places]
        pairs = list(zip(spans, shares, strict=True))
        times = [tuple(one[span].sum() / share for span, share in pairs) for one in (forward, *more)]
        for name in SCHEDULES:
            order = _made(name, choice)
            if order is not None:
                least = work.least_seconds(choice)
                assert float(simulate(order, Durations(times[0], times[1], times[2])).makespan) >= least * (1 - 1e-12)


def _made(name, choice: StageChoice):
    groups = len(choice.devices)
    try:
        order = make_schedule(name, groups, choice.micro_batches, len(choice.places) // groups)
    except AutoshardError:
        return None
    return order if order.ranks_of_stages == choice.places else None


@pytest.mark.parametrize("mesh", ["d=4", "a=2,b=2"])
def test_one_piece_is_planned_as_well_as_it_is_by_hand(mesh):
    """Quick plans may say far too much of it."""
    step = step_of(256, 1024, 256, 2048, 128, 512, 16)
    found = plan_pipeline(step, mesh="4", pipeline="auto", schedule="1f1b", micro_batches=2, hardware="a100")
    by_hand = plan_pipeline(step, pipeline=mesh, micro_batches=2, hardware="a100")
    assert found.price.seconds <= by_hand.price.seconds * (1 + 1e-9)


def test_choices_that_a_named_plan_does_not_fit_are_passed_over():
    """4 parts do not divide 2 rows, and one device has no axis dp."""
    found = plan_pipeline(step_of(256, 8, 16), mesh="4", pipeline="auto", schedule="gpipe", search="zero1")
    assert found.searched is not None and found.searched.priced > 1
    found = plan_pipeline(step_of(256, 8), mesh="2", pipeline="auto", schedule="gpipe", search="zero3(dp)")
    assert [group.mesh.devices for group in found.groups] == [1, 1]


def test_too_many_choices_are_those_near_even_cuts_of_every_kind():
    seconds = [1.0] * 20 + [5.0] * 4
    found = list(choices([8], seconds, (1, 2), 8, most=2000))
    assert len(found) <= 2000 and len(set(found)) == len(found)
    assert {len(one.devices) for one in found} == {1, 2, 3, 4, 5, 6, 7, 8}
    straight = [one.cuts for one in found if one.devices == (2,) * 4 and len(one.places) == 4]
    assert (10, 20, 22) in straight and (1, 2, 3) not in straight
    assert len(list(choices([4], seconds[:6], (1,), 4))) > len(list(choices([4], seconds[:6], (1,), 4, most=50)))


def test_what_is_priced_guides_what_is_priced_next():
    def of(micro, cut, seconds, nbytes=1.0):
        return Expected(StageChoice(micro, (1, 1), (0, 1), (cut,)), seconds / 2, seconds, nbytes)

    every = [of(1, 1, 4.0), of(1, 2, 2.0), of(2, 1, 3.0), of(2, 2, 1.0, nbytes=9.0)]
    order = GuidedOrder(every, {one.choice: one.seconds for one in every}.__getitem__)
    first = order.take(below=10)
    assert first is not None and first == of(1, 2, 2.0)
    order.learn(first, 5.0, 1.0)  # 2.5 times what was expected, so 10 are expected of the other
    assert order.take(below=10) == of(2, 1, 3.0)
    assert sorted(order.least_left) == [0.5, 2.0]
    assert order.take(below=2) == of(2, 2, 1.0, nbytes=9.0)  # the others cannot take less
    assert order.take(below=2) is None


def test_devices_are_dealt_out_whole():
    assert set(splits(8, 3)) == {(2, 2, 4), (2, 4, 2), (4, 2, 2)}
    assert list(splits(5, 2)) == [] and list(splits(5, 5)) == [(1, 1, 1, 1, 1)]


def test_under_a_limit_a_pipeline_is_found_wherever_one_is():
    """However few are planned at most: those of the fewest bytes follow where none fits."""
    step = step_of(256, 512, 384, 640)
    every = [
        plan_pipeline(step, pipeline=groups, stages=stages, micro_batches=micro, search="batch", schedule="1f1b")
        for micro in (1, 2)
        for groups, stages in (("d=2", {"0": 0}), ("d=1/d=1", {"0": 0, "2": 1}), ("d=1/d=1", {"0": 0, "1": 1}))
    ]
    sizes = sorted(map(most_memory, every))
    for limit in (sizes[0], sizes[2]):
        settings: dict[str, Any] = {"mesh": "2", "pipeline": "auto", "schedule": "1f1b", "search": "batch"}
        found = plan_pipeline(step, memory=limit, **settings)
        assert most_memory(found) <= limit
        assert found.price.seconds <= min(one.price.seconds for one in every if most_memory(one) <= limit) * (1 + 1e-9)


def test_each_kind_of_devices_has_its_own_memory(monkeypatch):
    """The last block has most parameters; devices of the second kind have no room for it, by hand or found."""
    step = step_of(256, 256, 256, 256, 1024)

    def small(nbytes):
        a100 = PRESETS["a100"]
        monkeypatch.setitem(PRESETS, "small", replace(a100, device=replace(a100.device, memory_bytes=nbytes)))

    def needed(planned, kind="small"):
        pairs = zip(planned.groups, planned.price.memory, strict=True)
        return max(one.nbytes for group, one in pairs if group.hardware == kind)

    settings: dict[str, Any] = {"micro_batches": 2, "schedule": "1f1b", "search": "batch"}
    small(1 << 30)
    free = plan_pipeline(step, pipeline="auto:1@small/1@a100", **settings)
    room = needed(free) * 3 // 4
    small(room)
    for memory in (None, 1 << 30):
        found = plan_pipeline(step, pipeline="auto:1@small/1@a100", memory=memory, **settings)
        assert needed(found) <= room < needed(found, "a100")
    by_hand: dict[str, Any] = {**settings, "pipeline": "d=1@a100/d=1@small", "stages": {"{0..2}": 0, "3": 1}}
    assert "group 1 needs 3.05 MiB, more than small has" in plan_pipeline(step, **by_hand).report()  # not refused
    with pytest.raises(MemoryLimitError, match="limit of .* of small: a device of group 1, which runs stage 1"):
        plan_pipeline(step, memory=1 << 30, **by_hand)
    small(1000)
    with pytest.raises(MemoryLimitError, match="limit of 1000 B: the least that one needs .* on d=1@a100/d=1@small"):
        plan_pipeline(step, pipeline="auto:1@small/1@a100", memory=1 << 30, **settings)
    assert needed(plan_pipeline(step, pipeline="auto:1@small/1@a100", **settings)) > 1000


def test_one_group_may_have_a_loop_of_two_stages():
    assert list(placements(1)) == [(0,), (0, 0)]
    assert list(placements(2)) == [(0, 1), (0, 1, 0, 1), (0, 1, 1, 0)]


def test_equal_stages_are_searched_once():
    """Equal but for names, wherever they stand; a stage of other widths is another."""
    step, searched = step_of(256, 64, 64, 64, 64, 32), []
    stages = {f"{i}": i for i in range(5)}

    def counted(problem):
        searched.append(problem.graph)
        return search(problem)

    search = find_mode("batch")
    memo, plan = StageMemo(), planned_by_hand(step, stages)
    problems = [Problem(one.graph, Mesh.flat(2), plan.hardware) for one in plan.graphs]
    found = [memo.plan(one, counted) for one in problems]
    assert [graph.name[-1] for graph in searched] == ["0", "1", "4"]  # 1, 2 and 3 are equal
    for one, problem in zip(found, problems, strict=True):
        own = search(problem)
        assert one.graph is problem.graph and one.layouts == own.layouts and one.outputs == own.outputs
        causes = [[str(each.cause) for each in plan.decisions.values()] for plan in (one, own)]
        assert causes[0] == causes[1]


def test_equal_stages_with_loops_are_searched_once():
    """Wherever their other loops are equal, too, and go round as often."""
    searched, memo = [], StageMemo()

    def counted(problem):
        searched.append(problem.graph)
        return search(problem)

    search = find_mode("batch")
    for pieces in (2, 2, 4):
        step = step_of(256, 64, 32, rows=16)
        plan = plan_pipeline(step, mesh="pp=2", stages={"0": 0, "1": 1}, micro_batches=2, loss_pieces=pieces)
        problem = Problem(plan.graphs[1].graph, Mesh.flat(2), plan.hardware)
        found, own = memo.plan(problem, counted), search(problem)
        assert found.graph is problem.graph and found.layouts == own.layouts and found.outputs == own.outputs
        assert [str(one) for one in found.decisions.values()] == [str(one) for one in own.decisions.values()]
    assert len(searched) == 2


def planned_by_hand(step, stages):
    count = len(set(stages.values()))
    return plan_pipeline(step, pipeline="/".join(["d=1"] * count), stages=stages, micro_batches=2)


def test_estimates_are_the_price_where_all_is_known():
    """Of a block a stage, on one device each; where groups took more, that is expected of others like them."""
    step = step_of(256, 512, 384, 640)
    plan = planned_by_hand(step, {"0": 0, "1": 1, "2": 2})
    line = plan.price.durations
    kinds = line.forward, line.input_gradient, line.weight_gradient, line.forward_transfers, line.backward_transfers
    *actions, onward, back = (tuple(map(float, kind)) for kind in kinds)
    work = BlockWork(
        (actions[0], actions[1], actions[2]), *plan.price.started, plan.price.updates, (1, 1, 1), (0.0, 0.0, 0.0),
        onward[:-1], back[1:],
    )  # fmt: skip
    estimates = StageEstimates({2: work}, lambda choice: [make_schedule("1f1b", len(choice.devices), 2)])
    choice = StageChoice(2, (1, 1, 1), (0, 1, 2), (1, 2))
    assert estimates.seconds(choice) == pytest.approx(plan.price.seconds, rel=0.01)  # but for what is done once before
    other = StageChoice(2, (1, 2), (0, 1), (2,))
    before = estimates.seconds(other)
    of_one = planned_by_hand(step, {"0": 0, "1": 0, "2": 1})
    estimates.learn(StageChoice(2, (1, 2), (0, 1), (2,)), of_one.price)
    assert estimates.seconds(other) > before  # that group of "two" took what one takes


def test_searches_that_cannot_be():
    step = step_of(256, 8)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "needs to know how many devices"),
        ({"mesh": "2", "stages": {"0": 0}}, "finds the stages itself: leave out stages"),
        ({"mesh": "2", "chunks": 2}, "leave out chunks"),
        ({"mesh": 4}, "mesh is 4; give a Mesh or its text"),
        ({"mesh": "64", "search": "zero3(data)"}, "cannot use axes shard=data: .* the mesh has d="),
    )
    for settings, message in cases:
        with pytest.raises(PlanError, match=message):
            plan_pipeline(step, pipeline="auto", **settings)
    for text, mesh, message in (
        ("auto:4", None, "each number of devices needs what they are; write e.g. 'auto:4@h100/8@a100'"),
        ("auto:1@h1000/1@a100", None, "h1000"),
        ("auto:1@h100/1@a100", "4", "names 2 devices, and 4 are given"),
    ):
        with pytest.raises(PlanError, match=message):
            plan_pipeline(step, mesh=mesh, pipeline=text)
    with pytest.raises(MemoryLimitError, match=r"the least that one needs is .* holds .*\(.*weight"):
        plan_pipeline(step, mesh="1", pipeline="auto", schedule="auto", micro_batches=2, memory=100)
