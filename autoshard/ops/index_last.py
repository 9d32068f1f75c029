"""What stands at places that several elements were written to: the last of them, with torch's and numpy's meaning.

The gradient follows torch: every element that was written to a place gets that of the place, also those that a later
one has overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.core.tensortype import DType
from autoshard.ops.axes import along_words, letters, words
from autoshard.ops.index import gather, gather_d, operand_block
from autoshard.ops.options import Storage
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = Sequence[int]


def _type(x: DType, last: DType, index: DType, **_: object) -> DType:
    if last.numpy.kind not in "iu" or index.numpy.kind not in "iu":
        raise ShapeError(f"places must be whole numbers, not {last} and {index}")
    return x


def _rows_rule(rows: Shape, last: Shape, index: Shape, **_: object) -> str:
    row, position, *rest = letters(len(rows) + 1)
    return f"{words([row, *rest])}, {position}, {row} -> {words([position, *rest])}"


@operator("LastRows", rule=_rows_rule, dtype=_type, linear=((0,),), flops=0, storage=Storage(scratch=0))
def last_rows(rows, last, index, *, offset=0):
    """rows[last], zeros where `last` (see LastAlong, which makes it of `index`) is negative.

    `offset` is the number of the first row of a block.
    """
    return gather.run(rows, last, axis=0, offset=offset)


@last_rows.gradient
def _(g, y, rows, last, index, offset):
    return gather(g, index, axis=0), None, None


@last_rows.localize
def _(attrs, placement):
    return {"offset": placement.operand_offset(0, 0)}


def _elements_rule(x: Shape, last: Shape, index: Shape, *, dim: int, **_: object) -> str:
    names, places = along_words(len(x), dim, "LastElements")[:2]
    return f"{words(names)}, {words(places)}, {words(names)} -> {words(places)}"


@operator("LastElements", rule=_elements_rule, dtype=_type, linear=((0,),), flops=0)
def last_elements(x, last, index, *, dim, offset=0):
    """The elements of x at `last` (see LastAlong, which makes it of `index`) along `dim`, 0 where that is negative."""
    return gather_d.run(x, last, dim=dim, offset=offset)


@last_elements.gradient
def _(g, y, x, last, index, dim, offset):
    return gather_d(g, index, dim=dim), None, None


last_elements.localize(operand_block("dim"))
