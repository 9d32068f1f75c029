"""Primitives with MindSpore's names and meaning that give a parameter another value."""

from __future__ import annotations

from typing import Any

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.primitive import primitive
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import GraphError, ShapeError


@primitive("Assign", core.identity)
def Assign(variable, value):
    """Give the parameter a value of its shape; the value."""
    return _assigned(variable, value, "Assign")


@primitive("AssignAdd", core.add)
def AssignAdd(variable, value):
    """Add to the parameter a tensor of its shape; the sum."""
    _check(variable, value, "AssignAdd")
    return _assigned(variable, core.add(variable, value), "AssignAdd")


@primitive("AssignSub", core.sub)
def AssignSub(variable, value):
    """Take from the parameter a tensor of its shape; the difference."""
    _check(variable, value, "AssignSub")
    return _assigned(variable, core.sub(variable, value), "AssignSub")


def _check(variable: Any, value: Any, what: str) -> None:
    if not isinstance(variable, Parameter):
        raise GraphError(f"{what}: variable is {variable!r}; it is a Parameter")
    shape = tuple(getattr(value, "shape", ()))
    if shape != tuple(variable.shape) or not hasattr(value, "dtype"):
        raise ShapeError(f"{what} of {variable.name}, {variable.type}: value is of shape {shape}; it is of the same")


def _assigned(variable: Any, value: Any, what: str) -> Any:
    """The value in the parameter's type, which the parameter holds from here on."""
    _check(variable, value, what)
    kind = element(variable.dtype).name
    value = core.identity(value) if element(value.dtype).name == kind else core.cast(value, dtype=kind)
    variable.assign(value)
    return value
