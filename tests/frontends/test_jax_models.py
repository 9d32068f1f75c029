"""Models from JAX: names, types and lines; equal to JAX unsplit and split; annotated by patterns and by trees."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard as ash
from autoshard.util.errors import GraphError, RuntimeSetupError, UnknownNameError

pytestmark = pytest.mark.jax


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Block(linen.Module):
    """A bit of everything: scopes within scopes, an inner jit, dropout, statistics."""

    @linen.compact
    def __call__(self, x: jax.Array, scale: float = 1.0, train: bool = False) -> dict[str, jax.Array]:
        y = linen.silu(linen.Dense(12, name="up")(x)) * scale
        y = linen.BatchNorm(use_running_average=not train, name="norm")(y)
        y = linen.Dropout(0.25, deterministic=not train)(y)
        with jax.named_scope("residual"):
            x = x + linen.Dense(8, name="down")(y)
        return {"x": x, "mean": x.mean()}


X = floats(0, 6, 8)


@cache
def block() -> tuple[Block, Any]:
    module = Block()
    return module, jax.jit(module.init)(jax.random.key(0), X)


def same(found: Any, model: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(jax.tree.leaves(found), model.reference(), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), tolerance, tolerance)


def test_a_linen_module_has_its_names_types_and_lines() -> None:
    module, variables = block()
    model = ash.from_jax(module, X, params=variables)
    names = {one.name: str(one.type) for one in model.get_parameters()}
    assert names == {
        "batch_stats.norm.mean": "f32[12]", "batch_stats.norm.var": "f32[12]", "params.down.bias": "f32[8]",
        "params.down.kernel": "f32[12, 8]", "params.norm.bias": "f32[12]", "params.norm.scale": "f32[12]",
        "params.up.bias": "f32[12]", "params.up.kernel": "f32[8, 12]",
    }  # fmt: skip
    assert {name: str(of) for name, of in model.input_types.items()} == {"x": "f32[6, 8]"}
    graph = model.traced.graph
    assert graph.name == "Block" and [value.name for value in graph.inputs][:2] == ["x", "batch_stats.norm.mean"]
    source = graph.node("up.dot_general").source
    assert source is not None and source.text == 'y = linen.silu(linen.Dense(12, name="up")(x)) * scale'
    assert source.file.endswith("test_jax_models.py")
    assert graph.node("residual.down.dot_general").operands[1].name == "params.down.kernel"


def test_it_runs_whole_and_split_and_by_itself() -> None:
    module, variables = block()
    model = ash.from_jax(module, X, params=variables, scale=0.5)
    planned = ash.plan(model, mesh="dp=2 tp=2", search="factor")
    again = pickle.loads(pickle.dumps(planned))
    for found in (model(X), model.traced(X), planned.run(X), again.run(X)):
        assert found.keys() == {"x", "mean"}
        same(found, model)


def test_dropout_draws_the_numbers_that_jax_draws() -> None:
    module, variables = block()
    rngs = {"dropout": jax.random.key(7)}
    model = ash.from_jax(module, X, params=variables, train=True, rngs=rngs, mutable=["batch_stats"])
    assert list(model.input_types) == ["x", "rngs_dropout"] and str(model.input_types["rngs_dropout"]) == "u32[2]"
    found = ash.plan(model, mesh="dp=2 tp=2", search="factor").run(*model.example_arrays)
    same(found, model)
    state = model.state()
    assert model.reference_state().keys() == {"batch_stats.norm.mean", "batch_stats.norm.var"}
    for name, wanted in model.reference_state().items():
        np.testing.assert_allclose(state[name], wanted, 1e-5, 1e-6)
    assert (state["batch_stats.norm.mean"] != 0).all()


class Mixer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x = batch["x"]
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.dropout(self.norm(x)), x


def test_an_nnx_module_keeps_its_variables() -> None:
    module = Mixer(nnx.Rngs(0))
    model = ash.from_jax(module, {"x": X})
    assert [one.name for one in model.get_parameters() if "dropout" not in one.name] == [
        "layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.kernel",
        "norm.bias", "norm.mean", "norm.scale", "norm.var",
    ]  # fmt: skip
    assert list(model.input_types) == ["batch_x"]
    assert model.traced.graph.node("layers.1.dot_general").operands[1].name == "layers.1.kernel"
    planned = ash.plan(model, mesh="tp=4", search="factor")
    same(planned.run(X), model)
    for name, wanted in model.reference_state().items():
        np.testing.assert_allclose(model.state()[name], wanted, 1e-5, 1e-6, err_msg=name)
    # Statistics and the count of random numbers go on: the next run drops others.
    following = ash.from_jax(nnx.merge(nnx.graphdef(module), model.params), {"x": X})
    same(planned.run(X), following)
    assert (model.reference()[0] != following.reference()[0]).any()


def gated(params: Any, x: jax.Array, *more: Any, mode: str = "tanh") -> Any:
    """A plain function: lists in its parameters, a loop, a fixed argument."""
    act = {"tanh": jnp.tanh, "relu": jax.nn.relu}[mode]
    for w, b in params["layers"]:
        x = act(x @ w + b)
    x, _ = jax.lax.scan(lambda x, w: (x @ w, None), x, params["stack"])
    return x + sum(more)


def gated_params(dtype: Any = np.float32) -> Any:
    layers = [(floats(i, 8, 8), floats(i + 5, 8)) for i in range(2)]
    return jax.tree.map(lambda one: jnp.asarray(one, dtype), {"layers": layers, "stack": floats(9, 3, 8, 8) / 3})


def test_a_function_of_parameters() -> None:
    model = ash.from_jax(gated, X, floats(4, 6, 8), 2.0, params=gated_params(), mode="relu", name="net")
    assert [one.name for one in model.get_parameters()] == [
        "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "stack"
    ]  # fmt: skip
    assert list(model.input_types) == ["x", "more0"] and model.traced.graph.name == "net"
    found = ash.plan(model, mesh="dp=2 tp=2", search="factor").run(*model.arrays(X, floats(4, 6, 8), 2.0))
    same(found, model)
    np.testing.assert_allclose(found, gated(gated_params(), X, floats(4, 6, 8), 2.0, mode="relu"), 1e-4, 1e-4)


def test_arguments_by_name_are_called_so() -> None:
    """Whatever the order in which they are given."""
    given = {"zoom": jnp.ones(8), "angle": {"y": jnp.ones(3), "x": jnp.ones(5)}}

    def net(params: Any, x: Any, *, zoom: Any, angle: Any) -> Any:
        return (x @ params["w"] * zoom).sum() * angle["y"].sum() + angle["x"].sum()

    model: Any = ash.from_jax(net, jnp.ones((4, 6)), params={"w": jnp.ones((6, 8))}, **given)
    found = {value.name: value.type.shape for value in model.traced.graph.inputs}
    assert found == {"x": (4, 6), "angle_x": (5,), "angle_y": (3,), "zoom": (8,), "w": (6, 8)}
    planned = ash.plan(model, mesh="d=2")
    assert planned.run(*model.arrays(jnp.ones((4, 6)), **given)) == model.reference()[0]


def test_without_parameters_it_is_a_module_as_before() -> None:
    imported = ash.from_jax(gated, gated_params(), X)
    assert [value.name for value in imported.graph.inputs][-2:] == ["params['stack']", "x"]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_kept(dtype: Any) -> None:
    model = ash.from_jax(gated, X.astype(dtype), params=gated_params(dtype))
    found = ash.plan(model, mesh="dp=2 tp=2", search="factor").run(*model.example_arrays)
    assert found.dtype == dtype
    same(found, model, 0.02)


def test_shapes_alone_are_planned_but_not_run() -> None:
    shapes = jax.tree.map(lambda one: jax.ShapeDtypeStruct((*one.shape[:-1], 8), one.dtype), gated_params())
    model = ash.from_jax(gated, jax.ShapeDtypeStruct((6, 8), np.float32), params=shapes)
    planned = ash.plan(model, mesh="dp=2 tp=2", search="factor")
    assert planned.cost.seconds > 0
    with pytest.raises(RuntimeSetupError, match=r"layers.0.0 is a jax.ShapeDtypeStruct: it has a type but no numbers"):
        planned.run(X)


# -- annotations


def layout_of(planned: Any, name: str) -> str:
    return str(next(planned.plan.layouts[value] for value in planned.graph.inputs if value.name == name))


def test_a_pytree_of_specs_asks_by_the_places_of_its_leaves() -> None:
    model = ash.from_jax(gated, X, params=gated_params())
    specs = {"layers": [(P(None, "tp"), P("tp")), (P("tp"), None)], "stack": P()}
    asked = ash.annotate(model, specs)
    planned = ash.plan(asked, mesh="dp=2 tp=2", search="factor")
    assert layout_of(planned, "layers.0.0") == "-, tp" and layout_of(planned, "layers.1.0") == "tp, -"
    same(planned.run(X), asked)
    mesh = AbstractMesh((2, 2), ("dp", "tp"))
    shardings = {"layers": [(NamedSharding(mesh, P("dp", "tp")), None), (None, None)]}
    planned = ash.plan(ash.annotate(model, shardings), mesh="dp=2 tp=2", search="factor")
    assert layout_of(planned, "layers.0.0") == "dp, tp"
    with pytest.raises(UnknownNameError, match=r"gated has no parameter 'layers.0.up' for .*; the nearest are layers"):
        ash.annotate(model, {"layers": [{"up": P("tp")}]})


def test_patterns_find_modules_and_specs_of_flax_are_read() -> None:
    module, variables = block()
    model = ash.annotate(ash.from_jax(module, X, params=variables), {"**.up": (None, "tp"), "x": ("dp", None)})
    planned = ash.plan(model, mesh="dp=2 tp=2", search="factor")
    assert layout_of(planned, "params.up.kernel") == "-, tp" and layout_of(planned, "x") == "dp, -"
    same(planned.run(X), model)

    class Boxed(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            init = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "tp"))
            return linen.Dense(12, kernel_init=init, name="up")(x)

    boxed = Boxed().init(jax.random.key(0), X)
    model = ash.from_jax(Boxed(), X, params=boxed)
    assert [one.name for one in model.get_parameters()] == ["params.up.bias", "params.up.kernel"]
    planned = ash.plan(ash.annotate(model, linen.get_partition_spec(boxed)), mesh="dp=2 tp=2", search="factor")
    assert layout_of(planned, "params.up.kernel") == "-, tp"
    same(planned.run(X), model)


def test_constraints_in_the_function_hold() -> None:
    mesh = AbstractMesh((2, 2), ("dp", "tp"))

    def function(params: Any, x: jax.Array) -> jax.Array:
        hidden = jax.lax.with_sharding_constraint(x @ params["up"], NamedSharding(mesh, P("dp", "tp")))
        return hidden @ params["down"]

    model = ash.from_jax(function, X, params={"up": floats(1, 8, 12), "down": floats(2, 12, 8)})
    planned = ash.plan(model, mesh="dp=2 tp=2", search="factor")
    (node,) = (node for node in planned.graph.nodes if node.op.name == "ShardingConstraint")
    assert str(planned.plan.layouts[node.results[0]]) == "dp, tp"
    np.testing.assert_allclose(planned.run(X), X @ floats(1, 8, 12) @ floats(2, 12, 8), 1e-4, 1e-4)


# -- what is refused


def test_what_is_missing_or_too_much_is_told() -> None:
    module, variables = block()
    params = gated_params()
    cases = [
        (lambda: ash.from_jax(module, X), "Block is a linen module, which holds no parameters; give params="),
        (lambda: ash.from_jax(Mixer(nnx.Rngs(0)), X, params={}), "Mixer is an nnx module, which has its parameters"),
        (lambda: ash.from_jax(gated, params, X, loss="output"), "a loss or an optimizer needs the parameters"),
        (lambda: ash.from_jax(gated, X, params=params, optimizer=len), "an optimizer needs a loss: a path such"),
        (lambda: ash.from_jax(gated, X, params=params, gradients="mine"), "it can be 'autoshard' or 'jax'"),
        (lambda: ash.from_jax(gated, X, params=params)(X, X), r"gated takes 1 tensors \(x: f32\[6, 8\]\), but"),
        (lambda: ash.from_jax(gated, X, params=params).step, "gated is not trained; give from_jax a loss and an"),
    ]  # fmt: skip
    for make, words in cases:
        with pytest.raises(GraphError, match=words):
            make()
    with pytest.raises(GraphError, match="two parameters of gated are called 'a.b'; use keys without dots"):
        ash.from_jax(gated, X, params={"a": {"b": X}, "a.b": X})
    with pytest.raises(UnknownNameError, match="loss 'los': the model's result has no 'los'; it has: x, mean"):
        _ = ash.from_jax(module, X, params=variables, loss="los").traced
