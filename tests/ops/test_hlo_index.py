"""StableHLO's contractions, gathers, scatters and dynamic slices: what may be split, gradients, bad input."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.core.rule_sdy import show_sdy
from autoshard.core.tensortype import TensorType
from autoshard.layout import Mesh
from autoshard.ops.body import Body
from autoshard.ops.hlo_contract import dot_general
from autoshard.ops.hlo_dynamic import dynamic_slice, dynamic_update_slice
from autoshard.ops.hlo_gather import gather_slices
from autoshard.ops.hlo_scatter import REPLACE, scatter_add_slices, scatter_slices
from autoshard.ops.registry import Operator
from autoshard.util.errors import ShapeError
from tests.ops.checks import check_gradient
from tests.oracle.check import check_forward

ROWS = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1}
WRITTEN = {
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}


def split_sizes(op: Operator, types: str, **attrs) -> list[int]:
    """Sizes of the factors that ranks may split."""
    operands = tuple(map(TensorType.parse, types.split("; ")))
    return [factor.size for factor in op.rule(operands, op.check_attributes(attrs)).factors if factor.splittable]


def test_a_contraction_splits_along_every_factor():
    contract = {"lhs_batch": (1,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (1,), "dtype": "f32"}
    assert split_sizes(dot_general, "f32[4, 6, 8]; f32[6, 8, 10]", **contract) == [6, 4, 10, 8]


def test_an_embedding_splits_by_ids_width_and_vocabulary():
    assert split_sizes(gather_slices, "f32[10, 4]; i32[6]", slice_sizes=(1, 4), **ROWS) == [6, 4, 10]
    # Cut in width as well: each rank finds what lies in its part.
    assert split_sizes(gather_slices, "f32[10, 4]; i32[6]", slice_sizes=(1, 3), **ROWS) == [6, 4, 10]


def test_its_gradient_splits_likewise():
    assert split_sizes(scatter_add_slices, "f32[10, 4]; i32[6]; f32[6, 4]", **WRITTEN) == [6, 4, 10]
    assert split_sizes(scatter_slices, "f32[10, 4]; i32[6]; f32[6, 4]", body=Body("max"), **WRITTEN) == [6, 4, 10]
    # Which update stays depends on their order, so all ranks need all of them.
    assert split_sizes(scatter_slices, "f32[10, 4]; i32[6]; f32[6, 4]", body=REPLACE, **WRITTEN) == [4, 10]


def test_updates_are_written_into_parts():
    assert split_sizes(dynamic_update_slice, "f32[12, 6]; f32[5, 6]; i32[]; i32[]") == [12, 6]
    assert split_sizes(dynamic_update_slice, "f32[12, 6]; f32[5, 6]; i32[]; i32[]", fixed=True) == [12, 6]
    assert split_sizes(dynamic_slice, "f32[12, 6]; i32[]; i32[]", sizes=(5, 6)) == [12, 6]


def test_an_update_at_constants_may_be_split_in_shardys_eyes():
    types = tuple(map(TensorType.parse, ("f32[12, 6]", "f32[5, 6]", "i32[]", "i32[]")))
    shown = [show_sdy(dynamic_update_slice.rule(types, {"fixed": fixed, "block": ()})) for fixed in (False, True)]
    assert shown[0] == "([i, k], [j, k], [], [])->([i, k]) {i=12, j=5, k=6} need_replication={j}"
    assert shown[1] == "([i, k], [j, k], [], [])->([i, k]) {i=12, j=5, k=6}"


@pytest.mark.parametrize("mesh", ["8", "2x4", "6"])
def test_a_gather_of_bools_from_parts(mesh):
    rng = np.random.default_rng(1)
    arrays = [rng.random((24, 8)) < 0.5, rng.integers(-2, 26, 6)]
    attrs = gather_slices.check_attributes({**ROWS, "slice_sizes": (1, 8), "reduction": "max"})
    assert check_forward(gather_slices, arrays, attrs, Mesh.parse(mesh)) > 5


@pytest.mark.parametrize(
    "lhs, rhs, numbers",
    [
        ((3, 4, 5), (4, 6, 5), {"lhs_batch": (1,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (2,)}),
        ((3, 4, 5, 2), (5, 6, 4), {"lhs_contract": (1, 2), "rhs_contract": (2, 0)}),
        ((3, 2, 4), (2, 4, 3), {"lhs_batch": (0, 2), "rhs_batch": (2, 1), "lhs_contract": (1,), "rhs_contract": (0,)}),
        ((3,), (4,), {}),
    ],
)
def test_gradient_of_a_contraction(lhs, rhs, numbers):
    rng = np.random.default_rng(2)
    assert check_gradient(dot_general, [rng.normal(size=lhs), rng.normal(size=rhs)], {**numbers, "dtype": "f64"}) > 0


def test_the_last_of_equal_updates_stays_and_those_beyond_are_left_out():
    x, i = np.zeros((3, 2), "f4"), np.array([1, 7, 1, -1], "i4")
    u = np.arange(8, dtype="f4").reshape(4, 2)
    assert scatter_slices(x, i, u, body=REPLACE, **WRITTEN).tolist() == [[0, 0], [4, 5], [0, 0]]
    assert scatter_add_slices(x, i, u, **WRITTEN).tolist() == [[0, 0], [4, 6], [0, 0]]
    assert x.tolist() == [[0, 0]] * 3, "an operand was changed"


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda x, i: dot_general(x, x, lhs_contract=(0,), rhs_contract=(1,), dtype="f32"),
            r"DotGeneral of \(3, 2\) and \(3, 2\): contracting dims \(0,\) and \(1,\) have the sizes \(3,\) and \(2,\)",
        ),
        (
            lambda x, i: dot_general(x, x, lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(0,), dtype="f32"),
            r"DotGeneral: axes \(0, 0\) name one dim twice",
        ),
        (lambda x, i: gather_slices(x, i, slice_sizes=(1, 3), **ROWS), r"Gather of \(3, 2\): slice sizes \(1, 3\)"),
        (lambda x, i: gather_slices(x, i, slice_sizes=(2, 2), **ROWS), r"at most 1 in collapsed dims \(0,\)"),
        (
            lambda x, i: gather_slices(x, i, slice_sizes=(1, 2), **{**ROWS, "start_index_map": (0, 1)}),
            r"Gather of \(3, 2\) at indices \(4,\).*do not fit slices of 2 dims",
        ),
        (
            lambda x, i: scatter_add_slices(x, i, np.zeros((5, 2)), **WRITTEN),
            r"updates of shape \(5, 2\) do not fit inputs of shape \(3, 2\) and indices of shape \(4,\)",
        ),
        (lambda x, i: scatter_slices(x, i, body=REPLACE, **WRITTEN), r"not 2 operands"),
        (lambda x, i: dynamic_slice(x, i[0], i[1], sizes=(4, 1)), r"DynamicSlice of \(3, 2\): the slice \(4, 1\)"),
        (lambda x, i: dynamic_update_slice(x, x, i[0]), r"a scalar per dim, not operands of shapes \(\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ShapeError, match=message):
        call(np.zeros((3, 2), "f4"), np.zeros(4, "i4"))
