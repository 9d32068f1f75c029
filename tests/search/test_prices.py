"""Laws of prices: nothing costs less than nothing, bounds lie below, and work shrinks as it is split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard.ops  # noqa: F401  (registers the operators)
from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.cost.blocks import local_bytes, local_nbytes
from autoshard.cost.prices import Prices
from autoshard.ir.graph import Builder
from autoshard.layout import Layout, Mesh
from autoshard.layout.mesh import AxisRef
from autoshard.ops.registry import lookup
from autoshard.redistribute.planner import is_cut, plan_steps
from costmodel import preset

MESHES = tuple(map(Mesh.parse, ("8", "2x4", "2x2x2", "6", "3x2", "12")))
HARDWARE = ("cpu", "h100", "ascend910")
SHAPE = (24, 48, 12)
PRICES = {name: Prices(preset(name)) for name in HARDWARE}


def pieces(mesh: Mesh) -> list[AxisRef]:
    """The mesh cut into pieces of prime size."""
    found = []
    for name, size in mesh.axes:
        done = 1
        while done < size:
            prime = next(p for p in (2, 3, 5) if size // done % p == 0)
            found.append(AxisRef(name, done, prime))
            done *= prime
    return found


@st.composite
def layouts(draw, count: int = 2, partial: bool = True):
    """A mesh and layouts on it for SHAPE; partial sums among them unless excluded."""
    mesh = draw(st.sampled_from(MESHES))
    made = []
    for _ in range(count):
        # One place per dim, one for pieces that repeat, one for partial sums.
        places: list[list[AxisRef]] = [[] for _ in range(len(SHAPE) + 2)]
        for piece in draw(st.permutations(pieces(mesh))):
            places[draw(st.integers(0, len(SHAPE) + (1 if partial else 0)))].append(piece)
        layout = Layout(mesh, places[: len(SHAPE)], places[-1])
        made.append(layout if layout.divides(SHAPE) else Layout.replicated(mesh, len(SHAPE)))
    return made


def price(prices: Prices, before: Layout, after: Layout, dtype: str = "f32") -> float:
    return prices.redistribution(before, after, TensorType.of(SHAPE, dtype))


@settings(max_examples=150, deadline=None)
@given(layouts(), st.sampled_from(HARDWARE))
def test_redistributions(pair, hardware):
    prices, (before, after) = PRICES[hardware], pair
    of = TensorType.of(SHAPE, "f32")
    paid = price(prices, before, after)
    assert price(prices, before, before) == 0.0
    assert paid >= 0.0
    if is_cut(before, after):
        assert paid == 0.0
    steps = plan_steps(before, after, SHAPE)
    assert paid == pytest.approx(sum(prices.step(step, of) for step in steps))
    assert (paid > 0.0) == any(step.communicates for step in steps)
    assert price(prices, before, after, "f64") >= paid, "twice the bytes are no faster"


@settings(max_examples=300, deadline=None)
@given(layouts(), st.sampled_from(HARDWARE))
def test_a_bound_lies_below(pair, hardware):
    prices, (before, after) = PRICES[hardware], pair
    of = TensorType.of(SHAPE, "f32")
    bound = prices.at_least(before, after, of)
    assert bound <= prices.surely(before, after, of) <= price(prices, before, after) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(layouts(count=1, partial=False), st.sampled_from(HARDWARE))
def test_completing_a_sum_is_no_cheaper_than_scattering_it(made, hardware):
    """all_reduce = reduce_scatter + all_gather, so stopping half-way never costs more."""
    prices, (split,) = PRICES[hardware], made
    free = split.free()
    summed = Layout(split.mesh, split.dims, free)
    dims = list(split.dims)
    for dim in range(len(SHAPE)):
        scattered = Layout(split.mesh, [*dims[:dim], dims[dim] + free, *dims[dim + 1 :]])
        if scattered.divides(SHAPE):
            assert price(prices, summed, scattered) <= price(prices, summed, split) * (1 + 1e-9)


# -- operators -------------------------------------------------------------------------------------------------


def node_of(name: str, *types: str, **attrs):
    builder, op = Builder(name), lookup(name)
    inputs = [builder.input(TensorType.parse(one), f"x{i}") for i, one in enumerate(types)]
    return builder.add(op, inputs, op.check_attributes(attrs), name.lower())


NODES = [
    node_of("MatMul", "f32[24, 48]", "f32[48, 12]"),
    node_of("Add", "f32[24, 48]", "f32[48]"),
    node_of("ReduceSum", "f32[24, 48, 12]", axis=(0, 2)),
    node_of("ReduceMax", "f32[24, 48]", axis=1),
    node_of("Softmax", "f32[24, 48]"),
    node_of("Reshape", "f32[24, 48]", shape=(4, 6, 48)),
]


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("node", NODES, ids=lambda node: node.op.name)
def test_work_and_completion(node, hardware):
    prices = PRICES[hardware]
    for mesh in MESHES:
        for strategy in enumerate_strategies(node.rule, mesh):
            completion = prices.completion(node, strategy)
            assert completion >= 0.0
            assert (completion > 0.0) == bool(strategy.reduced), str(strategy)
            assert prices.work(node, strategy) > 0.0
            assert local_bytes(node, strategy) == sum(
                local_nbytes(of, layout)
                for of, layout in zip(
                    (*node.operand_types, *node.result_types),
                    (*strategy.operand_layouts, *strategy.result_layouts),
                    strict=True,
                )
            )


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.op.name)
def test_splitting_further_is_never_slower(node):
    """Strategies of which one splits every factor at least as far as the other; its exchange comes on top, if any, and
    so does what blocks compute for it."""
    prices, mesh = PRICES["cpu"], Mesh.parse("8")
    strategies = enumerate_strategies(node.rule, mesh)
    for a, b in itertools.permutations(strategies, 2):
        if all(x <= y for x, y in zip(a.parts, b.parts, strict=True)):
            assert b.exchanges or prices.local_work(node, b) <= prices.local_work(node, a)
            assert prices.exchange(node, b) > 0 or prices.work(node, b) <= prices.work(node, a)


def test_carried_terms_are_completed_as_well():
    node, mesh = node_of("Add", "f32[24, 48]", "f32[24, 48]"), Mesh.parse("2x4")
    x0, x1 = mesh.all_axes
    plain = Strategy(node.rule, mesh, ((x0,), ()))
    carried = Strategy(node.rule, mesh, ((x0,), ()), (x1,), (0, 1))
    assert PRICES["cpu"].completion(node, plain) == 0.0
    assert PRICES["cpu"].completion(node, carried) > 0.0


def test_prices_are_remembered():
    prices, mesh = Prices(preset("cpu")), Mesh.parse("2x4")
    before, after, of = Layout.parse("x0, x1", mesh), Layout.parse("x1, x0", mesh), TensorType.of((24, 48), "f32")
    assert prices.redistribution(before, after, of) == prices.redistribution(before, after, of) > 0
    assert len(prices._redistributions) == 1
