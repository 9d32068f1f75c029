"""Box maps of data movements: the boxes of its operands of which an operator makes its result, and where each goes.

`Operator.index_map` gives it, and `composed` follows a box through another operator of the kind. Boxes have no gaps:
strides, reversals and elements put between others have no box map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """`count[d]` elements from `source[d]` on of an operand go to `target[d]` on of the result, in each dim d.

    `of` is the operand's number, or whatever else stands for it.
    """

    of: Any
    source: Sizes
    target: Sizes
    count: Sizes

    def is_all_of(self, shape: Sequence[int]) -> bool:
        return self.count == tuple(shape)


@dataclass(frozen=True)
class BoxMap:
    """The boxes of a result, none over another; what they leave free holds the scalar operand `fill` (None: nothing is
    left)."""

    boxes: tuple[Box, ...]
    fill: Any = None


def box(of: Any, source: Sequence[int], target: Sequence[int], count: Sequence[int]) -> Box:
    return Box(of, tuple(source), tuple(target), tuple(count))


def cut(outer: Box, inner: BoxMap) -> Iterator[Box]:
    """The boxes of `inner` that `outer` takes of its operand, which they make, where it lays them."""
    for one in inner.boxes:
        dims = zip(outer.source, outer.count, one.target, one.count, strict=True)
        spans = [(max(source, at), min(source + size, at + count)) for source, size, at, count in dims]
        if all(first < last for first, last in spans):
            firsts = [first for first, _ in spans]
            moved = zip(firsts, one.source, one.target, strict=True)
            laid = zip(firsts, outer.target, outer.source, strict=True)
            yield box(
                one.of,
                [first + source - at for first, source, at in moved],
                [first + target - source for first, target, source in laid],
                [last - first for first, last in spans],
            )


def elements(boxes: Sequence[Box]) -> int:
    """How many elements the boxes have together."""
    total = 0
    for one in boxes:
        size = 1
        for count in one.count:
            size *= count
        total += size
    return total


def renamed(laid: BoxMap, operands: Sequence[Any]) -> BoxMap:
    """With the operands themselves in place of their numbers."""
    boxes = tuple(replace(one, of=operands[one.of]) for one in laid.boxes)
    return BoxMap(boxes, None if laid.fill is None else operands[laid.fill])
