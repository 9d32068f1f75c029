"""Loops over layers written out: the same numbers, and steps that can be cut and differentiated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import autoshard as ash
from autoshard.frontends.targets import cuttable_target
from autoshard.ir.graph import walk
from autoshard.ir.verify import verify
from autoshard.pipeline import plan_pipeline
from autoshard.trace.evaluate import evaluate
from autoshard.transform.unroll import unrolled

RNG = np.random.default_rng(0)
LAYERS, WIDTH = 3, 10
X = RNG.normal(size=(12, WIDTH)).astype(np.float32)
PARAMS = {
    "layers": {name: RNG.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / 4 for name in ("up", "down")},
    "head": RNG.normal(size=(WIDTH, 4)).astype(np.float32),
}


def scanned(params, x):
    """Layers in a scan that also hands out what each has made."""

    def layer(x, one):
        made = jnp.tanh(x @ one["up"]) @ one["down"]
        return x + made, made.mean(-1)

    x, means = jax.lax.scan(layer, x, params["layers"])
    return x @ params["head"] + means.mean(0)[:, None]


def backwards(params, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["layers"]["up"], reverse=True)
    return x @ params["head"]


def nested(params, x):
    def outer(i, x):
        return jax.lax.fori_loop(0, 2, lambda j, x: jnp.tanh(x + i - j) @ params["layers"]["up"][i], x)

    return jax.lax.fori_loop(0, LAYERS, outer, x) @ params["head"]


def until(params, x):
    """Runs as often as data say: it stays a loop."""
    return jax.lax.while_loop(lambda x: jnp.abs(x).max() < 100, lambda x: 2 * x, x + 1) @ params["head"]


def loops(graph):
    return sum(node.op.name == "While" for node in walk(graph.nodes))


@pytest.mark.parametrize(("function", "left"), [(scanned, 0), (backwards, 0), (nested, 0), (until, 1)])
def test_the_same_numbers(function, left):
    traced = ash.from_jax(function, X, params=PARAMS).traced
    graph = unrolled(traced.graph)
    verify(graph)
    assert loops(traced.graph) and loops(graph) == left
    arrays = traced.inputs(X)
    for one, other in zip(evaluate(traced.graph, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_turns_have_numbers_and_slices_places():
    graph = unrolled(ash.from_jax(backwards, X, params=PARAMS).traced.graph)
    products = [node.name for node in graph.nodes if node.op.name == "DotGeneral"]
    assert [name.split(".")[:2] for name in products[:3]] == [["layers", str(i)] for i in range(LAYERS)]
    slices = [node for node in graph.nodes if node.op.name == "Slice"]
    assert sorted(node.attrs["start"][0] for node in slices) == [0, 1, 2]
    assert unrolled(graph) is graph


def test_graphs_without_loops_stay():
    graph = ash.from_jax(lambda p, x: x @ p["head"], X, params={"head": PARAMS["head"]}).traced.graph
    assert unrolled(graph) is graph


@pytest.mark.parametrize("gradients", ["jax", "autoshard"])
def test_a_step_of_training_is_differentiated(gradients):
    model = ash.from_jax(
        scanned, X, params=PARAMS, loss=lambda y, x: jnp.square(y).mean(), optimizer=optax.sgd(0.1), gradients=gradients
    )
    planned = plan_pipeline(model, model.example_arrays, "pp=2,dp=2", micro_batches=3)
    assert not loops(planned.graph)
    outputs = planned.session.run(planned.traced.inputs(X)).outputs
    wanted = model.reference_state()
    for out, parameter in planned.traced.updated.items():
        np.testing.assert_allclose(outputs[out], wanted[parameter.name], rtol=1e-4, atol=1e-5)


def test_stages_by_the_names_of_turns():
    model = ash.from_jax(backwards, X, params=PARAMS)
    stages = {"layers.{0..1}.*": 0, "layers.2.*": 1}
    planned = plan_pipeline(model, model.example_arrays, "pp=2", micro_batches=2, stages=stages)
    np.testing.assert_allclose(planned.run(X), model.reference()[0], rtol=1e-4, atol=1e-5)
    assert cuttable_target(model).graph.name == planned.graph.name
