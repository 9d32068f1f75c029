"""An interpreter of redistribution steps in plain numpy, and random layouts; independent of the runtime's.

Which ranks belong together is found here by comparing coordinates of all ranks, not by the mesh's own groups.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
from hypothesis import strategies as st

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.redistribute.step import Step

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def digits(mesh: Mesh, rank: int) -> dict[str, int]:
    """The coordinate of a rank along every axis, by unravelling its place in the device order."""
    place = rank if mesh.order is None else mesh.order.index(rank)
    sizes = [size for _, size in mesh.axes]
    return dict(zip(mesh.names, map(int, np.unravel_index(place, sizes)), strict=True))


def along(mesh: Mesh, rank: int, ref: AxisRef) -> int:
    """The coordinate along a piece: the axis's coordinate unravelled into what is before, in and behind."""
    size = mesh.sizes[ref.name]
    shape = (ref.pre, ref.size, size // ref.next)
    return int(np.unravel_index(digits(mesh, rank)[ref.name], shape)[1])


@functools.lru_cache(maxsize=4096)
def position(mesh: Mesh, rank: int, refs: tuple[AxisRef, ...]) -> int:
    index = 0
    for ref in refs:
        index = index * ref.size + along(mesh, rank, ref)
    return index


def group(mesh: Mesh, rank: int, refs: tuple[AxisRef, ...]) -> list[int]:
    """The ranks that agree with `rank` on everything but `refs`, ordered by where they stand along `refs`."""
    rest = Layout(mesh, [refs]).free()
    mine = position(mesh, rank, rest)
    members = [one for one in range(mesh.devices) if position(mesh, one, rest) == mine]
    return sorted(members, key=lambda one: position(mesh, one, refs))


def block(layout: Layout, rank: int, array: np.ndarray) -> np.ndarray:
    """The block of an array that the rank holds, for sizes that divide."""
    for dim, refs in enumerate(layout.dims):
        pieces = np.split(array, math.prod(ref.size for ref in refs), axis=dim)
        array = pieces[position(layout.mesh, rank, refs)]
    return array


def scatter(layout: Layout, array: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
    """What the ranks hold: their blocks, or random terms that combine to them."""
    terms = math.prod(ref.size for ref in layout.partial)
    whole = _terms(array, terms, layout.reduction, random)
    return [
        block(layout, rank, whole[position(layout.mesh, rank, layout.partial)]) for rank in range(layout.mesh.devices)
    ]


def _terms(array: np.ndarray, count: int, reduction: str, random: np.random.Generator) -> list[np.ndarray]:
    """Random integers that reduce to `array` exactly."""
    if reduction == "sum":
        terms = [random.integers(-99, 99, array.shape) for _ in range(count - 1)]
        return [*terms, array - sum(terms)] if terms else [array]
    if reduction == "prod":
        signs = [random.choice((-1, 1), array.shape) for _ in range(count - 1)]
        return [*signs, array * functools.reduce(np.multiply, signs)] if signs else [array]
    less = -1 if reduction == "max" else 1
    terms = [array + less * random.integers(1, 99, array.shape) for _ in range(count)]
    owner = random.integers(0, count, array.shape)
    return [np.where(owner == i, array, term) for i, term in enumerate(terms)]


def check(layout: Layout, held: list[np.ndarray], array: np.ndarray) -> None:
    """Every group of terms combines to the block of `array` that all its ranks should hold."""
    for rank in range(layout.mesh.devices):
        members = group(layout.mesh, rank, layout.partial)
        combined = functools.reduce(COMBINE[layout.reduction], [held[one] for one in members])
        np.testing.assert_array_equal(combined, block(layout, rank, array))


def run(step: Step, held: list[np.ndarray]) -> list[np.ndarray]:
    """What the ranks hold after a step."""
    mesh, n = step.before.mesh, math.prod(ref.size for ref in step.axes)
    if step.fetched is not None:
        return _fetched(step, held)
    if step.kind == "permute":
        return _permute(step, held)
    if step.kind == "keep":
        return [step.to_partial.partial_block(part, rank) for rank, part in enumerate(held)]
    new = []
    for rank in range(mesh.devices):
        members = group(mesh, rank, step.axes)
        mine = members.index(rank)
        assert len(members) == n
        if step.kind == "slice":
            new.append(np.split(held[rank], n, axis=step.dim or 0)[mine])
        elif step.kind == "all_gather":
            new.append(np.concatenate([held[one] for one in members], axis=step.dim or 0))
        elif step.kind == "all_to_all":
            new.append(
                np.concatenate(
                    [np.split(held[one], n, axis=step.dim or 0)[mine] for one in members], axis=step.to_dim or 0
                )
            )
        else:
            assert step.kind in ("all_reduce", "reduce_scatter"), step.kind
            total = functools.reduce(COMBINE[step.reduction], [held[one] for one in members])
            new.append(total if step.kind == "all_reduce" else np.split(total, n, axis=step.dim or 0)[mine])
    return new


def _fetched(step: Step, held: list[np.ndarray]) -> list[np.ndarray]:
    """The boxes that each rank fetches, put in place or combined with what is there."""
    assert step.fetched is not None
    shape = tuple(size * parts for size, parts in zip(held[0].shape, step.before.parts, strict=True))
    new = []
    for rank in range(step.before.mesh.devices):
        made = np.zeros([size // parts for size, parts in zip(shape, step.after.parts, strict=True)], held[0].dtype)
        for piece in step.fetched.pieces(rank, shape):
            assert piece.source in group(step.before.mesh, rank, step.axes), "boxes come along the step's axes only"
            box = held[piece.source][piece.source_box]
            made[piece.target_box] = COMBINE[step.reduction](made[piece.target_box], box) if piece.adds else box
        new.append(made)
    return new


def _permute(step: Step, held: list[np.ndarray]) -> list[np.ndarray]:
    """Each round's pieces, cut and put in place as the routing says."""
    mesh, digits = step.before.mesh, step.routing.digits
    sizes = [part // old for part, old in zip(step.before.parts, step.after.parts, strict=True)]
    assert math.prod(max(1, size) for size in sizes) == step.rounds, "as many pieces as dims grow larger"
    grids: list[dict[tuple[int, ...], np.ndarray]] = [{} for _ in held]
    for number in range(step.rounds):
        turn = step.routing.round(number)
        assert sorted(turn.sources) == list(range(mesh.devices)), "a round is a bijection"
        for rank, one in enumerate(turn.sources):
            assert one in group(mesh, rank, step.axes), "blocks change hands along the step's axes only"
            piece = held[one]
            for tail, place in zip(digits.cuts, turn.cuts[rank], strict=True):
                piece = np.split(piece, tail.ratio, axis=tail.dim)[place]
            grids[rank][turn.pieces[rank]] = piece
    return [_assembled(grid, [(tail.dim, tail.ratio) for tail in digits.joins]) for grid in grids]


def _assembled(grid: dict[tuple[int, ...], np.ndarray], joins: list[tuple[int, int]]) -> np.ndarray:
    if not joins:
        return grid[()]
    dim, ratio = joins[-1]
    places = itertools.product(*(range(size) for _, size in joins[:-1]))
    rows = {place: np.concatenate([grid[(*place, i)] for i in range(ratio)], axis=dim) for place in places}
    return _assembled(rows, joins[:-1])


def received(step: Step, shape: tuple[int, ...]) -> float:
    """Elements of a permute that come to the rank which receives most from others."""
    size = math.prod(block(step.after, 0, np.empty(shape, dtype=np.int8)).shape) // step.rounds
    sources = [step.routing.round(number).sources for number in range(step.rounds)]
    return size * max(sum(row[rank] != rank for row in sources) for rank in range(step.before.mesh.devices))


def fetched(step: Step, shape: tuple[int, ...]) -> float:
    """Elements in the boxes that come from others, to the ranks of the group that gets most; an equal share each."""
    assert step.fetched is not None
    mesh, begun = step.before.mesh, step.fetched.added_partial
    own = [
        sum(math.prod(one.stop - one.start for one in piece.source_box) for piece in row if piece.source != rank)
        for rank, row in ((rank, step.fetched.pieces(rank, shape)) for rank in range(mesh.devices))
    ]
    return max(float(np.mean([own[one] for one in group(mesh, rank, begun)])) for rank in range(mesh.devices))


def sent(step: Step, shape: tuple[int, ...]) -> float:
    """Elements that one rank sends, by the table in the step module, from the blocks' true sizes."""
    if step.fetched is not None:
        return fetched(step, shape)
    if step.kind == "permute":
        return received(step, shape)
    local = math.prod(block(step.before, 0, np.empty(shape, dtype=np.int8)).shape)
    n = math.prod(ref.size for ref in step.axes)
    share = {"all_gather": n - 1, "all_reduce": 2 * (n - 1) / n, "slice": 0, "keep": 0}
    return local * share.get(step.kind, (n - 1) / n)


NAMED = [
    (2, 2),
    (2, 3),
    (3, 2),
    (4, 2),
    (2, 6),
    (6, 2),
    (1, 4),
    (2, 2, 2),
    (2, 1, 3),
    (3, 2, 4),
    (4, 3, 2),
    (2, 2, 3),
]
NAMED += [(6, 4), (2, 2, 2, 2), (2, 3, 1, 2), (2, 2, 2, 3)]
FLAT = [6, 8, 12, 24]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Named meshes of 2 to 4 axes and flat ones, up to 24 ranks, some with a device order."""
    sizes = draw(st.sampled_from([*NAMED, *((size,) for size in FLAT)]))
    order = None
    if draw(st.booleans()):
        order = draw(st.permutations(range(math.prod(sizes))))
    return Mesh(zip("abcd", sizes, strict=False), order)


@st.composite
def pieces(draw: st.DrawFn, mesh: Mesh) -> list[AxisRef]:
    """All axes of a mesh, some of them cut into pieces, in any order."""
    found = []
    for name in mesh.names:
        rest = mesh.axis(name)
        while rest.size > 1:
            major = draw(st.sampled_from([n for n in range(2, rest.size + 1) if rest.size % n == 0][::-1]))
            piece, rest = rest.split(major)
            found.append(piece)
    return draw(st.permutations(found))


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, rank: int, reduction: str = "sum", partial: bool = True) -> Layout:
    """Random layouts: each piece of the mesh goes to some dim, to the terms, or nowhere."""
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    terms: list[AxisRef] = []
    for piece in draw(pieces(mesh)):
        places = [*dims, [], *([terms] if partial else [])]
        places[draw(st.integers(0, len(places) - 1))].append(piece)
    return Layout(mesh, dims, terms, reduction)


def shape_for(*layouts: Layout, extra: int = 1) -> tuple[int, ...]:
    """The least sizes that all layouts divide, times `extra` in the last dim."""
    sizes = [math.lcm(*parts) for parts in zip(*(layout.parts for layout in layouts), strict=True)]
    return tuple(size * (extra if i == len(sizes) - 1 else 1) for i, size in enumerate(sizes))


def gather_all(before: Layout, after: Layout, shape: tuple[int, ...]) -> float:
    """Elements that one rank sends when it finishes all terms, gathers the whole tensor and cuts."""
    split, terms = before.split, math.prod(ref.size for ref in before.partial)
    local = math.prod(shape) / split
    same = before.partial == after.partial and before.reduction == after.reduction
    return (0 if same else 2 * (terms - 1) / terms * local) + (split - 1) * local


def pairs_of(items: list) -> list[tuple]:
    return list(itertools.permutations(items, 2))
