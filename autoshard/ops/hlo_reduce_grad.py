"""Gradients of StableHLO's reductions over whole dims: of sums, products, maxima and minima of one input."""

from __future__ import annotations

from autoshard.ops.hlo_reduce import reduce_add, reduce_with
from autoshard.ops.pointwise import div, equal, mul, select_grad
from autoshard.ops.reduce import extreme_grad, reduce_prod_grad, reduce_sum, spread
from autoshard.util.errors import ShapeError


@reduce_add.gradient
def _(g, y, x, start, dimensions, **_):
    return spread(g, shape=tuple(x.shape), axis=dimensions) if dimensions else g, reduce_sum(g)


@reduce_with.gradient
def _(g, y, *operands, dimensions, body, **_):
    """Of an extreme shared equally among the elements that attain it, none where it is the initial value."""
    if len(operands) != 2 or body.name not in ("max", "min", "mul"):
        what = f"by {body.name}" if body.name else "by a function of its own"
        raise ShapeError(
            f"Reduce of {len(operands) // 2} inputs {what} has no gradient; only sums, products, maxima and minima of "
            "one input have"
        )
    x, start = operands
    if not dimensions:
        return div(mul(g, y), x) if body.name == "mul" else g, None
    if body.name == "mul":
        return mul(reduce_prod_grad(g, x, axis=dimensions, keep_dims=False), start), None
    found = select_grad(g, equal(y, start), other=True)
    return extreme_grad(found, x, axis=dimensions, largest=body.name == "max"), None
