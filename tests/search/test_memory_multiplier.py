"""The default mode under a memory limit: prices of bytes, and plans that fit where they would not have."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autoshard.api import plan
from autoshard.cost.evaluate import program_seconds
from autoshard.cost.memory import memory_of, peak_memory
from autoshard.cost.prices import prices_for
from autoshard.cost.schedule import GraphMoments
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT
from autoshard.partition.composites import call_scratch
from autoshard.plan.plan import Plan
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.local.byte_prices import byte_prices
from autoshard.search.local.memory_multiplier import MemoryEvaluator, search_within_limit, worst_moments
from autoshard.search.memory_limit import least_bytes
from autoshard.search.modes.batch import batch_parallel
from autoshard.search.problem import Problem
from autoshard.search.program_price import program_of
from autoshard.util.errors import MemoryLimitError
from benchmarks.models import transformer_step
from costmodel import Hardware, preset

HARDWARE, MESH = preset("h100"), Mesh.parse("dp=2 tp=4")
PRICE = 2.0**-30


@cache
def step():
    """Wide against its few tokens, so that parameters and their states fill memory."""
    return transformer_step(1, 1, 1, hidden=256, heads=8, vocabulary=160, sequence=24, batch=8)


@cache
def problem() -> Problem:
    return Problem(step().graph, MESH, HARDWARE)


@cache
def batch():
    return batch_parallel(problem())


def strategies():
    return {node: batch().strategy(node) for node in problem().graph.nodes}


@cache
def free():
    return plan(step(), mesh=MESH, hardware=HARDWARE).plan


def test_model_of_drafts_is_that_of_plans():
    memory = MemoryEvaluator(problem())
    inputs = {value: batch().layouts[value] for value in problem().graph.inputs}
    assert (memory.timeline(strategies(), inputs) == memory_of(batch()).timeline).all()


@pytest.mark.parametrize("found", [batch, free])
def test_noted_peaks_are_those_of_the_plans_own_model(found):
    memory, made = MemoryEvaluator(problem()), replace(found())
    memory.note(made)
    assert peak_memory(made) == memory_of(found()).peak == peak_memory(replace(found()))


def test_price_of_a_moment_is_paid_for_all_that_lies_there():
    """All that the exact model counts at a moment is paid for, but for buffers, and what replaces an input: that
    is paid for in the input's place."""
    use, schedule, prices = memory_of(batch()), GraphMoments(problem().graph), prices_for(HARDWARE)
    unpriced = {value.name for value in problem().graph.tied}
    for moment in (0, use.peak_moment, *range(7, use.moments, 97)):
        assignment = Assignment(Pricing(problem(), prices, byte_prices(schedule, {moment: PRICE})), strategies())
        free_of_charge = Assignment(Pricing(problem(), prices), strategies())
        paid = assignment.byte_seconds / PRICE
        there = [one for one in use.at(moment) if one.kind not in ("buffer", "runtime", "scratch")]
        least = sum(one.nbytes for one in there if one.what not in unpriced)
        assert least - 1e-6 <= paid <= 3 * sum(one.nbytes for one in use.at(moment)) + 1, moment
        assert assignment.seconds - assignment.byte_seconds == pytest.approx(free_of_charge.seconds)


def test_no_price_changes_nothing():
    prices, none = prices_for(HARDWARE), byte_prices(GraphMoments(problem().graph), {})
    assignment = Assignment(Pricing(problem(), prices, none), strategies())
    assert assignment.byte_seconds == 0.0
    assert assignment.seconds == Assignment(Pricing(problem(), prices), strategies()).seconds


def test_scratch_is_that_of_the_operator():
    for node in problem().graph.nodes[::7]:
        strategy = batch().strategy(node)
        assert (
            0
            <= call_scratch(node, strategy)
            <= max(one.nbytes for one in memory_of(batch()).held if one.kind == "scratch" and one.what == node.label)
        )


def test_worst_moments_are_one_for_each_stretch():
    import numpy as np

    assert worst_moments(np.array([5, 9, 8, 3, 7, 7, 2, 6]), 5) == [1, 4, 7]
    assert worst_moments(np.array([1, 2]), 5) == []


@pytest.mark.parametrize("share", [0.8, 0.45])
def test_limit_is_kept(share):
    limit = int(peak_memory(free()) * share)
    found = plan(step(), mesh=MESH, hardware=HARDWARE, memory=limit).plan
    assert peak_memory(found) <= limit < peak_memory(free())
    assert found.search == "sharding_propagation"
    assert _price(found) >= _price(free()) * 0.999


