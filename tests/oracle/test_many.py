"""300 random programs by random plans on virtual ranks: each gives what it gives on whole tensors.

Programs come from `grown`, of all operator families, with gradients, loops and branches, even and uneven sizes; plans
split any factor of any operator by any axes, and leave values in any layout, terms of sums among them.
"""

from __future__ import annotations

import math

import pytest

from autoshard.ir.flow import is_nest
from autoshard.ir.graph import walk
from autoshard.ir.text import show
from autoshard.ops.registry import lookup, operators
from autoshard.runtime.local import LocalComm
from tests.oracle.grown import operator_names
from tests.oracle.many import MESHES, PROGRAMS, case, check, mesh_of
from tests.partition.uneven_plans import is_uneven

GROUP = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, GROUP))
def test_planned_equals_whole(first: int) -> None:
    for seed in range(first, first + GROUP):
        check(case(seed), LocalComm(mesh_of(seed).devices))


def test_the_programs_are_many_and_differ() -> None:
    """Whether the generator does what these tests live from."""
    cases = [case(seed) for seed in range(0, PROGRAMS, 3)]
    used = set().union(*(operator_names(case(seed).graph.nodes) for seed in range(PROGRAMS)))
    families = {"Convolution", "ReduceWindow", "HloPad", "Roll", "Gather", "GatherD", "DynamicSlice", "TopK", "CumSum"}
    assert families | {"While", "Case", "Attention", "Einsum", "Stack", "StridedSlice", "LayerNorm"} <= used
    assert used <= {op.name for op in operators()} and len(used) > 110
    assert len({show(one.graph) for one in cases}) == len(cases)
    assert {str(one.plan.mesh) for one in cases} == {str(mesh_of(seed)) for seed in range(len(MESHES))}
    assert sum(is_uneven(one.plan) for one in cases) > len(cases) / 2
    assert sum(any(map(is_nest, walk(one.graph.nodes))) for one in cases) > len(cases) / 10
    assert sum(bool(one.graph.cotangents) for one in cases) == len(cases) // 2
    carried = [one for one in cases if any(decision.strategy.carried for decision in one.plan.decisions.values())]
    assert len(carried) > len(cases) / 2


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is wrong on blocks, and only there, makes programs that use it fail, with their text."""
    of = lookup("Softmax")
    right = of.run
    found = [case(seed) for seed in range(60)]
    used = [one for one in found if any(node.op is of for node in one.graph.nodes)]
    assert used
    shapes = {node.result_types[0].shape for one in used for node in one.graph.nodes if node.op is of}
    monkeypatch.setattr(of, "run", lambda x, **attrs: right(x, **attrs) * (1 if x.shape in shapes else 1.001))
    told = []
    for one in used:
        try:
            check(one, LocalComm(math.prod(size for _, size in one.plan.mesh.axes)))
        except AssertionError as error:
            told.append(str(error))
    assert told and all("softmax" in text and "program" in text for text in told)
