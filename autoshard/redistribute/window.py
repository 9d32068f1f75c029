"""Window steps: each rank fetches the elements of one dim that its block of an operator's result needs.

Beforehand the dim lies in blocks along some axes (or whole); afterwards the rank that stands p-th along the axes holds
the runs of `OperandWindow` for position p. Only elements that are wanted and not held are sent, each once to each rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Groups, size_of
from autoshard.ops.windows import OperandWindow, Run
from autoshard.util.errors import LayoutError

HALO = "halo"


class WindowPiece(NamedTuple):
    """Elements that come from one rank: `count` of its block from number `at`, `stride` apart, to `place` on."""

    source: int
    at: int
    stride: int
    count: int
    place: int


@dataclass(frozen=True)
class WindowStep:
    """From blocks of a dim of `size` elements, `block` to a rank, to the runs that each position needs of it.

    `before` is how the operand lies: `dim` is split along `axes`, or whole. `size` counts true elements: what a block
    holds beyond them is padding that nobody receives.
    """

    before: Layout
    dim: int
    axes: Refs
    runs: tuple[Run, ...]
    wraps: bool
    size: int
    block: int

    kind = HALO
    to_dim = None
    rounds = 1

    @staticmethod
    def of(window: OperandWindow, before: Layout, size: int, block: int) -> WindowStep:
        """The step that makes a window of an operand that lies as `before`, in blocks of `block` elements."""
        return WindowStep(before, window.dim, window.axes, window.runs, window.wraps, size, block)

    @cached_property
    def after(self) -> Layout:
        """The layout of what is made: a tensor whose dim is the windows of all positions, one behind the other."""
        return self.before.with_dims(
            self.axes if dim == self.dim else refs for dim, refs in enumerate(self.before.dims)
        )

    @property
    def reduction(self) -> str:
        return self.before.reduction

    @cached_property
    def parts(self) -> int:
        return size_of(self.axes)

    @cached_property
    def width(self) -> int:
        """Elements of the dim that a rank holds afterwards."""
        return sum(run.width for run in self.runs)

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.before.mesh, self.axes)

    @property
    def is_split(self) -> bool:
        """Whether the dim lies in blocks; else every rank has all of it."""
        return bool(self.before.dims[self.dim])

    def made_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole of what is made of a tensor of `shape`."""
        return (*shape[: self.dim], self.parts * self.width, *shape[self.dim + 1 :])

    def check(self) -> None:
        """Raise LayoutError unless every run reads elements that exist, and as many as it has places for."""
        for run in self.runs:
            columns = (run.starts, run.counts, run.places or (0,) * self.parts)
            if any(len(column) != self.parts for column in columns) or not run.stride:
                raise LayoutError(f"run {_shown(run)} must tell {self.parts} positions and a stride")
            for start, count, place in zip(*columns, strict=True):
                last = start + (count - 1) * run.stride
                inside = self.wraps or count == 0 or (min(start, last) >= 0 and max(start, last) < self.size)
                if not inside or not 0 <= place <= place + count <= run.width:
                    raise LayoutError(
                        f"run {_shown(run)} reads {count} elements from {start} on to place {place} of {run.width}; "
                        f"the dim has {self.size}"
                    )

    def pieces(self, position: int) -> Iterator[WindowPiece]:
        """What a position needs, in the order of its places; its own elements included."""
        first = 0
        for run in self.runs:
            yield from self._of_run(run, position, first)
            first += run.width

    def _of_run(self, run: Run, position: int, first: int) -> Iterator[WindowPiece]:
        left, index = run.counts[position], run.starts[position]
        place = first + run.place(position)
        while left > 0:
            index = index % self.size if self.wraps else index
            source = index // self.block if self.is_split else position
            begin, end = (source * self.block, source * self.block + self.block) if self.is_split else (0, self.size)
            end = min(end, self.size)
            ahead = -(-(end - index) // run.stride) if run.stride > 0 else (index - begin) // -run.stride + 1
            count = min(left, ahead)
            yield WindowPiece(source, index - begin, run.stride, count, place)
            left, place, index = left - count, place + count, index + count * run.stride

    @cached_property
    def _received(self) -> tuple[tuple[int, int], ...]:
        """Per position, how many elements of the dim it receives, and from how many ranks."""
        found = []
        for position in range(self.parts if self.is_split else 0):
            others = [one for one in self.pieces(position) if one.source != position]
            found.append((sum(one.count for one in others), len({one.source for one in others})))
        return tuple(found)

    @cached_property
    def elements_received(self) -> int:
        """Elements of the dim that one rank receives at most."""
        return max((count for count, _ in self._received), default=0)

    @cached_property
    def messages(self) -> int:
        """From how many ranks one receives at most."""
        return max((sources for _, sources in self._received), default=0)

    @property
    def communicates(self) -> bool:
        return self.elements_received > 0

    @cached_property
    def _sent(self) -> tuple[int, ...]:
        """Per position, how many elements of the dim it sends to others."""
        found = [0] * self.parts
        for position in range(self.parts if self.is_split else 0):
            for one in self.pieces(position):
                found[one.source] += one.count * (one.source != position)
        return tuple(found)

    def elements_sent(self, shape: Sequence[int]) -> tuple[float, ...]:
        """Elements that the rank at each position along the axes sends, for a tensor of this global shape."""
        return tuple(float(count * self.line(shape)) for count in self._sent)

    def elements_moved(self, shape: Sequence[int]) -> float:
        """Elements that one rank sends at most, for a tensor of this global shape."""
        return max(self.elements_sent(shape), default=0.0)

    def nbytes_priced(self, shape: Sequence[int], itemsize: int) -> int:
        """The bytes by which costmodel prices it: what a rank receives at most."""
        return self.elements_received * self.line(shape) * itemsize

    def line(self, shape: Sequence[int]) -> int:
        """Elements of a rank's block for each element of the dim."""
        local = self.before.local_shape(shape)
        return math.prod(local[: self.dim]) * math.prod(local[self.dim + 1 :])

    def __str__(self) -> str:
        over = ".".join(map(self.before.mesh.show_ref, self.axes))
        runs = " ".join(map(_shown, self.runs))
        return (
            f"halo over={over} dim={self.dim} of={self.size} to={self.width} {'wrap ' if self.wraps else ''}at {runs}"
        )


def _shown(run: Run) -> str:
    """A run in words: where it starts for each position, its step, and how many elements there are."""
    step = f"/{run.stride}" if run.stride != 1 else ""
    counts = str(run.counts[0]) if len(set(run.counts)) == 1 else ",".join(map(str, run.counts))
    places = f"@{','.join(map(str, run.places))}" if any(run.places) else ""
    return f"[{','.join(map(str, run.starts))}{step}]+{counts}{places}"
