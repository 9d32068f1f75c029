"""Groups of ranks that run stages: each a mesh of its own, whose ranks are some of all that were started; also of other
hardware than the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.layout.mesh import Mesh
from autoshard.util.errors import MeshError, PlanError, shortened
from costmodel import Hardware, preset


@dataclass(frozen=True)
class RankGroup:
    """A mesh, and for each of its ranks, in order, which one of all ranks it is; the name of their hardware, where it
    is not that of the plan.

    >>> from autoshard import Mesh
    >>> RankGroup(Mesh(tp=2), (4, 5)).ranks[1]
    5
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    hardware: str = ""

    def __post_init__(self) -> None:
        if len(self.ranks) != self.mesh.devices or len(set(self.ranks)) != len(self.ranks):
            raise MeshError(
                f"mesh '{self.mesh}' has {self.mesh.devices} devices, and is given ranks "
                f"{shortened(str(list(self.ranks)), 80)}"
            )

    @property
    def label(self) -> str:
        """The mesh in words, and what its devices are: `tp=2@h100`."""
        return f"{self.mesh}@{self.hardware}" if self.hardware else str(self.mesh)

    def __str__(self) -> str:
        first, *others = self.ranks
        kind = self.hardware and f" of {self.hardware}"
        return f"{self.mesh} on ranks {first}-{others[-1]}{kind}" if others else f"rank {first}{kind}"


def groups_along(mesh: Mesh, axis: str) -> tuple[RankGroup, ...]:
    """A group for each place along an axis of a mesh, with the other axes as its mesh.

    Raises:
        MeshError: the mesh has no such axis.
    """
    if axis not in mesh.names:
        count = axis if axis.isdigit() else 2
        raise MeshError(
            f"mesh '{mesh}' has no axis {axis!r} for stages to lie along; its axes: {', '.join(mesh.names)}; of "
            f"{count} stages name one, as in mesh 'pp={count} dp=2' and pipeline 'pp', or let 'auto' search them"
        )
    others = tuple(pair for pair in mesh.axes if pair[0] != axis)
    part = Mesh(others) if others else Mesh.flat(1)
    refs = tuple(mesh.axis(name) for name, _ in others)
    found: list[dict[int, int]] = [{} for _ in range(mesh.sizes[axis])]
    for rank in mesh.listed("find its stage"):
        found[mesh.index(rank, (mesh.axis(axis),))][mesh.index(rank, refs)] = rank
    return tuple(RankGroup(part, tuple(ranks[place] for place in range(part.devices))) for ranks in found)


def read_groups(text: str) -> tuple[RankGroup, ...]:
    """Groups of consecutive ranks from the text of their meshes: `tp=2/dp=2,tp=2/tp=2`; of unlike hardware
    `tp=2@h100/tp=4@a100`.

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
    pairs = [part.partition("@") for part in parts]
    for part, (_, at, kind) in zip(parts, pairs, strict=True):
        if at and not kind.strip():
            raise MeshError(f"{part.strip()!r} names no hardware after @; write e.g. 'tp=2@h100'")
    return stacked([Mesh.parse(mesh) for mesh, _, _ in pairs], [kind.strip() for _, _, kind in pairs])


def stacked(meshes: Sequence[Mesh], kinds: Sequence[str] = ()) -> tuple[RankGroup, ...]:
    """Groups of consecutive ranks with these meshes, and of the hardware of these names.

    >>> from autoshard import Mesh
    >>> [group.ranks for group in stacked([Mesh(tp=2), Mesh(tp=1)])]
    [(0, 1), (2,)]
    """
    groups, start = [], 0
    for mesh, kind in zip(meshes, kinds or [""] * len(meshes), strict=True):
        groups.append(RankGroup(mesh, tuple(range(start, start + mesh.devices)), kind))
        start += mesh.devices
    return tuple(groups)


def group_hardware(groups: Sequence[RankGroup], everywhere: Hardware) -> tuple[Hardware, ...]:
    """What the devices of each group are.

    Args:
        everywhere: what those of groups are that name nothing else.

    Raises:
        PlanError: a group names hardware that there is not.
    """
    found = []
    for number, group in enumerate(groups):
        try:
            found.append(preset(group.hardware).for_ranks(len(group.ranks)) if group.hardware else everywhere)
        except ValueError as error:
            raise PlanError(f"group {number} of the stages, {group}: {error}") from None
    return tuple(found)


Limits = tuple[int | None, ...]
"""Bytes that a device of each group may need; None: any."""


def group_limits(groups: Sequence[RankGroup], everywhere: Hardware, limit: int | None) -> Limits:
    """What a device of each group has: the limit, of groups that name their hardware no more than that has; without a
    limit what the hardware has."""
    found = []
    for group, hardware in zip(groups, group_hardware(groups, everywhere), strict=True):
        own = hardware.device.memory_bytes if group.hardware or limit is None else None
        found.append(min((one for one in (limit, own) if one is not None), default=None))
    return tuple(found)


def meshes_label(groups: Sequence[RankGroup]) -> str:
    """The meshes of groups in words, equal ones counted: `2 x (dp=2) + (tp=4)`."""
    counts = Counter(group.label for group in groups)
    return " + ".join(f"{count} x ({mesh})" if count > 1 else f"({mesh})" for mesh, count in counts.items())
