"""Programs on whole arrays of JAX: what goes in comes as the pieces that are taken of it, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops, plan
from autoshard.core.tensortype import TensorType
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.function import trace

pytestmark = pytest.mark.jax
WHOLE = "[{}, {}]"


def products(x, y, z):
    total = ops.Add().shard(((2, 1), (2, 1)))(x, y)
    return ops.Mul()(total, z), ops.ReduceSum()(z, 0), ops.ReLU()(y)


def test_data_of_which_one_piece_is_taken_comes_as_that() -> None:
    pytest.importorskip("jax")
    from autoshard.engines.xla_whole import given_in_pieces

    example = TensorType.of((6, 8), "f32")
    traced = trace(products, example, example, example, in_shardings=(WHOLE, WHOLE, WHOLE))
    program = plan(traced, devices=2, search="bfs").program
    changed = given_in_pieces(program)
    assert [str(one.layout) for one in program.inputs] == ["-, -"] * 3
    assert [str(one.layout) for one in changed.inputs] == ["d, -", "d, -", "-, -"]  # two pieces are taken of the last
    assert len(program.instructions) - len(changed.instructions) == 2
    given = [np.random.default_rng(i).normal(size=(6, 8)).astype(np.float32) for i in range(3)]
    made = [Executor(one, LocalComm(2))(*given) for one in (changed, program)]
    for got, wanted in zip(*made, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


def test_what_a_plan_updates_stays_as_it_lies() -> None:
    pytest.importorskip("jax")
    from autoshard.engines.xla_whole import given_in_pieces
    from tests.engines.programs import small_step

    program = small_step("2", "zero3")[0].program
    pairs = zip(program.inputs, given_in_pieces(program).inputs, program.roles, strict=True)
    kept = [before is after for before, after, role in pairs if role != "data"]
    assert len(kept) > 3 and all(kept)
