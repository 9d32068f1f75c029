"""Modules of Shardy's MPMD dialect: partitioned by jaxlib's own partitioner, listed, and run fragment by fragment."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxlib.mlir import ir

import autoshard as ash
from autoshard.pipeline.exports.mpmd_bodies import mpmd_context
from autoshard.trace import evaluate


class FragmentCall(NamedTuple):
    """A fragment as a partitioned module calls it."""

    mesh: str
    origin: str
    callee: str


class Partitioned:
    """What jaxlib's partitioner makes of a module: its function, and those of its fragments.

    Args:
        meshes: the axes of the mesh of each group.
    """

    def __init__(self, text: str, meshes: Sequence[Sequence[tuple[str, int]]]) -> None:
        partitioner = _partitioner()
        with mpmd_context():
            module = ir.Module.parse(text)
            assert module.operation.verify()
            self.info = partitioner.get_fragment_info(module)
            named = [(f"group{i}", list(axes)) for i, axes in enumerate(meshes)]
            done = partitioner.apply_mpmd_partitioning(
                module=module, func_name="main", named_meshes=named, assignment={}, input_meshes=[],
                output_meshes=[], donate_argnums=[], partitioning_options={}, fragment_merge_rules=[],
                fragment_schedule_rules=[], phases=partitioner.PARTITION,
            )  # fmt: skip
            self._read(done.mpmd_module)

    def _read(self, module: Any) -> None:
        self.meshes: list[str] = []
        self.functions: dict[str, str] = {}
        for op in module.body.operations:
            name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            if op.operation.name == "sdy.mesh":
                self.meshes.append(str(op))
            elif name != "main":
                self.functions[name] = str(op)
            else:
                block, numbers = op.regions[0].blocks[0], _Numbers()
                self.arguments = [numbers[one] for one in block.arguments]
                self.steps = [_step(one.operation, numbers) for one in block.operations]
                self.inputs = [str(one.type) for one in block.arguments]

    @property
    def calls(self) -> list[FragmentCall]:
        """The fragments, in order."""
        return [step.call for step in self.steps if step.call is not None]

    @property
    def transfers(self) -> list[tuple[str, str]]:
        """The types of what each transfer takes and brings."""
        return [step.moved for step in self.steps if step.moved is not None]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What the function leads to, each fragment run whole by numpy."""
        known = dict(zip(self.arguments, inputs, strict=True))
        for step in self.steps:
            given = [known[name] for name in step.operands]
            if step.call is None and step.moved is None:
                return given
            made = given if step.call is None else self._run(step.call.callee, given)
            known.update(zip(step.results, made, strict=True))
        raise AssertionError("the function returns nothing")

    def _run(self, callee: str, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        text = re.sub(r"func\.func (private )?@[\w.]+", "func.func public @main", self.functions[callee], count=1)
        text = re.sub(r" attributes \{mesh_shape = [^\n]*\} \{\n", " {\n", text, count=1)
        text = re.sub(r", unreduced=\{[^}]*\}", "", text)
        graph = ash.from_stablehlo("\n".join(("module @fragment {", *self.meshes, text, "}"))).graph
        return [np.asarray(one) for one in evaluate(graph, given)]


class _Numbers(dict[Any, int]):
    """The numbers of values; for their names MLIR reads the whole function each time."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


class _Step(NamedTuple):
    operands: list[int]
    results: list[int]
    call: FragmentCall | None
    moved: tuple[str, str] | None


def _step(op: Any, numbers: _Numbers) -> _Step:
    operands, results = ([numbers[one] for one in some] for some in (op.operands, op.results))
    if op.name == "mpmd.transfer":
        return _Step(operands, results, None, (str(op.operands[0].type), str(op.results[0].type)))
    if op.name != "mpmd.fragment_call":
        return _Step(operands, results, None, None)
    told = (op.attributes[name] for name in ("mesh_name", "origin", "callee"))
    mesh, origin, callee = (str(one).strip('@"') for one in told)
    return _Step(operands, results, FragmentCall(mesh, origin, callee), None)


def _partitioner() -> Any:
    """jaxlib's, which looks for its modules below the package jax."""
    assert jax.__version__
    for name in [name for name in sys.modules if name.startswith("jaxlib")]:
        sys.modules.setdefault(f"jax.{name}", sys.modules[name])
    return importlib.import_module("jaxlib._sdy_mpmd")
