"""Reductions over dims, the way back (`spread`), positions of extremes, and cumulative sums.

A reduced dim is a reduction factor: ranks that hold parts of it end with a partial sum, max, min or prod.
`axis` is a dim, a tuple of dims, or `()` for all; `keep_dims` leaves 1 in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, dtype
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.axes import axis_index, axis_indices, letters, unsplit_words, words
from autoshard.ops.folding import summed, widened
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import Operator, operator
from autoshard.ops.source import sizes_of
from autoshard.ops.top_k import top_k_exchange
from autoshard.ops.windows import Exchange, OperandWindow, Totals, along, picked
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


def _axes(axis: int | Sequence[int] | None, rank: int, what: str) -> tuple[int, ...]:
    """The reduced dims, counted from the front; () and None mean all."""
    return tuple(range(rank)) if axis is None or axis == () else axis_indices(axis, rank, what)


def _kept(names: Sequence[str], axes: Iterable[int], keep_dims: bool) -> list[str]:
    gone = set(axes)
    return [name if i not in gone else "1" for i, name in enumerate(names) if keep_dims or i not in gone]


def _rule(name: str, by: str) -> Callable[..., str]:
    def rule(x: Shape, *, axis: Any, keep_dims: bool, **_: object) -> str:
        names = letters(len(x))
        result = _kept(names, _axes(axis, len(x), name), keep_dims)
        return f"{words(names)} -> {words(result)} by {by}"

    return rule


def _count_type(x: DType, **_: object) -> DType:
    return dtype("i32") if x.name == "bool" else x


def _mean_type(x: DType, **_: object) -> DType:
    return x if x.is_inexact else dtype("f32")


def _way_back(name: str, x: Shape, axis: Any, keep_dims: bool) -> str:
    """The rule from a reduced tensor and the x that it came from to one like x, which needs all of the reduced dims."""
    names, axes = letters(len(x)), _axes(axis, len(x), name)
    whole = unsplit_words(names, axes)
    return f"{words(_kept(names, axes, keep_dims))}, {whole} -> {whole}"


# -- sums and means


@operator("ReduceSum", rule=_rule("ReduceSum", "sum"), dtype=_count_type, linear=((0,),), call=("axis",))
def reduce_sum(x, *, axis=(), keep_dims=False):
    """Sum over `axis`; bools count as 0 and 1."""
    return summed(widened(x), _axes(axis, x.ndim, "ReduceSum"), keep_dims)


@reduce_sum.gradient
def _(g, y, x, axis, keep_dims):
    return spread(g, shape=tuple(x.shape), axis=axis, keep_dims=keep_dims)


@operator(
    "ReduceMean",
    rule=_rule("ReduceMean", "sum"),
    dtype=_mean_type,
    linear=((0,),),
    call=("axis",),
    storage=Storage(scratch=lambda operands, results, **_: results[0].nbytes),
)
def reduce_mean(x, *, axis=(), keep_dims=False, count=0):
    """Mean over `axis`. `count` is what to divide by where x is only a block (0: count the elements)."""
    axes = _axes(axis, x.ndim, "ReduceMean")
    total = summed(widened(x), axes, keep_dims)
    return total / (count or _count(x.shape, axes))


@reduce_mean.gradient
def _(g, y, x, axis, keep_dims, count):
    size = count or _count(x.shape, _axes(axis, len(x.shape), "ReduceMean"))
    return spread(g, shape=tuple(x.shape), axis=axis, keep_dims=keep_dims, scale=1 / size if size else 1.0)


@operator("Unbiased", rule="... -> ...", linear=((0,),))
def unbiased(x, *, count, correction=1):
    """x, means of `count` squares of distances from a mean, as if divided by `count - correction` (Bessel)."""
    return x * x.dtype.type(_bessel(count, correction))


@unbiased.gradient
def _(g, y, x, count, correction):
    return unbiased(g, count=count, correction=correction)


def _bessel(count: int, correction: float) -> float:
    """What makes of a mean of `count` an estimate without bias; of too few, infinity."""
    free = max(0.0, count - correction)
    return count / free if free else math.inf


@reduce_mean.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    shape = placement.operands[0].shape
    return {"count": attrs["count"] or _count(shape, _axes(attrs["axis"], len(shape), "ReduceMean"))}


def _count(shape: Sequence[int], axes: Iterable[int]) -> int:
    return math.prod(shape[i] for i in axes)


def _spread_rule(g: Shape, *, shape: Shape, axis: Any, keep_dims: bool, **_: object) -> tuple[str, dict[str, int]]:
    sizes = sizes_of(shape, "Spread")
    names = letters(len(sizes))
    source = _kept(names, _axes(axis, len(sizes), "Spread"), keep_dims)
    return f"{words(source)} -> {words(names)}", dict(zip(names, sizes, strict=True))


@operator("Spread", rule=_spread_rule, linear=((0,),), flops=0, storage=Storage(view="strided"))
def spread(g, *, shape, axis=(), keep_dims=False, scale=1.0):
    """Undo the shape of a reduction to `shape`: repeat g along the reduced dims, times `scale`."""
    if not keep_dims:
        g = np.expand_dims(g, _axes(axis, len(shape), "Spread"))
    return np.broadcast_to(g if scale == 1 else g * scale, shape)


@spread.gradient
def _(g, y, x, shape, axis, keep_dims, scale):
    if scale == 1:
        return reduce_sum(g, axis=axis, keep_dims=keep_dims)
    return reduce_mean(g, axis=axis, keep_dims=keep_dims, count=1 / scale)


@spread.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {"shape": placement.local_result()}


def sum_to(g: Any, shape: Sequence[int]) -> Any:
    """The gradient of broadcasting from `shape`: g summed over the dims that broadcasting added or repeated.

    Raises:
        ShapeError: `shape` does not broadcast to the shape of g.
    """
    sizes, extra = tuple(g.shape), len(g.shape) - len(shape)
    fits = extra >= 0 and all(a in (1, b) for a, b in zip(shape, sizes[extra:], strict=True))
    if not fits:
        raise ShapeError(
            f"summing a tensor of shape {sizes} to {tuple(shape)}: the latter does not broadcast to the first"
        )
    if extra:
        g = reduce_sum(g, axis=tuple(range(extra)))
    repeated = tuple(i for i, size in enumerate(shape) if size == 1 != sizes[extra + i])
    return reduce_sum(g, axis=repeated, keep_dims=True) if repeated else g


# -- extremes


def _extreme(name: str, by: str, run: Callable) -> Operator:
    @operator(name, rule=_rule(name, by), call=("axis",), filling=Filling(neutral="yes"))
    def reduce(x, *, axis=(), keep_dims=False):
        return run(x, axis=_axes(axis, x.ndim, name), keepdims=keep_dims)

    reduce.__doc__ = f"The {by} over `axis`. Its gradient is shared equally among the elements that attain it."
    return reduce


reduce_max = _extreme("ReduceMax", "max", np.max)
reduce_min = _extreme("ReduceMin", "min", np.min)


@reduce_max.gradient
def _(g, y, x, axis, keep_dims):
    return extreme_grad(g, x, axis=axis, keep_dims=keep_dims)


@reduce_min.gradient
def _(g, y, x, axis, keep_dims):
    return extreme_grad(g, x, axis=axis, keep_dims=keep_dims, largest=False)


def _extreme_grad_rule(g: Shape, x: Shape, *, axis: Any, keep_dims: bool, **_: object) -> str:
    return _way_back("ExtremeGrad", x, axis, keep_dims)


@operator(
    "ExtremeGrad",
    rule=_extreme_grad_rule,
    dtype=lambda g, x, **_: g,
    linear=((0,),),
    flops=4,
    storage=Storage(scratch=lambda operands, results, **_: math.prod(results[0].shape)),
)
def extreme_grad(g, x, *, axis=(), keep_dims=False, largest=True):
    """The gradient of ReduceMax (ReduceMin: not `largest`): g shared equally among the elements that attain it.

    The extreme is found anew, in the same copy of x that it is compared with. That of the forward pass may come from a
    copy whose terms were summed in another order, so that no element equals it.
    """
    axes = _axes(axis, x.ndim, "ExtremeGrad")
    equal = attaining(x, (np.max if largest else np.min)(x, axes, keepdims=True), axes)
    ties = np.count_nonzero(equal, axes, keepdims=True).astype(g.dtype)
    return np.where(equal, _beside(g, x.ndim, axis, keep_dims) / ties, g.dtype.type(0))


def attaining(x: Any, extreme: Any, axes: tuple[int, ...]) -> Any:
    """Where x equals its extreme along these axes."""
    return x == extreme


@extreme_grad.decompose
def _(g, x, axis, keep_dims, largest):
    of = {"axis": axis, "keep_dims": keep_dims}
    extreme = (reduce_max if largest else reduce_min)(x, **of)
    return extreme_share(g, extreme, count_equal(x, extreme, **of), x, **of)


def _beside(y: np.ndarray, rank: int, axis: Any, keep_dims: bool) -> np.ndarray:
    """A reduced tensor with 1 in place of the reduced dims, so that it broadcasts against the whole."""
    return y if keep_dims else np.expand_dims(y, _axes(axis, rank, "reduction"))


def _count_equal_rule(x: Shape, y: Shape, *, axis: Any, keep_dims: bool, **_: object) -> str:
    names = letters(len(x))
    kept = words(_kept(names, _axes(axis, len(x), "CountEqual"), keep_dims))
    return f"{words(names)}, {kept} -> {kept}"


@operator("CountEqual", rule=_count_equal_rule, dtype=lambda x, y, **_: x, flops=2, filling=Filling(neutral="own"))
def count_equal(x, y, *, axis=(), keep_dims=False, valid=()):
    """Along `axis`, how many elements of x equal the reduced y: the ties of a maximum or minimum.

    Only the first `valid[dim]` elements along each dim count (none given: all).
    """
    axes = _axes(axis, x.ndim, "CountEqual")
    equal = attaining(x, _beside(y, x.ndim, axis, keep_dims), axes)
    return np.count_nonzero(equal[tuple(map(slice, valid))], axes, keepdims=keep_dims)


@count_equal.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    shape, local = placement.operands[0].shape, placement.local_operand(0)
    parts = placement.operand_layouts[0].parts
    axes = [dim for dim in _axes(attrs["axis"], len(shape), "CountEqual") if local[dim] * parts[dim] > shape[dim]]
    if not axes:
        return {}
    return {"valid": tuple(placement.operand_valid(0, dim) if dim in axes else size for dim, size in enumerate(local))}


def _extreme_share_rule(g: Shape, y: Shape, ties: Shape, x: Shape, *, axis: Any, keep_dims: bool) -> str:
    names = letters(len(x))
    kept = words(_kept(names, _axes(axis, len(x), "ExtremeShare"), keep_dims))
    return f"{kept}, {kept}, {kept}, {words(names)} -> {words(names)}"


@operator("ExtremeShare", rule=_extreme_share_rule, linear=((0,),), flops=2)
def extreme_share(g, y, ties, x, *, axis=(), keep_dims=False):
    """g / ties where x equals y, else 0."""
    share, extreme = (_beside(one, x.ndim, axis, keep_dims) for one in (g / ties, y))
    equal = attaining(x, extreme, _axes(axis, x.ndim, "ExtremeShare"))
    return np.where(equal, share, share.dtype.type(0))


# -- products


@operator("ReduceProd", rule=_rule("ReduceProd", "prod"), call=("axis",), filling=Filling(neutral="yes"))
def reduce_prod(x, *, axis=(), keep_dims=False):
    """Product over `axis`."""
    return np.prod(x, axis=_axes(axis, x.ndim, "ReduceProd"), keepdims=keep_dims)


@reduce_prod.gradient
def _(g, y, x, axis, keep_dims):
    return reduce_prod_grad(g, x, axis=axis, keep_dims=keep_dims)


def _prod_grad_rule(g: Shape, x: Shape, *, axis: Any, keep_dims: bool) -> str:
    return _way_back("ReduceProdGrad", x, axis, keep_dims)


@operator("ReduceProdGrad", rule=_prod_grad_rule, linear=((0,),), flops=4)
def reduce_prod_grad(g, x, *, axis=(), keep_dims=False):
    """g times the product of all other elements along `axis`, exact also where elements are 0."""
    axes = _axes(axis, x.ndim, "ReduceProdGrad")
    last = tuple(range(x.ndim - len(axes), x.ndim))
    moved = np.moveaxis(x, axes, last)
    flat = moved.reshape(*moved.shape[: x.ndim - len(axes)], math.prod(x.shape[axis] for axis in axes))
    others = _exclusive(flat) * _exclusive(flat[..., ::-1])[..., ::-1]
    return np.moveaxis(others.reshape(moved.shape), last, axes) * _beside(g, x.ndim, axis, keep_dims)


def _exclusive(x: np.ndarray) -> np.ndarray:
    """Cumulative products along the last dim that leave out the element itself."""
    result = np.ones_like(x)
    np.cumprod(x[..., :-1], axis=-1, out=result[..., 1:])
    return result


# -- bools


def _truth(name: str, by: str, run: Callable) -> Operator:
    @operator(name, rule=_rule(name, by), dtype="bool", call=("axis",), filling=Filling(neutral="yes"))
    def reduce(x, *, axis=(), keep_dims=False):
        return run(x, axis=_axes(axis, x.ndim, name), keepdims=keep_dims)

    reduce.__doc__ = f"Whether {'all' if run is np.all else 'any'} elements along `axis` are true."
    return reduce


reduce_all = _truth("ReduceAll", "min", np.all)
reduce_any = _truth("ReduceAny", "max", np.any)


# -- along one dim, of whose parts ranks exchange what they come to


def _position(name: str, run: Callable) -> Operator:
    def rule(x: Shape, *, axis: int, keep_dims: bool) -> str:
        at = axis_index(axis, len(x), name)
        names = letters(len(x))
        mark = f"^{x[at]}" if x[at] > 1 else ""
        whole = unsplit_words(names, (at,), mark)
        return f"{whole} -> {words(_kept(names, (at,), keep_dims))}"

    @operator(name, rule=rule, dtype="i32")
    def find(x, *, axis=-1, keep_dims=False):
        return run(x, axis=axis, keepdims=keep_dims)

    @find.exchange
    def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
        return top_k_exchange(find, attrs, placement, axis_index(attrs["axis"], placement.operands[0].rank, name), 1)

    kind = "largest" if run is np.argmax else "smallest"
    find.__doc__ = f"Position of the {kind} element along `axis`, the first of equal ones."
    return find


arg_max = _position("ArgMax", np.argmax)
arg_min = _position("ArgMin", np.argmin)


def _cumulative_rule(x: Shape, *, axis: int, **_: object) -> str:
    at = axis_index(axis, len(x), "CumSum")
    mark = f"^{x[at]}" if x[at] > 1 else ""
    names = unsplit_words(letters(len(x)), (at,), mark)
    return f"{names} -> {names}"


@operator("CumSum", rule=_cumulative_rule, dtype=_count_type, linear=((0,),), call=("axis",))
def cum_sum(x, *, exclusive=False, reverse=False, axis=-1):
    """Sums up to each element along `axis`; `exclusive` leaves it out, `reverse` starts at the end."""
    along = np.moveaxis(widened(x), axis, -1)
    if reverse:
        along = along[..., ::-1]
    sums = np.cumsum(along, axis=-1, dtype=_count_type(dtype(along.dtype)).numpy)
    if exclusive:
        sums = np.concatenate([np.zeros_like(sums[..., :1]), sums[..., :-1]], axis=-1)
    return np.moveaxis(sums[..., ::-1] if reverse else sums, -1, axis)


@operator("CumSumAfter", rule=None, shape=lambda x, totals, **_: (x,), dtype=lambda x, totals, **_: totals)
def cum_sum_after(x, totals, *, exclusive, reverse, axis, position):
    """CumSum of block number `position` along `axis`, of which `totals` has the sums of all blocks."""
    sums = cum_sum.run(x, exclusive=exclusive, reverse=reverse, axis=axis)
    before = slice(position + 1, None) if reverse else slice(0, position)
    taken = totals[(slice(None),) * (axis % x.ndim) + (before,)]
    return sums + taken.sum(axis, keepdims=True, dtype=sums.dtype)


@cum_sum.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    layout = placement.operand_layouts[0]
    at = axis_index(attrs["axis"], layout.rank, "CumSum")
    totals = Totals((0,), at, reduce_sum, {"axis": (at,), "keep_dims": True}, cum_sum_after)
    size, block, parts = placement.operands[0].shape[at], placement.local_operand(0)[at], layout.parts[at]
    # Where blocks hold more than the dim has, zeros take the place of the padding.
    windows = (
        (OperandWindow(0, at, layout.dims[at], (picked(0, 1, size, block, parts),)),) if block * parts > size else ()
    )
    return Exchange(windows, {"position": along(layout, at, range(parts))}, totals)


@cum_sum.gradient
def _(g, y, x, exclusive, reverse, axis):
    return cum_sum(g, exclusive=exclusive, reverse=not reverse, axis=axis)
