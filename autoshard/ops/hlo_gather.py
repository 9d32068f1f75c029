"""StableHLO's gather: many slices of an operand at computed places, collected into one result.

Which dims of operand, indices and slices belong together is the same question for a scatter, which writes such slices:
`IndexDims` answers it for both. A rank that holds a part of the operand finds its own slices and zeros for others, so
that the sum over ranks is the whole result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoshard.core.rule import REDUCTION, REPLICATE, Rule
from autoshard.core.tensortype import DType
from autoshard.ops.axes import axis_indices
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.hlo_dynamic import start_index
from autoshard.ops.known import surely
from autoshard.ops.options import Filling
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
Dims = tuple[int, ...]


# -- which dims belong together

# Roles of a link: a window dim taken in full; one that is cut; a batch dim that the operand has too; one that it has
# not; an operand dim of which a slice has one element; the dim of the indices that holds their components.
WINDOW, CUT, BATCH, IMPLICIT, DROPPED, VECTOR = "window", "cut", "batch", "implicit", "dropped", "vector"
ABSENT = -1


@dataclass(frozen=True)
class DimLink:
    """Dims of operand, indices and slices that belong together, ABSENT where a tensor has none, and their role."""

    role: str
    operand: int
    indices: int
    slices: int


@dataclass(frozen=True)
class IndexDims:
    """The dimension numbers of a gather or scatter.

    Attributes:
        window: dims of the slices that run along dims of the operand.
        dropped: operand dims that the slices have not (collapsed in a gather, inserted by a scatter).
        batching: operand dims that go along with the dims `indices_batching` of the indices.
        index_map: the operand dim that each component of an index counts in.
        vector: the dim of the indices that holds the components; beyond the last dim if they are scalars.
    """

    window: Dims
    dropped: Dims
    batching: Dims
    indices_batching: Dims
    index_map: Dims
    vector: int

    def kept(self, rank: int) -> Dims:
        """The operand dims that the window dims run along, in order."""
        return tuple(dim for dim in range(rank) if dim not in self.dropped and dim not in self.batching)

    def batch(self, rank: int) -> Dims:
        """The dims of slices of that rank that are no window dims."""
        return tuple(dim for dim in range(rank) if dim not in self.window)

    def batch_shape(self, indices: Shape) -> Shape:
        return tuple(size for dim, size in enumerate(indices) if dim != self.vector)

    def links(self, operand: Shape, indices: Shape, slices: Shape) -> Iterator[DimLink]:
        """All dims that belong together, in the order of Shardy's factors (addGatherScatterFactors)."""
        kept, places = iter(self.kept(len(operand))), iter(i for i in range(len(indices)) if i != self.vector)
        own = dict(zip(self.indices_batching, self.batching, strict=True))
        for at, size in enumerate(slices):
            if at in self.window:
                dim = next(kept)
                yield DimLink(WINDOW if operand[dim] == size else CUT, dim, ABSENT, at)
            else:
                position = next(places)
                yield DimLink(BATCH if position in own else IMPLICIT, own.get(position, ABSENT), position, at)
        yield from (DimLink(DROPPED, dim, ABSENT, ABSENT) for dim in self.dropped)
        if self.vector < len(indices):
            yield DimLink(VECTOR, ABSENT, self.vector, ABSENT)

    def check(self, what: str, operand: Shape, indices: Shape, slices_rank: int) -> None:
        """Raise ShapeError unless the numbers fit tensors of these ranks."""
        rank = len(operand)
        axis_indices((*self.dropped, *self.batching), rank, what)
        axis_indices(self.index_map, rank, what)
        axis_indices(self.window, slices_rank, what)
        components = indices[self.vector] if self.vector < len(indices) else 1
        windows = len(self.window) == len(self.kept(rank))
        batches = slices_rank == len(self.batch_shape(indices)) + len(self.window)
        paired = len(self.batching) == len(self.indices_batching)
        if not (windows and batches and paired) or components != len(self.index_map):
            raise ShapeError(
                f"{what} of {operand} at indices {indices}: {self} do not fit slices of {slices_rank} dims; window "
                f"dims and operand dims neither dropped nor batching must be equally many, and so must components "
                f"of an index and dims in index_map"
            )

    def starts(self, indices: np.ndarray, rank: int) -> list[np.ndarray]:
        """Where slices start in each operand dim, as arrays that broadcast to the batch dims; 0 where not said."""
        last = np.moveaxis(indices, self.vector, -1) if self.vector < indices.ndim else indices[..., None]
        last = start_index(last)
        starts = [np.zeros((), np.int64) for _ in range(rank)]
        for component, dim in enumerate(self.index_map):
            starts[dim] = last[..., component]
        for dim, where in zip(self.batching, self.indices_batching, strict=True):
            position, count = where - (where > self.vector), last.ndim - 1
            starts[dim] = np.arange(last.shape[position]).reshape((-1,) + (1,) * (count - position - 1))
        return starts


