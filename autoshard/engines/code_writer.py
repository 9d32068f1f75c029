"""Writers of exported code: a program as a function, its operators as functions of the framework, what goes in and out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, count
from typing import Any

import numpy as np

from autoshard.engines.carried import reserved
from autoshard.engines.groups import AxisPieces
from autoshard.engines.kernels import kernels_of
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.text import Names, Writer
from autoshard.ops.attributes import resolve
from autoshard.partition.program import Compute, Program, Register
from autoshard.util.errors import PlanError, at

ENGINES = {"torch": "torch", "jax": "xla"}
"""The engine whose operators code of a framework is made of."""


class OperatorFunctions:
    """The functions of operators that a module has: one for all calls that compute the same.

    Args:
        names: where their names are from; None: names of their own.
        module: what they are for, of `CARRIED`; None: the framework's.
    """

    def __init__(self, framework: str, names: Names | None = None, module: str | None = None) -> None:
        self.framework, self.names = framework, names or Names()
        self.names.taken |= reserved(module or framework)
        self._found: dict[tuple, tuple[str, str]] = {}

    @property
    def texts(self) -> list[str]:
        """The texts of all of them."""
        return [text for _, text in self._found.values()]

    def name(self, one: Compute, attrs: dict[str, Any]) -> str:
        """The name of the function that computes an operator with these attributes."""
        told = _told(attrs)
        local = tuple((str(register.local), register.whole.dtype) for register in one.operands)
        opaque = tuple(id(value) for value in attrs.values() if not _says_all(value))
        key = one.op.name, told, opaque, local, tuple(register.whole.dtype for register in one.results)
        if key not in self._found:
            name = self.names.new(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", one.op.name).lower())
            self._found[key] = name, self._traced(name, one, attrs)
        return self._found[key][0]

    def _traced(self, name: str, one: Compute, attrs: dict[str, Any]) -> str:
        kernels = kernels_of(ENGINES[self.framework])
        kinds = [register.whole.dtype for register in one.results]

        def call(*raws: Any) -> tuple:
            return kernels.run(one.op, raws, attrs, kinds)

        try:
            return _function_of(self.framework)(name, call, [register.local for register in one.operands])
        except Exception as error:
            raise PlanError(
                f"{one.node.label} ({one.op.name}){at(one.node.source)} cannot be written as code of "
                f"{self.framework}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error


class CodeWriter(Writer):
    """Writes operators as calls of functions, which `functions` collects.

    Args:
        functions: of all programs of a module, whose names no other name of this text is; None: of this one alone.
    """

    first = ("k", "c")

    def __init__(
        self,
        program: Program,
        framework: str,
        functions: OperatorFunctions | None = None,
        cuts: AxisPieces | None = None,
        entry: str = "step",
    ) -> None:
        super().__init__(program, cuts, entry)
        self.functions = functions or OperatorFunctions(framework, self.names)
        self.names.taken |= self.functions.names.taken

    def compute(self, one: Compute) -> str:
        operands = self.operands(one)
        ways: dict[str, int] = {}
        numbers, functions = [], []
        for rank in range(self.program.mesh.devices):
            attrs = {name: resolve(value, rank) for name, value in one.attrs.items()}
            told = _told(attrs)
            if told not in ways:
                ways[told] = len(ways)
                functions.append(self.functions.name(one, attrs))
            numbers.append(ways[told])
        if len(functions) == 1:
            return f"{functions[0]}({', '.join(operands)})"
        return f"c.each({', '.join((repr(tuple(numbers)), self._tuple(functions), *operands))})"


def _told(attrs: Mapping[str, Any]) -> str:
    return f"{[(name, type(value).__name__, value) for name, value in attrs.items()]}"


def _says_all(value: Any) -> bool:
    """Whether the value's text tells it from all others."""
    if isinstance(value, tuple):
        return all(map(_says_all, value))
    return value is None or isinstance(value, bool | int | float | complex | str)


def _function_of(framework: str) -> Any:
    if framework == "torch":
        from autoshard.engines.torch_code import function_text
    else:
        from autoshard.engines.jax_code import function_text
    return function_text


def boundary_value(name: str, one: Register, cuts: AxisPieces) -> BoundaryValue:
    """What an input or output of a program is."""
    dims = tuple(map(cuts.axes, one.layout.dims))
    dtype, partial = np.dtype(one.whole.dtype.numpy).name, cuts.axes(one.layout.partial)
    return BoundaryValue(name, one.true.shape, one.whole.shape, dtype, dims, partial, one.layout.reduction)


def boundary_text(one: BoundaryValue) -> str:
    """The value's text, without what is as it mostly is."""
    told = [one.name, one.shape, one.padded, one.dtype, one.dims]
    told += [one.partial, one.reduction] if one.partial else []
    return f"BoundaryValue({', '.join(map(repr, told))})"


def numbered(names: Sequence[str]) -> list[str]:
    """The names, those that come again numbered.

    >>> numbered(["x", "y", "x", "x_1"])
    ['x', 'y', 'x_1', 'x_1_1']
    """
    taken: set[str] = set()
    found = []
    for name in names:
        free = next(one for one in chain((name,), (f"{name}_{i}" for i in count(1))) if one not in taken)
        taken.add(free)
        found.append(free)
    return found
