"""Helpers for operators that pick dims by number: axis checks, factor names for rules made from shapes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

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


def unsplit_words(names: Iterable[str], dims: Container[int], mark: str = "") -> str:
    """One tensor of a rule text, the whole of whose `dims` a rank needs; `mark` stands behind their names.

    >>> unsplit_words("abc", (1,), "^8")
    'a [b]^8 c'
    """
    return words(f"[{name}]{mark}" if dim in dims else name for dim, name in enumerate(names))


def along_words(rank: int, dim: int, what: str) -> tuple[list[str], list[str], int]:
    """Factor names of two tensors that differ in `dim` alone, and that dim counted from the front.

    Raises:
        ShapeError: a tensor of `rank` dims has no such dim.

    >>> along_words(3, -1, "GatherD")
    (['a', 'b', 'c'], ['a', 'b', 'd'], 2)
    """
    *names, other = letters(rank + 1)
    dim = axis_index(dim, rank, what)
    return names, [*names[:dim], other, *names[dim + 1 :]], dim


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
