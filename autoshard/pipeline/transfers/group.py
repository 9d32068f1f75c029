"""Groups of ranks that run stages: each a mesh of its own, whose ranks are some of all that were started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.layout.mesh import Mesh
from autoshard.util.errors import MeshError, shortened


@dataclass(frozen=True)
class RankGroup:
    """A mesh, and for each of its ranks, in order, which one of all ranks it is.

    >>> from autoshard import Mesh
    >>> RankGroup(Mesh(tp=2), (4, 5)).ranks[1]
    5
    """

    mesh: Mesh
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.ranks) != self.mesh.devices or len(set(self.ranks)) != len(self.ranks):
            raise MeshError(
                f"mesh '{self.mesh}' has {self.mesh.devices} devices, and is given ranks "
                f"{shortened(str(list(self.ranks)), 80)}"
            )

    def __str__(self) -> str:
        first, *others = self.ranks
        return f"{self.mesh} on ranks {first}-{others[-1]}" if others else f"rank {first}"


def groups_along(mesh: Mesh, axis: str) -> tuple[RankGroup, ...]:
    """A group for each place along an axis of a mesh, with the other axes as its mesh.

    Raises:
        MeshError: the mesh has no such axis.
    """
    if axis not in mesh.names:
        raise MeshError(
            f"mesh '{mesh}' has no axis {axis!r} for stages to lie along; its axes: {', '.join(mesh.names)}"
        )
    others = tuple(pair for pair in mesh.axes if pair[0] != axis)
    part = Mesh(others) if others else Mesh.flat(1)
    refs = tuple(mesh.axis(name) for name, _ in others)
    found: list[dict[int, int]] = [{} for _ in range(mesh.sizes[axis])]
    for rank in mesh.listed("find its stage"):
        found[mesh.index(rank, (mesh.axis(axis),))][mesh.index(rank, refs)] = rank
    return tuple(RankGroup(part, tuple(ranks[place] for place in range(part.devices))) for ranks in found)


def read_groups(text: str) -> tuple[RankGroup, ...]:
    """Groups of consecutive ranks from the text of their meshes: `tp=2/dp=2,tp=2/tp=2`.

    Raises:
        MeshError: a mesh that cannot be read, or none between two strokes.
    """
    parts = text.split("/")
    if not all(part.strip() for part in parts):
        place = next(i for i, part in enumerate(parts) if not part.strip())
        raise MeshError(
            f"cannot read the meshes {shortened(repr(text), 80)} of the stages: that of group {place} is empty; write "
            "e.g. 'tp=2/dp=2,tp=2/tp=2'"
        )
    return stacked([Mesh.parse(part) for part in parts])


def stacked(meshes: Sequence[Mesh]) -> tuple[RankGroup, ...]:
    """Groups of consecutive ranks with these meshes.

    >>> from autoshard import Mesh
    >>> [group.ranks for group in stacked([Mesh(tp=2), Mesh(tp=1)])]
    [(0, 1), (2,)]
    """
    groups, start = [], 0
    for mesh in meshes:
        groups.append(RankGroup(mesh, tuple(range(start, start + mesh.devices))))
        start += mesh.devices
    return tuple(groups)


def meshes_label(groups: Sequence[RankGroup]) -> str:
    """The meshes of groups in words, equal ones counted: `2 x (dp=2) + (tp=4)`."""
    counts = Counter(str(group.mesh) for group in groups)
    return " + ".join(f"{count} x ({mesh})" if count > 1 else f"({mesh})" for mesh, count in counts.items())
