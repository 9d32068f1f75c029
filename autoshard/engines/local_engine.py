"""All ranks of a text in this process: each value is a list with one array for each rank.

The operators are numpy's or torch's; collectives are those of `LocalComm`. For notebooks and tests: with numpy it is a
second reading of a program, beside `autoshard.runtime.interpret`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, dtype
from autoshard.engines.boxes import Table, arguments, slices
from autoshard.engines.grid import Axes, Grid
from autoshard.engines.kernels import Kernels
from autoshard.engines.per_rank import MeshQueries, on_rank
from autoshard.layout.mesh import GroupList
from autoshard.ops.registry import Operator, lookup
from autoshard.runtime.array import array_dtype
from autoshard.runtime.comm import REDUCTIONS
from autoshard.runtime.local import LocalComm
from autoshard.runtime.padded import fit

Parts = list[np.ndarray]


class LocalKernels:
    """`k` of a text: operators on each rank's arrays in turn; by `kernels`, or numpy's own."""

    def __init__(self, world: int, kernels: Kernels | None = None) -> None:
        self._world, self._kernels = world, kernels

    def __getattr__(self, name: str) -> Callable:
        op = lookup(name)

        def call(*operands: Parts, of: str | tuple[str, ...], **attrs: Any) -> Any:
            kinds = [dtype(one) for one in ((of,) if isinstance(of, str) else of)]
            rows = [self._run(op, *_of_rank(rank, operands, attrs), kinds) for rank in range(self._world)]
            results = [list(parts) for parts in zip(*rows, strict=True)]
            return results[0] if isinstance(of, str) else tuple(results)

        return call

    def _run(self, op: Operator, arrays: Parts, attrs: dict[str, Any], kinds: Sequence[DType]) -> tuple:
        if self._kernels is None:
            with np.errstate(all="ignore"):
                made = op.run(*arrays, **attrs)
            parts = made if isinstance(made, tuple) else (made,)
            return tuple(np.asarray(part, array_dtype(kind)) for part, kind in zip(parts, kinds, strict=True))
        library: Any = self._kernels.library
        made = self._kernels.run(op, [library.array(one) for one in arrays], attrs, kinds)
        return tuple(library.to_numpy(one) for one in made)

    def stretch(self, name: str, run: Callable, *operands: Parts) -> tuple[Parts, ...]:
        """A stretch is what stands in it: nothing is compiled here."""
        return run(*operands)

    def while_loop(self, holds: Callable, turn: Callable, carried: tuple[Parts, ...]) -> tuple[Parts, ...]:
        """Turns as long as the condition holds; a rank on which it ends first keeps what it has."""
        while True:
            (found,) = holds(*carried)
            goes = [bool(one) for one in found]
            if not any(goes):
                return carried
            new = turn(*carried)
            carried = tuple(
                [after if go else before for go, after, before in zip(goes, parts, old, strict=True)]
                for parts, old in zip(new, carried, strict=True)
            )

    def case(self, index: Parts, branches: tuple[Callable, ...]) -> tuple[Parts, ...]:
        """The results of the branch with each rank's number; of the last one for numbers that there are not."""
        last = len(branches) - 1
        chosen = [int(one) if 0 <= int(one) <= last else last for one in index]
        made = {way: branches[way]() for way in dict.fromkeys(chosen)}
        count = len(made[chosen[0]])
        return tuple([made[way][i][rank] for rank, way in enumerate(chosen)] for i in range(count))


def _of_rank(rank: int, operands: Sequence[Parts], attrs: dict[str, Any]) -> tuple[Parts, dict[str, Any]]:
    return [parts[rank] for parts in operands], {name: on_rank(value, rank) for name, value in attrs.items()}


class LocalCollectives(MeshQueries):
    """`c` of a text, over all ranks of this process."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.comm = LocalComm(grid.size)

    def _groups(self, axes: Axes) -> GroupList:
        return GroupList(self.grid.rows(axes))

    def all_reduce(self, x: Parts, axes: Axes, op: str) -> Parts:
        return self.comm.all_reduce(x, self._groups(axes), op)

    def all_gather(self, x: Parts, axes: Axes, dim: int) -> Parts:
        return self.comm.all_gather(x, self._groups(axes), dim)

    def reduce_scatter(self, x: Parts, axes: Axes, dim: int, op: str) -> Parts:
        return self.comm.reduce_scatter(x, self._groups(axes), dim, op)

    def all_to_all(self, x: Parts, axes: Axes, split: int, concat: int) -> Parts:
        return self.comm.all_to_all(x, self._groups(axes), split, concat)

    def bundle(self, kind: str, xs: tuple[Parts, ...], axes: Axes, dims: tuple, op: str = "sum") -> tuple[Parts, ...]:
        """Each on its own: a common buffer changes no number."""
        return tuple(getattr(self, kind)(x, axes, *arguments(kind, one, op)) for x, one in zip(xs, dims, strict=True))

    def start(self, collective: Callable, *args: Any) -> Any:
        return collective(*args)

    def wait(self, begun: Any) -> Any:
        return begun

    def slice(self, x: Parts, axes: Axes, dim: int) -> Parts:
        size = x[0].shape[dim] // len(self.grid.rows(axes)[0])
        index = self.grid.index(axes)
        return [
            np.array(part[(slice(None),) * dim + (slice(i * size, (i + 1) * size),)])
            for part, i in zip(x, index, strict=True)
        ]

    def permute(self, x: Parts, sources: tuple[int | None, ...]) -> Parts:
        return [np.zeros_like(part) if i is None else np.array(x[i]) for part, i in zip(x, sources, strict=True)]

    def boxes(self, x: Parts, shape: tuple[int, ...], table: Table, op: str = "sum", wide: str = "") -> Parts:
        combine, made = REDUCTIONS[op], []
        for row in table:
            block = np.zeros(shape, wide or x[0].dtype)
            for source, taken, placed, adds in row:
                values, here = x[source][slices(taken)], slices(placed)
                block[here] = combine(block[here], values) if adds else values
            made.append(block.astype(x[0].dtype, copy=False))
        return made

    def fit(self, x: Parts, shape: tuple[int, ...]) -> Parts:
        return [fit(part, shape) for part in x]

    def rank(self, counts: bool) -> Parts:
        return [np.asarray(rank if counts else 0, np.uint32) for rank in self.comm.ranks]


__all__ = ["LocalCollectives", "LocalKernels"]
