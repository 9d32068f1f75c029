"""Steps of training of models from JAX, gradients by autoshard and by JAX: equal to JAX's with optax, split."""

from __future__ import annotations

from functools import cache
from typing import Any

import flax.linen as linen
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name

import autoshard as ash
from autoshard import nn, optim
from autoshard.ir.verify import verify
from autoshard.pipeline import plan_pipeline
from autoshard.transform.recompute import kept
from autoshard.util.errors import GraphError

pytestmark = pytest.mark.jax


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


WORDS = np.random.default_rng(3).integers(0, 12, (6, 5), np.int32)
X = floats(0, 6, 8)


def attention(params: Any, words: jax.Array) -> jax.Array:
    """A layer with all that models of words have: lookups, softmax, masks, top-k, concatenated and cut tensors."""
    x = params["embed"][words]
    q, k = x @ params["q"], x @ params["k"]
    scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), jnp.einsum("bqd,bkd->bqk", q, k), -1e9)
    y = jax.nn.softmax(scores) @ x
    best, which = jax.lax.top_k(y, 3)
    y = jnp.concatenate([jnp.tanh(y)[..., 2:], (best / (1 + jnp.take_along_axis(x, which, -1) ** 2))[..., 1:]], -1)
    y = jnp.pad(y, ((0, 0), (0, 0), (1, 1))).max(-1, keepdims=True) * jax.nn.gelu(x, approximate=False)
    return jax.nn.log_softmax(y @ params["embed"].T)


def attention_params() -> Any:
    return {"embed": floats(1, 12, 8), "k": floats(2, 8, 8), "q": floats(3, 8, 8)}


def likelihood(found: jax.Array, words: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(found[:, :-1], words[:, 1:, None], -1).mean()


def same_state(model: Any, tolerance: float = 1e-3) -> None:
    """Parameters and states equal JAX's, up to a share of the largest element of each."""
    states = model.optimizer.states if hasattr(model.optimizer, "transformation") else {}
    found = {**model.state(), **{name: one.data for name, one in states.items()}}
    wanted = model.reference_state()
    assert wanted.keys() >= {one.name for one in model.trainable_params()}
    for name, one in wanted.items():
        np.testing.assert_allclose(found[name], one, tolerance, tolerance * np.abs(one).max(initial=0), err_msg=name)


CLIPPED = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.5, momentum=0.9, nesterov=True))


@pytest.mark.parametrize(
    "gradients, optimizer", [("autoshard", CLIPPED), ("jax", optax.adamw(1e-2))], ids=["autoshard", "jax"]
)
def test_a_step_equals_that_of_jax_and_optax(gradients: str, optimizer: Any) -> None:
    options = {"loss": likelihood, "optimizer": optimizer, "gradients": gradients}
    model = ash.from_jax(attention, WORDS, params=attention_params(), **options)
    loss = ash.plan(model, mesh="dp=2 tp=2", search="factor").run(*model.example_arrays)
    np.testing.assert_allclose(loss, model.reference()[0], 1e-5)
    same_state(model)
    assert any(name.startswith("optimizer.") for name in model.reference_state())


