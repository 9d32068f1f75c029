"""The forms that a value of a training step has while its micro batches are done one by one.

Rows of the batch are dealt out in turn: row i belongs to micro batch i mod m. So a batch that lies split over devices
is cut on each device, and nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from autoshard.core.rule import Dim, Rule

ONCE: Final = "once"
"""The same for all micro batches, there before the first: parameters, constants, what follows from them."""
LATE: Final = "late"
"""Follows from sums over all micro batches: there after the last."""
OWN: Final = "own"
"""Each micro batch has its own, as if the whole batch were like it: sums over its rows count as often as there are
micro batches."""
CARRIED: Final = "carried"
"""A state that each micro batch takes from the one before and hands on."""


@dataclass(frozen=True)
class MicroRows:
    """A micro batch's rows of a value: every m-th row of `dim`, each of `inner` consecutive elements of it."""

    dim: int
    inner: int = 1


@dataclass(frozen=True)
class MicroPartial:
    """What a micro batch adds to a value, or its share of a maximum or minimum: `reduction` says which."""

    reduction: str = "sum"


Form = str | MicroRows | MicroPartial


def factor_of(rule: Rule, dims: tuple[Dim, ...], part: MicroRows, parts: int) -> tuple[int, int] | None:
    """The factor of a rule that the rows of a part lie in, and how many of its elements belong to a row.

    None where the rows lie across factors, or do not come in whole.
    """
    inner = part.inner
    for i in reversed(dims[part.dim]):
        size = rule.factors[i].size
        if inner % size == 0 and inner >= size and (inner > 1 or size == 1):
            inner //= size
            continue
        return (i, inner) if size % (inner * parts) == 0 else None
    return None


def part_in(rule: Rule, dims: tuple[Dim, ...], factor: int, inner: int) -> MicroRows | None:
    """The part that dims of an operand or result have if a factor has rows of `inner` elements; None: not in them."""
    for number, dim in enumerate(dims):
        if factor in dim:
            for i in dim[dim.index(factor) + 1 :]:
                inner *= rule.factors[i].size
            return MicroRows(number, inner)
    return None


def cut(shape: tuple[int, ...], part: MicroRows, parts: int) -> tuple[int, ...]:
    """The shape with the micro batches as a dim of their own, behind the rows of each: `(rows / m, m, inner)`."""
    rows = shape[part.dim] // (part.inner * parts)
    return (*shape[: part.dim], rows, parts, part.inner, *shape[part.dim + 1 :])


def local(shape: tuple[int, ...], part: MicroRows, parts: int) -> tuple[int, ...]:
    """The shape of one micro batch's part."""
    return (*shape[: part.dim], shape[part.dim] // parts, *shape[part.dim + 1 :])
