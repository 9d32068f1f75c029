"""The body of a piece as StableHLO: what it computes of whole values, with the plan's layouts as constraints of Shardy.

JAX traces the piece's program for one device, on which nothing is split and nobody talks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal
from jax.interpreters.mlir import make_ir_context
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd as dialect
from jaxlib.mlir.dialects.stablehlo import register_stablehlo_passes
from jaxlib.mlir.passmanager import PassManager

from autoshard.engines.grid import Axes, Grid
from autoshard.engines.groups import AxisPieces
from autoshard.engines.kernels import kernels_of
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.text import Lines, Writer
from autoshard.engines.xla_collectives import XlaCollectives
from autoshard.engines.xla_kernels import XlaKernels
from autoshard.ir.graph import Value
from autoshard.layout.layout import Layout
from autoshard.partition.program import Compute, Instruction, Program
from autoshard.runtime.array import array_dtype

_MESH = re.compile(r"<@\w+, \[")
_PASSES = "builtin.module(symbol-dce,func.func(chlo-legalize-to-stablehlo))"
"""What leaves one function of StableHLO's own operations."""
Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class MpmdBody:
    """Lines of StableHLO, the types of its arguments `%arg0`, `%arg1`, ... and of its results, and their names."""

    lines: tuple[str, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    returned: tuple[str, ...]


@contextmanager
def mpmd_context() -> Iterator[Any]:
    """A context of MLIR with the dialect."""
    with make_ir_context() as context:
        # With several threads, the one that reports an error can wait for Python for ever.
        context.enable_multithreading(False)
        dialect.register_dialect(context)
        yield context


def traced(program: Program, layouts: Mapping[Value, Layout], cuts: AxisPieces) -> Function:
    """The function of whole values that a program for one device computes.

    Args:
        layouts: how results of its operators lie on the mesh of the module.
        cuts: the pieces of that mesh's axes.
    """
    writer = _LaidWriter(program, layouts)
    text = writer.text()
    kernels = XlaKernels(text.grid, kernels_of("xla"))
    laid = _LaidCollectives(text.grid, [partial(_placed, cuts, layout) for layout in writer.laid])
    return partial(text.step, kernels, laid, text.constants)


class _LaidCollectives(XlaCollectives):
    """Also says how values lie."""

    def __init__(self, grid: Any, places: Sequence[Callable[[Any], Any]]) -> None:
        super().__init__(grid)
        self.places = places

    def laid(self, number: int, x: Any) -> Any:
        """x with the constraint of that number."""
        return self.places[number](x)


class _LaidWriter(Writer):
    """Writes behind each operator how its results lie."""

    def __init__(self, program: Program, layouts: Mapping[Value, Layout]) -> None:
        super().__init__(program)
        self.layouts = layouts
        self.laid: list[Layout] = []

    def instruction(self, one: Instruction, depth: int) -> Lines:
        yield from super().instruction(one, depth)
        if not isinstance(one, Compute) or depth > 1:
            return
        for register, value in zip(one.results, one.node.results, strict=False):
            layout, shape = self.layouts.get(value), register.true.shape
            if layout is not None and value.type.shape == shape and _says_all(layout, shape):
                name = self.names[register]
                yield f"{'    ' * depth}{name} = c.laid({len(self.laid)}, {name})"
                self.laid.append(layout)


def _says_all(layout: Layout, shape: Sequence[int]) -> bool:
    """Whether a constraint of Shardy's says it: it splits something, evenly, and nothing is partial."""
    return not layout.partial and any(layout.dims) and layout.divides(shape)


def _placed(cuts: AxisPieces, layout: Layout, x: Any) -> Any:
    return _constrained(x, tuple(map(cuts.axes, layout.dims)), cuts.grid)


def _constrained(x: Any, dims: Sequence[Axes], grid: Grid) -> Any:
    mesh = AbstractMesh(tuple(size for _, size in grid.axes), grid.names)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*(axes or None for axes in dims))))


def laid(function: Function, inputs: Sequence[BoundaryValue], grid: Grid) -> Function:
    """The function, whose first arguments lie as these inputs, wherever they come from."""

    def run(*given: Any) -> Sequence[Any]:
        placed = (
            _constrained(x, one.dims, grid) if not one.partial and any(one.dims) and one.padded == one.shape else x
            for x, one in zip(given, inputs, strict=False)
        )
        return function(*placed, *given[len(inputs) :])

    return run


def body_of(function: Function, examples: Sequence[jax.ShapeDtypeStruct], mesh: str) -> MpmdBody:
    """The body that JAX makes of a function, whose constraints are on the mesh of that name."""
    with jax.enable_x64(True):
        lowered = jax.jit(inlined(function), keep_unused=True).trace(*examples).lower(lowering_platforms=("cpu",))
    register_stablehlo_passes()
    with mpmd_context():
        module = ir.Module.parse(lowered.as_text())
        PassManager.parse(_PASSES).run(module.operation)
        main: Any = next(op for op in module.body.operations if op.operation.name == "func.func")
        lines, kinds = str(main).splitlines(), main.type
        arguments, results = tuple(map(str, kinds.inputs)), tuple(map(str, kinds.results))
    inside = tuple(_MESH.sub(f"<@{mesh}, [", line.strip()) for line in lines[1:-2])
    last = lines[-2].strip().removeprefix("return").split(" : ")[0].strip()
    return MpmdBody(inside, arguments, results, tuple(filter(None, last.split(", "))))


def example(value: Value, shape: Sequence[int] | None = None) -> jax.ShapeDtypeStruct:
    """A value as JAX traces it."""
    return jax.ShapeDtypeStruct(value.type.shape if shape is None else tuple(shape), array_dtype(value.type.dtype))


# Functions of JAX without calls of functions of their own: what JAX's library jits is written out.


_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_REGIONS = ("while", "scan", "cond")


def inlined(function: Callable) -> Callable:
    """The function, which calls none when JAX lowers it; in its loops and branches neither.

    >>> import jax, jax.numpy as jnp
    >>> told = jax.jit(inlined(lambda x: (jnp.where(x > 0, x, 0),))).lower(jnp.ones(3)).as_text()
    >>> "call @" in told
    False
    """

    def run(*given: Any) -> tuple:
        return tuple(_evaluated(jax.make_jaxpr(function)(*given), given))

    return run


def _evaluated(closed: ClosedJaxpr, given: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(closed.jaxpr.invars, given, strict=True))

    def value(one: Any) -> Any:
        return one.val if isinstance(one, Literal) else known[one]

    for equation in closed.jaxpr.eqns:
        known.update(zip(equation.outvars, _made(equation, [value(one) for one in equation.invars]), strict=True))
    return [value(one) for one in closed.jaxpr.outvars]


def _made(equation: Any, operands: list[Any]) -> Sequence[Any]:
    """The results of an equation."""
    primitive, params = equation.primitive, equation.params
    called = next((params[key] for key in _CALLED if key in params), None)
    if called is not None and primitive.name not in _REGIONS:
        return _evaluated(called if hasattr(called, "consts") else ClosedJaxpr(called, ()), operands)
    if primitive.name in _REGIONS:
        params = {key: _region(param) for key, param in params.items()}
    made = primitive.bind(*operands, **params)
    return made if primitive.multiple_results else [made]


def _region(param: Any) -> Any:
    """A body of a loop or branch, all of them of a branching, or another parameter as it is."""
    if isinstance(param, tuple):
        return tuple(map(_region, param))
    if not hasattr(param, "consts"):
        return param
    return jax.make_jaxpr(lambda *given: _evaluated(param, given))(*param.in_avals)
