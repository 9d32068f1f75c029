"""A plan's mesh cut so finely that every layout splits by whole axes, as frameworks without sub-axes want it.

An axis `d` of 8 of which layouts use `d:(1)2` and `d:(2)4` becomes the axes `d_0` of 2 and `d_1` of 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Mesh
from autoshard.plan.plan import Plan
from autoshard.util.errors import PlanError


@dataclass(frozen=True)
class Pieces:
    """The finer mesh: `axes` are its names and sizes, major first, and `parts` the pieces of each axis of `mesh`.

    parts: for each axis of the plan's mesh the pieces (name, first, end): what lies from pre-size `first` to `end`.
    """

    mesh: Mesh
    parts: dict[str, tuple[tuple[str, int, int], ...]]

    @staticmethod
    def of(mesh: Mesh, layouts: Iterable[Layout]) -> Pieces:
        """The coarsest cut that all these layouts can be said with.

        Raises:
            PlanError: layouts cut one axis in ways that have no common cut, such as a 6 into 2 x 3 and into 3 x 2.
        """
        cuts = {name: {1, size} for name, size in mesh.axes}
        for ref in {ref for layout in layouts for ref in layout.used}:
            cuts[ref.name] |= {ref.pre, ref.next}
        taken = set(mesh.names)
        return Pieces(mesh, {name: _parts(name, sorted(places), taken) for name, places in cuts.items()})

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, end // first) for parts in self.parts.values() for name, first, end in parts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @property
    def ranks(self) -> np.ndarray:
        """Which rank stands where: an array with a dim for each axis."""
        order = self.mesh.order or self.mesh.listed("make an array of devices")
        return np.array(order).reshape([size for _, size in self.axes])

    def split(self, refs: Refs) -> tuple[str, ...]:
        """The axes that stand for refs of the plan's mesh, major first."""
        return tuple(
            name for ref in refs for name, first, end in self.parts[ref.name] if ref.pre <= first and end <= ref.next
        )

    def dims(self, layout: Layout) -> tuple[tuple[str, ...], ...]:
        """The axes that split each dim, major first."""
        return tuple(map(self.split, layout.dims))


def _parts(name: str, cuts: list[int], taken: set[str]) -> tuple[tuple[str, int, int], ...]:
    between = list(pairwise(cuts)) or [(1, 1)]
    if any(end % first for first, end in between):
        raise PlanError(
            f"cannot export: layouts cut the mesh axis {name!r} at {cuts}, which have no common cut into whole axes; "
            "plan for a mesh that has these pieces as axes"
        )
    if len(between) == 1:
        return ((name, *between[0]),)
    made = []
    for position, (first, end) in enumerate(between):
        piece = f"{name}_{position}"
        while piece in taken:
            piece += "_"
        taken.add(piece)
        made.append((piece, first, end))
    return tuple(made)


def layouts_of(plan: Plan) -> list[Layout]:
    """All layouts that a plan speaks of, each once: of values, of operands, and of outputs."""
    found = dict.fromkeys((*plan.layouts.values(), *plan.outputs))
    for move in plan.redistributions:
        found[move.after] = None
    return list(found)


def pieces_of(plan: Plan) -> Pieces:
    """The finer mesh of a plan. Raises as `Pieces.of`."""
    return Pieces.of(plan.mesh, layouts_of(plan))
