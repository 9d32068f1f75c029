"""Helpers for operators that pick dims by number: axis checks, factor names for rules made from shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.core.rule import Rule
from autoshard.util.errors import ShapeError

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def letters(count: int, skip: int = 0) -> list[str]:
    """Factor names a, b, ..., z, a1, b1, ...; `skip` names are passed over."""
    numbers = range(skip, skip + count)
    return [_ALPHABET[i % 26] + (str(i // 26) if i >= 26 else "") for i in numbers]


def words(names: Iterable[str]) -> str:
    """One tensor of a rule text; a scalar is `()`."""
    return " ".join(names) or "()"


def sized(text: str, names: Sequence[str], sizes: Sequence[int]) -> Rule:
    """The rule of `text` with these factor sizes, for operands whose dims are not products of factors."""
    pairs = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    return Rule.parse(f"{text} {{{pairs}}}")


def axis_index(axis: object, rank: int, what: str) -> int:
    """`axis` counted from the front.

    Raises:
        ShapeError: a tensor of `rank` dims has no such axis.
    """
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise ShapeError(f"{what}: axis {axis!r} of a tensor with {rank} dims; it must be {-rank}..{rank - 1}")
    return axis % rank


def axis_indices(axis: int | Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """An axis or several, counted from the front and sorted.

    Raises:
        ShapeError: no such axis, or one named twice.
    """
    given = axis if isinstance(axis, tuple | list) else (axis,)
    found = sorted(axis_index(one, rank, what) for one in given)
    if len(set(found)) < len(found):
        raise ShapeError(f"{what}: axes {tuple(given)} name one dim twice")
    return tuple(found)


def whole_numbers(values: object, what: str) -> tuple[int, ...]:
    """`values` as a tuple of ints.

    Raises:
        ShapeError: something else.
    """
    given = values if isinstance(values, tuple | list) else (values,)
    numbers = tuple(one for one in given if isinstance(one, int) and not isinstance(one, bool))
    if len(numbers) < len(given):
        raise ShapeError(f"{what} takes whole numbers, not {values!r}")
    return numbers
