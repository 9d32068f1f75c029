"""Optimizer updates: elementwise operators from parameter, state and gradient to the next values.

Each exists twice: `sgd` has the learning rate as an attribute, `sgd_rate` as a scalar operand (the last one),
for schedules that change it from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, TensorType
from autoshard.ops.axes import letters, words
from autoshard.ops.known import surely
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import Operator, operator
from autoshard.util.errors import ShapeError


def _rule(name: str, tensors: int, scalars: int, results: int) -> Callable[..., str]:
    """`tensors` operands of one shape, then `scalars`; results of that shape."""

    def rule(*shapes: Sequence[int], **_: object) -> str:
        whole = tuple(shapes[0])
        if any(tuple(shape) != whole for shape in shapes[:tensors]):
            shown = ", ".join(str(tuple(shape)) for shape in shapes[:tensors])
            raise ShapeError(f"{name}: parameter, state and gradient must have one shape, not {shown}")
        text = words(letters(len(whole)))
        return f"{', '.join([text] * tensors + ['()'] * scalars)} -> {', '.join([text] * results)}"

    return rule


def _first(count: int) -> Callable[..., tuple[DType, ...]]:
    """Next values have the types of the present ones, which are the leading operands."""
    return lambda *operands, **_: operands[:count]


def _with_decay(grad: np.ndarray, param: np.ndarray, weight_decay: float) -> np.ndarray:
    return grad + param * weight_decay if weight_decay else grad


def _minus(param: np.ndarray, change: np.ndarray) -> np.ndarray:
    """param - change in the memory of `change`, which the caller has made and needs no more."""
    own = isinstance(change, np.ndarray) and change.dtype == param.dtype
    return np.subtract(param, change, out=change if own else None)


def _times(x: np.ndarray, rate: Any, out: np.ndarray | None) -> np.ndarray:
    """x * rate, made in `out` if that has its type."""
    return np.multiply(x, rate, out=out if out is not None and np.result_type(x, rate) == out.dtype else None)


def _temporaries(operands: Sequence[TensorType], results: Sequence[TensorType], **attrs: Any) -> int:
    """Scratch: a decayed gradient, and the step that looks ahead; all else is made in the memory of the results."""
    return operands[0].nbytes * (bool(attrs.get("weight_decay")) + bool(attrs.get("nesterov")))


def _both(
    name: str, update: Callable, *, tensors: int, scalars: int = 0, results: int, flops: int, over: tuple
) -> tuple[Operator, Operator]:
    """The operator `name`, and the one with the learning rate as its last operand; see `_rule` for the counts."""

    def by_rate(*operands: Any, **attrs: Any) -> Any:
        return update(*operands[:-1], learning_rate=operands[-1], **attrs)

    given = signature(update).parameters
    rate = given["learning_rate"].replace(kind=Parameter.POSITIONAL_OR_KEYWORD, default=Parameter.empty)
    rest = [one for one in given.values() if one.name != rate.name]
    count = tensors + scalars
    by_rate.__signature__ = Signature([*rest[:count], rate, *rest[count:]])  # type: ignore[attr-defined]
    by_rate.__doc__ = f"{name} with the learning rate as an operand."
    first, second = (
        operator(
            f"{name}{kind}",
            rule=_rule(f"{name}{kind}", tensors, scalars + bool(kind), results),
            dtype=_first(results),
            flops=flops,
            storage=Storage(scratch=_temporaries),
            filling=Filling(over=over),
        )(run)
        for kind, run in (("", update), ("Rate", by_rate))
    )
    return first, second


# -- gradient descent


# Results are made in the memory of the gradient (the parameter) and of the states themselves, if these end here.


def _sgd(param, grad, *, learning_rate, weight_decay=0.0, out=None):
    """param - learning_rate * (grad + weight_decay * param)."""
    return _minus(param, _times(_with_decay(grad, param, weight_decay), learning_rate, out))


def _momentum(param, accum, grad, *, learning_rate, momentum=0.9, nesterov=False, weight_decay=0.0, out=(None, None)):
    """accum' = momentum * accum + grad; param' = param - learning_rate * accum' (MindSpore's ApplyMomentum).

    With `nesterov` the step is grad + momentum * accum'. The gradient first gets weight_decay * param added.
    """
    grad = _with_decay(grad, param, weight_decay)
    accum = np.multiply(accum, momentum, out=out[1])
    accum += grad
    step = grad + accum * momentum if nesterov else accum
    return _minus(param, _times(step, learning_rate, out[0])), accum


sgd, sgd_rate = _both("SGD", _sgd, tensors=2, results=1, flops=2, over=((1,),))
apply_momentum, apply_momentum_rate = _both(
    "ApplyMomentum", _momentum, tensors=3, results=2, flops=4, over=((2,), (1,))
)


# -- Adam


ADAM_FORMS = ("paper", "efficient", "uncorrected")
"""Where eps stands beside the bias correction: algorithm 1 of Kingma and Ba 2015, m' / (sqrt(v') + eps); the order that
their section 2 calls more efficient (MindSpore's), rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps); or
without any correction, m / (sqrt(v) + eps), as BERT was trained."""


def _adam(
    param,
    m,
    v,
    grad,
    step,
    *,
    learning_rate=1e-3,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    weight_decay=0.0,
    decoupled=False,
    form="paper",
    out=(None, None, None),
):
    """Adam (Kingma and Ba 2015) with bias correction; `step` is a scalar that counts from 1.

    `decoupled` weight decay shrinks the parameter itself (AdamW) instead of adding to the gradient. `form` is one of
    ADAM_FORMS.
    """
    if form not in ADAM_FORMS:
        raise ShapeError(f"Adam: form is {form!r}; it is one of {', '.join(ADAM_FORMS)}")
    if surely(step < 1):
        raise ShapeError(f"Adam: step is {step}; steps count from 1, as the bias correction divides by 1 - beta**step")
    if not decoupled:
        grad = _with_decay(grad, param, weight_decay)
    m = np.multiply(m, beta1, out=out[1])
    m += grad * (1 - beta1)
    change = np.empty(grad.shape, np.result_type(grad, v))
    np.multiply(grad, grad, out=change)
    change *= 1 - beta2
    v = np.multiply(v, beta2, out=out[2])
    v += change
    np.sqrt(v, out=change)
    if form == "paper":
        change *= np.asarray((1 - beta2**step) ** -0.5, change.dtype)
    change += eps
    np.divide(m, change, out=change)
    change *= np.asarray(learning_rate / _correction(form, beta1, beta2, step), change.dtype)
    if decoupled and weight_decay:
        change += param * (learning_rate * weight_decay)
    return _minus(param, change), m, v


def _correction(form: str, beta1: float, beta2: float, step: Any) -> float:
    """What the rate is divided by because moments begin at 0; 'paper' has corrected the second one already."""
    if form == "uncorrected":
        return 1.0
    return (1 - beta1**step) / ((1 - beta2**step) ** 0.5 if form == "efficient" else 1.0)


adam, adam_rate = _both("Adam", _adam, tensors=4, scalars=1, results=3, flops=14, over=((), (1,), (2,)))
