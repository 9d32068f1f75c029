"""JAX programs with shardings, lowered to StableHLO: those of the frontend's tests and such as ask inside.

MODULES maps a name to a function that gives the module's text. Every differentiable program is there twice: itself,
and its gradient.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.frontends.jax_models import MODELS
from tests.frontends.jax_models import floats as numbers

MESH = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
_AXES = {"x": 4, "y": 2}
# Programs that return more than a number, or choose by their arguments' values.
_FORWARD_ONLY = ("while_loop", "sorting", "random_numbers")
MODULES: dict[str, Callable[[], str]] = {}


def lowered(function: Callable, args: tuple) -> str:
    """The module of a program whose arguments are sharded on MESH, some more and some less."""
    random = Random(0)
    leaves, tree = jax.tree.flatten(args)
    shaped = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(MESH, _spec(leaf.shape, random)))
        for leaf in leaves
    ]
    text = jax.jit(function).trace(*jax.tree.unflatten(tree, shaped)).lower(lowering_platforms=("cpu",)).as_text()
    # MLIR does not read this again where a rule follows, and it says nothing.
    return text.replace("mhlo.backend_config = {}, ", "")


def _spec(shape: tuple[int, ...], random: Random) -> P:
    """Axes for the dims that they divide."""
    free = list(_AXES)
    random.shuffle(free)
    entries: list[Any] = []
    for size in shape:
        fits = [axis for axis in free if size % _AXES[axis] == 0]
        chosen = fits[0] if fits and random.random() < 0.6 else random.choice((None, P.UNCONSTRAINED))
        if isinstance(chosen, str):
            free.remove(chosen)
        entries.append(chosen)
    return P(*entries)


def opened(text: str, seed: int) -> str:
    """The module with more freedom: some dims of main's arguments are opened."""
    random = Random(seed)
    before, main, after = re.split(r"(func\.func public @main\(.*)", text, maxsplit=1)
    arguments, arrow, results = main.partition(" -> ")
    arguments = re.sub(r"\{(\"\w+\")?\}(?=[,\]])", lambda m: _opened(m.group(1), random), arguments)
    return before + arguments + arrow + results + after


def _opened(axis: str | None, random: Random) -> str:
    if random.random() < 0.5:
        return f"{{{axis or ''}}}"
    return f"{{{axis}, ?}}" if axis else "{?}"


def _add(name: str, make: Callable[[], tuple[Callable, tuple]], differentiable: bool = True) -> None:
    def forward() -> str:
        return lowered(*make())

    def gradient() -> str:
        function, args = make()
        return lowered(jax.grad(function, argnums=tuple(range(len(args)))), args)

    MODULES[name] = forward
    if differentiable:
        MODULES[f"{name}_gradient"] = gradient


for _name, _make in MODELS.items():
    _add(_name, _make, _name not in _FORWARD_ONLY)


def model(function: Callable) -> Callable:
    _add(function.__name__, function)
    return function


def constrained(x: Any, *spec: Any) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


@model
def constrained_mlp():
    def loss(x, first, second):
        h = constrained(jax.nn.relu(x @ first), "x", "y")
        return jnp.sum(constrained(h @ second, "x", P.UNCONSTRAINED) ** 2)

    return loss, (numbers(0, 8, 6), numbers(1, 6, 12), numbers(2, 12, 4))


@model
def constrained_scan():
    def loss(xs, w):
        def step(h, x):
            h = constrained(jnp.tanh(h @ w + x), "x", None)
            return h, h.sum(-1)

        last, sums = lax.scan(step, jnp.zeros((8, 6)), xs)
        return last.sum() + sums.sum()

    return loss, (numbers(0, 5, 8, 6), numbers(1, 6, 6))


@model
def shard_mapped():
    @partial(jax.shard_map, mesh=MESH, in_specs=(P("x", None), P(None, "y")), out_specs=P("x", "y"))
    def product(x, w):
        return jnp.tanh(x @ w)

    def loss(x, w):
        return jnp.sum(product(jnp.sin(x), w) ** 2)

    return loss, (numbers(0, 8, 6), numbers(1, 6, 4))


@model
def partly_shard_mapped():
    @partial(jax.shard_map, mesh=MESH, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    def product(x, w):
        return lax.psum(jnp.sum(x), "x") + x @ w

    def loss(x, w):
        return jnp.sum(product(x, w) ** 2)

    return loss, (numbers(0, 8, 6), numbers(1, 6, 4))


@model
def forward_rule():
    @jax.custom_jvp
    def softplus(x):
        return jnp.log1p(jnp.exp(x))

    @softplus.defjvp
    def _(primals, tangents):
        return softplus(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]

    def loss(x, w):
        return jnp.sum(softplus(x @ w))

    return loss, (numbers(0, 8, 6), numbers(1, 6, 4))


@model
def functions_called_often():
    @jax.jit
    def layer(x, w):
        return jnp.tanh(x @ w)

    def loss(x, *weights):
        for w in weights:
            x = layer(layer(x, w), w)
        return jnp.sum(x)

    return loss, (numbers(0, 8, 6), numbers(1, 6, 6), numbers(2, 6, 6))


@model
def token_gather():
    def loss(table, w, tokens):
        picked = jnp.take(table, jnp.clip(tokens.astype(jnp.int32), 0, 11), axis=0)
        return jnp.sum(jnp.einsum("btd,df->btf", constrained(picked, "x"), w) ** 2)

    return loss, (numbers(0, 12, 6), numbers(1, 6, 4), numbers(2, 8, 3))


@model
def convolutions_with_statistics():
    def loss(x, kernel, scale):
        h = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h = (h - h.mean((0, 1, 2))) * lax.rsqrt(h.var((0, 1, 2)) + 1e-3) * scale
        h = lax.reduce_window(jax.nn.relu(h), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(h.mean((1, 2)) ** 2)

    return loss, (numbers(0, 4, 8, 6, 3), numbers(1, 3, 3, 3, 8), numbers(2, 8))
