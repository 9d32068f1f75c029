"""Code: the program of a rank as a Python module of torch or JAX that needs nothing of autoshard.

    text = code(planned.program, "torch")

First the step, for people; then each operator that it calls, as the framework's own functions; then what moves blocks
between ranks, which is the source of this package's own files.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autoshard.engines.check import check_runs
from autoshard.engines.extras import need
from autoshard.engines.groups import AxisPieces
from autoshard.engines.kernels import kernels_of
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.text import Writer
from autoshard.ops.attributes import resolve
from autoshard.partition.program import Compute, Program, Register
from autoshard.util.errors import PlanError, at

_BOTH = ("grid", "boxes", "per_rank", "rounds", "standalone")
CARRIED = {
    "torch": (*_BOTH, "torch_collectives", "standalone_torch"),
    "jax": (*_BOTH, "xla_collectives", "jax_blocks", "standalone_jax"),
}
"""The files that exported code carries, each before those that need it."""
_STARTED = {"torch": "torchrun --nproc-per-node {ranks} {file}", "jax": "python {file}"}
_ENGINES = {"torch": "torch", "jax": "xla"}
_HOME = "autoshard.engines."


class CodeWriter(Writer):
    """Writes operators as calls of functions, which it collects.

    Args:
        taken: names at the top of the module.
        before: the writer of the function before this one in the same module, whose functions and tables serve both.
    """

    first = ("k", "c")

    def __init__(
        self,
        program: Program,
        framework: str,
        taken: Collection[str],
        cuts: AxisPieces | None = None,
        entry: str = "step",
        before: CodeWriter | None = None,
    ) -> None:
        super().__init__(program, cuts, entry)
        self.framework = framework
        self.top = {*dir(builtins), *taken, entry}
        self.functions: dict[tuple, tuple[str, str]] = {}
        """By what they compute: their names and texts."""
        if before is not None:
            self.functions, self.tables, self.over = before.functions, before.tables, before.over
            self.top |= {*before.top, *self.tables.values(), *(name for name, _ in self.functions.values())}
        self.names.taken |= self.top

    def function_lines(self) -> list[str]:
        """The lines of the function, without the tables that it reads."""
        self.names.taken |= {*self.tables.values(), *(name for name, _ in self.functions.values())}
        lines = list(self.whole())
        return lines[next(i for i, line in enumerate(lines) if line.startswith(f"def {self.entry}(")) :]

    def compute(self, one: Compute) -> str:
        operands = self.operands(one)
        ways: dict[str, int] = {}
        numbers, functions = [], []
        for rank in range(self.program.mesh.devices):
            attrs = {name: resolve(value, rank) for name, value in one.attrs.items()}
            told = f"{[(name, type(value).__name__, value) for name, value in attrs.items()]}"
            if told not in ways:
                ways[told] = len(ways)
                functions.append(self.function(one, attrs, told))
            numbers.append(ways[told])
        if len(functions) == 1:
            return f"{functions[0]}({', '.join(operands)})"
        return f"c.each({', '.join((repr(tuple(numbers)), self._tuple(functions), *operands))})"

    def function(self, one: Compute, attrs: dict[str, Any], told: str) -> str:
        """The name of the function that computes it."""
        local = tuple((str(register.local), register.whole.dtype) for register in one.operands)
        opaque = tuple(id(value) for value in attrs.values() if not _says_all(value))
        key = one.op.name, told, opaque, local, tuple(register.whole.dtype for register in one.results)
        if key not in self.functions:
            name = self.names.new(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", one.op.name).lower())
            self.functions[key] = name, self._traced(name, one, attrs)
        return self.functions[key][0]

    def _traced(self, name: str, one: Compute, attrs: dict[str, Any]) -> str:
        kernels = kernels_of(_ENGINES[self.framework])
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


def code(program: Program, framework: str, file: str = "plan.py") -> str:
    """The module's text.

    Raises:
        RuntimeSetupError: the framework is not installed.
        PlanError: an operator that it lacks, or that asks values of the run for their number; axes without common
            pieces, which JAX has no names for.
    """
    need(framework, f"code of {framework}")
    check_runs(program, kernels_of(_ENGINES[framework]))
    carried = CARRIED[framework]
    writer = CodeWriter(program, framework, {*taken_by(carried), "PLAN"})
    if framework == "jax" and not writer.cuts.is_named:
        raise PlanError(
            f"{program.name!r} cuts an axis of its mesh '{program.mesh}' in ways that have no common pieces, or has "
            "groups that are lists of ranks: JAX's shardings have no names for those; take --to torch-code"
        )
    _check_whole(program)
    step = list(writer.whole())[2:]
    functions = [text for _, text in writer.functions.values()]
    return "\n".join(
        (
            _head(program, framework, file),
            *imports_of(carried),
            *step,
            "",
            "",
            "# -- operators",
            *(f"\n\n{text}" for text in functions),
            "",
            "",
            "# -- what moves blocks between ranks",
            *carried_text(carried),
            *_plan_of(writer),
            "",
            'if __name__ == "__main__":',
            "    main(PLAN, step, __doc__)",
            "",
        )
    )


def _check_whole(program: Program) -> None:
    for one in (*program.inputs, *program.outputs):
        if one.layout.partial:
            raise PlanError(f"{one.name} is partial [{one.layout}], but exported code takes and gives whole values")


def _head(program: Program, framework: str, file: str) -> str:
    started = _STARTED[framework].format(ranks=program.mesh.devices, file=file)
    return (
        f'"""{program.name} on mesh {program.mesh}: what every rank runs, with {framework} and numpy alone.\n\n'
        f"    {started} [INPUTS.npz [OUTPUTS.npz]] [--steps N]\n\n"
        "Inputs that are not given are seeded random numbers. The step comes first, then its operators. Made by\n"
        'autoshard, and yours to edit.\n"""\n\nfrom __future__ import annotations\n'
    )


