"""Step: one collective (or local cut) that takes a tensor from one layout to another.

| kind           | what happens                                         | elements one rank sends      |
|----------------|------------------------------------------------------|------------------------------|
| slice          | keep one piece of a dim                              | 0                            |
| keep           | position 0 keeps the value as its term, others zero  | 0                            |
| all_gather     | pieces of a dim joined                               | (n-1)/n of the result        |
| all_reduce     | terms combined                                       | 2(n-1)/n of the local tensor |
| reduce_scatter | terms combined, one piece of a dim kept              | (n-1)/n of the local tensor  |
| all_to_all     | pieces of one dim exchanged for pieces of another    | (n-1)/n of the local tensor  |
| permute        | blocks change hands as they are                      | the local tensor             |
"""

from __future__ import annotations

import itertools
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

    `dim` is the dim that is cut (slice, reduce_scatter, all_to_all) or joined (all_gather); `to_dim` the dim
    that an all_to_all joins. A permute's axes are those along which blocks may change hands.
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
        """The size by which costmodel prices the collective: a gather's result, else the local tensor."""
        layout = self.after if self.kind == "all_gather" else self.before
        return math.prod(layout.local_shape(shape)) * itemsize

    def source_of(self) -> Callable[[int], int]:
        """For a permute: which rank's block each rank receives, a bijection of the ranks."""
        pairs = relabel_pairs(self.before, self.after)
        assert pairs is not None, f"a permute from [{self.before}] to [{self.after}] is no relabeling"
        mesh = self.before.mesh

        def source(rank: int) -> int:
            place = mesh.position(rank)
            for olds, news in pairs:
                index = mesh.index(rank, news)
                for ref in reversed(olds):
                    index, coordinate = divmod(index, ref.size)
                    place += (coordinate - mesh.coordinate(rank, ref)) * mesh.stride(ref)
            return place if mesh.order is None else mesh.order[place]

        return source

    def __str__(self) -> str:
        over = ".".join(map(self.before.mesh.show_ref, self.axes))
        dim = "" if self.dim is None else f" dim={self.dim}"
        to_dim = "" if self.to_dim is None else f" to_dim={self.to_dim}"
        op = f" op={self.reduction}" if self.kind in ("all_reduce", "reduce_scatter") else ""
        return f"{self.kind} over={over}{dim}{to_dim}{op}"


def relabel_pairs(before: Layout, after: Layout) -> tuple[tuple[Refs, Refs], ...] | None:
    """Pairs (old pieces, new pieces): where a rank stands along `new`, its source stands along `old`.

    One pair for each dim whose pieces change, and one in which the pieces that are no longer used take the
    part of those that now are. All old pieces together are all new ones, so that this is a bijection of the
    ranks. None if a dim has another number of parts, the layouts share no splitting of an axis, or a partial
    axis would be touched.
    """
    cut = cutter(before, after)
    if before.parts != after.parts or cut is None:
        return None
    pairs = []
    for old, new in zip(before.dims, after.dims, strict=True):
        if old != new:
            pairs.append(_without_common(cut(old), cut(new)))
    olds = {ref for old, _ in pairs for ref in old}
    news = {ref for _, new in pairs for ref in new}
    freed = tuple(sorted(olds - news, key=before.mesh.sort_key))
    taken = tuple(sorted(news - olds, key=before.mesh.sort_key))
    if freed:
        pairs.append((taken, freed))
    if any(ref in olds or ref in news for ref in (*cut(before.partial), *cut(after.partial))):
        return None
    return tuple(pairs)


def _without_common(old: Refs, new: Refs) -> tuple[Refs, Refs]:
    """What is left of both when the major and then the minor pieces that they share are taken off."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    old, new = old[start:], new[start:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return old, new


def cutter(*layouts: Layout) -> Callable[[Refs], Refs] | None:
    """Cuts refs where a ref of any layout begins or ends; None if no one splitting holds all."""
    places: dict[str, set[int]] = {}
    for layout in layouts:
        for ref in layout.used:
            places.setdefault(ref.name, set()).update((ref.pre, ref.next))
    ordered = {name: sorted(cuts) for name, cuts in places.items()}
    if any(high % low for cuts in ordered.values() for low, high in itertools.pairwise(cuts)):
        return None

    def cut(refs: Refs) -> Refs:
        pieces: list[AxisRef] = []
        for ref in refs:
            bounds = [place for place in ordered[ref.name] if ref.pre <= place <= ref.next]
            pieces += [AxisRef(ref.name, low, high // low) for low, high in itertools.pairwise(bounds)]
        return tuple(pieces)

    return cut