@dataclass(frozen=True)
class Slices:
    """How slices lie in an operand: their size per operand dim, and the dims that each covers in full.

    To look slices up, the other dims are brought to the front and indexed; those in full follow as they are.
    """

    dims: IndexDims
    sizes: Shape
    full: Dims

    @property
    def sought(self) -> Dims:
        return tuple(dim for dim in range(len(self.sizes)) if dim not in self.full)

    @property
    def cuts(self) -> Dims:
        """The dims that slices have, but not in full."""
        kept = self.dims.kept(len(self.sizes))
        return tuple(dim for dim in self.sought if dim in kept)

    @property
    def order(self) -> Dims:
        """The operand's dims, sought ones first."""
        return self.sought + self.full

    def slices_order(self, rank: int) -> Dims:
        """Dims of a tensor of slices in the order: batch dims, cuts, full ones."""
        target = dict(zip(self.dims.kept(len(self.sizes)), self.dims.window, strict=True))
        return self.dims.batch(rank) + tuple(target[dim] for dim in self.cuts + self.full)

    def index(self, starts: Sequence[np.ndarray], batch: Shape) -> tuple[np.ndarray, ...]:
        """Index arrays of the sought dims, each of the batch shape and the sizes of the cuts."""
        return tuple(self._index_of(dim, np.broadcast_to(starts[dim], batch)) for dim in self.sought)

    def _index_of(self, dim: int, start: np.ndarray) -> np.ndarray:
        count = len(self.cuts)
        index = start.reshape(start.shape + (1,) * count)
        if dim not in self.cuts:
            return index
        along = count - self.cuts.index(dim) - 1
        return index + np.arange(self.sizes[dim]).reshape((-1,) + (1,) * along)


# -- gather


_DIMS = (
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map",
    "index_vector_dim",
)  # fmt: skip


def gather_dims(attrs: Mapping[str, Any]) -> IndexDims:
    return IndexDims(*(attrs[name] for name in _DIMS))


def _shape(operand: Shape, indices: Shape, *, slice_sizes: Shape, **attrs) -> tuple[Shape, ...]:
    dims = gather_dims(attrs)
    rank = len(dims.window) + len(dims.batch_shape(indices))
    dims.check("Gather", operand, indices, rank)
    extents = tuple(extent for _, extent in attrs.get("block", ())) or operand
    small = len(slice_sizes) == len(operand) and all(0 <= n <= of for n, of in zip(slice_sizes, extents, strict=True))
    if not small or any(slice_sizes[dim] > 1 for dim in dims.dropped + dims.batching):
        raise ShapeError(
            f"Gather of {operand}: slice sizes {slice_sizes} must be one per dim, lie inside, and be at most 1 in "
            f"collapsed dims {dims.dropped} and batching dims {dims.batching}"
        )
    batch, window = iter(dims.batch_shape(indices)), iter(slice_sizes[dim] for dim in dims.kept(len(operand)))
    return (tuple(next(window if i in dims.window else batch) for i in range(rank)),)


def _rule(operand: Shape, indices: Shape, *, reduction: str, slice_sizes: Shape, **attrs) -> Rule:
    (slices,) = _shape(operand, indices, slice_sizes=slice_sizes, **attrs)
    builder = FactorBuilder([len(operand), len(indices)], [len(slices)])
    for link in gather_dims(attrs).links(operand, indices, slices):
        _add_factor(builder, link, operand, indices, slices)
    return replace(builder.build(), reduction=reduction)


