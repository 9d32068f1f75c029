"""Products, extremes and logarithms of sums up to each element along a dim, which a rank needs whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.axes import axis_index, letters, unsplit_words, words
from autoshard.ops.folding import widened
from autoshard.ops.registry import operator
from autoshard.ops.unary import native, real, wants

Shape = Sequence[int]


def along_rule(what: str, operands: int = 1) -> Callable[..., str]:
    """The rule of `operands` tensors and a result of one shape, whose dim `axis` each rank needs whole."""

    def rule(x: Shape, *_: Shape, axis: int, **__: object) -> str:
        at = axis_index(axis, len(x), what)
        dims = unsplit_words(letters(len(x)), (at,))
        return f"{', '.join([dims] * operands)} -> {dims}"

    return rule


def _first(x: DType, *_: DType, **__: object) -> DType:
    return x


# -- products


@operator("CumProd", rule=along_rule("CumProd"), flops=1)
def cum_prod(x, *, axis=-1):
    """Products up to each element along `axis`."""
    x = widened(x)
    return np.cumprod(x, axis=axis, dtype=x.dtype)


@cum_prod.gradient
def _(g, y, x, axis):
    return cum_prod_grad(g, x, axis=axis) if wants(x) else None


@operator("CumProdGrad", rule=along_rule("CumProdGrad", 2), dtype=_first, linear=((0,),), flops=4)
def cum_prod_grad(g, x, *, axis=-1):
    """The product of all before an element times what comes after it; exact also where elements are 0."""
    g, x = (np.moveaxis(native(one), axis, 0) for one in (g, x))
    before = np.ones_like(x)
    np.cumprod(x[:-1], axis=0, out=before[1:])
    after = _from_the_end(lambda i, rest: g[i] + x[i + 1] * rest, g)
    return np.moveaxis(before * after, 0, axis)


def _from_the_end(step: Callable[[int, np.ndarray], np.ndarray], g: np.ndarray) -> np.ndarray:
    """The last row of g, and before it row i from what row i + 1 came to."""
    out = np.array(g)
    for i in reversed(range(len(g) - 1)):
        out[i] = step(i, out[i + 1])
    return out


# -- extremes


@operator("CumExtreme", rule=along_rule("CumExtreme"), dtype="i32", flops=1)
def cum_extreme(x, *, axis=-1, largest=True):
    """Position of the largest (else smallest) element up to each one along `axis`, the last of equal ones.

    NaN counts as the most extreme.
    """
    moved = np.moveaxis(native(x), axis, 0)
    found = np.zeros(moved.shape, np.int32)
    best = moved[:1].copy() if len(moved) else moved
    for i in range(1, len(moved)):
        new = moved[i] >= best[0] if largest else moved[i] <= best[0]
        new |= np.isnan(moved[i]) if moved.dtype.kind == "f" else False
        best[0] = np.where(new, moved[i], best[0])
        found[i] = np.where(new, i, found[i - 1])
    return np.moveaxis(found, 0, axis)


@cum_extreme.gradient
def _(g, y, x, **_):
    return None


# -- logarithms of sums


@operator("LogCumSumExp", rule=along_rule("LogCumSumExp"), dtype=real, flops=20)
def log_cum_sum_exp(x, *, axis=-1):
    """log(exp(x0) + ... + exp(xi)), which does not overflow."""
    return np.logaddexp.accumulate(native(x), axis=axis)


@log_cum_sum_exp.gradient
def _(g, y, x, axis):
    return log_cum_sum_exp_grad(g, y, x, axis=axis)


@operator("LogCumSumExpGrad", rule=along_rule("LogCumSumExpGrad", 3), dtype=_first, linear=((0,),), flops=20)
def log_cum_sum_exp_grad(g, y, x, *, axis=-1):
    """The sum over all from an element on of g exp(x - y), where no power exceeds one."""
    g, y, x = (np.moveaxis(native(one), axis, 0) for one in (g, y, x))
    with np.errstate(invalid="ignore"):
        shrink, own = (np.where(a == b, 1, np.exp(a - b)) for a, b in ((y[:-1], y[1:]), (x, y)))
        return np.moveaxis(_from_the_end(lambda i, rest: g[i] + shrink[i] * rest, g) * own, 0, axis)


# -- the most frequent


def _gone_rule(x: Shape, *, axis: int) -> str:
    at = axis_index(axis, len(x), "ModePosition")
    names = letters(len(x))
    whole = unsplit_words(names, (at,))
    return f"{whole} -> {words(name if i != at else '1' for i, name in enumerate(names))}"


@operator("ModePosition", rule=_gone_rule, dtype="i32", flops=16)
def mode_position(x, *, axis=-1):
    """The last position along `axis` of the value that occurs most often, the smallest of equally frequent ones."""
    moved = np.moveaxis(native(x), axis, -1)
    order = np.argsort(moved, axis=-1, kind="stable")
    rows = np.take_along_axis(moved, order, -1)
    begins = np.ones(rows.shape, bool)
    begins[..., 1:] = rows[..., 1:] != rows[..., :-1]
    position = np.arange(rows.shape[-1])
    length = position - np.maximum.accumulate(np.where(begins, position, 0), -1)
    at = np.argmax(length, -1)[..., None]
    return np.moveaxis(np.take_along_axis(order, at, -1).astype(np.int32), -1, axis)


@mode_position.gradient
def _(g, y, x, **_: Any):
    return None
