"""Step: one collective (or local cut) that takes a tensor from one layout to another.

| kind           | what happens                                                        | bytes one rank sends         |
|----------------|---------------------------------------------------------------------|------------------------------|
| slice          | keep one piece of a dim                                              | 0                            |
| keep           | position 0 of the group keeps the value as its term, others hold zero | 0                            |
| all_gather     | pieces of a dim joined                                               | (n-1)/n of the result        |
| all_reduce     | terms combined                                                       | 2(n-1)/n of the local tensor |
| reduce_scatter | terms combined, one piece of a dim kept                              | (n-1)/n of the local tensor  |
| all_to_all     | pieces of one dim exchanged for pieces of another                    | (n-1)/n of the local tensor  |
| permute        | blocks change hands as they are                                      | the local tensor             |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, Groups, size_of

KINDS = ("slice", "keep", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute")
LOCAL_KINDS = ("slice", "keep")


@dataclass(frozen=True)
class Step:
    """From layout `before` to `after` by one collective of `kind` along `axes`.

    `dim` is the dim that is cut (slice, reduce_scatter, all_to_all) or joined (all_gather); `to_dim` the dim that an
    all_to_all joins. A permute's axes are those along which blocks may change hands.
    """

    kind: str
    before: Layout
    after: Layout
    axes: Refs
    dim: int | None = None
    to_dim: int | None = None

    @property
    def communicates(self) -> bool:
        return self.kind not in LOCAL_KINDS

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.before.mesh, self.axes)

    @property
    def reduction(self) -> str:
        return self.before.reduction

    def elements_moved(self, shape: Sequence[int]) -> float:
        """Elements that one rank sends, for a tensor of this global shape."""
        n = size_of(self.axes)
        local = math.prod(self.before.local_shape(shape))
        if self.kind == "all_gather":
            return (n - 1) * local
        if self.kind == "all_reduce":
            return 2 * (n - 1) / n * local
        if self.kind in ("reduce_scatter", "all_to_all"):
            return (n - 1) / n * local
        return float(local) if self.kind == "permute" else 0.0

    def nbytes_priced(self, shape: Sequence[int], itemsize: int) -> int:
        """The size by which costmodel prices the collective: the result of a gather, else the local tensor."""
        layout = self.after if self.kind == "all_gather" else self.before
        return math.prod(layout.local_shape(shape)) * itemsize

    def source_of(self) -> Callable[[int], int]:
        """For a permute: which rank's block each rank receives."""
        return _Relabel(self.before, self.after).source_of

    def __str__(self) -> str:
        over = ".".join(map(self.before.mesh.show_ref, self.axes))
        dim = "" if self.dim is None else f" dim={self.dim}"
        to_dim = "" if self.to_dim is None else f" to_dim={self.to_dim}"
        op = f" op={self.reduction}" if self.kind in ("all_reduce", "reduce_scatter") else ""
        return f"{self.kind} over={over}{dim}{to_dim}{op}"


class _Relabel:
    """The bijection of ranks behind a permute: `after`'s pieces take the blocks that `before`'s pieces hold."""

    def __init__(self, before: Layout, after: Layout) -> None:
        self.mesh = before.mesh
        self.pairs = relabel_pairs(before, after)
        assert self.pairs is not None, f"planner made a permute from [{before}] to [{after}] that is no relabeling"

    def source_of(self, rank: int) -> int:
        mesh = self.mesh
        place = rank if mesh._position_of_rank is None else int(mesh._position_of_rank[rank])
        assert self.pairs is not None, "checked when made"
        source = place
        for old, new in self.pairs:
            source += (mesh.coordinate(rank, new) - mesh.coordinate(rank, old)) * mesh.stride(old)
        return source if mesh.order is None else mesh.order[source]


def relabel_pairs(before: Layout, after: Layout) -> tuple[tuple[AxisRef, AxisRef], ...] | None:
    """Pairs (old piece, new piece): block coordinates along `new` afterwards are those along `old` before.

    Pieces that stop being used pair with those that start being used; None if sizes do not match.
    """
    pairs: list[tuple[AxisRef, AxisRef]] = []
    for old_refs, new_refs in zip(before.dims, after.dims, strict=True):
        aligned = _align(old_refs, new_refs)
        if aligned is None:
            return None
        pairs += aligned
    olds, news = {old for old, _ in pairs}, {new for _, new in pairs}
    if _cross(olds, news):
        return None
    freed = sorted((ref for ref in olds - news), key=before.mesh.sort_key)
    taken = sorted((ref for ref in news - olds), key=before.mesh.sort_key)
    for ref in taken:
        mate = next((one for one in freed if one.size == ref.size), None)
        if mate is None:
            return None
        freed.remove(mate)
        pairs.append((ref, mate))
    return tuple(pair for pair in pairs if pair[0] != pair[1])


def _align(old: Refs, new: Refs) -> list[tuple[AxisRef, AxisRef]] | None:
    """Cut both lists so that pieces match in size, major first."""
    if size_of(old) != size_of(new):
        return None
    olds, news, pairs = list(old), list(new), []
    while olds:
        common = math.gcd(olds[0].size, news[0].size)
        if common == 1:
            return None
        for refs in (olds, news):
            if refs[0].size > common:
                refs[0:1] = refs[0].split(common)
        pairs.append((olds.pop(0), news.pop(0)))
    return pairs


def _cross(olds: set[AxisRef], news: set[AxisRef]) -> bool:
    """Whether pieces overlap without being equal, so that they are no independent coordinates."""
    return any(a != b and a.overlaps(b) for a in olds | news for b in olds | news)
