"""Clipping of gradients before an optimizer steps, by the norm of all of them or by value, as torch has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.primitive import named_primitive
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ContextError

_ADDED = 1e-6
"""What torch adds to the norm before it divides by it."""
_WIDE = (element_type("f64"), element_type("c128"))


@dataclass(frozen=True)
class Clipping:
    """Which of both an optimizer does.

    Args:
        norm: gradients whose elements all together have a larger norm are scaled to it
            (`torch.nn.utils.clip_grad_norm_`).
        value: elements are kept between -value and value (`clip_grad_value_`).

    Raises:
        ContextError: both, or one that is no number above 0.
    """

    norm: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        if self.norm is not None and self.value is not None:
            raise ContextError(f"clip_norm is {self.norm!r} and clip_value is {self.value!r}; give one of them")
        for name, given in (("clip_norm", self.norm), ("clip_value", self.value)):
            number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
            if given is not None and (not number or not 0 < given < math.inf):
                raise ContextError(
                    f"{name} is {given!r}; it is a number above 0, or None to leave gradients as they are"
                )

    def __call__(self, parameters: Sequence[Parameter], grads: Sequence[Any]) -> Sequence[Any]:
        """The gradients of the parameters, clipped; None where there is none."""
        if self.norm is None and self.value is None:
            return grads
        clipped = self._by(self._factor(parameters, grads)) if self.value is None else self._by_value
        pairs = zip(parameters, grads, strict=True)
        return [None if grad is None else clipped(one, grad) for one, grad in pairs]

    def _by_value(self, of: Parameter, grad: Any) -> Any:
        assert self.value is not None
        if not of.dtype.is_float:
            raise ContextError(
                f"clip_value is {self.value!r}, but {of.name} is complex, and complex numbers have no order; give "
                "clip_norm"
            )
        number = np.asarray(self.value, of.dtype.numpy)
        below = named_primitive("Minimum", f"clip.{of.name}.below")(grad, number)
        return named_primitive("Maximum", f"clip.{of.name}")(below, -number)

    def _factor(self, parameters: Sequence[Parameter], grads: Sequence[Any]) -> Any:
        """What brings the norm of all gradients to the wanted one where it is larger, else 1."""
        assert self.norm is not None
        pairs = [(one, grad) for one, grad in zip(parameters, grads, strict=True) if grad is not None]
        # Narrow types have no room for squares.
        wide = element_type("f64" if any(one.dtype in _WIDE for one, _ in pairs) else "f32")
        squares = [_squares(one, grad, wide) for one, grad in pairs]
        total = named_primitive("AddN", "clip.squares")(*squares) if len(squares) > 1 else squares[0]
        norm = named_primitive("Sqrt", "clip.norm")(total)
        held = named_primitive("ScalarAdd", "clip.norm.added", addend=_ADDED)(norm)
        factor = named_primitive("Div", "clip.quotient")(np.asarray(self.norm, wide.numpy), held)
        return named_primitive("Minimum", "clip.factor")(factor, np.ones((), wide.numpy))

    def _by(self, factor: Any) -> Any:
        """What multiplies a gradient by the factor."""

        def scaled(of: Parameter, grad: Any) -> Any:
            narrow = _cast(factor, of.dtype, f"clip.{of.name}.factor")
            return named_primitive("Mul", f"clip.{of.name}")(grad, narrow)

        return scaled


def _squares(of: Parameter, grad: Any, wide: DType) -> Any:
    """The sum of a gradient's squares."""
    if not of.dtype.is_float:
        grad = named_primitive("Abs", f"clip.{of.name}.size")(grad)
    squares = named_primitive("Square", f"clip.{of.name}.square")(_cast(grad, wide, f"clip.{of.name}.wide"))
    return named_primitive("ReduceSum", f"clip.{of.name}.sum")(squares)


def _cast(x: Any, to: DType, name: str) -> Any:
    return x if x.dtype in (to, to.numpy) else named_primitive("Cast", name, dtype=str(to))(x)
