"""Steps of JAX that differentiate and update themselves: the same numbers as in JAX, by gradients of operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import autoshard as ash
from autoshard.ir.graph import walk
from autoshard.ir.verify import verify
from autoshard.pipeline import plan_pipeline
from autoshard.transform.layer_places import stems
from autoshard.util.errors import GraphError, StageError
from tests.frontends.kept_parameters import kept

pytestmark = pytest.mark.jax
RNG = np.random.default_rng(6)


def f(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape) * 0.4, jnp.float32)


WIDE, HEADS = 12, 2
ROW = ("up", "down", "q")
LAYERS = [{"up": f(WIDE, 20), "down": f(20, WIDE), "q": f(WIDE, WIDE)} for _ in range(2)]
PARAMS = {"layers": LAYERS, "head": f(WIDE, 6)}
STACKED = {"layers": jax.tree.map(lambda *one: jnp.stack(one), *LAYERS), "head": PARAMS["head"]}
X, Y = f(8, 4, WIDE), f(8, 4, 6)
ADAM = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))


def layer(p: Any, x: Any) -> Any:
    heads = (x @ p["q"]).reshape(*x.shape[:2], HEADS, -1)
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", heads, heads) / 2.0, -1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, heads).reshape(x.shape)
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def loss(p: Any, x: Any, y: Any, layer: Callable = layer) -> Any:
    if isinstance(p["layers"], list):
        for one in p["layers"]:
            x = layer(one, x)
    else:
        x, _ = jax.lax.scan(lambda x, one: (layer(one, x), None), x, p["layers"])
    return jnp.mean((x @ p["head"] - y) ** 2)


def short(p: Any, x: Any, y: Any) -> Any:
    return loss(p, x, y, lambda one, x: jnp.tanh(x @ one["q"]))


def updated(params: Any, state: Any, grads: Any, optimizer: Any = ADAM) -> tuple[Any, Any]:
    changes, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, changes), state


def plain(params: Any, state: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return *updated(params, state, grads), value


def by_vjp(params: Any, state: Any, x: Any, y: Any) -> Any:
    value, pull = jax.vjp(lambda p: loss(p, x, y, jax.checkpoint(layer)), params)
    return *updated(params, state, *pull(jnp.float32(3))), value


def with_others(params: Any, state: Any, x: Any, y: Any) -> Any:
    """Results beside the loss, and what is looked at from outside as well."""

    def own(head: Any, rest: Any) -> Any:
        value = loss({**rest, "head": head + jax.lax.stop_gradient(params["head"]) ** 2}, x, y)
        return 2 * value, {"half": value, "sum": jnp.sum(y)}

    rest = {"layers": params["layers"]}
    (value, others), grads = jax.value_and_grad(own, argnums=(0, 1), has_aux=True)(params["head"], rest)
    params, state = updated(params, state, {**grads[1], "head": grads[0]})
    return {"params": params, "state": state, "loss": value, "others": others}


def added_up(params: Any, state: Any, x: Any, y: Any) -> Any:
    def part(sums: Any, rows: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *rows)
        return jax.tree.map(jnp.add, sums, grads), value

    rows = (x.reshape(2, 4, *x.shape[1:]), y.reshape(2, 4, *y.shape[1:]))
    grads, values = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, params), rows)
    return *updated(params, state, grads), values.mean()


def of_each_sample(params: Any, state: Any, x: Any, y: Any) -> Any:
    slopes = jax.vmap(lambda x, y: jax.grad(short)(params, x[None], y[None]))(x, y)
    return *updated(params, state, jax.tree.map(lambda one: jnp.clip(one, -0.1, 0.1).sum(0), slopes)), jnp.sum(x)


def with_curvature(params: Any, state: Any, x: Any, y: Any) -> Any:
    grads, product = jax.jvp(lambda p: jax.grad(short)(p, x, y), (params,), (params,))
    return *updated(params, state, jax.tree.map(lambda a, b: a + 0.1 * b, grads, product)), sum(
        jnp.sum(one) for one in jax.tree.leaves(product)
    )


def pulled_in_a_loop(params: Any, state: Any, x: Any, y: Any) -> Any:
    value, pull = jax.vjp(lambda p: short(p, x, y), params)
    _, grads = jax.lax.scan(lambda _, scale: (None, pull(scale)[0]), None, jnp.asarray([1.0, 2.0], jnp.float32))
    return *updated(params, state, jax.tree.map(lambda one: one.sum(0), grads)), value


@jax.custom_vjp
def rounded(x: Any) -> Any:
    return jnp.round(8 * x) / 8


rounded.defvjp(lambda x: (rounded(x), None), lambda _, slope: (1.5 * slope,))


def with_own_derivative(params: Any, state: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(lambda p: short({**p, "head": rounded(p["head"])}, x, y))(params)
    return *updated(params, state, grads), value


def no_operators(params: Any, state: Any, x: Any, y: Any) -> Any:
    """With what has a gradient in JAX alone."""

    def own(p: Any) -> Any:
        q = p["layers"][0]["q"]
        values = jnp.linalg.eigh(q @ q.T + jnp.diag(jnp.arange(WIDE)))[0]
        return short(p, x, y) + 1e-3 * jnp.sum(values**2)

    value, grads = jax.value_and_grad(own)(params)
    return *updated(params, state, grads), value


STEPS = [
    (plain, PARAMS, "autoshard"),
    (plain, STACKED, "autoshard"),
    (by_vjp, PARAMS, "autoshard"),
    (with_others, PARAMS, "autoshard"),
    (added_up, STACKED, "autoshard"),
    (of_each_sample, PARAMS, "autoshard"),
    (with_curvature, PARAMS, "autoshard"),
    (pulled_in_a_loop, PARAMS, "jax"),
    (with_own_derivative, PARAMS, "jax"),
    (no_operators, PARAMS, "jax"),
]


def checked(step: Callable, held: tuple, data: tuple, wanted: Callable, meshes: Any) -> Any:
    """The model of a step, whose numbers are JAX's for two runs under each plan."""
    run = jax.jit(step)
    first = run(*held, *data)
    second = run(*wanted(first)[0], *data)
    model: Any = ash.from_jax(jax.jit(step), *held, *data, donate_argnums=range(len(held)))
    for mesh, search in meshes:
        planned = ash.plan(model, mesh=mesh, search=search)
        with kept(planned.traced.parameters.values()):
            for want in (first, second):
                found = jax.tree.leaves(planned.run(*model.arrays(*data)))
                for one, other in zip(found, jax.tree.leaves(wanted(want)[1]), strict=True):
                    np.testing.assert_allclose(one, other, rtol=2e-4, err_msg=f"{mesh} {search}")
    return model


