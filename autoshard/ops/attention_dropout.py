"""Dropout of attention's weights, drawn block by block: what `Dropout` of all weights [..., q, k] would draw.

A number depends on its place in the whole tensor of weights alone, which a block knows of itself; so weights are
dropped alike however they are split, and never lie in memory all at once (as in Dao et al. 2022, "FlashAttention").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.random import kept_share, random_bits
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


class Dropping(NamedTuple):
    """Which weights are kept: the numbers of `Dropout` with this rate, seed and counter, for weights of shape `whole`.

    `start` is where the leading dims of a block begin in it; `rows` says where along the leading dim `dim` its rows
    stand in it.
    """

    rate: float
    seed: int
    counter: int
    start: Shape
    whole: Shape
    rows: tuple[int, np.ndarray] | None


def drop_factors(dropping: Dropping | None, scores: np.ndarray, query: int, key: int) -> np.ndarray | None:
    """What weights of a block [..., q, k], that begins at this query and key, are multiplied by: 0, or what makes up
    for those that are 0; None where none is dropped."""
    if dropping is None:
        return None
    rate, seed, counter, start, whole, rows = dropping
    start = (*(start or (0,) * (scores.ndim - 2)), query, key)
    return kept_share(random_bits(scores.shape, start, whole, seed, counter, rows), rate, scores.dtype)


class Extras(NamedTuple):
    """What attention reads besides queries, keys and values: masks, a sink, and what weights are dropped by."""

    masks: tuple[np.ndarray, ...]
    sink: np.ndarray | None
    dropping: Dropping | None


def split_extras(extras: Sequence[np.ndarray], q: Shape, k: Shape, attrs: Mapping[str, Any]) -> Extras:
    """The operands behind queries, keys and values, of local shapes `q` and `k`, by what attributes say of them."""
    masks, sinks, drops = split_operands(extras, attrs)
    dropping = None
    if drops:
        counter, *rows = drops
        whole = attrs["whole"] or (*q[:-1], k[-2])
        dim = (attrs["rows"], rows[0]) if rows else None
        dropping = Dropping(attrs["dropout"], attrs["seed"], int(counter), attrs["start"], whole, dim)
    return Extras(tuple(masks), sinks[0] if sinks else None, dropping)


def split_operands(extras: Sequence, attrs: Mapping[str, Any]) -> tuple[Sequence, Sequence, Sequence]:
    """Masks; a sink; the counter of dropout, and the numbers of rows."""
    drops = (attrs["dropout"] > 0) + (attrs["dropout"] > 0 and attrs["rows"] >= 0)
    last = len(extras) - drops
    first = last - attrs["sinks"]
    return extras[:first], extras[first:last], extras[last:]


def check_dropout(
    name: str, q: Shape, drops: Sequence[Shape], *, dropout: float, whole: Shape, rows: int, **_: object
) -> None:
    """Raise ShapeError unless the attributes of dropout, and its operands, are right."""
    if not 0 <= dropout < 1:
        raise ShapeError(f"{name}: dropout is {dropout}; it is the share of weights that become 0, below 1")
    if whole and len(whole) != len(q):
        raise ShapeError(f"{name}: the whole tensor of weights is {whole}, and queries are {q}")
    if dropout and (not drops or drops[0] != ()):
        raise ShapeError(f"{name}: a scalar counter is the last operand where weights are dropped, not {[*drops]}")
    if len(drops) > 1 and (not 0 <= rows < len(q) - 2 or drops[1] != (q[rows],)):
        raise ShapeError(f"{name}: numbers of rows are ({q[rows]},) for dim {rows} of queries, not {drops[1]}")


def drop_columns(dropout: float) -> int:
    """How many times four bytes are held for each weight of a block while it is drawn whether it is kept: 64 bits,
    those that they are mixed with, and what it is multiplied by."""
    return 5 if dropout else 0


def drop_marks(drops: Sequence[Shape], rows: int) -> str:
    """The operands of dropout in a rule."""
    return ", ()" * min(len(drops), 1) + (f", h{rows}" if len(drops) > 1 else "")


def check_counter(name: str, drops: Sequence[DType]) -> None:
    if drops and drops[0].is_float:
        raise ShapeError(
            f"{name}: the counter of dropout is {drops[0]}; it is a whole number, other ones for other draws"
        )


def placed_start(attrs: Mapping[str, Any], placement: OperatorPlacement, q: int, k: int) -> dict[str, Any]:
    """Where the leading dims of queries, operand `q`, begin in which tensor of weights."""
    if not attrs["dropout"]:
        return {}
    shape = placement.operands[q].shape
    start = tuple(0 if dim == attrs["rows"] else placement.operand_offset(q, dim) for dim in range(len(shape) - 2))
    return {"start": start, "whole": attrs["whole"] or (*shape[:-1], placement.operands[k].shape[-2])}
