"""Sharding: what is asked of a tensor (a Layout is what it has): axes per dim, open or closed, with priorities.

Terms and invariants are those of the Shardy RFC "sharding representation" and its dialect's TensorShardingAttr.
Text is sdy's: `<@mesh, [{"x"}, {"y":(1)2, ?}p1], replicated={"z"}, unreduced={"w"}>`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import NamedTuple

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of
from autoshard.layout.sdy_show import show_axis, show_mesh, show_symbol
from autoshard.util.memo import Interned

UNREDUCED_KINDS = ("sum", "max", "min")


class DimSharding(NamedTuple):
    """What is asked of one dim: the axes that split it, major to minor; whether more may be added; how urgent it is.

    `priority` None means 0, the most urgent.
    """

    axes: Refs = ()
    closed: bool = True
    priority: int | None = None

    @property
    def size(self) -> int:
        """Into how many parts the dim is split."""
        return size_of(self.axes)


OPEN = DimSharding((), False)
CLOSED = DimSharding((), True)


class Sharding:
    """What is asked of one tensor. Interned and immutable: equal shardings are the same object.

    Making one checks nothing; `verify_sharding` states the invariants. Unlike in a Layout, axes of size 1 stay as
    written until a pass removes them.

    Args:
        mesh: the devices; `mesh_name` is the symbol that text refers to it by (empty: written out in place).
        dims: a DimSharding per dim.
        replicated: axes (or sub-axes) along which the tensor must stay whole.
        unreduced: axes along which the tensor holds terms of a `reduction` ("sum", "max" or "min"); without such
            axes the reduction says nothing and is "sum".

    >>> from autoshard import Mesh, Sharding
    >>> mesh = Mesh(dp=2, tp=4)
    >>> print(Sharding.open(mesh, 2))
    <@mesh, [{?}, {?}]>
    """

    _interned: Interned[Sharding] = Interned()
    mesh: Mesh
    dims: tuple[DimSharding, ...]
    replicated: Refs
    unreduced: Refs
    reduction: str
    mesh_name: str

    def __new__(
        cls,
        mesh: Mesh,
        dims: Iterable[DimSharding],
        replicated: Iterable[AxisRef] = (),
        unreduced: Iterable[AxisRef] = (),
        reduction: str = "sum",
        mesh_name: str = "mesh",
    ) -> Sharding:
        terms = tuple(unreduced)
        reduction = reduction if terms else "sum"
        key = (mesh, tuple(dims), tuple(replicated), terms, reduction, mesh_name)
        known = cls._interned.get(key)
        if known is not None:
            return known
        sharding = super().__new__(cls)
        sharding.mesh, sharding.dims, sharding.replicated, sharding.unreduced = key[:4]
        sharding.reduction, sharding.mesh_name = reduction, mesh_name
        return cls._interned.keep(key, sharding)

    def __str__(self) -> str:
        """sdy's text, which `parse_sharding` reads."""
        return _shown(self)

    def __repr__(self) -> str:
        return f"Sharding({self})"

    def __reduce__(self) -> tuple:
        return Sharding, (self.mesh, self.dims, self.replicated, self.unreduced, self.reduction, self.mesh_name)

    @staticmethod
    def open(mesh: Mesh, rank: int, mesh_name: str = "mesh") -> Sharding:
        """Nothing asked: every dim open and without axes."""
        return Sharding(mesh, (OPEN,) * rank, mesh_name=mesh_name)

    @staticmethod
    def closed(mesh: Mesh, rank: int, mesh_name: str = "mesh") -> Sharding:
        """Asked to be whole: every dim closed and without axes."""
        return Sharding(mesh, (CLOSED,) * rank, mesh_name=mesh_name)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @cached_property
    def used(self) -> Refs:
        """All axes mentioned: those of the dims, then replicated, then unreduced ones."""
        return tuple(ref for dim in self.dims for ref in dim.axes) + self.replicated + self.unreduced

    @cached_property
    def is_replicated(self) -> bool:
        """Nothing splits it and nothing is unreduced."""
        return not self.unreduced and not any(dim.axes for dim in self.dims)

    @cached_property
    def is_closed(self) -> bool:
        """Every dim is closed."""
        return all(dim.closed for dim in self.dims)

    def with_dims(self, dims: Iterable[DimSharding]) -> Sharding:
        return Sharding(self.mesh, dims, self.replicated, self.unreduced, self.reduction, self.mesh_name)

    def replace(self, **changes: object) -> Sharding:
        """The same sharding with some constructor arguments changed."""
        fields = dict(
            mesh=self.mesh,
            dims=self.dims,
            replicated=self.replicated,
            unreduced=self.unreduced,
            reduction=self.reduction,
            mesh_name=self.mesh_name,
        )
        return Sharding(**{**fields, **changes})  # type: ignore[arg-type]

    def layout(self) -> Layout:
        """The Layout that has exactly what is asked."""
        return Layout(self.mesh, [dim.axes for dim in self.dims], self.unreduced, self.reduction)

    def local_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """Shape of the largest block: sizes that do not divide are rounded up."""
        return tuple(-(-size // dim.size) for size, dim in zip(shape, self.dims, strict=True))


def is_equivalent(a: Sharding | None, b: Sharding | None, ignore_unreduced: bool = False) -> bool:
    """Whether data laid out as `a` lies as `b` asks: same axes per dim on the same mesh, and the same terms.

    Open or closed, priorities and replicated axes say nothing about where data lies. Two that split nothing are
    equivalent on any mesh; None (nothing asked) splits nothing. Equal meshes under two symbols are two meshes
    (TensorShardingAttr::isEquivalent).
    """
    if a is b:
        return True
    if not ignore_unreduced and _terms(a) != _terms(b):
        return False
    axes_a, axes_b = _axes(a), _axes(b)
    if not any(axes_a) and not any(axes_b):
        return True
    same_mesh = a is not None and b is not None and a.mesh is b.mesh and a.mesh_name == b.mesh_name
    return same_mesh and axes_a == axes_b


def common_mesh(shardings: Iterable[Sharding | None], ignore_order: bool = False) -> tuple[Mesh, str] | None:
    """The mesh that all shardings are on, and its symbol; None if there are several, or no sharding at all.

    Missing shardings and empty meshes go with any mesh. With `ignore_order`, meshes that list the same axes in
    another device order are one; the one in default order is preferred (getCommonMeshOrRef).
    """
    found: Sharding | None = None
    for sharding in shardings:
        if sharding is None or (found is not None and sharding.mesh is found.mesh):
            continue
        if found is None or found.mesh.is_empty:
            found = sharding
        elif sharding.mesh.is_empty:
            continue
        elif not ignore_order or not _same_axes(sharding.mesh, found.mesh):
            return None
        elif not sharding.mesh.order:
            found = sharding
    return None if found is None else (found.mesh, found.mesh_name)


@lru_cache(maxsize=1 << 12)
def without_size_one_axes(sharding: Sharding) -> Sharding:
    """The sharding without its axes of size 1, which split nothing (sdy-remove-size-one-axes).

    A priority goes with the last axis of a closed dim. Pieces of one axis that only such an axis kept apart are
    joined; Shardy's pass fails on them.
    """
    if all(ref.size > 1 for ref in sharding.used):
        return sharding
    dims = [_with_axes(dim, merge_refs(dim.axes)) for dim in sharding.dims]
    replicated, unreduced = merge_refs(sharding.replicated), merge_refs(sharding.unreduced)
    return sharding.replace(dims=dims, replicated=replicated, unreduced=unreduced)


@lru_cache(maxsize=1 << 12)
def closed_all(sharding: Sharding) -> Sharding:
    """The sharding with all dims closed and nothing replicated on purpose (sdy-close-shardings).

    Priorities of dims without axes, which a closed dim may not have, go too.
    """
    dims = [_with_axes(dim._replace(closed=True), dim.axes) for dim in sharding.dims]
    return sharding.replace(dims=dims, replicated=())


@lru_cache(maxsize=1 << 12)
def divisible(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    """The longest major part of the axes of each dim that divides the dim's size; a priority is lost where one is cut.

    This is what Shardy does to uneven shardings at the boundaries of functions, calls and manual computations
    (getEvenlySharded in sdy-update-non-divisible-input-output-shardings).
    """
    if sharding.mesh.is_maximal:
        return sharding
    dims = [
        dim if size % dim.size == 0 else DimSharding(_dividing(dim.axes, size), dim.closed)
        for dim, size in zip(sharding.dims, shape, strict=True)
    ]
    return sharding.with_dims(dims)


@lru_cache(maxsize=1 << 12)
def without_sub_axes(sharding: Sharding) -> Sharding:
    """The sharding with each open dim cut at its first sub-axis (sdy-remove-sub-axes-in-input-output-shardings)."""
    sizes = sharding.mesh.sizes

    def cut(dim: DimSharding) -> DimSharding:
        parts = [i for i, ref in enumerate(dim.axes) if ref.size != sizes[ref.name]]
        return dim if dim.closed or not parts else dim._replace(axes=dim.axes[: parts[0]])

    return sharding.with_dims(map(cut, sharding.dims))


def _axes(sharding: Sharding | None) -> tuple[Refs, ...]:
    return () if sharding is None else tuple(dim.axes for dim in sharding.dims)


def _terms(sharding: Sharding | None) -> tuple[Refs, str]:
    return ((), "sum") if sharding is None else (sharding.unreduced, sharding.reduction)


def _same_axes(a: Mesh, b: Mesh) -> bool:
    return a.axes == b.axes and a.is_maximal == b.is_maximal


def _with_axes(dim: DimSharding, axes: Refs) -> DimSharding:
    return DimSharding(axes, dim.closed, None if dim.closed and not axes else dim.priority)


def _dividing(axes: Refs, size: int) -> Refs:
    """The major axes while they divide `size`, then the part of the next one that does."""
    kept: list[AxisRef] = []
    for ref in axes:
        common = math.gcd(ref.size, size)
        if common == 1:
            break
        kept.append(AxisRef(ref.name, ref.pre, common))
        if common < ref.size:
            break
        size //= common
    return tuple(kept)


@lru_cache(maxsize=1 << 12)
def _shown(sharding: Sharding) -> str:
    mesh = sharding.mesh

    def axes(refs: Iterable[AxisRef]) -> str:
        return ", ".join(show_axis(ref, mesh) for ref in refs)

    where = show_symbol(sharding.mesh_name) if sharding.mesh_name else f"mesh{show_mesh(mesh)}"
    text = f"<{where}, [{', '.join(_shown_dim(dim, axes(dim.axes)) for dim in sharding.dims)}]"
    if sharding.replicated:
        text += f", replicated={{{axes(sharding.replicated)}}}"
    if sharding.unreduced:
        kind = "" if sharding.reduction == "sum" else sharding.reduction
        text += f", unreduced={kind}{{{axes(sharding.unreduced)}}}"
    return text + ">"


def _shown_dim(dim: DimSharding, axes: str) -> str:
    more = "" if dim.closed else ", ?" if axes else "?"
    return f"{{{axes}{more}}}" + ("" if dim.priority is None else f"p{dim.priority}")
