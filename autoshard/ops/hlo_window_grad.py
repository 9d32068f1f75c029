"""Gradients of Convolution and ReduceWindow, again as convolutions and windows, with strides and dilations exchanged.

The transposition rules are those of JAX (lax/convolution.py; Dumoulin and Visin 2016, A guide to convolution
arithmetic, chapter 4): a window that steps by s over elements b apart steps back by b over elements s apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard.ops.body import Body
from autoshard.ops.cumulative import cum_prod_grad
from autoshard.ops.hlo_convolution import convolution
from autoshard.ops.hlo_window import Window, reduce_window, scanned_dim, select_and_scatter, windows
from autoshard.ops.shape import reshape, transpose
from autoshard.ops.slices import flip
from autoshard.ops.source import fill
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


def _spread(count: int, step: int) -> int:
    """The extent of so many elements `step` apart."""
    return (count - 1) * step + 1


def _back(size: int, count: int, window: Window) -> tuple[int, int]:
    """Padding by which the windows of the result, spread by the stride, give back a dim of `size` elements."""
    low = window.extent - window.low - 1
    return low, _spread(size, window.base) + window.extent - 1 - _spread(count, window.stride) - low


# -- convolution


@convolution.gradient
def _(g, y, lhs, rhs, **attrs):
    if attrs["batch_groups"] != 1:
        raise ShapeError("Convolution has a gradient for feature groups, but not for batch groups")
    rhs_dims = attrs["rhs_dims"]
    moves = windows(
        len(rhs.shape) - 2,
        "Convolution",
        dimensions=tuple(rhs.shape[dim] for dim in rhs_dims[2:]),
        strides=attrs["strides"],
        padding=attrs["padding"],
        base_dilations=attrs["lhs_dilation"],
        window_dilations=attrs["rhs_dilation"],
    )
    sizes = [lhs.shape[dim] for dim in attrs["lhs_dims"][2:]]
    counts = [g.shape[dim] for dim in attrs["out_dims"][2:]]
    turned = attrs["reversal"] or (False,) * len(moves)
    return (
        _for_operand(g, rhs, attrs, moves, sizes, counts, turned),
        _for_window(g, lhs, attrs, moves, sizes, counts, turned),
    )


def _for_operand(
    g: Any, rhs: Any, attrs: Any, moves: Sequence[Window], sizes: Sequence[int], counts: Sequence[int], turned: Any
) -> Any:
    """The gradient under the window turned around, inputs and outputs of the window exchanged."""
    groups, (into, out, *space) = attrs["feature_groups"], attrs["rhs_dims"]
    return convolution(
        g,
        rhs if groups == 1 else _regrouped(rhs, into, out, groups),
        lhs_dims=attrs["out_dims"],
        rhs_dims=(out, into, *space),
        out_dims=attrs["lhs_dims"],
        strides=tuple(one.base for one in moves),
        padding=tuple(_back(*one) for one in zip(sizes, counts, moves, strict=True)),
        lhs_dilation=tuple(one.stride for one in moves),
        rhs_dilation=tuple(one.dilation for one in moves),
        reversal=tuple(not one for one in turned),
        feature_groups=groups,
    )


def _regrouped(rhs: Any, into: int, out: int, groups: int) -> Any:
    """The window with its groups, major in the dim of outputs, made major in that of inputs instead."""
    shape = list(rhs.shape)
    apart = reshape(rhs, shape=(*shape[:out], groups, shape[out] // groups, *shape[out + 1 :]))
    # Dims behind `out` stand one place on now; the groups go before the dim of inputs.
    source = into + (into > out)
    order = [dim for dim in range(len(shape) + 1) if dim != out]
    order.insert(order.index(source), out)
    shape[into], shape[out] = shape[into] * groups, shape[out] // groups
    return reshape(transpose(apart, perm=tuple(order)), shape=tuple(shape))


def _for_window(
    g: Any, lhs: Any, attrs: Any, moves: Sequence[Window], sizes: Sequence[int], counts: Sequence[int], turned: Any
) -> Any:
    """The operand under the gradient as a window: features are the batch, and the batch is contracted."""
    (batch, feature, *space), (out_batch, out_feature, *out_space) = attrs["lhs_dims"], attrs["out_dims"]
    high = [
        _spread(count, one.stride) - _spread(size, one.base) + one.extent - one.low - 1
        for size, count, one in zip(sizes, counts, moves, strict=True)
    ]
    slope = convolution(
        lhs,
        g,
        lhs_dims=(feature, batch, *space),
        rhs_dims=(out_batch, out_feature, *out_space),
        out_dims=attrs["rhs_dims"],
        strides=tuple(one.dilation for one in moves),
        padding=tuple((one.low, more) for one, more in zip(moves, high, strict=True)),
        lhs_dilation=tuple(one.base for one in moves),
        rhs_dilation=tuple(one.stride for one in moves),
        batch_groups=attrs["feature_groups"],
    )
    around = tuple(dim for dim, turn in zip(attrs["rhs_dims"][2:], turned, strict=True) if turn)
    return flip(slope, axis=around) if around else slope


# -- pooling


@reduce_window.gradient
def _(g, y, *operands, body, **attrs):
    x = operands[0]
    moves = windows(len(x.shape), "ReduceWindow", **attrs)
    dim = scanned_dim(tuple(x.shape), moves)
    if len(operands) == 2 and body.name == "mul" and (dim is not None or all(one.trivial for one in moves)):
        return g if dim is None else _product_back(g, x, dim, reverse=moves[dim].high > 0), None
    if len(operands) != 2 or body.name not in ("add", "max", "min"):
        raise ShapeError(
            "ReduceWindow has a gradient for one operand by add, max or min, and for cumulative products, not for "
            f"{len(operands) // 2} by {body.name or 'a function of its own'}"
        )
    zero = fill(shape=(), value=0.0, dtype=str(x.dtype))
    return (_sum_back if body.name == "add" else _chosen_back)(g, x, zero, moves, body), None


def _product_back(g: Any, x: Any, dim: int, reverse: bool) -> Any:
    """Of products up to each element (with `reverse`, from it on); initial values are 1, as those of JAX."""
    if not reverse:
        return cum_prod_grad(g, x, axis=dim)
    return flip(cum_prod_grad(flip(g, axis=dim), flip(x, axis=dim), axis=dim), axis=dim)


def _sum_back(g: Any, x: Any, zero: Any, moves: Sequence[Window], body: Body) -> Any:
    """Every element has the sum of the windows that it lies in."""
    return reduce_window(
        g,
        zero,
        dimensions=tuple(one.size for one in moves),
        strides=tuple(one.base for one in moves),
        base_dilations=tuple(one.stride for one in moves),
        window_dilations=tuple(one.dilation for one in moves),
        padding=tuple(_back(*one) for one in zip(x.shape, g.shape, moves, strict=True)),
        body=body,
    )


def _chosen_back(g: Any, x: Any, zero: Any, moves: Sequence[Window], body: Body) -> Any:
    """Every window gives to its largest (smallest) element, the first of equal ones."""
    if any(one.dilation != 1 or one.base != 1 for one in moves):
        raise ShapeError(f"ReduceWindow by {body} has no gradient where the window or its operand is dilated")
    return select_and_scatter(
        x,
        g,
        zero,
        dimensions=tuple(one.size for one in moves),
        strides=tuple(one.stride for one in moves),
        padding=tuple((one.low, one.high) for one in moves),
        select=Body("ge" if body.name == "max" else "le"),
        scatter=Body("add"),
    )
