"""All ranks in this process: collectives as numpy on a list of arrays, no MPI needed.

Reductions go through a group in its own order, so the results are the same on every run. For example
`LocalComm(2).all_reduce([a, b], groups, "sum")` returns `[a + b, a + b]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np

from autoshard.layout.mesh import Grouping
from autoshard.runtime.comm import (
    REDUCTIONS,
    Comm,
    CommError,
    Messages,
    Parts,
    Shapes,
    accumulator,
    fresh,
    join_pieces,
    split_pieces,
)

MOST_RANKS = 2**16
"""Ranks of one process at most: each has buffers of its own and takes its turn in one thread."""


class LocalComm(Comm):
    """Hosts the ranks 0..world-1."""

    def __init__(self, world: int) -> None:
        if world < 1:
            raise CommError(f"LocalComm: a world has at least one rank, not {world}")
        if world > MOST_RANKS:
            raise CommError(
                f"LocalComm: one process hosts at most {MOST_RANKS} ranks, not {world}; run on fewer devices"
            )
        super().__init__(world, tuple(range(world)))

    def barrier(self) -> None:
        """Nothing to wait for: the ranks take turns in one thread."""

    def _all_reduce(self, parts: Parts, groups: Grouping, op: str) -> list[np.ndarray]:
        return self._by_group("all_reduce", parts, groups, lambda own: fresh([_reduce(own, op)] * len(own)))

    def _all_gather(self, parts: Parts, groups: Grouping, dim: int) -> list[np.ndarray]:
        return self._by_group(
            "all_gather", parts, groups, lambda own: fresh([np.concatenate(own, axis=dim)] * len(own))
        )

    def _reduce_scatter(self, parts: Parts, groups: Grouping, dim: int, op: str) -> list[np.ndarray]:
        def scatter(own: list[np.ndarray]) -> list[np.ndarray]:
            # Piece by piece: the sum of whole arrays would take memory that no rank of a job takes.
            cut = [split_pieces(part, len(own), dim) for part in own]
            return [np.ascontiguousarray(_reduce([pieces[j] for pieces in cut], op)) for j in range(len(own))]

        return self._by_group("reduce_scatter", parts, groups, scatter)

    def _all_to_all(self, parts: Parts, groups: Grouping, split: int, concat: int) -> list[np.ndarray]:
        def exchange(own: list[np.ndarray]) -> list[np.ndarray]:
            cut = [split_pieces(part, len(own), split) for part in own]
            return fresh([join_pieces(np.stack([pieces[j] for pieces in cut]), concat) for j in range(len(own))])

        return self._by_group("all_to_all", parts, groups, exchange)

    def _permute(self, parts: Parts, sources: list[int]) -> list[np.ndarray]:
        _check_alike("permute", list(parts))
        return fresh([parts[source] for source in sources])

    def _exchange(
        self, parts: Parts, groups: Grouping, sends: Sequence[Messages], awaited: Sequence[Shapes], dtype: np.dtype
    ) -> list[dict[int, np.ndarray]]:
        received: list[dict[int, np.ndarray]] = []
        for rank, shapes in zip(self.ranks, awaited, strict=True):
            for source, shape in shapes.items():
                sent = sends[source].get(rank)
                if sent is None or sent.shape != shape:
                    shown = "nothing" if sent is None else list(sent.shape)
                    raise CommError(f"exchange: rank {rank} awaits {list(shape)} of rank {source}, who sends {shown}")
            received.append({source: np.array(sends[source][rank], order="C") for source in shapes})
        return received

    def _collect(self, parts: Parts, root: int) -> list[np.ndarray]:
        _check_alike("collect", list(parts))
        return fresh(parts)

    def _broadcast(self, parts: Parts, shape: tuple[int, ...], dtype: np.dtype, root: int) -> list[np.ndarray]:
        return fresh([parts[0]] * self.world)

    def _by_group(
        self, name: str, parts: Parts, groups: Grouping, call: Callable[[list[np.ndarray]], list[np.ndarray]]
    ) -> list[np.ndarray]:
        """Apply `call` to the arrays of each group; hand its results back to the members."""
        results: dict[int, np.ndarray] = {}
        for members in _each_group(groups):
            own = [parts[rank] for rank in members]
            _check_alike(name, own)
            results.update(zip(members, call(own), strict=True))
        return [results[rank] for rank in self.ranks]


def _each_group(groups: Grouping) -> Iterator[list[int]]:
    seen: set[int] = set()
    for rank in range(groups.world):
        if rank not in seen:
            members = [int(member) for member in groups.members(rank)]
            seen.update(members)
            yield members


def _check_alike(name: str, arrays: list[np.ndarray]) -> None:
    first = arrays[0]
    for array in arrays:
        if array.shape != first.shape or array.dtype != first.dtype:
            raise CommError(
                f"{name}: ranks of one group hold {first.dtype}{list(first.shape)} and"
                f" {array.dtype}{list(array.shape)}; all have to hold the same shape and dtype"
            )


def _reduce(arrays: list[np.ndarray], op: str) -> np.ndarray:
    dtype = arrays[0].dtype
    wide = accumulator(dtype)
    total = reduce(REDUCTIONS[op], [array.astype(wide, copy=False) for array in arrays])
    return np.asarray(total).astype(dtype, copy=False)
