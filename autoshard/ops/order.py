"""Operators that put elements in order, or find the last of those that name one place: argsort, last along a dim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.axes import along_words, axis_index, letters, unsplit_words, words
from autoshard.ops.index import check_index, result_block
from autoshard.ops.options import Filling
from autoshard.ops.registry import operator

Shape = Sequence[int]
_block = result_block("dim")


def _sorted_rule(x: Shape, *, axis: int, **_: object) -> str:
    at = axis_index(axis, len(x), "ArgSort")
    dims = unsplit_words(letters(len(x)), (at,))
    return f"{dims} -> {dims}"


@operator("ArgSort", rule=_sorted_rule, dtype=lambda x, **_: "i32", flops=16)
def arg_sort(x, *, axis=-1, descending=False):
    """The positions of the elements along `axis` in rising order (`descending`: falling); equal ones stay in order."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # A stable rising sort of the reversed row has equal elements the wrong way round, which reversing it sets right.
    last = x.shape[axis] - 1
    return last - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


@arg_sort.gradient
def _(g, y, x, **_):
    return None


def _last_rule(index: Shape, *, size: int, dim: int, **_: object) -> tuple[str, dict[str, int]]:
    names, places, dim = along_words(len(index), dim, "LastAlong")
    return f"{words(names)} -> {words(places)} by max", {places[dim]: size}


def _whole_type(index: DType, **_: object) -> str:
    check_index(index, "LastAlong")
    return "i32"


@operator("LastAlong", rule=_last_rule, dtype=_whole_type, flops=1, filling=Filling(neutral="own", fills={0: -1}))
def last_along(index, *, size, dim=-1, offset=0, start=0):
    """For each of `size` places along `dim`, the last position where index names it, or -1 where none does.

    So a scatter, whose last write counts, is a lookup: place j takes its element from position result[j]. `offset` is
    the first place, and `start` the position of the first index, of a block; the last position over all ranks is their
    maximum.
    """
    local = np.moveaxis(index.astype(np.intp, copy=False) - offset, dim, -1)
    out = np.full((*local.shape[:-1], size), -1, np.int32)
    found = np.broadcast_to(np.arange(start, start + local.shape[-1], dtype=np.int32), local.shape)
    inside = (local >= 0) & (local < size)
    rows = np.arange(math.prod(out.shape[:-1])).reshape((*out.shape[:-1], 1)) * size
    np.maximum.at(out.reshape(-1), (rows + local)[inside], found[inside])
    return np.moveaxis(out, -1, dim)


@last_along.gradient
def _(g, y, index, **_):
    return None


@last_along.localize
def _(attrs: dict[str, Any], placement: Any) -> dict[str, Any]:
    return {**_block(attrs, placement), "start": placement.operand_offset(0, attrs["dim"] % placement.results[0].rank)}
