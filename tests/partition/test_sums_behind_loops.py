"""Sums that loops carry as terms, summed over ranks once behind them: which ones, what it saves, and the numbers."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard
from autoshard import nn, ops
from autoshard.cost.instructions import Costs, Setting
from autoshard.optimize.defer import defer
from autoshard.partition.program import Collective, Nest, timed, walk
from autoshard.partition.verify import verify_program
from autoshard.transform import train_step

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(24, 6)).astype(np.float32), RNG.normal(size=(24, 5)).astype(np.float32)
BEFORE = ("share", "chains", "move", "share again")


def step_of(micro_batches):
    net, rng = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 5)), np.random.default_rng(4)
    for one in net.trainable_params():
        one.set_data(rng.normal(size=one.shape).astype(np.float32))
    loss = lambda x, y: ops.reduce_mean(ops.square(net(x) - y))  # noqa: E731
    return train_step(loss, nn.Momentum(net.trainable_params(), 0.1, 0.9), X, Y, micro_batches=micro_batches), net


def planned_by(mode, mesh, passes, parts=3):
    return autoshard.plan(step_of(parts)[0], mesh=mesh, search=mode, hardware="h100", passes=passes)


def reductions(program):
    """How often a step sums over ranks: in loops, and outside."""
    kinds = ("all_reduce", "reduce_scatter")
    sums = [(one, times) for one, times in timed(program.instructions) if isinstance(one, Collective)]
    found = [times for one, times in sums if one.step.kind in kinds]
    return sum(times for times in found if times > 1), sum(times for times in found if times == 1)


def test_gradients_of_micro_batches_are_summed_once():
    before, after = (planned_by("data_parallel", "dp=4", passes).program for passes in (BEFORE, (*BEFORE, "defer")))
    assert reductions(before) == (15, 0)  # four gradients and the loss, in each of three turns
    assert reductions(after) == (0, 5)
    costs = Costs(planned_by("data_parallel", "dp=4", BEFORE).hardware)
    assert costs.total(after.instructions).nbytes == costs.total(before.instructions).nbytes / 3
    assert costs.peak(after) <= costs.peak(before) * 1.01
    verify_program(after)


def test_what_is_carried_in_parts_stays_so_where_terms_take_too_much_memory():
    plain = planned_by("zero2", "dp=4", BEFORE)
    refused = defer(plain.program, Setting(Costs(plain.hardware), ok=lambda site: False))
    assert refused is plain.program
    free = defer(plain.program, Setting(Costs(plain.hardware)))
    assert reductions(free)[0] < reductions(plain.program)[0]
    carried = [one.results for one in free.instructions if isinstance(one, Nest)][0]
    assert any(one.layout.partial for one in carried)


def test_a_sum_that_turns_read_is_left_alone():
    def running(x):
        def turn(carried):
            return carried[0] + np.int32(1), carried[1] + ops.reduce_sum(ops.tanh(x * carried[1]), axis=0)

        return ops.while_loop(lambda carried: carried[0] < np.int32(3), turn, (np.int32(0), np.zeros(6, np.float32)))[1]

    planned = autoshard.plan(running, (X,), mesh="dp=4", search="data_parallel", passes=BEFORE)
    assert defer(planned.program, Setting(Costs(planned.hardware))) is planned.program


def added_up(each):
    """What a loop of three turns adds up of x, times the number of the turn."""

    def looped(x):
        def turn(carried):
            return carried[0] + np.float32(1), carried[1] + each(x * carried[0])

        start = np.float32(1), ops.fill(shape=(6,), value=0.0, dtype="f32")
        return ops.while_loop(lambda carried: carried[0] < np.float32(4), turn, start)[1]

    return looped


@pytest.mark.parametrize(
    "each",
    [
        lambda x: ops.reduce_max(x, axis=0),
        lambda x: ops.cast(ops.cast(ops.reduce_sum(x, axis=0), dtype="i32"), dtype="f32"),
        lambda x: ops.reduce_sum(x, axis=0),
    ],
)
def test_only_sums_are_added_up_as_terms(each):
    planned = autoshard.plan(added_up(each), (X,), mesh="dp=4", search="data_parallel", hardware="h100")
    np.testing.assert_allclose(planned.run(X), autoshard.evaluate(added_up(each), X), rtol=1e-5)


@pytest.mark.parametrize("mesh", ["dp=4", "dp=3", "dp=2 tp=3", "dp=6", "tp=2", "dp=1 tp=4"])
@pytest.mark.parametrize("mode", ["data_parallel", "zero1", "zero2", "sharding_propagation"])
def test_the_numbers_are_those_of_one_device(mesh, mode):
    if mesh == "tp=2" and mode != "sharding_propagation":
        mesh = "dp=2"
    step, net = step_of(2)
    whole, alone = step_of(1)
    planned = autoshard.plan(step, mesh=mesh, search=mode, hardware="h100")
    verify_program(planned.program)
    for _ in range(2):
        np.testing.assert_allclose(planned.run(X, Y), whole(X, Y), rtol=1e-5)
    for one, other in zip(net.trainable_params(), alone.trainable_params(), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-4, atol=1e-6)


def test_sums_of_sums_are_behind_both_loops():
    step, _ = step_of(2)
    both = autoshard.plan(step, mesh="dp=4", search="data_parallel", hardware="h100", loss_pieces=3)
    nests = [one for one in walk(both.program.instructions) if isinstance(one, Nest)]
    assert len(nests) == 2
    assert reductions(both.program)[0] == 0
    np.testing.assert_allclose(both.run(X, Y), step_of(1)[0](X, Y), rtol=1e-5)