def _price(found: Plan) -> float:
    return program_seconds(program_of(found, HARDWARE, DEFAULT)[0], HARDWARE)


def test_no_slower_than_hand_plans_that_fit():
    limit = int(peak_memory(free()) * 0.6)
    ours = _price(plan(step(), mesh=MESH, hardware=HARDWARE, memory=limit).plan)
    for name in ("zero3", "megatron", "megatron_sp"):
        hand = plan(step(), mesh=MESH, hardware=HARDWARE, search=name).plan
        assert peak_memory(hand) > limit or ours <= _price(hand)


def test_no_byte_has_a_price_where_all_starts_fit():
    start = strategies()
    found = search_within_limit(problem(), [start], 2 * peak_memory(batch()))
    assert found.peak <= 2 * peak_memory(batch())
    assert found.seconds <= Assignment(Pricing(problem(), prices_for(HARDWARE)), start).seconds


def test_a_limit_that_is_not_reached_changes_nothing():
    found = plan(step(), mesh=MESH, hardware=HARDWARE, memory=peak_memory(free())).plan
    assert found.layouts == free().layouts
    assert all(found.strategy(node) == free().strategy(node) for node in free().graph.nodes)


def test_what_cannot_fit_is_refused_with_the_least_that_was_found():
    limit = least_bytes(step().graph, MESH.devices)
    with pytest.raises(MemoryLimitError, match=r"^the plan of .* is over the memory limit") as caught:
        plan(step(), mesh=MESH, hardware=HARDWARE, memory=limit)
    assert caught.value.limit == limit < caught.value.needed < peak_memory(free())


def test_less_than_a_part_of_all_inputs_is_refused_before_any_search(monkeypatch):
    """Named: what no plan can need less than, and on how many devices there were room."""
    least = least_bytes(step().graph, MESH.devices)
    monkeypatch.setattr("autoshard.api.find_mode", None)
    with pytest.raises(MemoryLimitError, match=r"any plan of .* inputs, split evenly over 8 devices") as caught:
        plan(step(), mesh=MESH, hardware=HARDWARE, memory=least - 1)
    assert caught.value.needed == least and "9 devices have room for them" in str(caught.value)
    assert sum(value.type.nbytes for value in step().graph.inputs) <= 9 * (least - 1)


def test_what_is_configured_stays():
    node = next(node for node in problem().graph.nodes if node.op.name == "MatMul")
    fixed = {node: batch().strategy(node)}
    found = search_within_limit(replace(problem(), fixed=fixed), [strategies()], 1)
    assert found.strategies[node] == fixed[node]


def _with_memory(nbytes: int) -> Hardware:
    return replace(HARDWARE, device=replace(HARDWARE.device, memory_bytes=nbytes))


def test_what_a_device_has_is_kept_to_where_it_can_be():
    """Without a limit of the user's: a plan that the devices hold, or the cheapest of all where none does."""
    peak = peak_memory(free())
    roomy, tight, hopeless = (
        plan(step(), mesh=MESH, hardware=_with_memory(int(share * peak))).plan for share in (1.01, 0.8, 0.01)
    )
    assert peak_memory(roomy) == peak_memory(hopeless) == peak
    assert peak_memory(tight) <= 0.8 * peak
    limited = plan(step(), mesh=MESH, hardware=HARDWARE, memory=int(0.8 * peak)).plan
    assert {node: tight.strategy(node) for node in tight.graph.nodes} == {
        node: limited.strategy(node) for node in limited.graph.nodes
    }


def test_meshes_are_chosen_among_plans_that_keep_to_what_a_device_has():
    """Mode "auto" takes the hardware's limit to every shape, as one that is given."""
    kind = {"devices": 2, "search": "auto", "options": {"axes": 1}}
    peak = plan(step(), hardware=HARDWARE, **kind).cost.peak_memory_bytes
    kept = plan(step(), hardware=_with_memory(int(0.8 * peak)), **kind)
    assert kept.cost.peak_memory_bytes <= 0.8 * peak and kept.memory == int(0.8 * peak)


@pytest.mark.torch
@pytest.mark.slow
def test_where_a_named_plan_is_one_of_another_graph() -> None:
    """Of latent attention the sums of a megatron plan are added in another order: its operators are others, too."""
    pytest.importorskip("torch")
    from benchmarks.model_zoo import ZOO

    with pytest.raises(MemoryLimitError, match="over the memory limit"):
        plan(ZOO["deepseek-v3"](), mesh=MESH, hardware=HARDWARE, memory="80 MB")
