"""Splitting further along free axes: few ways stand for all, and the choice among few costs what it does among all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.tensortype import TensorType
from autoshard.cost.prices import Prices
from autoshard.ir.graph import Builder
from autoshard.layout import Layout, Mesh
from autoshard.ops.registry import lookup
from autoshard.search.greedy import candidates as refining
from autoshard.search.greedy.candidates import joined, placements, suggested
from autoshard.search.greedy.choose import Chooser
from costmodel import preset


def classes(like: str, ways) -> set:
    """Ways up to which of the interchangeable pieces is where."""
    order = sorted(set(like))
    return {tuple(tuple(sorted(p for p, name in zip(way, like, strict=True) if name == one)) for one in order)
            for way in ways}  # fmt: skip


@pytest.mark.parametrize("like", ["a", "ab", "aaa", "aabb", "abab", "aaaaa"])
def test_one_way_stands_for_each_class(like):
    everything = list(itertools.product(range(3), repeat=len(like)))
    found = list(placements(like, 3, len(like)))
    assert len(found) == len(set(found)) == len(classes(like, everything))
    assert classes(like, found) == classes(like, everything)
    assert found == sorted(found)


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_the_number_of_changes_is_bounded(runs):
    def changes(way):
        return 1 + sum(one != other for one, other in itertools.pairwise(way))

    wanted = [way for way in itertools.product(range(3), repeat=5) if changes(way) <= runs]
    assert list(placements("abcde", 3, runs)) == wanted


def node_of(name: str, shapes, **attributes):
    builder = Builder("one")
    inputs = [builder.input(TensorType.of(shape, "f32"), f"x{i}") for i, shape in enumerate(shapes)]
    return builder.add(lookup(name), inputs, attributes, "one")


NODES = {
    "product": node_of("MatMul", ((64, 32), (32, 16)), transpose_a=False, transpose_b=False),
    "batched": node_of("BatchMatMul", ((8, 4, 16, 8), (8, 4, 8, 16)), transpose_a=False, transpose_b=False),
    "sum": node_of("Add", ((16, 8, 32), (16, 8, 32))),
}


def situations(node, mesh: Mesh, count: int):
    rng, known = np.random.default_rng(11), enumerate_strategies(node.rule, mesh)
    for i in rng.choice(len(known), count, replace=False):
        operands = [(layout,) if rng.random() < 0.6 else () for layout in known[i].operand_layouts]
        yield operands, [(one.final(),) if rng.random() < 0.4 else () for one in known[i].result_layouts]
    yield [(Layout.replicated(mesh, of.rank),) for of in node.operand_types], [()] * len(node.results)
    yield [()] * len(node.operands), [()] * len(node.results)


def shown(option):
    return (
        pytest.approx(option.edge_seconds),
        pytest.approx(option.completion_seconds),
        option.strategy.work_split,
        pytest.approx(option.work_seconds),
    )


@pytest.mark.parametrize("hardware", ["cpu", "h100"])
@pytest.mark.parametrize("text", ["2x2x2", "2x2x2x2", "2x3x2"])
@pytest.mark.parametrize("name", NODES)
def test_the_choice_among_few_is_that_among_all(name, text, hardware, monkeypatch):
    node, mesh, prices = NODES[name], Mesh.parse(text), Prices(preset(hardware))
    few = Chooser(mesh, prices)
    found = [few.choose(node, *around)[0] for around in situations(node, mesh, 4)]
    monkeypatch.setattr(refining, "MOST", 10**9)
    every = Chooser(mesh, prices)
    monkeypatch.setattr(every, "_speed", None)
    for around, one in zip(situations(node, mesh, 4), found, strict=True):
        assert shown(one) == shown(every.choose(node, *around)[0])


@pytest.mark.parametrize("axes", [5, 7, 10])
@pytest.mark.parametrize("name", NODES)
def test_suggestions_stay_few_on_many_axes(name, axes):
    """Three operators had up to 278,811 of them for one product on seven axes."""
    node, mesh = NODES[name], Mesh((f"x{i}", 2) for i in range(axes))
    chooser = Chooser(mesh, Prices(preset("h100")))
    for operands, wanted in situations_on_many(node, mesh):
        most = refining.MOST * len(joined(node, mesh, operands, wanted))
        assert 0 < len(suggested(node, mesh, operands, wanted, chooser._speed)) <= most
        assert 0 < len(suggested(node, mesh, operands, wanted)) <= most


def situations_on_many(node, mesh: Mesh):
    whole = [(Layout.replicated(mesh, of.rank),) for of in node.operand_types]
    yield whole, [()] * len(node.results)
    yield [()] * len(node.operands), [()] * len(node.results)
    split = [(Layout(mesh, [mesh.all_axes[:2], *[()] * (of.rank - 1)]),) for of in node.operand_types]
    yield split, [()] * len(node.results)