def parted(found: Any) -> tuple[tuple, Any]:
    """What is held, and the rest."""
    if isinstance(found, dict):
        return (found["params"], found["state"]), {"loss": found["loss"], "others": found["others"]}
    return found[:2], found[2]


@pytest.mark.parametrize(
    ("step", "params", "gradients"), STEPS, ids=[f"{one[0].__name__}{i}" for i, one in enumerate(STEPS)]
)
def test_a_step_of_ones_own_computes_as_in_jax(step: Callable, params: Any, gradients: str) -> None:
    held = (params, ADAM.init(params))
    model = checked(step, held, (X, Y), parted, [("dp=2 tp=2", "sharding_propagation"), ("d=2", "zero3")])
    graph = model.traced.graph
    assert model.gradients == gradients
    assert graph.roles.count("parameter") == len(jax.tree.leaves(params))
    assert graph.roles.count("data") == 2
    assert len(graph.updates) == len(jax.tree.leaves(held))
    verify(graph)
    assert not any(node.op.name == "UnruledCustomCall" for node in walk(graph.nodes))


def test_stages_of_a_step_that_adds_up_gradients_itself_are_refused_by_its_line() -> None:
    own = ash.from_jax(added_up, STACKED, ADAM.init(STACKED), X, Y, donate_argnums=(0, 1))
    told = r"takes gradients in a loop of its own, .* at .*test_jax_own_steps.py:\d+\); .* give micro_batches,"
    with pytest.raises(StageError, match=told):
        plan_pipeline(own, mesh="pp=2", pipeline="pp", micro_batches=2)