def _add_factor(builder: FactorBuilder, link: DimLink, operand: Shape, indices: Shape, slices: Shape) -> None:
    places = {i: dim for i, dim in enumerate((link.operand, link.indices, link.slices)) if dim != ABSENT}
    if link.role == CUT and slices[link.slices] == 1:
        builder.factor({0: link.operand}, operand[link.operand], REDUCTION)
        builder.factor({2: link.slices}, 1, REPLICATE)
    elif link.role == CUT:
        builder.looked_up({0: link.operand}, operand[link.operand], {2: link.slices}, slices[link.slices])
    elif link.role == DROPPED:
        size = operand[link.operand]
        builder.factor(places, size, REPLICATE if size == 1 else REDUCTION)
    elif link.role == VECTOR:
        builder.factor(places, indices[link.indices], REPLICATE)
    else:
        builder.factor(places, slices[link.slices])


def _type(operand: DType, *_: DType, **__: object) -> DType:
    return operand


@operator(
    "GatherSlices", rule=_rule, shape=_shape, dtype=_type, linear=((0,),), flops=0, filling=Filling(neutral="own")
)
def gather_slices(
    operand,
    indices,
    *,
    offset_dims,
    collapsed_slice_dims,
    operand_batching_dims=(),
    start_indices_batching_dims=(),
    start_index_map,
    index_vector_dim,
    slice_sizes,
    reduction="sum",
    block=(),
):
    """StableHLO's gather: per index a slice of `slice_sizes`, moved back inside where it would reach beyond.

    `reduction` combines what ranks with parts of the operand find, 0 elsewhere: 'max' for bools. `block` holds, per
    operand dim, the (offset, extent) of the whole operand that this one is a part of.
    """
    dims = IndexDims(
        offset_dims, collapsed_slice_dims, operand_batching_dims, start_indices_batching_dims, start_index_map,
        index_vector_dim,
    )  # fmt: skip
    block = block or tuple((0, size) for size in operand.shape)
    full = tuple(dim for dim in dims.kept(operand.ndim) if slice_sizes[dim] == block[dim][1])
    slices = Slices(dims, slice_sizes, full)
    batch = dims.batch_shape(indices.shape)
    starts = _clipped(slices, dims.starts(indices, operand.ndim), block)
    index, inside = _held(slices, slices.index(starts, batch), operand.shape, block)
    moved = operand.transpose(slices.order)
    found = np.asarray(moved[index]) if index else np.broadcast_to(moved, batch + moved.shape)
    if not surely(inside.all()):
        found = np.array(found)  # of one slice numpy gives a view
        found[~np.broadcast_to(inside, batch + tuple(slice_sizes[dim] for dim in slices.cuts))] = 0
    return found.transpose(np.argsort(slices.slices_order(found.ndim)))


def _clipped(slices: Slices, starts: list[np.ndarray], block: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Where slices start in the block that is here, after they were moved inside of the whole."""
    for dim in slices.sought:
        if dim not in slices.dims.batching:
            offset, extent = block[dim]
            starts[dim] = np.clip(starts[dim], 0, extent - slices.sizes[dim]) - offset
    return starts


def _held(
    slices: Slices, index: Sequence[np.ndarray], shape: Shape, block: Sequence[tuple[int, int]]
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Indices inside the operand that is here, and which of them really lie there."""
    inside, found = np.ones((), bool), []
    for dim, places in zip(slices.sought, index, strict=True):
        (offset, extent), here = block[dim], shape[dim]
        if dim not in slices.dims.batching and (offset or here < extent):
            inside = inside & (places >= 0) & (places < here)
            places = np.clip(places, 0, here - 1)
        found.append(places)
    return tuple(found), inside


@gather_slices.localize
def _(attrs, placement):
    dims, sizes = gather_dims(attrs), attrs["slice_sizes"]
    whole, local = placement.operands[0].shape, placement.local_operand(0)
    full = [dim for dim in dims.kept(len(whole)) if sizes[dim] == whole[dim]]
    return {
        "slice_sizes": tuple(local[dim] if dim in full else size for dim, size in enumerate(sizes)),
        "block": tuple(
            (0, local[dim]) if dim in full or dim in dims.batching else (placement.operand_offset(0, dim), size)
            for dim, size in enumerate(whole)
        ),
    }
