"""Imported programs run: numpy on the graph equals what JAX computes, forward and gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.frontends import from_jax
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.layout.sdy_text import show_sharding
from autoshard.trace.evaluate import evaluate
from autoshard.transform.inline import inline
from tests.frontends.jax_models import MODELS, floats

pytestmark = pytest.mark.jax


def check(program, args, rtol: float = 1e-5, atol: float = 1e-5, forms: bool = False) -> None:
    """The imported graph computes what JAX does; so it does written out and read back, and inlined (`forms`)."""
    imported = from_jax(program, *args)
    verify(imported.graph)
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(program)(*args))]
    assert len(imported.graph.outputs) == len(wanted) == len(imported.output_names)
    found = evaluate(imported.graph, arrays)
    compare(found, wanted, rtol, atol)
    if not forms:
        return
    text = show(imported.graph)
    again = parse(text)
    assert show(again) == text
    flat = inline(again)
    verify(flat)
    assert not flat.functions
    for one, other in zip(evaluate(flat, arrays), found, strict=True):
        np.testing.assert_array_equal(one, other)


def compare(found, wanted, rtol: float, atol: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        if other.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other)
        else:
            double = np.complex128 if other.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(one.astype(double), other.astype(double), rtol, atol)


TOLERANCE = {"mlp_bf16": 2e-2}


@pytest.mark.parametrize("name", MODELS)
def test_forward(name: str) -> None:
    program, args = MODELS[name]()
    tolerance = TOLERANCE.get(name, 2e-5)
    check(program, args, tolerance, tolerance, forms=True)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"while_loop", "sorting", "random_numbers"}))
def test_gradient(name: str) -> None:
    program, args = MODELS[name]()
    tolerance = TOLERANCE.get(name, 1e-4)
    check(jax.value_and_grad(program, argnums=tuple(range(len(args)))), args, tolerance, tolerance)


def test_adam_step() -> None:
    program, (params, x) = MODELS["mlp"]()

    def step(params, means, squares, count, x):
        loss, grads = jax.value_and_grad(program)(params, x)
        count = count + 1
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
        squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, grads)
        scale = jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        new = jax.tree.map(lambda p, m, s: p - 1e-3 * scale * m / (jnp.sqrt(s) + 1e-8), params, means, squares)
        return loss, new, means, squares, count

    zeros = jax.tree.map(np.zeros_like, params)
    check(step, (params, zeros, zeros, np.float32(3), x))


def test_integers_booleans_and_complex_numbers() -> None:
    def program(x, n):
        bits = (n << 3) ^ (n >> 1) & 0xFF
        small = x.astype(jnp.bfloat16)
        return bits, n % 7 > 2, jnp.exp(1j * x), (n // 3).astype(jnp.uint8), jnp.left_shift(n, 2).sum(), small

    check(program, (floats(0, 4, 6), np.arange(-5, 6, dtype=np.int32)))


def test_optax_step() -> None:
    import optax

    program, (params, x) = MODELS["mlp"]()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    def step(params, state, x):
        updates, state = optimizer.update(jax.grad(program)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    check(step, (params, optimizer.init(params), x))


def test_arguments_may_only_say_their_shapes_and_shardings() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("y", "x"))
    shape = jax.ShapeDtypeStruct((8, 6), jnp.float32, sharding=sharding)

    def program(x, *, scale, unused):
        return jax.lax.with_sharding_constraint(x * scale, sharding)

    imported = from_jax(program, shape, scale=jax.ShapeDtypeStruct((), jnp.float32), unused=shape)
    assert [value.name for value in imported.graph.inputs] == ["x", "scale", "unused"]
    asked = {value.name: show_sharding(sharding) for value, sharding in imported.asked.values.items()}
    assert asked["x"] == asked["unused"] == '<@mesh, [{"y"}, {"x"}]>'
    assert imported.graph.nodes[-1].op.name == "ShardingConstraint"
    x = floats(0, 8, 6)
    np.testing.assert_array_equal(evaluate(imported.graph, [x, np.float32(3), x])[0], x * 3)
