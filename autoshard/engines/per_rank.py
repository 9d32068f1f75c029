"""Numbers that differ by rank: where a block starts, how much of it is no padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autoshard.engines.grid import Axes, Grid


@dataclass(frozen=True)
class PerRank:
    """One number for each rank."""

    values: tuple[int, ...]

    def __mul__(self, factor: int) -> PerRank:
        return PerRank(tuple(one * factor for one in self.values))


class MeshQueries:
    """What the text of a program asks of a mesh: `c.index`, `c.valid`, `c.pick`; and what of no ranks: `c.again`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def again(self, x: Any, after: Any) -> Any:
        """x, once more to be sent behind what makes `after`."""
        return x

    def index(self, axes: Axes) -> PerRank:
        """Where each rank stands along the axes."""
        return PerRank(self.grid.index(axes))

    def valid(self, axes: Axes, chunk: int, size: int) -> PerRank:
        """How much of each rank's block of `chunk` lies inside a dim of `size`."""
        return PerRank(tuple(min(max(size - one * chunk, 0), chunk) for one in self.grid.index(axes)))

    def pick(self, axes: Axes, values: tuple[int, ...]) -> PerRank:
        """The value at each rank's place along the axes."""
        return PerRank(tuple(values[one] for one in self.grid.index(axes)))


def on_rank(value: Any, rank: int) -> Any:
    """An attribute's value on one rank."""
    if isinstance(value, PerRank):
        return value.values[rank]
    return tuple(on_rank(one, rank) for one in value) if isinstance(value, tuple) else value


def differing(value: Any) -> Iterator[PerRank]:
    """The numbers in an attribute's value that differ by rank."""
    if isinstance(value, PerRank):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from differing(one)