def test_two_gradients_in_a_step() -> None:
    """Those of a network and of one that judges it, which has changed between them."""
    one, other = {"w": f(6, 16), "v": f(16, 10)}, {"w": f(10, 12), "v": f(12, 1)}
    adam, sgd = optax.adam(1e-2), optax.sgd(1e-2, momentum=0.9)

    def made(p: Any, z: Any) -> Any:
        return jnp.tanh(z @ p["w"]) @ p["v"]

    def judged(p: Any, x: Any) -> Any:
        return jax.nn.leaky_relu(x @ p["w"]) @ p["v"]

    def step(one: Any, other: Any, states: Any, z: Any, x: Any) -> Any:
        def of_judge(p: Any) -> Any:
            return jnp.mean(jax.nn.softplus(-judged(p, x)) + jax.nn.softplus(judged(p, made(one, z))))

        def of_maker(p: Any) -> Any:
            return jnp.mean(jax.nn.softplus(-judged(other, made(p, z))))

        first, slopes = jax.value_and_grad(of_judge)(other)
        other, second_state = updated(other, states[1], slopes, sgd)
        second, slopes = jax.value_and_grad(of_maker)(one)
        one, first_state = updated(one, states[0], slopes, adam)
        return one, other, (first_state, second_state), first, second

    held = (one, other, (adam.init(one), sgd.init(other)))
    model = checked(step, held, (f(8, 6), f(8, 10)), lambda found: (found[:3], found[3:]), [("dp=2 tp=2", "zero1")])
    assert model.gradients == "autoshard"
    assert model.traced.graph.roles.count("parameter") == 4


def test_a_step_of_ones_own_is_planned_as_the_loss_with_the_optimizer() -> None:
    state = ADAM.init(PARAMS)
    own: Any = ash.from_jax(plain, PARAMS, state, X, Y, donate_argnums=(0, 1))
    given = ash.from_jax(loss, X, Y, params=PARAMS, loss="output", optimizer=ADAM)
    costs = [ash.plan(one, mesh="dp=2 tp=2", hardware="h100").cost.seconds for one in (own, given)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)
    graph = own.traced.graph
    assert dict(stems(graph))["params.layers."] == 2
    assert {one.name for one in graph.cotangents.values()} >= {f"params.layers.1.{one}" for one in ROW}
    cut = ash.plan(own, mesh="dp=2", micro_batches=2)
    with kept(cut.traced.parameters.values()):
        np.testing.assert_allclose(cut.run(*own.arrays(X, Y)), loss(PARAMS, X, Y), rtol=1e-5)


def test_what_jax_compiles_outside_has_no_marks() -> None:
    slopes = jax.jit(jax.grad(lambda w, x: jnp.sum(jnp.sin(x @ w))))
    w, x = f(4, 6), f(5, 4)

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * slopes(w, x), jnp.sum(x)

    model: Any = ash.from_jax(step, w, x, donate_argnums=0)
    assert model.traced.graph.roles == ("data", "parameter")
    wanted = jax.grad(lambda w, x: jnp.sum(jnp.sin(x @ w)))(w, x)
    np.testing.assert_allclose(slopes(w, x), wanted, rtol=1e-5)


def test_new_values_of_one_kind_are_told_apart_by_their_order() -> None:
    """That of the arguments, not of their names."""

    def step(params: Any, average: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(x @ p["w"]) ** 2))(params)
        params = jax.tree.map(lambda one, slope: one - slope, params, grads)
        return params, jax.tree.map(lambda one, other: 0.9 * one + 0.1 * other, average, params), value

    held = ({"w": f(WIDE, 6)}, {"w": f(WIDE, 6)})
    for numbers in ((0, 1), (1, 0)):
        model: Any = ash.from_jax(step, *held, f(8, WIDE), donate_argnums=numbers)
        wanted = step(*held, model.example_arrays[0])
        assert dict(zip([one.name for one in model.traced.graph.inputs], model.traced.graph.roles, strict=True)) == {
            "x": "data", "params.w": "parameter", "average.w": "state"
        }  # fmt: skip
        planned = ash.plan(model, mesh="d=2")
        with kept(planned.traced.parameters.values()):
            planned.run(*model.example_arrays)
            found = model.training_state()
            for name, want in zip(("params.w", "average.w"), wanted, strict=False):
                np.testing.assert_allclose(found[name], want["w"], rtol=1e-5, atol=1e-6)


