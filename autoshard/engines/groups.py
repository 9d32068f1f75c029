"""Who talks to whom, as the text of a program says it: names of axes of a finer mesh, or lists of ranks.

A text's mesh has an axis for each piece of an axis that some layout splits by, so that groups are axes by name. Where
layouts cut an axis in ways that have no common pieces (6 as 2 x 3 and as 3 x 2), or a group is a list, groups are rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from autoshard.engines.grid import Axes, Grid
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Grouping, GroupList, Groups, Mesh


class AxisPieces:
    """The pieces of a mesh's axes that a program speaks of."""

    def __init__(self, mesh: Mesh, refs: Iterable[AxisRef], listed: bool) -> None:
        self.mesh = mesh
        cuts = {name: {1, size} for name, size in mesh.axes}
        for ref in refs:
            cuts[ref.name] |= {ref.pre, ref.next}
        self._cuts = {name: sorted(places) for name, places in cuts.items()}
        self.is_named = not listed and all(
            high % low == 0 for places in self._cuts.values() for low, high in zip(places, places[1:], strict=False)
        )

    @cached_property
    def _pieces(self) -> dict[str, list[tuple[str, int, int]]]:
        """For each axis its pieces: name, and from where to where it lies."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for name, places in self._cuts.items():
            ends = list(zip(places, places[1:], strict=False)) or [(1, 1)]
            names = [name] if len(ends) == 1 else [f"{name}_{i}" for i in range(len(ends))]
            found[name] = [(piece, *end) for piece, end in zip(names, ends, strict=True)]
        return found

    @property
    def grid(self) -> Grid:
        ranks = tuple(self.mesh.order or self.mesh.listed("write the program of a rank"))
        if not self.is_named:
            return Grid((("ranks", len(ranks)),), tuple(range(len(ranks))))
        axes = ((name, end // first) for pieces in self._pieces.values() for name, first, end in pieces)
        return Grid(tuple(axes), ranks)

    def axes(self, over: Refs | Grouping) -> Axes:
        """The groups along refs, or those of a grouping."""
        if isinstance(over, GroupList):
            return over.rows
        refs = over.refs if isinstance(over, Groups) else over
        if self.is_named:
            return tuple(
                name
                for ref in refs
                for name, first, end in self._pieces[ref.name]
                if ref.pre <= first and end <= ref.next and end > first
            )
        groups = Groups(self.mesh, refs)
        rows = (tuple(groups.members(rank).tolist()) for rank in range(self.mesh.devices))
        return tuple(dict.fromkeys(rows))
