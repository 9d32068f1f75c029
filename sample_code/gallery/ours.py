"""What autoshard does with a case: its plan's collectives, and its numbers from all ranks in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
from case import Case, Side

import autoshard
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Program
from autoshard.partition.traffic import traffic_of
from autoshard.redistribute.planner import evened, plan_steps
from autoshard.runtime.array import cut, join
from autoshard.runtime.local import LocalComm
from autoshard.runtime.steps import run_step
from autoshard.util.errors import AutoshardError

MODE = "communication"
"""The mode that looks for the fewest bytes, as partitioners that take the split as given do."""


def of_module(lowered: Any, arrays: list[np.ndarray], whole: np.ndarray) -> Side:
    """Of what JAX lowered: inputs and output lie as the module says."""
    return _planned(lambda: autoshard.plan(lowered, search=MODE), arrays, whole)


def of_torch(case: Case, arrays: list[np.ndarray], whole: np.ndarray) -> Side:
    """Of a function of torch tensors, as torch exports it; inputs lie as the case says."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return case.program(*given)

    def planned() -> Any:
        mesh = Mesh.parse(case.mesh)
        lying = tuple(Layout.parse(one, mesh) for one in case.layouts[: len(arrays)])
        model = autoshard.from_torch(Module(), tuple(torch.tensor(one) for one in arrays))
        return autoshard.plan(model, mesh=mesh, search=MODE, dataset_strategy=lying)

    return _planned(planned, arrays, whole, gathered=True)


def _planned(plan: Any, arrays: list[np.ndarray], whole: np.ndarray, gathered: bool = False) -> Side:
    """A side; `gathered`: with what makes the output whole on each rank."""
    try:
        planned = plan()
        got = planned.run(*arrays)
    except AutoshardError as error:
        return Side(refused=str(error).splitlines()[0])
    got = np.asarray(got[0] if isinstance(got, tuple | list) else got)
    side = Side(right=got.shape == whole.shape and bool(np.allclose(got, whole, rtol=1e-4, atol=1e-4)))
    _count(side, planned.program)
    left = planned.plan.outputs[0]
    for step in plan_steps(left, Layout.replicated(left.mesh, left.rank), _even(left, whole.shape)) if gathered else ():
        if step.communicates:
            side.add(step.kind, step.elements_moved(_even(left, whole.shape)) * whole.itemsize)
    return side


def _even(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as it is held: dims that do not divide are padded."""
    return evened(layout, Layout.replicated(layout.mesh, layout.rank), shape)


def _count(side: Side, program: Program) -> None:
    for one in traffic_of(program):
        side.add(one.kind, one.bytes_moved * one.executions)


def of_move(case: Case, array: np.ndarray) -> Side:
    """Of a redistribution alone."""
    mesh = Mesh.parse(case.mesh)
    before, after = (Layout.parse(one, mesh) for one in case.layouts)
    comm, side = LocalComm(mesh.devices), Side()
    parts = cut(array, before, comm.ranks)
    for step in plan_steps(before, after, array.shape):
        parts = run_step(step, parts, comm)
        if step.communicates:
            side.add(step.kind, step.elements_moved(array.shape) * array.itemsize)
    side.right = bool(np.array_equal(join(parts, after, array.shape, comm), array))
    return side
