"""A program as its exported code knows it: inputs and outputs with the parts that ranks hold of them.

This file needs numpy, and files that need no more: exported code carries it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.engines.grid import Axes, Grid

_ON_HOST = {"bfloat16": "float32", "float8_e4m3fn": "float32", "float8_e5m2": "float32"}
"""What numpy holds numbers in that it has no type for."""
_SMALL = 4


@dataclass(frozen=True)
class BoundaryValue:
    """An input or output: its shape, the shape padded so that blocks are equal, and the axes that split each dim.

    What goes from one piece of a step to another may be partial: terms along axes, which `reduction` adds up.
    """

    name: str
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    dtype: str
    dims: tuple[Axes, ...]
    partial: Axes = ()
    reduction: str = "sum"

    def __repr__(self) -> str:
        """As Python says it, without what is as it mostly is."""
        told = [self.name, self.shape, self.padded, self.dtype, self.dims]
        told += [self.partial, self.reduction] if self.partial else []
        return f"BoundaryValue({', '.join(map(repr, told))})"

    @property
    def host_dtype(self) -> np.dtype:
        """What numpy holds it in."""
        return np.dtype(_ON_HOST.get(self.dtype, self.dtype))

    @property
    def rows_name(self) -> str:
        """What rows of data are called that lie so: stages of a rank may want the same in other layouts."""
        return f"{self.name} {self.dims}"

    def block(self, grid: Grid, rank: int) -> tuple[slice, ...]:
        """Where the rank's block lies in the padded array."""
        found = []
        for size, axes in zip(self.padded, self.dims, strict=True):
            local = size // (len(grid.rows(axes)[0]) if axes else 1)
            start = grid.index(axes)[rank] * local if axes else 0
            found.append(slice(start, start + local))
        return tuple(found)

    def local(self, grid: Grid) -> tuple[int, ...]:
        """The shape of a rank's block."""
        return tuple(one.stop - one.start for one in self.block(grid, 0))

    def pad(self, array: np.ndarray) -> np.ndarray:
        """The array of the input's type, with zeros at the end of dims."""
        if array.shape != self.shape:
            raise ValueError(f"{self.name} is {self.dtype}{list(self.shape)}, not of shape {list(array.shape)}")
        made = np.zeros(self.padded, self.host_dtype)
        made[tuple(map(slice, self.shape))] = array
        return made

    def join(self, grid: Grid, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """The whole array out of the blocks of all ranks."""
        made = np.zeros(self.padded, self.host_dtype)
        for rank, block in enumerate(blocks):
            made[self.block(grid, rank)] = block
        return made[tuple(map(slice, self.shape))]


@dataclass(frozen=True)
class StandalonePlan:
    """What the ranks' mesh is, over which axes they talk, what goes in and out, and which output replaces an input."""

    grid: Grid
    axes: tuple[Axes, ...]
    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[BoundaryValue, ...]
    updates: Mapping[int, int]


def arrays_of(inputs: Sequence[BoundaryValue], given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The inputs in order, by their names; for those that are not given seeded random numbers."""
    unknown = sorted(set(given) - {one.name for one in inputs})
    if unknown:
        known = ", ".join(one.name for one in inputs)
        raise ValueError(f"there is no input {', '.join(unknown)}; there are {known}")
    rng = np.random.default_rng(0)
    return [given[one.name] if one.name in given else _random(one, rng) for one in inputs]


def _random(of: BoundaryValue, rng: np.random.Generator) -> np.ndarray:
    if of.host_dtype.kind in "iu":
        return rng.integers(0, _SMALL, of.shape).astype(of.host_dtype)
    return rng.normal(size=of.shape).astype(of.host_dtype)


def arguments_of(text: str, devices: Sequence[str] = ()) -> argparse.Namespace:
    """What the command line says; of devices, where there are several to choose from."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="?", help="an .npz file of whole inputs by name; others are random")
    parser.add_argument("outputs", nargs="?", help="an .npz file to write whole outputs to")
    parser.add_argument("--steps", type=int, default=1, help="how often to run; what a step updates goes into the next")
    if devices:
        parser.add_argument("--device", choices=devices, default=devices[0], help="what to compute on")
    return parser.parse_args()


def finished(outputs: Sequence[BoundaryValue], found: Mapping[str, np.ndarray], path: str | None) -> None:
    """Save or show the outputs."""
    if path:
        arrays: dict[str, Any] = dict(found)
        np.savez(path, **arrays)
    for one in outputs:
        norm = float(np.linalg.norm(np.asarray(found[one.name], np.complex128).ravel()))
        print(f"{one.name}: {one.dtype}{list(one.shape)}, norm {norm:.6g}")
