"""Elements put together by their index along a dim: the largest, the smallest, the product of those that name a place.

Ranks that hold parts of the elements end with a partial maximum, minimum or product. (Sums are `GatherDGrad`.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.axes import along_words, axis_index, letters, unsplit_words, words
from autoshard.ops.index import gather_d, result_block, type_of_first
from autoshard.ops.options import Filling
from autoshard.ops.padding import neutral_element
from autoshard.ops.pointwise import mul
from autoshard.ops.registry import operator
from autoshard.ops.unary import wants
from autoshard.util.errors import ShapeError

Shape = Sequence[int]
_UFUNCS = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}


def _rule(x: Shape, index: Shape, *, size: int, dim: int, by: str, **_: object) -> tuple[str, dict[str, int]]:
    if by not in _UFUNCS:
        raise ShapeError(f"IndexReduce by {by!r}; known are {', '.join(_UFUNCS)}")
    names, places, dim = along_words(len(x), dim, "IndexReduce")
    return f"{words(names)}, {words(names)} -> {words(places)} by {by}", {places[dim]: size}


@operator(
    "IndexReduce",
    rule=_rule,
    dtype=type_of_first("IndexReduce"),
    flops=1,
    filling=Filling(neutral="own", fills={1: -1}),
)
def index_reduce(x, index, *, size, dim=-1, by="max", offset=0):
    """For each of `size` places along `dim` the elements of x whose index names it, put together `by` max, min or prod.

    A place that none names has the neutral element. `offset` is the first place of a block.
    """
    values, rows = np.moveaxis(x, dim, -1), np.moveaxis(index, dim, -1).astype(np.intp, copy=False) - offset
    inside = (rows >= 0) & (rows < size)
    out = np.full((*values.shape[:-1], size), neutral_element(by, element_type(x.dtype)), x.dtype)
    line = np.arange(math.prod(out.shape[:-1])).reshape((*out.shape[:-1], 1)) * size
    _UFUNCS[by].at(out.reshape(-1), (line + rows)[inside], values[inside])
    return np.moveaxis(out, -1, dim)


index_reduce.localize(result_block("dim"))


@index_reduce.gradient
def _(g, y, x, index, size, dim, by, offset):
    """Of a product, that of the others; an extreme's goes to all that attain it, in equal shares."""
    if not wants(x):
        return None, None
    if by == "prod":
        return mul(gather_d(g, index, dim=dim, offset=offset), others_product(x, index, dim=dim)), None
    return extreme_shares(g, y, x, index, dim=dim, offset=offset), None


def _others_rule(x: Shape, index: Shape, *, dim: int) -> str:
    at = axis_index(dim, len(x), "OthersProduct")
    names = unsplit_words(letters(len(x)), (at,))
    return f"{names}, {names} -> {names}"


@operator("OthersProduct", rule=_others_rule, dtype=type_of_first("IndexReduce"), flops=4)
def others_product(x, index, *, dim=-1):
    """For each element the product of the other elements along `dim` with the same index; exact where some are 0."""
    values, rows = np.moveaxis(x, dim, -1), np.moveaxis(index, dim, -1)
    order = np.argsort(rows, axis=-1, kind="stable")
    values, rows = np.take_along_axis(values, order, -1), np.take_along_axis(rows, order, -1)
    found = np.ones_like(values)
    for backwards in (False, True):
        turn = slice(None, None, -1 if backwards else 1)
        v, r, out = values[..., turn], rows[..., turn], found[..., turn]
        run = np.ones_like(v[..., :1])
        for i in range(1, v.shape[-1]):
            run[..., 0] = np.where(r[..., i] == r[..., i - 1], run[..., 0] * v[..., i - 1], 1)
            out[..., i] *= run[..., 0]
    back = np.empty_like(found)
    np.put_along_axis(back, order, found, -1)
    return np.moveaxis(back, -1, dim)


@operator(
    "ExtremeShares",
    rule=lambda g, y, x, index, *, dim, **_: _shares_rule(len(x), dim),
    dtype=lambda g, *_, **__: g,
    linear=((0,),),
    flops=4,
)
def extreme_shares(g, y, x, index, *, dim=-1, offset=0):
    """The gradient of an extreme by index: g of a place in equal shares to the elements that attain its y."""
    places, line = np.moveaxis(y, dim, -1), np.moveaxis(index, dim, -1).astype(np.intp, copy=False) - offset
    inside = (line >= 0) & (line < places.shape[-1])
    line = np.where(inside, line, 0)
    hit = (np.moveaxis(x, dim, -1) == np.take_along_axis(places, line, -1)) & inside
    ties = np.zeros(places.shape, g.dtype)
    base = np.arange(math.prod(ties.shape[:-1])).reshape((*ties.shape[:-1], 1)) * ties.shape[-1]
    np.add.at(ties.reshape(-1), (base + line)[hit], 1)
    share = np.moveaxis(g, dim, -1) / np.maximum(ties, 1)
    return np.moveaxis(np.where(hit, np.take_along_axis(share, line, -1), g.dtype.type(0)), -1, dim)


def _shares_rule(rank: int, dim: int) -> str:
    names, others, at = along_words(rank, dim, "ExtremeShares")
    picks, places = (unsplit_words(one, (at,)) for one in (names, others))
    return f"{places}, {places}, {picks}, {picks} -> {picks}"