def scaled(p: Any, scale: Any, x: Any) -> Any:
    """With a scale of the loss that is kept, and a loss of its type."""
    value, slope = jax.value_and_grad(lambda p: jnp.sum(jnp.sin(x @ p)) * scale)(p)
    return p - 0.1 * slope / scale, scale * 2, value / scale


def named(p: Any, scale: Any, x: Any) -> Any:
    return dict(zip(("p", "scale", "loss"), scaled(p, scale, x), strict=True))


class Outcome(NamedTuple):
    loss: Any
    scale: Any
    p: Any


def as_fields(p: Any, scale: Any, x: Any) -> Outcome:
    return Outcome(**named(p, scale, x))


@pytest.mark.parametrize(("step", "donated"), [(scaled, {0: 0, 1: "1"}), (named, (0, 1)), (as_fields, (0, 1))])
def test_new_values_are_where_it_is_said_or_called_so(step: Callable, donated: Any) -> None:
    p, scale, x = f(6, 4), jnp.float32(8), f(5, 6)
    model: Any = ash.from_jax(step, p, scale, x, donate_argnums=donated)
    planned = ash.plan(model, mesh="d=2")
    new, doubled, first = scaled(p, scale, x)
    with kept(planned.traced.parameters.values()):
        np.testing.assert_allclose(planned.run(x), first, rtol=1e-5)
        assert model.training_state()["scale"] == doubled
        np.testing.assert_allclose(planned.run(x), scaled(new, doubled, x)[2], rtol=1e-5)


@pytest.mark.parametrize(
    ("donated", "told"),
    [
        ((0, 1), r"types of scale its result has 2 parts \(1, 2\); .*as in donate_argnums={0: 0, 1: 2}"),
        ({0: 0, 1: 7}, "new value of scale is part '7' of what scaled returns, which has, .*, the parts 1, 2"),
        ({0: 2, 1: 1}, "new value of p is part '2' of .* which is of another structure or type; 0 would fit"),
    ],
)
def test_places_that_are_missing_or_wrong_are_told(donated: Any, told: str) -> None:
    model: Any = ash.from_jax(scaled, f(6, 4), jnp.float32(8), f(5, 6), donate_argnums=donated)
    with pytest.raises(GraphError, match=told):
        _ = model.traced


def returns(step: str, params: Any, state: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x, y)
    params, state = updated(params, state, grads)
    return {"none": (value, state), "two": (params, state, grads), "all": (params, state, value)}[step]


@pytest.mark.parametrize(("step", "count"), [("none", "no"), ("two", "2")])
def test_new_values_that_are_not_found_are_named(step: str, count: str) -> None:
    own = partial(returns, step)
    model: Any = ash.from_jax(own, PARAMS, ADAM.init(PARAMS), X, Y, donate_argnums=(0, 1))
    with pytest.raises(GraphError, match=f"types of params its result has {count} parts"):
        _ = model.traced


def test_a_step_that_returns_new_values_alone_is_refused() -> None:
    model: Any = ash.from_jax(lambda p, x: p - jax.grad(lambda p: jnp.sum(p * x))(p), X, X, donate_argnums=0)
    with pytest.raises(GraphError, match="nothing beside the new values of p; return .* such as the loss"):
        _ = model.traced


def test_arguments_that_are_not_there_are_refused() -> None:
    with pytest.raises(GraphError, match=r"donate_argnums has 7, but 4 arguments .*params, state, x, y"):
        ash.from_jax(plain, PARAMS, ADAM.init(PARAMS), X, Y, donate_argnums=7)
    with pytest.raises(GraphError, match=r"donate_argnums is 'params'; give numbers of arguments, as in \(0, 1\)"):
        ash.from_jax(plain, PARAMS, ADAM.init(PARAMS), X, Y, donate_argnums="params")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="leave out params, loss and optimizer"):
        ash.from_jax(plain, X, Y, params=PARAMS, donate_argnums=0)
