"""All operators: `ops.matmul(x, w)` calls one with the semantics of HLO, `ops.MatMul()` makes MindSpore's primitive.

In a gather an index outside the axis finds zeros, so that ranks may look up in their own part.
Names in capitals that MindSpore has are those of `autoshard.mindspore.ops`, with MindSpore's arguments and meaning.

Every module in this folder that defines operators adds them by being here. Classes are found by the name that
an operator is registered under, so those of operators that a user defines later are here too. Functions that take
Python functions, or ask for shardings, need the tracer, which stands above; they are loaded when first used.

>>> import numpy as np
>>> from autoshard import ops
>>> ops.matmul(np.ones((4, 6)), np.ones((6, 10))).shape
(4, 10)
>>> ops.lookup("MatMul") is ops.matmul
True
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from autoshard.ops.hlo_custom import custom_call_rule as custom_call_rule
from autoshard.ops.hlo_custom import custom_call_run as custom_call_run
from autoshard.ops.primitive import Primitive as Primitive
from autoshard.ops.primitive import current_primitive as current_primitive
from autoshard.ops.primitive import primitive_class
from autoshard.ops.registry import Operator, is_operator, lookup, operators
from autoshard.ops.registry import operator as operator
from autoshard.util.offered import NotOfferedError


def _collect() -> dict[str, Operator]:
    """The operators of all modules in this folder under their Python names."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    pairs = (pair for module in modules for pair in vars(module).items())
    return {name: value for name, value in pairs if isinstance(value, Operator) and not name.startswith("_")}


_HIGHER = {
    name: module
    for module, names in {
        "autoshard.trace.asking": ("optimization_barrier", "propagation_barrier", "shard_group", "sharding_constraint"),
        "autoshard.trace.control": ("cond", "switch", "while_loop"),
        "autoshard.trace.local": ("all_gather", "all_reduce", "all_to_all", "manual_computation", "reduce_scatter"),
    }.items()
    for name in names
}
_ANOTHER_IN_MINDSPORE = frozenset(
    ("Adam", "AllGather", "AllReduce", "ApplyMomentum", "Cholesky", "Complex", "Imag", "Map", "PopulationCount", "Real")
    + ("Reduce", "ReduceScatter", "Reshard", "SGD")
)
_FUNCTIONS = {name: known for name, known in _collect().items() if name not in _HIGHER}
globals().update(_FUNCTIONS)

_ABOUT_OPERATORS = ("Operator", "Primitive", "current_primitive", "custom_call_rule", "custom_call_run") + (
    "lookup", "operator", "operators", "primitive_class",
)  # fmt: skip

__all__ = sorted({*_FUNCTIONS, *_HIGHER})  # pyright: ignore[reportUnsupportedDunderAll]
"""The operators; `dir` shows what is about operators, and their classes, too."""


def __getattr__(name: str) -> Any:
    if name in _HIGHER:
        globals()[name] = getattr(import_module(_HIGHER[name]), name)
        return globals()[name]
    if name[:1].isupper():
        named = import_module("autoshard.mindspore.ops")
        if name in named.__all__:
            return getattr(named, name)
        if name in _ANOTHER_IN_MINDSPORE:
            raise AttributeError(
                f"autoshard.ops does not offer MindSpore's {name}; the operator is ops.lookup({name!r})"
            )
    if is_operator(name):
        return primitive_class(lookup(name))
    raise NotOfferedError(f"autoshard.ops has no operator {name!r}", name, __dir__)


def __dir__() -> list[str]:
    return sorted({*__all__, *_ABOUT_OPERATORS, *(known.name for known in operators())})
