"""What `benchmarks.engines` runs on JAX's devices: engine xla, `shard_map` by hand, `jit` with a plan's shardings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.exporters.jax_sharding import jax_shardings
from benchmarks.engines import JIT, LLAMA, SHARD_MAP, XLA, Run
from benchmarks.llama_step import COLUMNS, EPSILON, NORMS
from benchmarks.stepping import MOMENTUM, ByAutoshard, Task

Arrays = Mapping[str, jax.Array]


def contestants(task: Task, given: argparse.Namespace) -> dict[str, Run]:
    """Each by its name."""

    class Ranks:
        @staticmethod
        def Get_size() -> int:
            return given.ranks

    planned = ByAutoshard(Ranks(), task).planned
    return {XLA: on_xla(planned, task), SHARD_MAP: by_hand(task, given), JIT: by_jit(planned, task, given)}


def on_xla(planned: Any, task: Task) -> Run:
    """The planned step as a function of JAX."""
    step, held = planned.to_jax(), {}
    held["state"] = step.state()

    def once() -> float:
        loss, held["state"] = step(held["state"], task.x, task.y)
        return float(loss)

    return lambda steps: [once() for _ in range(steps)]


def _same(x: jax.Array) -> jax.Array:
    return x


def _network(heads: int, sequence: int, by_heads: bool) -> Callable[[Arrays, jax.Array], jax.Array]:
    """The network up to its last product; `heads` are those that this device has."""

    def dense(held: Arrays, x: jax.Array) -> jax.Array:
        inner = jax.nn.relu(x @ held["dense1.weight"] + held["dense1.bias"])
        return inner @ held["dense2.weight"]

    def attention(held: Arrays, x: jax.Array) -> jax.Array:
        def side(name: str) -> jax.Array:
            made = x @ held[f"{name}.weight"] + held[f"{name}.bias"]
            return made.reshape(-1, sequence, heads, made.shape[1] // heads).transpose(0, 2, 1, 3)

        q, k, v = side("query"), side("key"), side("value")
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(np.float32)
        scores = jnp.where(jnp.tril(jnp.ones((sequence, sequence), bool)), scores, -jnp.inf)
        context = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3)
        return context.reshape(len(x), -1) @ held["output.weight"]

    return attention if by_heads else dense


def _llama(
    given: argparse.Namespace, heads: int, summed: Callable = _same, spread: Callable = _same
) -> Callable[[Arrays, jax.Array], jax.Array]:
    """Llama's layers; `summed` is done to products of rows, `spread` to what goes into those of columns."""

    def layer(held: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
        def normed(name: str, x: jax.Array) -> jax.Array:
            return spread(x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON) * held[name])

        def side(name: str) -> jax.Array:
            made = tokens @ held[name]
            return made.reshape(-1, given.sequence, heads, made.shape[1] // heads).transpose(0, 2, 1, 3)

        tokens = normed("norm1", x)
        q, k, v = side("query"), side("key"), side("value")
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(np.float32)
        scores = jnp.where(jnp.tril(jnp.ones((given.sequence,) * 2, bool)), scores, -jnp.inf)
        context = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(len(x), -1)
        x = x + summed(context @ held["output"])
        tokens = normed("norm2", x)
        return x + summed((jax.nn.silu(tokens @ held["gate"]) * (tokens @ held["up"])) @ held["down"])

    def layers(held: Arrays, x: jax.Array) -> jax.Array:
        for number in range(given.layers):
            own = f"{number}."
            x = layer({name.removeprefix(own): one for name, one in held.items() if name.startswith(own)}, x)
        return x

    return layers


def _llama_by_hand(task: Task, given: argparse.Namespace) -> Run:
    """As Megatron does: a sum of products of rows forward, of slopes before products of columns backward."""
    mesh = Mesh(np.array(jax.devices()[: given.ranks]), ("tp",))
    summed, spread = jax.custom_vjp(_sum_of_ranks), jax.custom_vjp(_same)
    summed.defvjp(lambda x: (_sum_of_ranks(x), None), lambda _, slope: (slope,))
    spread.defvjp(lambda x: (x, None), lambda _, slope: (_sum_of_ranks(slope),))
    local, rate = _llama(given, given.heads // given.ranks, summed, spread), np.float32(task.rate)
    specs = {name: _llama_spec(name) for name in task.values}

    def step(held: Arrays, moments: Arrays, x: jax.Array, y: jax.Array) -> tuple:
        loss, grads = jax.value_and_grad(lambda held: jnp.mean((local(held, x) - y) ** 2))(held)
        new = {name: MOMENTUM * moments[name] + grads[name] for name in held}
        return loss, {name: held[name] - rate * new[name] for name in held}, new

    inside = jax.shard_map(
        step, mesh=mesh, in_specs=(specs, specs, P(), P()), out_specs=(P(), specs, specs), check_vma=False
    )
    placed, data = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}, NamedSharding(mesh, P())
    return _looped(jax.jit(inside, donate_argnums=(0, 1)), task, placed, (data, data))


def _sum_of_ranks(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, "tp")


def _llama_spec(name: str) -> P:
    kind = name.partition(".")[2]
    return P() if kind in NORMS else P(None, "tp") if kind in COLUMNS else P("tp")


def by_hand(task: Task, given: argparse.Namespace) -> Run:
    """Columns of what comes first and rows of the last product on each device, as the other steps by hand."""
    if given.task == LLAMA:
        return _llama_by_hand(task, given)
    last = "output" if given.task == "attention" else "dense2"
    mesh = Mesh(np.array(jax.devices()[: given.ranks]), ("tp",))
    local = _network(given.heads // given.ranks, given.sequence, given.task == "attention")
    specs = {name: _spec(name, last) for name in task.values}
    rate, count = np.float32(task.rate), task.x.size

    def step(held: Arrays, moments: Arrays, x: jax.Array, y: jax.Array) -> tuple:
        term, pull = jax.vjp(lambda held: local(held, x), held)
        out = jax.lax.psum_scatter(term, "tp", scatter_dimension=1, tiled=True) + held[f"{last}.bias"] - y
        loss = jax.lax.psum(jnp.sum(out * out), "tp") / count
        slope = out * np.float32(2 / count)
        (grads,) = pull(jax.lax.all_gather(slope, "tp", axis=1, tiled=True))
        grads = {**grads, f"{last}.bias": slope.sum(0)}
        new = {name: MOMENTUM * moments[name] + grads[name] for name in held}
        return loss, {name: held[name] - rate * new[name] for name in held}, new

    inside = jax.shard_map(
        step, mesh=mesh, in_specs=(specs, specs, P(), P(None, "tp")), out_specs=(P(), specs, specs), check_vma=False
    )
    placed = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    data = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "tp"))
    return _looped(jax.jit(inside, donate_argnums=(0, 1)), task, placed, data)


