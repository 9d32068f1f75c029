"""Projection: shardings of dims seen as shardings of factors, and back.

A projection is a table by an operator's rule: a row per tensor (operands, then results), a column per factor.
Propagation works on it, because a dim may hold several factors and a factor may lie in dims of several tensors. The
algorithm is that of Shardy's ShardingProjection (sharding_projection.cc; "Core Propagation Algorithm" in its
propagation document).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from autoshard.core.rule import PASS, Dim, Rule
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.layout.sharding import OPEN, DimSharding, Sharding


class TensorFactorShardings(NamedTuple):
    """One tensor of a projection: what each factor of the rule is split by.

    axes: per factor the axes that split it, major to minor; None where the tensor does not have the factor, or where
        an overflow hides it.
    overflow: axes that follow those of a factor in its dim although they do not divide it. They stay where they are.
    closed: per factor, whether it may not be split further.
    reserved: replicated and unreduced axes, which may not split this tensor.
    """

    axes: tuple[Refs | None, ...]
    overflow: dict[int, Refs]
    closed: tuple[bool, ...]
    reserved: Refs


class TensorFactors:
    """Where the factors of a rule lie in one of its tensors."""

    def __init__(self, dims: tuple[Dim, ...], sizes: tuple[int, ...]) -> None:
        self.dims = dims
        # Of all factors of the rule, so that a factor's index is its position.
        self.sizes = sizes
        # The factors that end a dim: only they may be split unevenly, which pads the dim.
        self.minor = frozenset(dim[-1] for dim in dims)


class FactorMap:
    """What propagation needs to know of a rule whatever the shardings are, found out once."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.sizes = tuple(factor.size for factor in rule.factors)
        self.tensors = tuple(TensorFactors(dims, self.sizes) for dims in (*rule.operands, *rule.results))
        self.operands = len(rule.operands)

    @cached_property
    def columns(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Per factor, the operands and the results that have it, as indices of tensors."""
        found = [([], []) for _ in self.sizes]
        for t, tensor in enumerate(self.tensors):
            for factor in (factor for dim in tensor.dims for factor in dim):
                found[factor][t >= self.operands].append(t)
        return tuple((tuple(operands), tuple(results)) for operands, results in found)

    @cached_property
    def spreadable(self) -> tuple[int, ...]:
        """The factors that a sharding can spread along: not blocked, and in two tensors at least."""
        factors = enumerate(self.rule.factors)
        return tuple(i for i, factor in factors if not factor.blocked and sum(map(len, self.columns[i])) > 1)

    @cached_property
    def spreadable_pass(self) -> tuple[int, ...]:
        """Those of them that pass through: neither reduced, nor replicated, nor permuted."""
        return tuple(i for i in self.spreadable if self.rule.factors[i].kind == PASS)


@lru_cache(maxsize=1 << 12)
def factor_map(rule: Rule) -> FactorMap:
    """The factor map of a completed rule."""
    return FactorMap(rule)


@lru_cache(maxsize=1 << 12)
def to_factors(tensor: TensorFactors, sharding: Sharding | None) -> TensorFactorShardings:
    """What splits each factor of a tensor: its row of the projection.

    The axes of a dim are dealt to its factors, major to minor, and split where a factor needs only a part. The
    minor-most factor takes what is left even if it does not divide; what a factor before it cannot divide becomes its
    overflow, and no factor behind that one can be split. No sharding is a fully open one.
    """
    axes: list[Refs | None] = [None] * len(tensor.sizes)
    closed = [False] * len(tensor.sizes)
    overflow: dict[int, Refs] = {}
    asked = sharding.dims if sharding is not None else (OPEN,) * len(tensor.dims)
    for dim, spec in zip(tensor.dims, asked, strict=True):
        if len(dim) == 1:
            axes[dim[0]], closed[dim[0]] = spec.axes, spec.closed
        else:
            _assign_axes(dim, spec, tensor.sizes, axes, closed, overflow)
    kept = sharding.replicated + sharding.unreduced if sharding is not None else ()
    return TensorFactorShardings(tuple(axes), overflow, tuple(closed), kept)


def _assign_axes(
    dim: Dim,
    spec: DimSharding,
    sizes: tuple[int, ...],
    axes: list[Refs | None],
    closed: list[bool],
    overflow: dict[int, Refs],
) -> None:
    """Deal the axes of a dim of several factors."""
    left = spec.axes
    for factor in dim[:-1]:
        axes[factor], left, stuck = _fill(sizes[factor], left)
        closed[factor] = spec.closed
        if stuck:
            overflow[factor] = left
            hidden = dim[dim.index(factor) + 1]
            axes[hidden], closed[hidden] = (), True
            return
    axes[dim[-1]], closed[dim[-1]] = left, spec.closed


def _fill(size: int, axes: Refs) -> tuple[Refs, Refs, bool]:
    """Split a factor by what divides it of the axes: (taken, left, whether the rest can neither split it nor pass)."""
    taken: list[AxisRef] = []
    while axes:
        axis = axes[0]
        part = math.gcd(size, axis.size)
        if axis.size > 1 and part == 1:
            return tuple(taken), axes, size > 1
        size //= part
        if part < axis.size:
            major, rest = axis.split(part)
            taken.append(major)
            axes = (rest, *axes[1:])
        else:
            taken.append(axis)
            axes = axes[1:]
    return tuple(taken), axes, False


def from_factors(
    tensor: TensorFactors,
    axes: Sequence[Refs | None],
    row: TensorFactorShardings,
    sharding: Sharding | None,
    mesh: Mesh,
    mesh_name: str,
) -> Sharding:
    """The sharding of a tensor whose factors are split by `axes`; the rest is as in `row` and `sharding`.

    Behind a factor that is not split fully, the axes of more minor ones would pick every so-manieth element, which
    no sharding can say: they are dropped. So are priorities, which nothing but what a user wrote has.
    """
    dims = []
    for dim in tensor.dims:
        if len(dim) == 1:
            dims.append(DimSharding(axes[dim[0]] or (), row.closed[dim[0]]))
        else:
            dims.append(_join(dim, axes, row, tensor.sizes))
    if sharding is None:
        return Sharding(mesh, dims, mesh_name=mesh_name)
    return Sharding(mesh, dims, sharding.replicated, sharding.unreduced, sharding.reduction, mesh_name)


def _join(dim: Dim, axes: Sequence[Refs | None], row: TensorFactorShardings, sizes: tuple[int, ...]) -> DimSharding:
    joined: list[AxisRef] = []
    closed = False
    for factor in dim:
        closed |= row.closed[factor]
        of_factor = axes[factor] or ()
        _append(joined, of_factor)
        if factor in row.overflow:
            _append(joined, row.overflow[factor])
            break
        if math.prod(axis.size for axis in of_factor) < sizes[factor]:
            break
    return DimSharding(tuple(joined), closed)


def _append(joined: list[AxisRef], axes: Refs) -> None:
    """Add the axes of the next factor; a piece of an axis that goes on where the last one ended is one with it."""
    if joined and axes and joined[-1].can_merge(axes[0]):
        joined[-1] = joined[-1].merge(axes[0])
        axes = axes[1:]
    joined.extend(axes)
