"""Equal layers of a model as one row of a table.

Rows whose names differ in one number, `model.layers.3.mlp.mul`, and that are alike in all other cells, become one row
named `model.layers.{3..30}.mlp.mul`. What a cell says of operators under the same prefix may move along with the
number: "from model.layers.2.add" in layer 3 is like "from model.layers.1.add" in layer 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

FEWEST = 3
"""Rows that are worth a range."""
_NUMBER = re.compile(r"\d+(?=[.\[/])")
"""A number that ends a component of a name with further ones behind it: a layer's, not an operator's own."""
_HERE = re.compile(r"\{(-?\d+)\}")

Cells = tuple[str, ...]


@dataclass(frozen=True)
class FoldedRow:
    """Cells to show, and the indices of the rows that they stand for, the first of them being the one shown."""

    cells: Cells
    stands_for: tuple[int, ...]


@dataclass(frozen=True)
class _Mark:
    """A number in a row's name, and the row's cells as they are but for it."""

    prefix: str
    number: int
    masked: Cells


def fold_rows(rows: Sequence[Cells], name: int = 0, apart: Sequence[int] = ()) -> tuple[FoldedRow, ...]:
    """The rows in their order, those of equal layers as one, where the first of them was.

    Args:
        name: the column with names.
        apart: columns that say which row it is and are not compared, such as a running number.
    """
    compared = [tuple("" if i in apart else cell for i, cell in enumerate(one)) for one in rows]
    marks = [list(_marks(one, name)) for one in compared]
    found: dict[int, FoldedRow] = {}
    taken: set[int] = set()
    for depth in range(max(map(len, marks), default=0)):
        left = [i for i, one in enumerate(marks) if len(one) > depth and i not in taken]
        for members in _alike(left, marks, depth):
            taken.update(members)
            found[members[0]] = _merged(rows, members, [marks[i][depth] for i in members], apart)
    single = (i for i in range(len(rows)) if i not in taken)
    found.update((i, FoldedRow(tuple(rows[i]), (i,))) for i in single)
    return tuple(found[i] for i in sorted(found))


def _marks(cells: Cells, name: int) -> Iterator[_Mark]:
    """The numbers in a row's name, from the left."""
    text = cells[name].strip()
    for match in _NUMBER.finditer(text):
        prefix, number = text[: match.start()], int(match.group())
        yield _Mark(prefix, number, _shifted(cells, prefix, number))


def _shifted(cells: Cells, prefix: str, number: int) -> Cells:
    """The cells with numbers behind the prefix told relatively to the row's own."""
    behind = _behind(prefix)
    return tuple(behind.sub(lambda at: f"{at.group(1)}{{{int(at.group(2)) - number}}}", cell) for cell in cells)


@lru_cache(maxsize=1024)
def _behind(prefix: str) -> re.Pattern[str]:
    """A number behind the prefix, as in `_NUMBER`; without a prefix none that a fraction could be, as in 0.5 us.

    The prefix may lack its first component or have another: `grad.h.3.mul` is near `h.3.mul` and `update.h.3.weight`.
    """
    if not prefix:
        return re.compile(r"(?<![\w.])()(\d+)(?=\.[^\W\d])")
    _, _, others = prefix.partition(".")
    return re.compile(rf"(?<!\w)((?:\w+\.)?{re.escape(others or prefix)})(\d+)(?=[.\[/])")


def _alike(left: Sequence[int], marks: Sequence[Sequence[_Mark]], depth: int) -> Iterator[list[int]]:
    """Groups of rows that are alike but for the number, each of successive numbers; indices ascend."""
    alike: dict[tuple[str, Cells], dict[int, int]] = {}
    for i in left:
        mark = marks[i][depth]
        alike.setdefault((mark.prefix, mark.masked), {}).setdefault(mark.number, i)
    for by_number in alike.values():
        run: list[int] = []
        for number in sorted(by_number):
            if run and number != run[-1] + 1:
                yield from _long_enough(run, by_number)
                run = []
            run.append(number)
        yield from _long_enough(run, by_number)


def _long_enough(run: Sequence[int], by_number: dict[int, int]) -> Iterator[list[int]]:
    if len(run) >= FEWEST:
        yield sorted(by_number[number] for number in run)


def _merged(rows: Sequence[Cells], members: Sequence[int], marks: Sequence[_Mark], apart: Sequence[int]) -> FoldedRow:
    """One row for all members: where their numbers stood, a range."""
    masked = marks[0].masked
    first, last = (pick(one.number for one in marks) for pick in (min, max))

    def ranged(at: re.Match[str]) -> str:
        by = int(at.group(1))
        return f"{{{first + by}..{last + by}}}"

    shown = rows[members[0]]
    cells = tuple(shown[i] if i in apart else _HERE.sub(ranged, cell) for i, cell in enumerate(masked))
    return FoldedRow(cells, tuple(members))