def _spec(name: str, last: str) -> P:
    layer, _, kind = name.partition(".")
    return P(None, "tp") if kind == "weight" and layer != last else P("tp")


def by_jit(planned: Any, task: Task, given: argparse.Namespace) -> Run:
    """The step as one writes it for one device, with the plan's shardings of what goes in and comes out."""
    last = "output" if given.task == "attention" else "dense2"
    whole = _network(given.heads, given.sequence, given.task == "attention")
    if given.task == LLAMA:
        whole = _llama(given, given.heads)
    told = jax_shardings(planned)
    mesh, rate = told.mesh(), np.float32(task.rate)

    def loss_of(held: Arrays, x: jax.Array, y: jax.Array) -> jax.Array:
        made = whole(held, x)
        return jnp.mean((made + held[f"{last}.bias"] - y if f"{last}.bias" in held else made - y) ** 2)

    def step(held: Arrays, moments: Arrays, x: jax.Array, y: jax.Array) -> tuple:
        loss, grads = jax.value_and_grad(loss_of)(held, x, y)
        new = {name: MOMENTUM * moments[name] + grads[name] for name in held}
        return loss, {name: held[name] - rate * new[name] for name in held}, new

    owned = [(task.own_name(name), name, spec) for name, spec in told.named.items()]
    named = {own: spec for own, name, spec in owned if own and not name.startswith("moments.")}
    placed = {name: NamedSharding(mesh, named[name]) for name in task.values}
    x, y = (NamedSharding(mesh, spec) for own, _, spec in owned if own is None)
    jitted = jax.jit(
        step,
        in_shardings=(placed, placed, x, y),
        out_shardings=(NamedSharding(mesh, P()), placed, placed),
        donate_argnums=(0, 1),
    )
    return _looped(jitted, task, placed, (x, y))


def _looped(step: Callable, task: Task, placed: Mapping[str, NamedSharding], data: tuple) -> Run:
    held = {name: jax.device_put(value, placed[name]) for name, value in task.values.items()}
    state = [held, {name: jax.device_put(np.zeros_like(value), placed[name]) for name, value in task.values.items()}]

    def once() -> float:
        arrays = [jax.device_put(one, of) for one, of in zip((task.x, task.y), data, strict=True)]
        loss, *state[:] = step(*state, *arrays)
        return float(loss)

    return lambda steps: [once() for _ in range(steps)]
