"""What a plan costs: bytes, seconds and peak memory of its program, against sums and sweeps written down plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.partition.program import Compute
from autoshard.search.prices import Prices
from autoshard.transform import train_step
from tests.search.plans import FFN, array, checked

X, LABEL = array(24, 12), array(24, 10)


def training(first=((2, 1), (1, 4))):
    net = FFN(first, sizes=(12, 24, 10))
    return train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), X, LABEL)


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
    return CASES[request.param]()


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


def _alive(program) -> list[int]:
    """Bytes at each instruction: everything made so far that is an input, an output, or still to be used."""
    kept = set(program.inputs) | set(program.outputs)
    made, sizes = list(program.inputs), []
    for i, instruction in enumerate(program.instructions):
        made += instruction.results
        later = {register for one in program.instructions[i + 1 :] for register in one.operands}
        now = [one for one in made if one in kept or one in later or one in instruction.operands]
        now += [one for one in instruction.results if one not in now]
        sizes.append(sum(one.local.nbytes for one in now))
    return sizes


def test_peak_memory_is_that_of_a_sweep(planned):
    assert planned.cost.peak_memory_bytes == max(_alive(planned.program))


def test_splitting_saves_memory_and_work():
    whole, split = CASES["one rank"](), CASES["training"]()
    assert split.cost.peak_memory_bytes < whole.cost.peak_memory_bytes
    assert whole.cost.bytes_per_device == 0 == whole.cost.communication_seconds
    local = [one.op.flops(tuple(r.local for r in one.operands), one.node.attrs) for one in _products(split)]
    full = [one.op.flops(one.node.operand_types, one.node.attrs) for one in _products(split)]
    assert np.allclose(np.divide(full, local), 8), "every product is split eight ways"


def _products(planned) -> list[Compute]:
    return [one for one in planned.program.instructions if isinstance(one, Compute) and one.op.name == "MatMul"]


def test_hardware_changes_seconds_not_bytes():
    slow, fast = (checked(training(), (X, LABEL), hardware=name) for name in ("cpu", "h100"))
    assert fast.cost.compute_seconds != slow.cost.compute_seconds
    assert fast.cost.communication_seconds != slow.cost.communication_seconds
    assert fast.cost.bytes_per_device == slow.cost.bytes_per_device > 0
