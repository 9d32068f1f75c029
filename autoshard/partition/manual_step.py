"""What a collective written by hand in a manual computation moves: the same questions answered as by a `Step`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Grouping, Groups


@dataclass(frozen=True)
class ManualStep:
    """A collective of `kind` over `groups` of ranks, each of which brings `local` elements that lie as `before`.

    A kind of "rank" moves nothing: each rank says its own number. Elements are counted in the type of the first
    operand, where there are several.
    """

    kind: str
    before: Layout
    groups: Grouping
    local: float

    rounds = messages = 1

    @property
    def communicates(self) -> bool:
        return self.kind != "rank" and self.groups.size > 1

    @property
    def axes(self) -> Refs:
        """The axes that the groups run along: for groups that are listed, all along which members differ."""
        mesh = self.before.mesh
        if isinstance(self.groups, Groups):
            return self.groups.refs
        rows = self.groups.rows
        return tuple(
            ref for ref in mesh.all_axes if any(len({mesh.coordinate(r, ref) for r in row}) > 1 for row in rows)
        )

    def elements_moved(self, shape: Sequence[int] = ()) -> float:
        """Elements that one rank receives at most under a bandwidth-optimal algorithm."""
        n = self.groups.size
        if not self.communicates:
            return 0.0
        share = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1, "permute": 1.0}
        return share.get(self.kind, (n - 1) / n) * self.local

    def nbytes_priced(self, shape: Sequence[int], itemsize: int) -> float:
        """The size by which costmodel prices it: a gather's result, else the local tensor."""
        return self.local * itemsize * (self.groups.size if self.kind == "all_gather" else 1)

    def __str__(self) -> str:
        return f"{self.kind} over={self.groups}"
