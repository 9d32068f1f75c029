"""Redistribution across a reshape: from a layout of one shape to a layout of another with the same elements.

Both shapes are cut into the same finer dims, of which each old and each new dim is a run (24 by 5 and 4 by 30 are both
4 by 6 by 5). Pieces of the mesh that split a dim split the dims of its run, major first: so both layouts have a form
on the finer shape, whose blocks hold the same elements in the same order. From one form to the other it is a
redistribution like any other. Pieces that would cut across a boundary of finer dims move to another dim before, or come
from there afterwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, size_of
from autoshard.redistribute.planner import Steps, elements_moved, plan_steps
from autoshard.util.errors import RedistributeError

Shape = tuple[int, ...]


class Leg(NamedTuple):
    """Steps on one shape. Between legs each rank reshapes its block where it is."""

    shape: Shape
    before: Layout
    after: Layout
    steps: Steps


class Reshaping(NamedTuple):
    """The legs of a redistribution across a reshape, without those that do nothing."""

    legs: tuple[Leg, ...]

    @property
    def elements_moved(self) -> float:
        """Elements that one rank receives at most."""
        return sum(elements_moved(leg.steps, leg.shape) for leg in self.legs)


def reshape_steps(before: Layout, shape: Sequence[int], after: Layout, new_shape: Sequence[int]) -> Reshaping:
    """The way from `before`, a layout of a tensor of `shape`, to `after` of the same elements in `new_shape`.

    Raises:
        RedistributeError: other numbers of elements, or layouts that do not divide their shapes. LayoutError: another
        number of dims than the shape has.
    """
    old, new = tuple(shape), tuple(new_shape)
    before.check_fits(old, "the tensor")
    after.check_fits(new, "the reshaped tensor")
    if math.prod(old) != math.prod(new) or not math.prod(old) or not (before.divides(old) and after.divides(new)):
        raise RedistributeError(
            f"cannot reshape {list(old)} in [{before}] to {list(new)} in [{after}]: both need the same number of "
            "elements, not none, and a layout that divides them"
        )
    fine = finer(old, new)
    start, here = _fitted(before, old, fine)
    end, there = _fitted(after, new, fine)
    legs = ((old, before, start), (fine, here, there), (new, end, after))
    return Reshaping(tuple(Leg(of, one, two, plan_steps(one, two, of)) for of, one, two in legs if one is not two))


def finer(old: Shape, new: Shape) -> Shape:
    """The dims that both shapes are runs of; where their boundaries do not nest (4 by 6 and 3 by 8), one for all."""
    ends, others = (set(itertools.accumulate(shape, int.__mul__, initial=1)) for shape in (old, new))
    dims = []
    for low, high in itertools.pairwise(sorted(ends & others)):
        inside = sorted(end for end in ends | others if low <= end <= high)
        nested = all(more % less == 0 for less, more in itertools.pairwise(inside))
        dims += [more // less for less, more in itertools.pairwise(inside)] if nested else [high // low]
    return tuple(dims)


def _fitted(layout: Layout, shape: Shape, fine: Shape) -> tuple[Layout, Layout]:
    """The layout, with what does not fit moved elsewhere, and its form on the finer shape."""
    form = on_finer(layout, shape, fine)
    while form is None:
        layout = _shortened(layout, shape, fine)
        form = on_finer(layout, shape, fine)
    return layout, form


def _shortened(layout: Layout, shape: Shape, fine: Shape) -> Layout:
    """The layout without the minor piece of a dim because of which it has no form, put where it does no harm."""
    cut = next(dim for dim in range(layout.rank) if on_finer(_up_to(layout, dim), shape, fine) is None)
    *kept, piece = layout.dims[cut]
    shorter = layout.with_dim(cut, tuple(kept))
    for dim in (*range(cut), *range(cut + 1, layout.rank)):
        moved_there = shorter.with_dim(dim, (*shorter.dims[dim], piece))
        if moved_there.divides(shape) and on_finer(_up_to(moved_there, max(dim, cut)), shape, fine) is not None:
            return moved_there
    return shorter


def _up_to(layout: Layout, dim: int) -> Layout:
    """The layout with the dims behind `dim` whole."""
    return layout.with_dims(refs if i <= dim else () for i, refs in enumerate(layout.dims))


def on_finer(layout: Layout, shape: Shape, fine: Shape) -> Layout | None:
    """The form of a layout on the finer shape; None if a piece of the mesh would cut across a boundary of it.

    A dim of the finer shape that is a run of several dims itself is split by the pieces of the first, and by those of
    the next only where the first is cut into single elements.
    """
    ends = list(itertools.accumulate(shape, int.__mul__, initial=1))
    fine_ends = list(itertools.accumulate(fine, int.__mul__, initial=1))
    dims: list[list[AxisRef]] = [[] for _ in fine]
    for dim, refs in enumerate(layout.dims):
        start = ends[dim]  # the finer dims are filled from where this dim begins
        for ref in refs:
            placed = _placed(ref, start, ends[dim + 1], fine_ends)
            if placed is None:
                return None
            for place, piece in placed:
                if size_of(dims[place]) * fine_ends[place] != start:
                    return None
                dims[place].append(piece)
                start *= piece.size
    return layout.with_dims(dims)


def _placed(ref: AxisRef, start: int, stop: int, ends: Sequence[int]) -> list[tuple[int, AxisRef]] | None:
    """In which finer dims a piece lies that begins at `start` parts of the elements, cut at their boundaries."""
    found = []
    while ref.size > 1:
        place = next(i for i in range(len(ends) - 1) if ends[i] <= start < ends[i + 1])
        room, rest = divmod(ends[place + 1], start)
        if rest:
            return None
        if room % ref.size == 0:
            return [*found, (place, ref)]
        if ref.size % room:
            return None
        piece, ref = ref.split(room)
        found.append((place, piece))
        start *= room
    return found
