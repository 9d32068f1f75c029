"""Operators by which a model says the gradient of a part of itself: `Cotangent` and `CustomGradient`.

The part's backward pass stands in the graph beside its forward pass, made of `Cotangent`s where the gradients of its
results will be. `transform.custom_gradient` takes it from there; nothing of it is left in a graph that is planned.

    y = f(x)                                        # results of the forward pass
    c = Cotangent(y)                                # in the place of the gradient of y
    g = b(x, c)                                     # gradient of x
    out = CustomGradient(y, x, c, g; outputs=1, inputs=1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard.core.tensortype import DType
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError


@operator("Cotangent", rule="... -> ...", flops=0)
def cotangent(x):
    """Stands for the gradient of x; x itself where no gradient is taken."""
    return x


def _first_shapes(*shapes: Sequence[int], outputs: int, **_: Any) -> tuple:
    return tuple(shapes[:outputs])


def _first_dtypes(*dtypes: DType, outputs: int, **_: Any) -> tuple:
    return tuple(dtypes[:outputs])


@operator("CustomGradient", rule=None, shape=_first_shapes, dtype=_first_dtypes)
def custom_gradient(*xs, outputs, inputs, refusal=""):
    """The first `outputs` operands, with the gradient that the others say.

    Operands are the results of the forward pass, the inputs that have a gradient, a cotangent for each result, and a
    gradient for each input. `refusal` says why there is none: the last two are left out, and differentiating raises it.
    """
    if len(xs) != (outputs + inputs) * (1 if refusal else 2):
        raise ShapeError(f"CustomGradient: {len(xs)} operands for {outputs} results and {inputs} inputs")
    return tuple(xs[:outputs])
