"""What a plan costs: bytes, seconds and peak memory of its program, against sums and sweeps written down plainly."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.api import plan
from autoshard.cost.evaluate import evaluate_plan, moves_of, plan_seconds
from autoshard.cost.memory import runtime_bytes
from autoshard.cost.prices import Prices
from autoshard.ops.calls import call_bytes
from autoshard.optimize.pipeline import MORE_MEMORY
from autoshard.partition.program import Compute
from autoshard.redistribute.buffers import staging_bytes
from autoshard.transform import train_step
from tests.search.plans import FFN, array, checked

X, LABEL = array(24, 12), array(24, 10)


def training(first=((2, 1), (1, 4)), hidden=24):
    net = FFN(first, sizes=(12, hidden, 10))
    return train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01, eps=1e-4), X, LABEL)


CASES = {
    "forward": lambda: checked(FFN(((2, 1), (1, 4)), sizes=(12, 24, 10)), (X,)),
    "rows and columns": lambda: checked(FFN(((1, 4), (4, 2)), sizes=(12, 24, 10)), (X,), hardware="h100"),
    "training": lambda: checked(training(), (X, LABEL)),
    "batch": lambda: checked(training(None), (X, LABEL), "4", search="batch", dataset_strategy="data_parallel"),
    "one rank": lambda: checked(training(None), (X, LABEL), "1"),
    "softmax": lambda: checked(lambda x: ops.softmax(ops.ReLU().shard(((3, 2),))(x)), (X,), "6"),
}


@pytest.fixture(params=CASES, scope="module")
def planned(request):
    return replace(CASES[request.param](), passes=())


def _sent(step, of) -> float:
    """Bytes that a rank sends in a bandwidth-optimal collective, from the sizes of what it holds before and after."""
    before, after = (
        math.prod(layout.local_shape(of.shape)) * of.dtype.itemsize for layout in (step.before, step.after)
    )
    n = math.prod(ref.size for ref in step.axes)
    return {
        "all_gather": after - before,
        "reduce_scatter": before - after,
        "all_reduce": 2 * (n - 1) / n * before,
        "all_to_all": (n - 1) / n * before,
        "permute": before,
    }[step.kind]


def test_bytes_are_those_of_the_collectives(planned):
    sent = [_sent(one.step, one.operand.whole) for one in planned.program.collectives]
    assert planned.cost.bytes_per_device == pytest.approx(sum(sent))
    assert (planned.cost.bytes_per_device > 0) == bool(sent)


def test_seconds_are_those_of_operators_and_collectives(planned):
    prices = Prices(planned.hardware)
    work = sum(prices.work(node, planned.plan.strategy(node)) for node in planned.graph.nodes)
    talk = sum(prices.step(one.step, one.operand.whole) for one in planned.program.collectives)
    assert planned.cost.compute_seconds == pytest.approx(work)
    assert planned.cost.communication_seconds == pytest.approx(talk)
    assert planned.cost.seconds == planned.cost.compute_seconds + planned.cost.communication_seconds


def _owners(program) -> dict:
    """Register -> the one in whose memory it lies; reshapes of these programs take nothing turned."""
    own = {one: one for one in program.inputs}
    for instruction in program.instructions:
        view = isinstance(instruction, Compute) and instruction.op.view
        own.update((one, own[instruction.operands[0]] if view else one) for one in instruction.results)
    return own


def _made_over(instruction, ending, own) -> int:
    """Bytes of results that are made in the memory of operands, those of `ending`, and so are not there twice."""
    total = 0
    for result, places in zip(instruction.results, instruction.op.over, strict=False):
        givers = [own[instruction.operands[i]] for i in places if instruction.operands[i].local == result.local]
        giver = next((one for one in givers if one in ending), None)
        if giver is not None and giver.local.nbytes == result.local.nbytes:
            ending = ending - {giver}
            total += result.local.nbytes
    return total


def _alive(program) -> list[int]:
    """Bytes at each instruction: what is still to be used, outputs, inputs that nothing replaces, and what comes and
    goes: scratch of operators, buffers of collectives."""
    replaced = {program.inputs[into] for into in program.updates.values()}
    own, sizes = _owners(program), []
    kept = {one for one in program.inputs if one not in replaced} | {own[one] for one in program.outputs}
    made = list(program.inputs)
    for i, instruction in enumerate(program.instructions):
        made += [one for one in instruction.results if own[one] is one]
        later = {own[one] for after in program.instructions[i:] for one in (*after.operands, *after.results)}
        blocks = sum(one.local.nbytes for one in made if one in kept or one in later)
        if isinstance(instruction, Compute):
            locals_ = [tuple(one.local for one in some) for some in (instruction.operands, instruction.results)]
            blocks += call_bytes(instruction.op, instruction.node.rule, *locals_, instruction.attrs)
            after = {own[one] for rest in program.instructions[i + 1 :] for one in (*rest.operands, *rest.results)}
            blocks -= _made_over(instruction, {own[one] for one in instruction.operands} - kept - after, own)
        elif instruction.step.communicates:
            blocks += staging_bytes(instruction.step, instruction.operand.whole)
        sizes.append(blocks)
    return sizes


def test_peak_memory_is_that_of_a_sweep(planned):
    own = next(one.nbytes for one in planned.cost.memory.held if one.kind == "runtime")
    assert own <= runtime_bytes(len(_owners(planned.program)), len(planned.program.instructions))
    assert planned.cost.peak_memory_bytes == max(_alive(planned.program)) + own


def test_a_plan_is_priced_without_lowering(planned):
    cost = evaluate_plan(planned.plan, planned.hardware)
    assert cost.compute_seconds == pytest.approx(planned.cost.compute_seconds)
    assert cost.seconds == pytest.approx(plan_seconds(planned.plan, Prices(planned.hardware)))
    # What programs do together shares its latency, whether or not anything is done with it in this one.
    assert cost.communication_seconds <= planned.cost.communication_seconds * (1 + 1e-9)
    assert cost.bytes_per_device >= planned.cost.bytes_per_device * (1 - 1e-9)
    assert sum(one.nbytes for one in cost.axes) == pytest.approx(cost.bytes_per_device)
    blocks = [
        one.peak_memory_bytes - max(held.nbytes for held in one.memory.held if held.kind == "runtime")
        for one in (planned.cost, cost)
    ]
    assert blocks[0] / MORE_MEMORY <= blocks[1] <= 1.1 * blocks[0]


def test_communication_is_split_by_axes():
    planned = checked(training(), (X, LABEL), "dp=2 tp=4", search="bfs")
    for cost in (planned.cost, evaluate_plan(planned.plan, planned.hardware)):
        assert {one.axes for one in cost.axes} <= {"dp", "tp", "dp.tp"} and len(cost.axes) >= 2
        assert sum(one.nbytes for one in cost.axes) == pytest.approx(cost.bytes_per_device)
    assert sum(one.collectives for one in planned.cost.axes) == len(planned.program.collectives)


def test_a_pinned_result_pays_for_what_it_is_brought_to():
    plain, pinned = (
        plan(FFN(((1, 4), (4, 2)), None, out, sizes=(12, 24, 10)), (X,), "8", search="bfs") for out in (None, ((4, 2),))
    )
    (left,) = (one for one, *_ in moves_of(pinned.plan) if one[2].shape == (24, 24) and one[0].partial)
    assert left[0] is pinned.plan.strategy(pinned.graph.node("dense1.matmul")).result_layouts[0]
    assert left[1].parts == (4, 2) and not left[1].partial
    assert plain.plan.layouts[plain.graph.node("dense1.matmul").results[0]].partial


def test_splitting_saves_memory_and_work():
    wide = 480  # beside it what the interpreter needs for each instruction is small
    whole = checked(training(None, wide), (X, LABEL), "1")
    split = checked(training(hidden=wide), (X, LABEL))
    assert split.cost.peak_memory_bytes < whole.cost.peak_memory_bytes
    assert whole.cost.bytes_per_device == 0 == whole.cost.communication_seconds
    local = [one.op.flops(tuple(r.local for r in one.operands), one.node.attrs) for one in _products(split)]
    full = [one.op.flops(one.node.operand_types, one.node.attrs) for one in _products(split)]
    assert np.allclose(np.divide(full, local), 8), "every product is split eight ways"


def _products(planned) -> list[Compute]:
    return [one for one in planned.program.instructions if isinstance(one, Compute) and one.op.name == "MatMul"]


def test_hardware_changes_seconds_not_bytes():
    slow, fast = (checked(training(), (X, LABEL), hardware=name, search="bfs") for name in ("cpu", "h100"))
    assert fast.cost.compute_seconds != slow.cost.compute_seconds
    assert fast.cost.communication_seconds != slow.cost.communication_seconds
    assert fast.cost.bytes_per_device == slow.cost.bytes_per_device > 0
