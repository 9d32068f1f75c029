"""What a block of a result needs of an operand where blocks do not match: runs of elements, for each position.

An operator that moves elements along a dim (windows, slices, padding, reversal) says with the helpers here which
elements each of its local calls reads, and with what attributes it then runs; see `Operator.exchange`. Positions are
counted along the mesh axes that split the dim; all sizes are in elements of that dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Mesh

Numbers = tuple[int, ...]
Positions = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Varying:
    """An attribute value that depends on the rank: `values[i]` where it stands i-th along the axes."""

    mesh: Mesh
    axes: Refs
    values: Numbers

    def at(self, rank: int) -> int:
        return self.values[self.mesh.index(rank, self.axes)]

    def __str__(self) -> str:
        return f"{'.'.join(map(self.mesh.show_ref, self.axes)) or '-'}:{','.join(map(str, self.values))}"


@dataclass(frozen=True)
class Run:
    """Elements start, start + stride, ... of a dim, `counts[p]` of them for position p.

    They fill `width` places, beginning with number `places[p]`; the other places hold zeros that nobody reads.
    """

    starts: Numbers
    counts: Numbers
    width: int
    stride: int = 1
    places: Numbers = ()

    def place(self, position: int) -> int:
        return self.places[position] if self.places else 0


@dataclass(frozen=True)
class OperandWindow:
    """What each position along `axes` needs of dim `dim` of operand `operand`: the runs, one behind the other.

    `wraps` says that indices are counted modulo the dim's size.
    """

    operand: int
    dim: int
    axes: Refs
    runs: tuple[Run, ...]
    wraps: bool = False

    @property
    def width(self) -> int:
        """Elements of the dim that a rank holds afterwards."""
        return sum(run.width for run in self.runs)


@dataclass(frozen=True)
class Totals:
    """What each position's block of dim `dim` of the operands comes to: tensors with fewer elements there.

    Operator `total` makes them of these operands. Ranks gather those of all positions, and run `after` instead of the
    operator, with them as further operands. `attrs` are those of `total`; the first operand has the dim.
    """

    operands: tuple[int, ...]
    dim: int
    total: Any
    attrs: Mapping[str, Any]
    after: Any


@dataclass(frozen=True)
class Ring:
    """An operator in turns, between which the blocks of operands `moving` go round along their dim `dim`.

    Operator `begin` makes a state of the rank's own blocks: tensors that lie as the result, with dims of size 1 whole.
    `turn` takes the operands, the moving ones from one rank further on each time, and the state, and makes the next;
    `end` takes the last of them and makes the result. `turns` are the attributes of `begin`, then of each turn.
    """

    moving: tuple[int, ...]
    dim: int
    begin: Any
    turn: Any
    end: Any
    turns: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Exchange:
    """The windows to fetch before an operator runs on its block, and the attributes that it then takes.

    With `ring` it runs in turns instead.
    """

    windows: tuple[OperandWindow, ...] = ()
    attrs: Mapping[str, Any] | None = None
    totals: Totals | None = None
    ring: Ring | None = None


class Slide(NamedTuple):
    """How windows lie on one dim: number o reads elements (o * stride + w * dilation - low) / base, w < size.

    An index that is no whole number, or outside of the dim, is padding.
    """

    size: int = 1
    stride: int = 1
    base: int = 1
    dilation: int = 1
    low: int = 0

    @property
    def extent(self) -> int:
        """How far a window reaches over the dilated elements."""
        return (self.size - 1) * self.dilation + 1


class Slid(NamedTuple):
    """The run that a block of windows reads, and the padding (may be negative) with which the block then has them."""

    run: Run
    low: Numbers
    high: Numbers


def slid(size: int, slide: Slide, firsts: Positions, count: int, offsets: Positions | None = None) -> Slid:
    """What `count` windows from number firsts[p] on read of a dim of `size` elements.

    `offsets` tells, where windows themselves are split, with which of its places a window begins for each position;
    `slide.size` is then the size of such a part.
    """
    first = np.asarray(firsts, np.int64)
    begin = np.zeros_like(first) if offsets is None else np.asarray(offsets, np.int64)
    low = first * slide.stride + begin * slide.dilation - slide.low
    room = (count - 1) * slide.stride + slide.extent
    start = np.maximum(0, -(-low // slide.base))
    last = np.minimum(size - 1, (low + room - 1) // slide.base)
    counts = np.maximum(0, last - start + 1)
    width = max(1, int(counts.max(initial=0)))
    # Where the dim ends inside, its last element is the last held, so that what is not needed is cut off in front.
    ends = (last == size - 1) & (counts > 0)
    places = np.where(ends, width - counts, 0)
    before = (start - places) * slide.base - low
    before = np.where(counts > 0, before, room)
    after = room - before - ((width - 1) * slide.base + 1)
    run = Run(numbers(np.where(counts > 0, start, 0)), numbers(counts), width, 1, numbers(places))
    return Slid(run, numbers(before), numbers(after))


def numbers(values: Positions) -> Numbers:
    return tuple(int(value) for value in values)


def block_starts(block: int, parts: int) -> np.ndarray:
    """Where the block of each position begins."""
    return np.arange(parts, dtype=np.int64) * block


def picked(start: int, step: int, total: int, block: int, parts: int) -> Run:
    """Each position's block of the `total` elements start, start + step, ..."""
    firsts = block_starts(block, parts)
    counts = np.clip(total - firsts, 0, block)
    return Run(numbers(np.where(counts > 0, start + step * firsts, 0)), numbers(counts), block, step)


def next_block(block: int, parts: int) -> Run:
    """The block of the position behind; the last one's is the first."""
    return Run(numbers((block_starts(block, parts) + block) % (block * parts)), (block,) * parts, block)


def along(layout: Layout, dim: int, values: Iterable[int]) -> Varying:
    """An attribute that differs with the block of `dim` that a rank holds."""
    return Varying(layout.mesh, layout.dims[dim], tuple(values))


def common_parts(*sizes: int) -> int:
    """Into parts of which number, and its divisors, dims of these sizes can all be cut evenly; 0 if one is empty."""
    return math.gcd(*sizes) if all(sizes) else 0
