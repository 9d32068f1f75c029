"""Random meshes and shardings, right and broken ones, and jaxlib's own verdict on them."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from autoshard.layout import AxisRef, Mesh
from autoshard.layout.mesh import merge_refs
from autoshard.layout.sharding import DimSharding, Sharding

AXES = [("x", 12), ("y", 4), ("o", 1), ("z_1", 2)]
PIECES = {"x": ((1, 2), (2, 3), (6, 2), (1, 3), (3, 4)), "y": ((1, 2), (2, 2)), "o": (), "z_1": ()}


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    axes = draw(st.permutations(AXES))[: draw(st.integers(1, 4))]
    devices = math.prod(size for _, size in axes)
    order = draw(st.none() | st.randoms(use_true_random=False))
    if order is None:
        return Mesh(axes)
    ranks = list(range(devices))
    order.shuffle(ranks)
    return Mesh(axes, ranks)


def refs_of(mesh: Mesh) -> st.SearchStrategy[AxisRef]:
    """Whole axes and pieces of them."""
    whole = [mesh.axis(name) for name in mesh.names]
    return st.sampled_from(whole + [AxisRef(name, *piece) for name in mesh.names for piece in PIECES[name]])


@st.composite
def dims(draw: st.DrawFn, axes: tuple[AxisRef, ...]) -> DimSharding:
    closed = draw(st.booleans())
    priority = draw(st.none() | st.integers(0, 3))
    return DimSharding(axes, closed, None if closed and not axes else priority)


@st.composite
def shardings(draw: st.DrawFn, mesh: Mesh, rank: int, name: str = "mesh", terms: bool = True) -> Sharding:
    """A sharding that keeps every invariant: disjoint pieces dealt to dims, replicated and unreduced axes."""
    hands: list[list[AxisRef]] = [[] for _ in range(rank + 2)]
    for ref in draw(st.lists(refs_of(mesh), max_size=6)):
        if not any(ref.overlaps(other) or ref.name == other.name == "o" for hand in hands for other in hand):
            hands[draw(st.integers(0, rank + 1))].append(ref)
    for hand in hands[rank:]:
        hand.sort(key=mesh.sort_key)
    asked = [_joined(hand) for hand in hands]
    unreduced = asked[rank + 1] if terms else ()
    return Sharding(mesh, [draw(dims(axes)) for axes in asked[:rank]], asked[rank], unreduced, mesh_name=name)


def _joined(refs: list[AxisRef]) -> tuple[AxisRef, ...]:
    """Neighbours joined; axes of size 1 stay."""
    return tuple(refs) if any(ref.size == 1 for ref in refs) and not _touch(refs) else merge_refs(refs)


def _touch(refs: list[AxisRef]) -> bool:
    return any(a.can_merge(b) for a, b in zip(refs, refs[1:], strict=False))


@st.composite
def broken(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    """Axes drawn without any care: repeated, overlapping, unordered, impossible, with priorities anywhere."""
    odd = [AxisRef(name, *piece) for name in mesh.names for piece in ((0, 2), (1, 1), (1, 5), (8, 3))]
    some = st.lists(refs_of(mesh) | refs_of(mesh) | refs_of(mesh) | st.sampled_from(odd), max_size=2).map(tuple)
    asked = [
        DimSharding(draw(some), draw(st.booleans()), draw(st.none() | st.integers(0, 2)))
        for _ in range(draw(st.sampled_from([rank, rank, rank, rank + 1])))
    ]
    replicated = draw(st.just(()) | some)
    unreduced = draw(st.just(()) | some)
    return Sharding(mesh, asked, replicated, unreduced)
