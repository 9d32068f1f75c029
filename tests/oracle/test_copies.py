"""Gradients of what picks elements, where terms of a sum are added in one order forward and in another one backward.

Copies of one value on their way to several users then differ in the last bit, and no element of one copy need equal an
extreme that was found in another.
"""

from __future__ import annotations

import numpy as np
import pytest

import autoshard.ops as ops
from autoshard.core.strategy import Strategy
from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.ops.body import Body
from autoshard.ops.hlo_reduce import reduce_with
from autoshard.partition.lower import lower
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import trace
from autoshard.transform.grad import gradient
from tests.partition.uneven_plans import random_plan

MESHES = ("2x2x2", "3x2", "6", "2x4")
PICKING = {
    "max": lambda m, c: ops.reduce_max(m, axis=1),
    "min": lambda m, c: ops.reduce_min(m, axis=(0, 1)),
    "kept": lambda m, c: ops.reduce_max(m, axis=0, keep_dims=True),
    "larger": lambda m, c: ops.maximum(m, c),
    "smaller": lambda m, c: ops.minimum(c, m),
}


def summed(name: str):
    """The gradient for x of a sum over what is picked from x w, and its operands."""
    rng = np.random.default_rng(sum(map(ord, name)))
    x, w, c = rng.normal(size=(7, 24)), rng.normal(size=(24, 10)), rng.normal(size=(7, 10))

    def loss(x, w, c):
        return ops.reduce_sum(ops.square(PICKING[name](ops.matmul(x, w), c)))

    graph = trace(loss, x, w, c).graph
    found, _ = gradient(graph, graph.outputs[0], graph.inputs[:1])
    return found, [x, w, c]


def by_terms(graph, mesh: Mesh, seed: int) -> Plan:
    """A random plan but for the first product, which leaves terms of its sum on all ranks."""
    product = next(node for node in graph.nodes if node.op.name == "MatMul")
    axes: list[tuple[AxisRef, ...]] = [()] * len(product.rule.factors)
    (contracted,) = product.rule.contracted
    axes[contracted] = tuple(mesh.axis(name) for name, _ in mesh.axes)
    strategy = Strategy(product.rule, mesh, tuple(axes))
    made = random_plan(graph, mesh, np.random.default_rng([seed, 5]), fixed={product: strategy})
    decisions = {**made.decisions, product: Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))}
    (left,) = strategy.result_layouts
    assert left.partial
    layouts: dict = {**made.layouts, product.results[0]: left}
    return Plan(graph, mesh, decisions, layouts, tuple(Layout.replicated(mesh, one.type.rank) for one in graph.outputs))


@pytest.mark.parametrize("name", PICKING)
def test_what_is_picked_is_found_again(name):
    graph, arrays = summed(name)
    whole = evaluate(graph, arrays)
    for seed in range(12):
        mesh = Mesh.parse(MESHES[seed % len(MESHES)])
        got = Executor(lower(by_terms(graph, mesh, seed)), LocalComm(mesh.devices))(*arrays)
        for ours, theirs in zip(got, whole, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{name}, seed {seed} on {mesh}")


def test_ties_share():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, -1.0]])
    found = ops.extreme_grad(np.array([6.0, 5.0]), x, axis=1)
    np.testing.assert_array_equal(found, [[0, 3, 3], [5, 0, 0]])
    least = ops.extreme_grad(np.array([[6.0, 5.0, 1.0]]), x, axis=0, keep_dims=True, largest=False)
    np.testing.assert_array_equal(least, [[6, 0, 0], [0, 5, 1]])


def test_an_initial_value_that_is_larger_takes_all():
    x, g = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, -1.0]]), np.array([6.0, 5.0])
    attrs = reduce_with.check_attributes({"dimensions": (1,), "body": Body("max")})
    operands = [x, np.asarray(2.5)]
    (y,) = reduce_with.evaluate(operands, attrs)
    found, _ = reduce_with.cotangents(g, y, operands, attrs)
    np.testing.assert_array_equal(found, [[0, 3, 3], [0, 0, 0]])
