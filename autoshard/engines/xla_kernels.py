"""Operators as the text of a program calls them, on the blocks that JAX traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from autoshard.core.tensortype import DType, dtype
from autoshard.engines.grid import Grid
from autoshard.engines.kernels import Kernels
from autoshard.engines.per_rank import differing, on_rank
from autoshard.engines.xla_collectives import XlaControl, each
from autoshard.ops.registry import lookup


class XlaKernels(XlaControl):
    """`k` of a text while JAX traces it: operators on traced blocks."""

    def __init__(self, grid: Grid, kernels: Kernels) -> None:
        self._grid, self._kernels = grid, kernels

    def __getattr__(self, name: str) -> Callable:
        op = lookup(name)

        def call(*operands: Any, of: str | tuple[str, ...], **attrs: Any) -> Any:
            kinds: list[DType] = [dtype(one) for one in ((of,) if isinstance(of, str) else of)]

            def on(rank: int, *raws: Any) -> tuple:
                return self._kernels.run(op, raws, {n: on_rank(v, rank) for n, v in attrs.items()}, kinds)

            made = by_rank(self._grid, tuple(attrs.values()), on, operands)
            return made[0] if isinstance(of, str) else made

        return call


def by_rank(grid: Grid, told: Any, run: Callable, operands: Sequence[Any]) -> Any:
    """`run(rank, *operands)` on each rank: one computation where `told` differs on none, else a branch for each way.

    So numbers that differ by rank stay numbers: sizes of slices, starts of windows.
    """
    ways = tuple(zip(*(one.values for one in differing(told)), strict=True)) or ((),) * grid.size
    first = {way: rank for rank, way in reversed(list(enumerate(ways)))}
    numbers = {way: i for i, way in enumerate(first)}
    return each(grid, [numbers[way] for way in ways], [partial(run, rank) for rank in first.values()], operands)
