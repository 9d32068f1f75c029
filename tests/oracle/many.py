"""One of many random programs: a graph, a mesh, a random plan with random shardings, and the check that it runs as
whole tensors do, on the ranks of any Comm.

Seed `n` always makes the same program, so that virtual and MPI ranks run the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.engines.numpy_engine import NumpyRun
from autoshard.ir.graph import Graph
from autoshard.ir.text import show
from autoshard.ir.verify import verify
from autoshard.layout import Mesh
from autoshard.optimize import DEFAULT, optimize
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from autoshard.plan.plan import Plan
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Executor
from autoshard.trace.evaluate import evaluate
from costmodel import preset
from tests.oracle.grown import Made, grown
from tests.partition.uneven_plans import random_plan

MESHES = ("8", "2x4", "2x2x2", "6", "3x2")
PROGRAMS = 300
CARRIES = 0.2
EXACT, ROUNDED = 1e-8, 1e-4
"""Relative differences that the order of sums may make: in f64, and where narrower floats are on the way."""
STRIDED = {"f64": 1e-13, "c128": 1e-13, "f32": 1e-6, "c64": 1e-6}
"""Relative differences of results that BLAS may make where the same numbers lie in other strides: a column of a matrix
is not multiplied as a copy of it is. Results of other types have none."""
_WIDE = ("f64", "c128")


@dataclass(frozen=True)
class Case:
    """A program with its plan and what it is fed. `passes` says whether the program passes are made over it."""

    seed: int
    made: Made
    plan: Plan
    passes: bool

    @property
    def graph(self) -> Graph:
        return self.made.graph


def mesh_of(seed: int) -> Mesh:
    return Mesh.parse(MESHES[seed % len(MESHES)])


@cache
def case(seed: int) -> Case:
    """Even seeds are whole programs, odd ones programs with their gradients; two of four have uneven sizes."""
    rng = np.random.default_rng([seed, 31])
    made = grown(rng, uneven=seed // 2 % 2 == 1, gradient=seed % 2 == 1)
    verify(made.graph)
    return Case(seed, made, random_plan(made.graph, mesh_of(seed), rng, CARRIES), seed % 3 == 0)


def check(one: Case, comm: Comm) -> None:
    """Run it split and whole; every output has to agree.

    Raises:
        AssertionError: one does not, or something fails on the way; the message tells the seed and the program.
    """
    try:
        _compare(one, comm)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{told(one)}") from error


def told(one: Case) -> str:
    """The program and its plan, to find a fault with."""
    nodes = "\n".join(f"  {node.label} as {decision.strategy}" for node, decision in one.plan.decisions.items())
    return f"program {one.seed} on mesh {one.plan.mesh}:\n{show(one.graph)}\n{nodes}"


def _compare(one: Case, comm: Comm) -> None:
    program = lower(one.plan)
    verify_program(program)
    if one.passes:
        program, _ = optimize(program, preset("cpu").for_ranks(one.plan.mesh.devices), DEFAULT)
        verify_program(program)
    got = Executor(program, comm)(*one.made.feeds)
    whole = evaluate(one.graph, one.made.feeds)
    rtol = EXACT if all(of.name in _WIDE for of in elements(one.graph)) else ROUNDED
    for value, ours, theirs in zip(one.graph.outputs, got, whole, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), value.name
        assert_equal(ours, theirs, rtol, value.name)
    written = NumpyRun(program, comm, noted=1)
    written(*one.made.feeds)
    for value, ours, again in zip(one.graph.outputs, got, written(*one.made.feeds), strict=True):
        assert (again.dtype, again.shape) == (ours.dtype, ours.shape), value.name
        assert_equal(again, ours, STRIDED.get(value.type.dtype.name, 0.0), value.name)


def elements(graph: Graph) -> set[DType]:
    """The element types of all values of floats."""
    return {value.type.dtype for value in graph.values if value.type.dtype.is_float}


def assert_equal(ours: np.ndarray, theirs: np.ndarray, rtol: float, name: str) -> None:
    """Whole numbers are equal; floats but for the order of sums, measured by the largest of all."""
    if theirs.dtype.kind not in "fc":
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
        return
    scale = max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)))
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-2 * rtol * scale, err_msg=name)
