"""Results in the memory of operands: equal to those made anew, and never where somebody else still looks."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn
from autoshard.api import plan
from autoshard.runtime.spare import spare
from autoshard.transform import train_step
from tests.oracle.samples import SAMPLES
from tests.search.plans import FFN, array

F32 = np.dtype(np.float32)


def block() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def found(arrays: list, shape: tuple[int, ...] = (3, 5)) -> bool:
    return spare(arrays, range(len(arrays)), shape, F32) is not None


# -- what is free


def test_an_array_that_only_the_list_holds_is_free():
    assert found([block()])
    assert found([block().reshape(5, 3).T]) and found([block().reshape(15)[:]], (15,))


def test_what_somebody_else_holds_is_not():
    one = block()
    assert not found([one])
    rows = one[1:]
    arrays = [one]
    del one
    assert not found(arrays)
    del rows
    assert found(arrays)
    assert not found([arrays[0], arrays[0]])
    buffer = arrays[0].data
    assert not found(arrays)
    buffer.release()


def test_a_view_gives_only_the_whole_memory_of_what_nobody_else_sees():
    whole = np.zeros((6, 5), np.float32)
    assert not found([whole[:3]])
    arrays = [whole[:3]]
    del whole
    assert not found(arrays)
    two = np.zeros((3, 5), np.float32)
    arrays = [two[::-1], two.reshape(3, 5)]
    del two
    assert not found(arrays)
    del arrays[1]
    assert found(arrays)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.broadcast_to(np.zeros(5, np.float32), (3, 5)),
        lambda: np.frombuffer(bytes(60), np.float32).reshape(3, 5),
        lambda: np.frombuffer(bytearray(60), np.float32).reshape(3, 5),
        lambda: np.zeros((3, 5), np.float64),
        lambda: np.zeros((5, 3), np.float32),
    ],
    ids=["repeated", "read-only", "foreign memory", "another type", "another shape"],
)
def test_what_cannot_be_written_or_does_not_fit_is_not(make):
    assert not found([make()])


# -- operators


def _calls():
    for sample in SAMPLES:
        if sample.op.over and sample.types:
            operands, results = sample.operand_types, sample.op.result_types(sample.operand_types, sample.attributes)
            for j, places in enumerate(sample.op.over):
                for i in places:
                    if i < len(operands) and operands[i] == results[j]:
                        yield pytest.param(sample, j, i, id=f"{sample}-{j}-{i}")


@pytest.mark.parametrize("sample, j, i", list(_calls()))
def test_results_are_the_same_in_an_operands_memory(sample, j, i):
    arrays = [np.array(one, order="C") for one in sample.arrays(np.random.default_rng(0))]
    given = [one.copy() for one in arrays]
    types = sample.op.result_types(sample.operand_types, sample.attributes)
    several = len(types) > 1
    expected = sample.op.run(*arrays, **sample.attributes)
    out = tuple(given[i] if k == j else None for k in range(len(types))) if several else given[i]
    got = sample.op.run(*given, **sample.attributes, out=out)
    pairs = zip(*((one if several else (one,)) for one in (got, expected)), types, strict=True)
    for k, (one, other, of) in enumerate(pairs):
        # What is computed in a wider type is made anew.
        if k == j and np.asarray(other).dtype == of.dtype.numpy:
            assert one is given[i]
        left, right = (np.asarray(x, of.dtype.numpy) for x in (one, other))
        np.testing.assert_array_equal(left, right, strict=True)
    for k, (one, other) in enumerate(zip(given, arrays, strict=True)):
        if k != i:
            np.testing.assert_array_equal(one, other)


def test_there_are_such_operators():
    names = {str(one.id).partition("(")[0] for one in _calls()}
    assert len(names) > 25 and {"Add", "Softmax", "SoftmaxGrad", "ApplyMomentum", "Adam", "MSELossGrad"} <= names, names


# -- programs


def test_steps_write_over_states_but_not_over_what_is_given():
    net = FFN(sizes=(6, 10, 4))
    step = train_step(
        nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), array(8, 6), array(8, 4)
    )
    random = np.random.default_rng(1)
    x, y = (random.normal(size=shape).astype(np.float32) for shape in ((8, 6), (8, 4)))
    given = x.copy(), y.copy()
    session = plan(step, devices=1).session
    session.load()
    loaded = [one.asnumpy().copy() for one in net.trainable_params()]
    first = session.step([[x], [y]])
    assert first > session.step([[x], [y]])
    np.testing.assert_array_equal(x, given[0])
    np.testing.assert_array_equal(y, given[1])
    for one, before in zip(net.trainable_params(), loaded, strict=True):
        np.testing.assert_array_equal(one.asnumpy(), before)  # until they are stored, cells hold what they held
    session.load()
    assert session.step([[x], [y]]) == first


def test_momentum_stays_in_its_memory():
    net = FFN(sizes=(6, 10, 4))
    step = train_step(
        nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), array(8, 6), array(8, 4)
    )
    session = plan(step, devices=1).session
    session.load()
    data = [[np.ones((8, 6), np.float32)], [np.ones((8, 4), np.float32)]]

    def moments() -> dict[str, int]:
        session.run(data)
        return {one.name: held.parts[0].ctypes.data for one, held in session.blocks() if "moment" in one.name}

    moments()
    assert moments() and moments() == moments()
