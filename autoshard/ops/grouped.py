"""Grouped matrix products: rows sorted by group, each group with a matrix of its own, as experts of a mixture are.

Rows of group e are those from ends[e - 1] to ends[e]. Groups are a contracted factor: a rank that holds some of them
computes their rows and leaves zeros in all others, so that the sum over ranks is the whole (expert parallelism,
Lepikhin et al. 2021, GShard, with the rows on every rank). Rows, and both dims of the matrices, can be split as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = Sequence[int]
_EACH_OF_TWO = ((0,), (1,))


def _type(x: DType, w: DType, ends: DType, **_: object) -> DType:
    if ends.numpy.kind not in "iu":
        raise ShapeError(f"grouped products: ends must be whole numbers, not {ends}")
    return x if x == w or x.bits >= w.bits else w


def _parts(ends: np.ndarray, rows: int, row: int, groups: int, group: int) -> Iterator[tuple[int, slice]]:
    """The groups from number `group` on, counted from there, with their rows among those from `row` on."""
    begins = [0, *(int(end) for end in ends)]
    for i in range(min(groups, len(ends) - group)):
        low, high = (min(max(at - row, 0), rows) for at in begins[group + i : group + i + 2])
        if low < high:
            yield i, slice(low, high)


def _share(one: Shape, other: Shape, ends: Shape, **_: object) -> float:
    """Two operations for each row, k and n: a row meets one group's matrix, and the dim of ends takes no part."""
    return 2.0 / max(ends[0], 1) ** 2


def _rule(x: Shape, w: Shape, ends: Shape, *, transpose_b: bool, groups: int, **_: object) -> str:
    if tuple(ends) != ((groups,) if groups else tuple(w[:1])):
        raise ShapeError(f"GroupedMatMul: {tuple(w)} has {w[0] if w else 0} groups, but ends has shape {tuple(ends)}")
    return f"t k, e {'n k' if transpose_b else 'k n'}, [o] -> t n"


@operator("GroupedMatMul", rule=_rule, dtype=_type, linear=_EACH_OF_TWO, flops=_share)
def grouped_matmul(x, w, ends, *, transpose_b=False, row=0, group=0, groups=0):
    """x[t] @ w[e], where row t is of group e: ends[e - 1] <= t < ends[e]; rows behind the last end give zeros.

    x is [t, k], w [e, k, n] (`transpose_b`: [e, n, k]), ends [e], the sums of all groups' numbers of rows so far. Where
    x and w are blocks, `row` and `group` are the numbers of their first row and matrix, of `groups` in all.
    """
    out = np.zeros((x.shape[0], w.shape[1 if transpose_b else 2]), np.result_type(x, w))
    for i, rows in _parts(ends, x.shape[0], row, w.shape[0], group):
        out[rows] = x[rows] @ (w[i].T if transpose_b else w[i])
    return out


@grouped_matmul.gradient
def _(g, y, x, w, ends, transpose_b, **_):
    left, right = (g, x) if transpose_b else (x, g)
    return grouped_matmul(g, w, ends, transpose_b=not transpose_b), grouped_outer(left, right, ends), None


@grouped_matmul.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    groups = placement.operands[1].shape[0]
    return {"row": placement.operand_offset(0, 0), "group": placement.operand_offset(1, 0), "groups": groups}


def _outer_rule(x: Shape, g: Shape, ends: Shape, *, count: int | None, **_: object) -> tuple[str, dict[str, int]]:
    return "t k, t n, [o] -> e k n", {"e": ends[0] if count is None else count}


@operator("GroupedOuter", rule=_outer_rule, dtype=_type, linear=_EACH_OF_TWO, flops=_share)
def grouped_outer(x, g, ends, *, row=0, group=0, count=None):
    """For each group e the product x[rows].T @ g[rows] over its rows: the gradient of GroupedMatMul's matrices.

    x is [t, k], g [t, n], the result [e, k, n]; of its groups only `count` from number `group` on.
    """
    groups = len(ends) if count is None else count
    out = np.zeros((groups, x.shape[1], g.shape[1]), np.result_type(x, g))
    for i, rows in _parts(ends, x.shape[0], row, groups, group):
        out[i] = x[rows].T @ g[rows]
    return out


@grouped_outer.gradient
def _(g, y, x, other, ends, **_):
    return grouped_matmul(other, g, ends, transpose_b=True), grouped_matmul(x, g, ends), None


@grouped_outer.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {
        "row": placement.operand_offset(0, 0),
        "group": placement.result_offset(0),
        "count": placement.local_result()[0],
    }
