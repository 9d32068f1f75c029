"""Candidates: what neighbours suggest is legal, and holds the strategy that needs no communication if there is one."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.strategy import is_legal
from autoshard.ir.graph import Builder
from autoshard.layout import Layout, Mesh
from autoshard.partition.lower import lower
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.redistribute.planner import is_cut
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.search.greedy.candidates import suggested
from tests.oracle.check import assert_same
from tests.oracle.samples import SAMPLES

MESHES = tuple(map(Mesh.parse, ("8", "2x4", "6", "3x2")))
CHOSEN = [sample for sample in SAMPLES if sample.operand_types][::2]


def node_of(sample):
    builder = Builder(sample.op.name)
    inputs = [builder.input(of, f"x{i}") for i, of in enumerate(sample.operand_types)]
    return builder.add(sample.op, inputs, sample.attributes, sample.op.name.lower())


def situations(node, mesh: Mesh, rng: np.random.Generator, count: int = 4):
    """Layouts around a node: those of its own strategies, each operand open or not; and the strategy they are from."""
    known = enumerate_strategies(node.rule, mesh)
    for i in rng.choice(len(known), min(count, len(known)), replace=False):
        strategy = known[i]
        operands = [(layout,) if rng.random() < 0.7 else () for layout in strategy.operand_layouts]
        wanted = [(layout.final(),) if rng.random() < 0.3 else () for layout in strategy.result_layouts]
        yield strategy, operands, wanted


def is_free(strategy, operands, wanted) -> bool:
    into = zip(operands, strategy.operand_layouts, strict=True)
    out = zip(strategy.result_layouts, wanted, strict=True)
    return all(not held or any(have is need or is_cut(have, need) for have in held) for held, need in into) and all(
        have is need or is_cut(have, need) for have, needs in out for need in needs
    )


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("sample", CHOSEN, ids=str)
def test_suggestions_are_legal_and_hold_a_free_one(sample, mesh):
    node, rng = node_of(sample), np.random.default_rng(5)
    for source, operands, wanted in situations(node, mesh, rng):
        found = suggested(node, mesh, operands, wanted)
        assert len(set(found)) == len(found) > 0
        for strategy in found:
            assert is_legal(node.rule, strategy.parts), f"{strategy} of {node.rule}"
            for of, layout in zip(
                (*node.operand_types, *node.result_types),
                (*strategy.operand_layouts, *strategy.result_layouts),
                strict=True,
            ):
                assert layout.divides(of.shape)
        if is_free(source, operands, wanted):
            assert any(is_free(one, operands, wanted) for one in found), f"{source} around {operands} {wanted}"
        assert found == suggested(node, mesh, operands, wanted), "in a fixed order"


@pytest.mark.parametrize("sample", CHOSEN, ids=str)
def test_from_whole_operands_the_whole_mesh_is_used_where_it_can_be(sample):
    mesh = Mesh.parse("2x4")
    node = node_of(sample)
    operands = [(Layout.replicated(mesh, of.rank),) for of in node.operand_types]
    best = max(strategy.work_split for strategy in enumerate_strategies(node.rule, mesh))
    found = suggested(node, mesh, operands, [()] * len(node.results))
    assert max(strategy.work_split for strategy in found) == best


def partial_of(node, mesh: Mesh):
    """Operand layouts that are all terms of a sum along the mesh's last axis."""
    axis = mesh.all_axes[-1]
    return axis, [(Layout(mesh, [()] * of.rank, (axis,)),) for of in node.operand_types]


@pytest.mark.parametrize("sample", CHOSEN, ids=str)
def test_only_linear_operators_carry_terms(sample):
    mesh = Mesh.parse("2x4")
    node = node_of(sample)
    axis, operands = partial_of(node, mesh)
    carrying = [one for one in suggested(node, mesh, operands, [()] * len(node.results)) if one.carried]
    linear = sample.op.linear and node.rule.reduction == "sum"
    assert bool(carrying) == bool(linear)
    sets = sample.op.linear_in(len(node.operands))
    for strategy in carrying:
        assert strategy.carriers in sets and strategy.carried == (axis,)
        assert not any(ref.overlaps(axis) for refs in strategy.axes for ref in refs)


def test_terms_are_carried_only_where_all_members_have_them():
    """A sum of a term and something whole would count the whole as often as there are ranks."""
    (add,) = [one for one in SAMPLES if str(one).startswith("Add(")][:1]
    node, mesh = node_of(add), Mesh.parse("2x4")
    axis, (partial, *_) = partial_of(node, mesh)
    other = Layout.replicated(mesh, node.operand_types[1].rank)
    assert not any(one.carried for one in suggested(node, mesh, [partial, (other,)], [()]))
    assert not any(one.carried for one in suggested(node, mesh, [partial, ()], [()]))


@pytest.mark.parametrize("sample", CHOSEN[::4], ids=str)
def test_suggestions_run(sample):
    """Each as a plan of its own, from whole inputs to completed outputs, gives what the whole operator gives."""
    mesh, rng = Mesh.parse("3x2"), np.random.default_rng(6)
    arrays = sample.arrays(rng)
    builder = Builder(sample.op.name)
    inputs = [builder.input(of, f"x{i}") for i, of in enumerate(sample.operand_types)]
    node = builder.add(sample.op, inputs, sample.attributes, sample.op.name.lower())
    graph, whole = builder.build(node.results), sample.op.evaluate(arrays, sample.attributes)
    for _, operands, wanted in situations(node, mesh, rng, 1):
        for strategy in suggested(node, mesh, operands, wanted)[:12]:
            layouts = {value: Layout.replicated(mesh, value.type.rank) for value in inputs}
            layouts.update(zip(node.results, strategy.result_layouts, strict=True))
            outputs = tuple(layout.final() for layout in strategy.result_layouts)
            decision = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
            plan = Plan(graph, mesh, {node: decision}, layouts, outputs)
            got = Executor(lower(plan), LocalComm(mesh.devices))(*arrays)
            for ours, theirs in zip(got, whole, strict=True):
                assert_same(ours, theirs, 1e-5, f"{sample} by {strategy} on {mesh}")