def imports_of(files: Sequence[str]) -> list[str]:
    """The imports of all carried files."""
    found: dict[str, None] = {}
    for tree in map(_tree, files):
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom) and not _is_ours(node):
                found.update((line, None) for line in _single(node))
    plain = sorted(line for line in found if line.startswith("import "))
    return [*plain, *sorted(line for line in found if not line.startswith("import ")), ""]


def defined_in(name: str) -> Iterator[str]:
    """The names that a carried file defines."""
    for node in _tree(name).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (one.id for one in targets if isinstance(one, ast.Name) and one.id != "__all__")


def needed_by(name: str) -> Iterator[str]:
    """The files of ours that a carried file imports."""
    for node in _tree(name).body:
        if isinstance(node, ast.ImportFrom) and _is_ours(node):
            yield str(node.module).removeprefix(_HOME)


def taken_by(files: Sequence[str]) -> Iterator[str]:
    """The names that imports and carried files define."""
    for line in imports_of(files):
        yield line.rpartition(" ")[2]
    for name in files:
        yield from defined_in(name)


def _single(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    start = "" if isinstance(node, ast.Import) else f"from {node.module} "
    for alias in node.names:
        if start != "from __future__ ":
            yield f"{start}import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")


def _is_ours(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autoshard")


def _source(name: str) -> str:
    spec = find_spec(_HOME + name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _tree(name: str) -> ast.Module:
    return ast.parse(_source(name))


def carried_text(files: Sequence[str]) -> Iterator[str]:
    """The files' text without their first words and imports."""
    for name in files:
        tree, lines = _tree(name), _source(name).splitlines()
        first = next(node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr))
        start = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", ()))]) - 1
        yield from ("", "", *_without_all(lines[start:]))


def _without_all(lines: Sequence[str]) -> list[str]:
    kept = [line for line in lines if not line.startswith("__all__")]
    while kept and not kept[-1].strip():
        kept.pop()
    return kept


def _plan_of(writer: CodeWriter) -> Iterator[str]:
    """The plan's values at the end of the module."""
    program, grid = writer.program, writer.cuts.grid
    yield from ("", "", "PLAN = StandalonePlan(", f"    grid=Grid({grid.axes!r}, {grid.ranks!r}),")
    yield f"    axes={tuple(writer.over)!r},"
    for what, registers in (("inputs", program.inputs), ("outputs", program.outputs)):
        names = _unique([one.name for one in registers])
        yield f"    {what}=("
        for name, one in zip(names, registers, strict=True):
            yield f"        {boundary_value(name, one, writer.cuts)!r},"
        yield "    ),"
    yield f"    updates={dict(program.updates)!r},"
    yield ")"


def boundary_value(name: str, one: Register, cuts: AxisPieces) -> BoundaryValue:
    """A register at the end of a program, as exported code knows it."""
    dims, partial = tuple(cuts.axes(refs) for refs in one.layout.dims), cuts.axes(one.layout.partial)
    dtype, reduction = _name_of(one.whole.dtype.numpy), one.layout.reduction
    return BoundaryValue(name, one.true.shape, one.whole.shape, dtype, dims, partial, reduction)


def _name_of(dtype: Any) -> str:
    import numpy as np

    return np.dtype(dtype).name


def _unique(names: Sequence[str]) -> list[str]:
    """The names, those that come again numbered."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        found.append(f"{name}_{seen[name]}" if seen[name] else name)
    return found
