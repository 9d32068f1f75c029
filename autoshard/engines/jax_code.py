"""An operator's meaning on JAX as the text of a function: `jax.lax`'s own functions, as tracing finds them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from autoshard.core.tensortype import TensorType
from autoshard.engines.literals import is_short, packed
from autoshard.runtime.array import array_dtype

_WORD = re.compile(r"\by[0-9]+\b")
_INSIDE = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_NAMES = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}
_IDENTITY = ("copy", "stop_gradient", "optimization_barrier", "copy_p")
_BY_NAME: dict[str, str] = {
    "broadcast_in_dim": "lax.broadcast_in_dim({0}, {shape}, {broadcast_dimensions})",
    "reshape": "lax.reshape({0}, {new_sizes})",
    "transpose": "lax.transpose({0}, {permutation})",
    "squeeze": "lax.squeeze({0}, {dimensions})",
    "convert_element_type": "lax.convert_element_type({0}, {new_dtype})",
    "bitcast_convert_type": "lax.bitcast_convert_type({0}, {new_dtype})",
    "iota": "lax.broadcasted_iota({dtype}, {shape}, {dimension})",
    "slice": "lax.slice({0}, {start_indices}, {limit_indices}, {strides})",
    "rev": "lax.rev({0}, {dimensions})",
    "integer_pow": "lax.integer_pow({0}, {y})",
    "gather": "lax.gather({0}, {1}, {dimension_numbers}, {slice_sizes}, mode={mode}, fill_value={fill_value})",
}
"""Functions of jax.lax whose text is shorter than that of their primitive."""
_SCATTERS = {
    "scatter": "scatter", "scatter_add": "scatter_add", "scatter-add": "scatter_add", "scatter_mul": "scatter_mul",
    "scatter-mul": "scatter_mul", "scatter_min": "scatter_min", "scatter-min": "scatter_min",
    "scatter_max": "scatter_max", "scatter-max": "scatter_max",
}  # fmt: skip


def function_text(name: str, call: Callable, operands: Sequence[TensorType]) -> str:
    """`def name(x0, x1): ...`, which computes what `call` does of operands of these types."""
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(call)(*(jax.ShapeDtypeStruct(of.shape, array_dtype(of.dtype)) for of in operands))
    return _JaxText().function(name, closed)


class _JaxText:
    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.numbers = itertools.count()
        self.lines: list[tuple[list[str], str]] = []
        """What each line defines, and the line."""

    def function(self, name: str, closed: ClosedJaxpr) -> str:
        inputs = [f"x{i}" for i in range(len(closed.jaxpr.invars))]
        made = self.block(closed, inputs)
        found = made[0] if len(made) == 1 else f"({', '.join(made)})"
        body = (f"    {line}" for line in (*self.used(found), f"return {found}"))
        return "\n".join((f"def {name}({', '.join(inputs)}):", *body))

    def block(self, closed: ClosedJaxpr, inputs: Sequence[str]) -> list[str]:
        """The lines of a jaxpr; its results."""
        jaxpr = closed.jaxpr
        self.names.update(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
            self.names[variable] = _array(np.asarray(value))
        for equation in jaxpr.eqns:
            self.equation(equation)
        return [self.value(one) for one in jaxpr.outvars]

    def used(self, found: str) -> list[str]:
        """The lines that the results need: operators also look at what they need not."""
        needed, kept = set(_WORD.findall(found)), []
        for names, line in reversed(self.lines):
            if needed.intersection(names):
                kept.append(line)
                needed.update(_WORD.findall(line))
        return kept[::-1]

    def equation(self, equation: Any) -> None:
        primitive, params = equation.primitive, equation.params
        operands = [self.value(one) for one in equation.invars]
        inside = next((params[key] for key in _INSIDE if key in params), None)
        if inside is not None and primitive.name not in ("while", "scan", "cond"):
            closed = inside if hasattr(inside, "consts") else ClosedJaxpr(inside, ())
            made = self.block(closed, operands)
            self.names.update(zip(equation.outvars, made, strict=True))
            return
        if primitive.name in _IDENTITY:
            self.names.update(zip(equation.outvars, operands, strict=True))
            return
        results = []
        for variable in equation.outvars:
            # Not by how many are known: a jaxpr that is called twice defines its variables twice.
            self.names[variable] = f"y{next(self.numbers)}"
            results.append(self.names[variable])
        target = results[0] if not primitive.multiple_results else f"({', '.join(results)},)"
        self.lines.append((results, f"{target} = {_called(primitive, params, operands)}"))

    def value(self, variable: Any) -> str:
        if isinstance(variable, Literal):
            of: Any = variable.aval
            return _array(np.asarray(variable.val, of.dtype))
        return self.names[variable]


def _called(primitive: Any, params: dict[str, Any], operands: list[str]) -> str:
    name = primitive.name
    if name in _SCATTERS:
        rest = f"{_plain(params['dimension_numbers'])}, mode={_plain(params['mode'])}"
        flags = ", ".join(f"{key}={params[key]}" for key in ("indices_are_sorted", "unique_indices"))
        return f"lax.{_SCATTERS[name]}({', '.join(operands)}, {rest}, {flags})"
    if name in _BY_NAME:
        told = {key: _plain(value) for key, value in params.items() if key not in ("sharding",)}
        return _BY_NAME[name].format(*operands, **told)
    known = str(_NAMES.get(name, name))
    if hasattr(lax, known) and all(value is None for value in params.values()):
        return f"lax.{known}({', '.join(operands)})"
    of = name.replace("-", "_")
    if not hasattr(lax, f"{of}_p"):
        raise NotImplementedError(f"jax.lax has no {of}_p")
    told = [f"{key}={_plain(value)}" for key, value in params.items()]
    return f"lax.{of}_p.bind({', '.join((*operands, *told))})"


def _plain(value: Any) -> str:
    """A parameter as Python says it."""
    if isinstance(value, Enum):
        return f"lax.{type(value).__name__}.{value.name}"
    if isinstance(value, np.dtype) or isinstance(value, type) and issubclass(value, np.generic):
        return f"jnp.dtype({np.dtype(value).name!r})"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named: Any = value
        told = ", ".join(f"{key}={_plain(one)}" for key, one in named._asdict().items())
        return f"lax.{type(value).__name__}({told})"
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_plain, value))
        return f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, float) and value - value != 0:
        return f"float({str(value)!r})"
    if isinstance(value, np.generic):  # parameters have to be hashable, which arrays are not
        return _plain(value.item())
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    known = str(value)
    if type(value).__module__.startswith("jax") and hasattr(lax, type(value).__name__):
        return f"lax.{known}" if "(" in known else f"lax.{type(value).__name__}.{known}"
    raise NotImplementedError(f"{value!r} has no text")


def _array(array: np.ndarray) -> str:
    if is_short(array):
        return f"np.array({array.tolist()!r}, jnp.dtype({array.dtype.name!r}))"
    return packed(array)
