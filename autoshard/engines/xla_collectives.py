"""JAX's collectives as the text of a program calls them, and its loops and branches, while JAX traces it.

This file needs numpy and jax, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from autoshard.engines.boxes import Table, arguments, slices
from autoshard.engines.grid import Axes, Grid
from autoshard.engines.per_rank import MeshQueries
from autoshard.engines.rounds import Message, rounds_of


def each(grid: Grid, ways: Sequence[int], functions: Sequence[Callable], operands: Sequence[Any]) -> Any:
    """On each rank the function whose number stands at its place in `ways`."""
    if len(functions) == 1:
        return functions[0](*operands)
    table = np.asarray([ways[rank] for rank in grid.ranks], np.int32)
    return lax.switch(jnp.asarray(table)[lax.axis_index(grid.names)], functions, *operands)


class XlaControl:
    """Loops and branches of a text."""

    def while_loop(self, holds: Callable, turn: Callable, carried: tuple) -> tuple:
        return lax.while_loop(lambda now: holds(*now)[0].reshape(()), lambda now: turn(*now), carried)

    def case(self, index: Any, branches: tuple[Callable, ...]) -> tuple:
        last = len(branches) - 1
        number = index.reshape(()).astype(np.int32)
        return lax.switch(jnp.where((number < 0) | (number > last), last, number), branches)


def _moved(x: Any, move: Callable) -> Any:
    """What is only moved, as its bits where it is a narrow float, which XLA would send as a wider one on CPUs."""
    if not (jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize <= 2):
        return move(x)
    bits = lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))
    return lax.bitcast_convert_type(move(bits), x.dtype)


class XlaCollectives(MeshQueries):
    """`c` of a text while JAX traces it."""

    def each(self, ways: Sequence[int], functions: Sequence[Callable], *operands: Any) -> Any:
        """On each rank the function whose number stands at its place in `ways`."""
        return each(self.grid, ways, functions, operands)

    def again(self, x: Any, after: Any) -> Any:
        """x behind a barrier, so that XLA sends it once more."""
        return lax.optimization_barrier((x, after))[0]

    def _over(self, axes: Axes) -> dict[str, Any]:
        """A group as JAX's collectives take it: axes by name, or lists of positions along the one axis there is."""
        if axes and isinstance(axes[0], tuple):
            return {"axis_name": self.grid.names[0], "axis_index_groups": [list(row) for row in self.grid.rows(axes)]}
        return {"axis_name": axes}

    def all_reduce(self, x: Any, axes: Axes, op: str) -> Any:
        if op == "prod":
            return jnp.prod(lax.all_gather(x, **self._over(axes)), axis=0).astype(x.dtype)
        if x.dtype == np.bool_:
            return self.all_reduce(x.astype(np.uint8), axes, op).astype(np.bool_)
        return {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[op](x, **self._over(axes))

    def _without_elements(self, x: Any, axes: Axes, split: int | None = None, concat: int | None = None) -> Any:
        """An empty block in the shape that it has after a collective; XLA refuses to send it."""
        shape, parts = list(x.shape), len(self.grid.rows(axes)[0])
        if split is not None:
            shape[split] //= parts
        if concat is not None:
            shape[concat] *= parts
        return x.reshape(shape)

    def all_gather(self, x: Any, axes: Axes, dim: int) -> Any:
        if x.size == 0:
            return self._without_elements(x, axes, concat=dim)
        return _moved(x, partial(lax.all_gather, axis=dim, tiled=True, **self._over(axes)))

    def reduce_scatter(self, x: Any, axes: Axes, dim: int, op: str) -> Any:
        if x.size == 0:
            return self._without_elements(x, axes, split=dim)
        if op != "sum":
            return self.slice(self.all_reduce(x, axes, op), axes, dim)
        return lax.psum_scatter(x, scatter_dimension=dim, tiled=True, **self._over(axes))

    def all_to_all(self, x: Any, axes: Axes, split: int, concat: int) -> Any:
        if x.size == 0:
            return self._without_elements(x, axes, split, concat)
        places = {"split_axis": split, "concat_axis": concat, "tiled": True}
        return _moved(x, partial(lax.all_to_all, **places, **self._over(axes)))

    def bundle(self, kind: str, xs: tuple, axes: Axes, dims: tuple, op: str = "sum") -> tuple:
        """One collective for each: XLA puts them together itself."""
        return tuple(getattr(self, kind)(x, axes, *arguments(kind, one, op)) for x, one in zip(xs, dims, strict=True))

    def start(self, collective: Callable, *args: Any) -> Any:
        """All at once: XLA itself finds what can run meanwhile."""
        return collective(*args)

    def wait(self, begun: Any) -> Any:
        return begun

    def slice(self, x: Any, axes: Axes, dim: int) -> Any:
        size = x.shape[dim] // len(self.grid.rows(axes)[0])
        index = jnp.asarray(np.asarray(self.grid.index(axes), np.int32)[list(self.grid.ranks)])
        return lax.dynamic_slice_in_dim(x, index[lax.axis_index(self.grid.names)] * size, size, dim)

    def permute(self, x: Any, sources: tuple[int | None, ...]) -> Any:
        place = self.grid.positions
        pairs = [(place[source], place[rank]) for rank, source in enumerate(sources) if source is not None]
        return _moved(x, partial(lax.ppermute, axis_name=self.grid.names, perm=pairs))

    def boxes(self, x: Any, shape: tuple[int, ...], table: Table, op: str = "sum", wide: str = "") -> Any:
        """Messages of one round have one length: the longest, as XLA permutes equal blocks."""
        rounds = rounds_of(table)
        received = [self._round(x, messages) for messages in rounds]
        combine = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}[op]
        kind = np.dtype(wide) if wide else x.dtype
        index = {(source, target): i for i, row in enumerate(rounds) for source, target, _ in row}

        def made(rank: int, own: Any, *buffers: Any) -> Any:
            block, taken = jnp.zeros(shape, kind), [0] * len(buffers)
            for source, box, placed, adds in table[rank]:
                if source == rank:
                    values = own[slices(box)]
                else:
                    i = index[source, rank]
                    counts = tuple(count for _, count, _ in box)
                    size = int(np.prod(counts))
                    values = buffers[i][taken[i] : taken[i] + size].reshape(counts)
                    taken[i] += size
                here = slices(placed)
                values = values.astype(kind)
                values = combine(block[here], values) if adds else values
                # A scatter to all elements is what XLA cannot always compile; see `jax_library.set`.
                block = values if values.shape == block.shape else block.at[here].set(values)
            return block.astype(own.dtype)

        return self._apart(made, (x, *received))

    def _round(self, x: Any, messages: Sequence[Message]) -> Any:
        sent = {source: boxes for source, _, boxes in messages}
        length = max(sum(int(np.prod([count for _, count, _ in box])) for box in boxes) for boxes in sent.values())

        def packed(rank: int, own: Any) -> Any:
            flat = [own[slices(box)].reshape(-1) for box in sent.get(rank, ())]
            row = jnp.concatenate(flat) if flat else jnp.zeros(0, own.dtype)
            return jnp.pad(row, (0, length - row.shape[0]))

        place = self.grid.positions
        pairs = [(place[source], place[target]) for source, target, _ in messages]
        move = partial(lax.ppermute, axis_name=self.grid.names, perm=pairs)
        return _moved(self._apart(packed, (x,)), move)

    def _apart(self, run: Callable, operands: tuple) -> Any:
        """A branch for each rank."""
        table = jnp.asarray(np.asarray(self.grid.ranks, np.int32))
        branches = [partial(run, rank) for rank in range(self.grid.size)]
        return lax.switch(table[lax.axis_index(self.grid.names)], branches, *operands)

    def fit(self, x: Any, shape: tuple[int, ...]) -> Any:
        kept = x[tuple(slice(min(old, new)) for old, new in zip(x.shape, shape, strict=True))]
        return jnp.pad(kept, [(0, new - old) for old, new in zip(kept.shape, shape, strict=True)])

    def rank(self, counts: bool) -> Any:
        table = np.asarray(self.grid.ranks if counts else [0] * self.grid.size, np.uint32)
        return jnp.asarray(table)[lax.axis_index(self.grid.names)]
