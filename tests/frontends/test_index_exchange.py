"""JAX programs that look up in a split dim, and experts by one-hot dispatch: what moves, and that it is right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.api import plan
from autoshard.frontends import from_stablehlo
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm

pytestmark = pytest.mark.jax
MESH = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))


WHOLE, FIRST, LAST = P(), P("x"), P(None, "x")


def tensor(*shape, spec=WHOLE, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))


def number():
    return tensor(dtype=jnp.int32)


def ids(count, spec=WHOLE):
    return tensor(count, spec=spec, dtype=jnp.int32)


def loss(logits, labels):
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[:, None], 1)[:, 0])


# Per case: the function, its arguments, the layout asked of the result, and what a rank receives.
CASES = {
    "take": (lambda x, i: x[i], (tensor(64, 6, spec=FIRST), ids(16)), None, 2 * 7 / 8 * 16 * 6 * 4),
    "take to parts": (
        lambda x, i: 2 * x[i], (tensor(640, 6, spec=FIRST), ids(16, FIRST)), FIRST, 7 / 8 * (16 * 6 * 4 + 16 * 4)
    ),
    "slice": (lambda x, i: lax.dynamic_slice(x, (i, 0), (5, 6)), (tensor(64, 6, spec=FIRST), number()), None, 210),
    "cache": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i)), (tensor(3, 64, spec=LAST), tensor(3, 1), number()),
        LAST, 0,
    ),
    "windows": (
        lambda x, i: jax.vmap(lambda one: lax.dynamic_slice(x, (one, 0), (3, 6)))(i),
        (tensor(64, 6, spec=FIRST), ids(4)), None, 2 * 7 / 8 * 4 * 3 * 6 * 4,
    ),
    "argmax": (lambda x: jnp.argmax(x, -1), (tensor(6, 640, spec=LAST),), None, 7 * 6 * (4 + 4)),
    "top_k": (lambda x: lax.top_k(x, 5), (tensor(6, 640, spec=LAST),), None, 7 * 6 * 5 * (4 + 4)),
    "sort": (lambda x: jnp.sort(x, -1), (tensor(16, 640, spec=LAST),), LAST, 2 * 7 / 8 * 16 * 80 * 4),
    "loss": (loss, (tensor(16, 640, spec=LAST), ids(16)), None, 3 * 2 * 7 / 8 * 16 * 4),
    "random": (
        lambda key, x: x * jax.random.uniform(jax.random.wrap_key_data(key), x.shape),
        (tensor(2, dtype=jnp.uint32), tensor(64, 6, spec=FIRST)), FIRST, 0,
    ),
}  # fmt: skip


def run(function, arguments, out, search="factor"):
    """The program that follows the shardings, after a comparison with JAX."""
    asked = {} if out is None else {"out_shardings": NamedSharding(MESH, out)}
    traced = jax.jit(function, keep_unused=True, **asked).trace(*arguments)
    made = plan(from_stablehlo(traced.lower(lowering_platforms=("cpu",))), search=search)
    program = lower(made.plan)
    verify_program(program)
    rng = np.random.default_rng(0)
    feeds = [
        np.asarray(rng.standard_normal(one.shape) if one.dtype == jnp.float32 else rng.integers(0, 50, one.shape))
        .astype(one.dtype)
        for one in arguments
    ]  # fmt: skip
    wanted = jax.tree.leaves(jax.jit(function)(*feeds))
    for got, want in zip(Executor(program, LocalComm(8))(*feeds), wanted, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-4)
    return program


@pytest.mark.parametrize("case", CASES)
def test_bytes(case):
    *program, nbytes = CASES[case]
    assert sum(one.nbytes_moved for one in run(*program).collectives) == pytest.approx(nbytes)


def experts(groups, router, up, down, capacity=5):
    """A mixture of experts over (groups, tokens, width) by one-hot dispatch, as in GShard (Lepikhin et al. 2020)."""

    def dispatched(x):
        gates = jax.nn.softmax(x @ router)
        chosen = jax.nn.one_hot(gates.argmax(-1), gates.shape[-1])
        places = jax.nn.one_hot(((jnp.cumsum(chosen, 0) * chosen).sum(-1) - 1).astype(jnp.int32), capacity)
        return (gates * chosen)[:, :, None] * places[:, None, :]

    combine = jax.vmap(dispatched)(groups)
    inside = jnp.einsum("gtec,gtm->egcm", (combine > 0).astype(groups.dtype), groups)
    outside = jnp.einsum("egch,ehm->egcm", jax.nn.relu(jnp.einsum("egcm,emh->egch", inside, up)), down)
    return jnp.einsum("gtec,egcm->gtm", combine, outside)


@pytest.mark.parametrize("search", ["factor", "sharding_propagation"])
def test_experts_on_the_axis_of_tokens(search):
    """Tokens go to their experts and back by one all-to-all each, and nothing else moves."""
    count, tokens, width, hidden = 8, 12, 32, 128
    weights = tensor(width, count), tensor(count, width, hidden, spec=FIRST), tensor(count, hidden, width, spec=FIRST)
    program = run(experts, (tensor(8, tokens, width, spec=FIRST), *weights), FIRST, search)
    assert [one.step.kind for one in program.collectives] == ["all_to_all", "all_to_all"]
    local = count * 5 * width * 4
    assert [one.nbytes_moved for one in program.collectives] == [7 / 8 * local] * 2
