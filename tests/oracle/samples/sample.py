"""Sample: an operator with operand types, attributes and, where values need care, a way to make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoshard.core.tensortype import TensorType, dtype
from autoshard.ir.text import body, show
from autoshard.ops.body import Body
from autoshard.ops.registry import Operator
from autoshard.trace.function import trace


def scalar_function(function: Callable, *elements: str) -> Body:
    """A Python function of scalars of these element types as a Body whose text says what it computes."""
    return body(show(trace(function, *(TensorType.of((), one) for one in elements), name="body").graph))


@dataclass(frozen=True, eq=False)
class Sample:
    """An operator call for the oracle: `types` like `("f32[24, 48]", "i32[24]")`.

    `constant` are operands that the operator gives no gradient although they are floats.
    `make(rng)` returns the operands where random values will not do: indices, positive or distinct numbers.
    """

    op: Operator
    types: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    differentiable: bool = True
    make: Callable[[np.random.Generator], Sequence[np.ndarray]] | None = None
    constant: tuple[int, ...] = ()

    def __str__(self) -> str:
        attrs = ", ".join(f"{name}={value}" for name, value in self.attrs.items())
        return f"{self.op.name}({', '.join(self.types)}{'; ' if attrs else ''}{attrs})"

    @property
    def operand_types(self) -> tuple[TensorType, ...]:
        return tuple(map(TensorType.parse, self.types))

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes, checked, with defaults."""
        return self.op.check_attributes(self.attrs)

    def arrays(self, rng: np.random.Generator, dtype: str | None = None) -> list[np.ndarray]:
        """Operands of the declared types; `dtype` replaces the element type of the floats."""
        types = self.operand_types
        made = [_random(rng, one) for one in types] if self.make is None else list(self.make(rng))
        assert [array.shape for array in map(np.asarray, made)] == [one.shape for one in types], str(self)
        return [_cast(array, one, dtype) for array, one in zip(made, types, strict=True)]


def _random(rng: np.random.Generator, of: TensorType) -> np.ndarray:
    """Normal floats, whole numbers from -4 to 4 (from 0 where unsigned), fair bools."""
    kind = of.dtype.numpy.kind
    if kind == "f":
        return rng.standard_normal(of.shape)
    if kind == "b":
        return rng.random(of.shape) < 0.5
    return rng.integers(0 if kind == "u" else -4, 5, of.shape)


def _cast(array: np.ndarray, of: TensorType, replace: str | None) -> np.ndarray:
    target = dtype(replace) if replace and of.dtype.is_float else of.dtype
    return np.asarray(array, target.numpy)