def test_several_steps_go_on_with_the_state() -> None:
    optimizer = optax.adam(optax.exponential_decay(0.1, 1, 0.5))
    params = jax.tree.map(jnp.asarray, attention_params())
    model = ash.from_jax(attention, WORDS, params=params, loss=likelihood, optimizer=optimizer)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any]:
        grads = jax.grad(lambda params: likelihood(attention(params, WORDS), WORDS))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for mesh in ("dp=2 tp=2", "dp=3", "d=1"):  # a fresh import takes up parameters and the optimizer's states
        further = ash.from_jax(attention, WORDS, params=attention_params(), loss=likelihood, optimizer=optimizer)
        further.load_state(model.training_state())
        ash.plan(model := further, mesh=mesh, search="factor").run(WORDS)
        params, state = step(params, state)
    for one, other in zip(jax.tree.leaves(model.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4)


class Dropping(nnx.Module):
    """An nnx module with what no optimizer is given: statistics of a batch norm, keys and counts of a dropout."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.up, self.norm = nnx.Linear(8, 10, rngs=rngs), nnx.BatchNorm(10, rngs=rngs)
        self.dropout, self.down = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(10, 3, rngs=rngs)
        self.train()

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.square(self.down(self.dropout(nnx.relu(self.norm(self.up(x)))))).mean()


def test_an_nnx_module_trains_as_by_nnx_optimizer() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2, eps=1e-4))
    model = ash.from_jax(Dropping(), X, loss=lambda loss, x: loss, optimizer=optimizer)
    assert not any("dropout" in name or "norm.mean" in name for name in model.optimizer.states)
    planned = ash.plan(model, mesh="a=3 b=2")
    found = [float(planned.run(X * scale)) for scale in (1, 2, 3)]
    module = Dropping()
    own, wanted = nnx.Optimizer(module, optimizer, wrt=nnx.Param), []
    for scale in (1, 2, 3):
        loss, gradients = nnx.value_and_grad(lambda module, scale=scale: module(X * scale))(module)
        own.update(module, gradients)
        wanted.append(float(loss))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    np.testing.assert_allclose(model.state()["up.kernel"], module.up.kernel[...], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(model.state()["norm.mean"], module.norm.mean[...], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradients", ["autoshard", "jax"])
def test_our_optimizers_train_it_too(gradients: str) -> None:
    options = {"loss": likelihood, "gradients": gradients}
    ours = ash.from_jax(attention, WORDS, params=attention_params(), optimizer=lambda p: nn.SGD(p, 0.5), **options)
    theirs = ash.from_jax(attention, WORDS, params=attention_params(), optimizer=optax.sgd(0.5), **options)
    planned = ash.plan(ours, mesh="tp=4", search="factor")
    planned.run(WORDS)
    for name, wanted in theirs.reference_state().items():
        np.testing.assert_allclose(ours.state()[name], wanted, 1e-4, 1e-5, err_msg=name)
    # JAX's gradients are known to be gradients, so that they may lie as what they belong to.
    inputs = {value.name for value in planned.graph.inputs}
    assert {of.name for of in planned.graph.cotangents.values()} & inputs >= set(attention_params())


def test_an_optimizer_with_branches_in_stages() -> None:
    """Branches of the update read gradients that micro batches have added up."""

    def net(params: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ params["a"]) @ params["b"]

    params = {"a": floats(1, 8, 6), "b": floats(2, 6, 4)}
    options = {"loss": lambda y, x: (y**2).mean(), "optimizer": optax.MultiSteps(optax.sgd(0.1), 2)}
    model = ash.from_jax(net, X, params=params, **options)
    plan_pipeline(model, (), mesh="pp=2", micro_batches=3, stages={"a": 0, "b": 1}).run(X)
    same_state(model)


def test_a_constraint_where_no_mesh_is_set_asks_for_nothing() -> None:
    options = {"loss": lambda y, x: (y**2).mean(), "optimizer": optax.noisy_sgd(0.1)}
    model = ash.from_jax(lambda params, x: x @ params["w"], X, params={"w": floats(1, 8, 6)}, **options)
    assert "ShardingConstraint" not in [node.op.name for node in model.traced.graph.nodes]
    assert np.isfinite(ash.plan(model, mesh="tp=2", search="factor").run(X)).all()
    same_state(model)  # the key of the noise, too


class Image(linen.Module):
    """Convolutions with groups and strides, pooling, statistics of the batch."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Conv(8, (3, 3), strides=(2, 1), use_bias=False, name="conv")(x)
        x = linen.relu(linen.BatchNorm(use_running_average=False, name="norm")(x))
        x = linen.max_pool(x, (2, 2), strides=(1, 2)) + linen.avg_pool(x, (2, 2), strides=(1, 2))
        x = linen.Conv(8, (1, 3), feature_group_count=4, name="groups")(x)
        return linen.Dense(4, name="head")(x.mean((1, 2)))


@cache
def image() -> tuple[Image, Any, np.ndarray]:
    x = floats(2, 4, 8, 6, 3)
    return Image(), jax.jit(Image().init)(jax.random.key(0), x), x


def test_images_and_their_statistics() -> None:
    module, variables, x = image()

    def loss(found: jax.Array, *_: Any, **__: Any) -> jax.Array:
        return (found**2).mean()

    options = {"loss": loss, "optimizer": optax.sgd(0.1, momentum=0.9), "mutable": ["batch_stats"]}
    model = ash.from_jax(module, x, params=variables, **options)
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(x)
    same_state(model)
    assert {"batch_stats.norm.mean", "params.conv.kernel", "optimizer.0.trace.conv.kernel"} <= set(
        model.reference_state()
    )


# -- what JAX says of derivatives


def stopped(params: Any, x: jax.Array) -> jax.Array:
    hidden = x @ params["w"]
    return (hidden * jax.lax.stop_gradient(jax.jit(jnp.tanh)(hidden))).sum()


def test_gradients_that_are_stopped_stay_stopped() -> None:
    model = ash.from_jax(stopped, X, params={"w": floats(1, 8, 6)}, loss="output", optimizer=optax.sgd(1.0))
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(X)
    same_state(model, 1e-4)
    free = ash.from_jax(stopped, X, params={"w": floats(1, 8, 6)})
    assert "StopGradient" not in [node.op.name for node in free.traced.graph.nodes]


def feedforward(params: Any, x: jax.Array) -> jax.Array:
    hidden = checkpoint_name(jax.nn.gelu(x @ params["up"]), "hidden")
    return x + jax.nn.gelu(hidden) @ params["down"]


def layers(function: Any) -> Any:
    def run(params: Any, x: jax.Array) -> jax.Array:
        for one in params:
            x = function(one, x)
        return (x**2).mean()

    return run, [{"up": floats(i, 8, 12), "down": floats(i + 3, 12, 8)} for i in range(3)]


def scanned(function: Any) -> Any:
    def run(params: Any, x: jax.Array) -> jax.Array:
        return (jax.lax.scan(lambda carried, one: (function(one, carried), None), x, params["blocks"])[0] ** 2).mean()

    return run, {"blocks": {"up": floats(0, 3, 8, 12), "down": floats(3, 3, 12, 8)}}


class Feedforward(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x + linen.Dense(8)(jax.nn.gelu(linen.Dense(12)(x)))


class Layers(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(3):
            x = linen.remat(Feedforward)(name=f"layers_{i}")(x)
        return x


def squared(found: jax.Array, *_: Any) -> jax.Array:
    return (found**2).mean()


policies = jax.checkpoint_policies
CHECKPOINTED = {  # the model; what is kept, or None; scopes that have operators made again
    "functions": (lambda: layers(jax.checkpoint(feedforward)), {"add"}, "checkpoint_{}."),
    "a jitted function": (lambda: layers(jax.jit(jax.checkpoint(feedforward))), {"add"}, "checkpoint_{}."),
    "scanned": (lambda: scanned(jax.checkpoint(feedforward)), None, "blocks.{}.checkpoint_0."),
    "products saved": (
        lambda: layers(jax.checkpoint(feedforward, policy=policies.dots_saveable)), {"add", "dot_general"},
        "checkpoint_{}.",
    ),
    "by name": (
        lambda: layers(jax.checkpoint(feedforward, policy=policies.save_only_these_names("hidden"))), {"add", "mul"},
        "checkpoint_{}.",
    ),
    "modules": (lambda: (Layers(), Layers().init(jax.random.key(0), X)), {"add"}, "layers_{}."),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_what_a_checkpoint_computes_is_made_again(name: str) -> None:
    made, held, scope = CHECKPOINTED[name]
    function, params = made()
    loss = squared if isinstance(function, Layers) else "output"
    model = ash.from_jax(function, X, params=params, loss=loss, optimizer=optax.sgd(0.1))
    graph = model.step.graph
    verify(graph)
    again = {node.label for node in graph.nodes if node.label.endswith(".again")}
    assert all(any(one.startswith(scope.format(i)) for one in again) for i in range(3))
    stays = [node for node in kept(graph) if "checkpoint" in node.label or "layers" in node.label]
    assert held is None or {node.label.split(".")[-1].rstrip("_0123456789") for node in stays} == held
    assert ("dot_general" in {one.split(".")[-2] for one in again}) == ("products" not in name)
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(X)
    same_state(model)


SKIPPING = {
    "every second step": lambda: optax.MultiSteps(optax.adam(1e-2, eps=1e-2), 2),
    "where finite": lambda: optax.apply_if_finite(optax.adam(1e-2, eps=1e-2), 3),
}


@pytest.mark.parametrize("name", SKIPPING)
def test_optimizers_that_skip_steps_have_states_in_parts(name: str) -> None:
    function, params = layers(feedforward)
    params = jax.tree.map(lambda one: one / 10, params)
    optimizer = SKIPPING[name]()
    model = ash.from_jax(function, X, params=params, loss="output", optimizer=optimizer)
    planned = ash.plan(model, mesh="dp=2", search="zero1")
    moments = [value for value in planned.graph.inputs if ".mu." in value.name or "acc_grads" in value.name]
    assert moments and all(planned.plan.layouts[value].split == 2 for value in moments)
    states = optimizer.init(params)
    for x in (X, X * np.nan if "finite" in name else X + 1, X):
        loss, grads = jax.value_and_grad(function)(params, x)
        updates, states = optimizer.update(grads, states, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(planned.run(x), loss, 1e-5)
    for one, wanted in zip(model.state().values(), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(one, wanted, 1e-4, 1e-5)


@jax.custom_vjp
def straight(x: jax.Array) -> jax.Array:
    return jnp.round(x)


straight.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


def rounded(params: Any, x: jax.Array) -> jax.Array:
    return (straight(x @ params["w"]) ** 2).sum()


def test_derivatives_that_only_jax_knows() -> None:
    options = {"params": {"w": floats(1, 8, 6)}, "loss": "output", "optimizer": optax.sgd(0.1)}
    with pytest.raises(GraphError, match=r"own, which only JAX knows: straight at .*py:\d+; give gradients='jax'"):
        _ = ash.from_jax(rounded, X, **options).traced
    model = ash.from_jax(rounded, X, gradients="jax", **options)
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(X)
    same_state(model)
    options["optimizer"] = lambda params: optim.SGD(params, 0.1, loss_scale=8)
    with pytest.raises(GraphError, match=r"gradients='jax' are those of the loss as it is, but .* loss_scale"):
        _ = ash.from_jax(rounded, X, gradients="jax", **options).traced


def filtered(params: Any, x: jax.Array) -> jax.Array:
    """A spectrum of another length than the signal's, so that its gradient is padded with complex zeros."""
    return (jnp.fft.irfft(jnp.fft.rfft(x @ params["w"]) * jnp.fft.rfft(params["w"][0], 6), 6) ** 2).sum()


def test_spectra_are_differentiated() -> None:
    model = ash.from_jax(filtered, X, params={"w": floats(1, 8, 6)}, loss="output", optimizer=optax.sgd(0.01))
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(X)
    same_state(model, 1e-4)


def test_sorted_and_scattered_elements_are_differentiated() -> None:
    rows = np.array([3, 1, 3])

    def model(params: Any, x: jax.Array) -> jax.Array:
        y = x @ params["w"]
        y = y.at[rows].set(params["rows"]).at[rows].max(jnp.tanh(y[:3]))
        return jnp.sort(y)[:, :2].sum() + jnp.median(y)

    params = {"w": floats(1, 8, 6), "rows": floats(2, 3, 6)}
    step = ash.from_jax(model, X, params=params, loss="output", optimizer=optax.sgd(0.01))
    ash.plan(step, mesh="dp=2 tp=2", search="factor").run(X)
    same_state(step)


def test_batches_without_rows_are_differentiated() -> None:
    """As where a rank of a pipeline of data has none: sorts, convolutions."""

    def loss(params: dict, x: jax.Array) -> jax.Array:
        images = jax.lax.conv(x.reshape(-1, 2, 2, 3), params["k"], (1, 1), "SAME")
        return jnp.sum(jnp.sort(images.reshape(-1, 20), 0)) + jnp.sum(params["k"] ** 2)

    params, x = {"k": jnp.ones((5, 2, 3, 3))}, jnp.ones((0, 12))
    model = ash.from_jax(loss, x, params=params, loss="output", optimizer=lambda ps: optim.SGD(ps, 0.1))
    assert ash.plan(model, mesh="a=2 b=2").run(*model.arrays(x)) == loss(params, x)


def test_what_has_no_gradient_here_is_said_to_have_one_of_jax() -> None:
    def factored(params: Any, x: jax.Array) -> jax.Array:
        w = params["w"]
        return (x @ w @ jnp.linalg.cholesky(w.T @ w + jnp.eye(6))).sum()

    options = {"params": {"w": floats(1, 8, 6)}, "loss": "output", "optimizer": optax.sgd(0.01)}
    with pytest.raises(GraphError, match=r"CustomCall has no gradient.* or give from_jax gradients='jax'"):
        _ = ash.from_jax(factored, X, **options).traced
    model = ash.from_jax(factored, X, gradients="jax", **options)
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(X)
    same_state(model)


def test_what_has_no_gradient_for_its_attributes_is_told_with_its_line() -> None:
    def windows(params: Any, x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(x @ params["w"], 1.0, jax.lax.mul, (2, 2), (1, 1), "VALID").sum()

    model = ash.from_jax(windows, X, params={"w": floats(1, 8, 6)}, loss="output", optimizer=optax.sgd(0.01))
    with pytest.raises(GraphError, match=r"reduce_window at .*py:\d+: .* not for 1 by mul; or give .* gradients='jax'"):
        _ = model.traced


def looped(params: Any, x: jax.Array) -> jax.Array:
    return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["stack"])[0] ** 2).sum()


@pytest.mark.parametrize("gradients", ["autoshard", "jax"])
def test_loops_over_layers_are_differentiated(gradients: str) -> None:
    options = {"params": {"stack": floats(1, 3, 8, 8)}, "loss": "output", "optimizer": optax.sgd(0.01)}
    model = ash.from_jax(looped, X, gradients=gradients, **options)
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(X)
    same_state(model)


def test_a_loop_that_data_end_is_not_differentiated() -> None:
    def until(params: Any, x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: (x**2).sum() < 99, lambda x: 2 * x @ params["w"], x).sum()

    options = {"params": {"w": floats(1, 8, 8)}, "loss": "output", "optimizer": optax.sgd(0.01)}
    with pytest.raises(GraphError, match="While has no gradient, but .* lies between the loss"):
        _ = ash.from_jax(until, X, **options).traced


def test_only_some_are_trained() -> None:
    params = {"count": np.arange(8, dtype=np.int32), "factor": 2.0, "w": floats(1, 8, 6)}
    function = lambda params, x: ((x * params["count"]) @ params["w"]).sum() * params["factor"]  # noqa: E731
    model = ash.from_jax(function, X, params=params, loss="output", optimizer=lambda p: nn.SGD(p, 0.1))
    assert [one.name for one in model.trainable_params()] == ["factor", "w"]
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(X)
    np.testing.assert_array_equal(model.state()["count"], params["count"])
    assert (model.state()["w"] != params["w"])[1:].all()


def test_optax_is_given_no_whole_numbers() -> None:
    """Moments of a counter would be floats in the state of a whole number."""
    params = {"count": np.int32(3), "w": floats(1, 8, 6)}
    function = lambda params, x: jnp.square(x @ params["w"]).mean() * params["count"]  # noqa: E731
    model = ash.from_jax(function, X, params=params, loss="output", optimizer=optax.adam(0.1))
    assert not any(name.endswith("count") and "mu" in name for name in model.optimizer.states)
    ash.plan(model, mesh="d=2", search="factor").run(X)
    assert model.state()["count"] == 3
    same_state(model)


class Halves(linen.Module):
    """Parameters in f32, computed with in bf16; strided convolutions and cut tensors have gradients with padding."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = linen.Conv(6, (3,), strides=2, dtype=jnp.bfloat16)(x)
        return linen.Dense(4, dtype=jnp.bfloat16)(jax.nn.gelu(y)[:, 0, 1:]).astype(jnp.float32)


def test_mixed_precision_is_trained() -> None:
    x, module = floats(5, 6, 9, 3), Halves()
    variables = module.init(jax.random.key(0), x)

    def loss(found: jax.Array, _: jax.Array) -> jax.Array:
        return jnp.square(found - 1).mean()

    model = ash.from_jax(module, x, params=variables, loss=loss, optimizer=optax.sgd(1.0))
    ash.plan(model, mesh="dp=3", search="factor").run(x)
    gradient = jax.grad(lambda params: loss(module.apply(params, x), x))(variables)
    moved = jax.tree.map(lambda one, step: np.asarray(one - step), variables, gradient)
    jax.tree.map(lambda one, want: np.testing.assert_allclose(one, want, rtol=0.03, atol=0.02), model.params, moved)
