"""JAX programs with loops, branches, remat and shard_map run split on virtual ranks as JAX runs them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.api import plan
from autoshard.cli.module_run import differences, random_inputs
from autoshard.frontends import from_jax, from_stablehlo
from autoshard.ir.graph import walk
from autoshard.partition.program import ManualCollective
from autoshard.partition.program import walk as instructions
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import PlanError, ShapeError
from tests.frontends.jax_manual import COLLECTIVES, MESH, manual

pytestmark = pytest.mark.jax

MODES = ("factor", "sharding_propagation")


def some(shape, *axes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*axes)))


def check(program, *args, search="factor"):
    """Plan, verify and run a program; compare with JAX and with the unsplit run."""
    planned = plan(from_jax(program, *args), search=search)
    verify_program(planned.program)
    feeds = random_inputs(planned.graph, 0)
    found = Executor(planned.program, LocalComm(planned.plan.mesh.devices))(*feeds)
    wanted = jax.tree.leaves(jax.jit(program)(*jax.tree.unflatten(jax.tree.structure(args), feeds)))
    assert differences(found, [np.asarray(one) for one in wanted]) == []
    assert differences(found, evaluate(planned.graph, feeds)) == []
    return planned


def scan(x, w):
    y, sums = lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum(1)), x, w)
    return y, sums


def reverse_scan(x, w):
    return lax.scan(lambda c, w: (c + w.sum(0), c[:2]), x, w, reverse=True)


def nested(x, w):
    def outer(c, w):
        inner = lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) + w[0], c)
        return inner @ w, None

    return lax.scan(outer, x, w)[0]


def scan_gradient(x, w):
    return jax.grad(lambda x, w: (lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0] ** 2).sum(), (0, 1))(x, w)


def fori(x, w):
    return lax.fori_loop(0, x.shape[0], lambda i, a: a.at[i].set(a[i] @ w[0]), x)


def data_dependent(x, w):
    def body(state):
        a, count = state
        return a * 0.5 + w.mean() * 0.01, count + 1

    return lax.while_loop(lambda state: jnp.abs(state[0]).max() > 0.3, body, (x, 0))


def cond(x, w):
    return lax.cond(x.sum() > 0, lambda: x @ w[0], lambda: jnp.zeros_like(x) + w[1].sum())


def switch(x, w):
    branches = [lambda x: x.T, lambda x: x.T * 2, lambda x: x.T.sum(0) + x.T]
    return [lax.switch(jnp.int32(w.sum()) % 4 + i, branches, x) for i in range(2)]


def remat(x, w):
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))
    return jax.grad(lambda x: (layer(layer(x, w[0]), w[1]) ** 2).sum())(x)


PROGRAMS = (scan, reverse_scan, nested, scan_gradient, fori, data_dependent, cond, switch, remat)
SHARDINGS = (((None, "y"), ("x", None, None)), (("x", "y"), (None, "y", None)), (("x", None), (None, None, "y")))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program, mode):
    for rows, weights in SHARDINGS[: 1 + 2 * (mode == "factor")]:
        check(program, some((8, 16), *rows), some((2, 16, 16), *weights), search=mode)


def test_weights_that_a_loop_hands_on_are_captured():
    def layers(x, w):
        return lax.fori_loop(0, 4, lambda i, x: jnp.tanh(x @ w), x)

    planned = check(layers, some((8, 16), "x"), some((16, 16), None, "y"))
    (loop,) = (node for node in walk(planned.graph.nodes) if node.op.name == "While")
    assert "w" not in [value.name for value in loop.operands]
    assert [value.name for value in loop.regions[1].captured] == ["w"]
    assert planned.plan.runs[loop.regions[1].nodes[0]] == 4


# -- manual computations

SHARDED = COLLECTIVES | {
    "ring in a loop": (
        lambda a: lax.fori_loop(0, 3, lambda i, c: lax.ppermute(jnp.tanh(c) + i, "y", RING), a), P("x", "y"),
    ),
    "ranks decide": (lambda a: lax.while_loop(lambda c: (c**2).sum() > 2.0, lambda c: c * 0.7, a), P("x", "y")),
    "ranks choose": (lambda a: lax.cond(lax.axis_index("y") > 1, lambda: a * 2, lambda: a + 1), P("x", "y")),
    "ranks agree": (
        lambda a: lax.while_loop(lambda c: lax.psum((c**2).sum(), ("x", "y")) > 2.0, lambda c: c * 0.5, a), P("x", "y"),
    ),
}  # fmt: skip
RING = [(i, (i + 1) % 4) for i in range(4)]


@pytest.mark.parametrize("name", SHARDED)
def test_shard_map(name):
    body, out = SHARDED[name]
    check(lambda a: manual(body, in_specs=(P("x", "y"),), out_specs=out)(jnp.sin(a)) * 2, some((16, 32), "x", "y"))


def partly(a, w):
    def body(a, w):
        return lax.psum(jnp.tanh(a @ w) * lax.axis_index("x"), "x")

    return manual(body, in_specs=(P(None, "x"), P("x")), out_specs=P(), axis_names={"x"})(a, w) * 2


def gathered_then_scanned(a, w):
    def body(a, w):
        whole = lax.all_gather(a, "y", axis=0, tiled=True)
        made, _ = lax.scan(lambda c, _: (jnp.sin(c @ w), None), whole, None, length=3)
        return lax.psum_scatter(made, "y", scatter_dimension=0, tiled=True)

    return manual(body, in_specs=(P("y"), P()), out_specs=P("y"), axis_names={"y"})(a, w)


@pytest.mark.parametrize("mode", ("factor", "bfs"))
@pytest.mark.parametrize("program", (partly, gathered_then_scanned))
def test_partly_manual(program, mode):
    check(program, some((8, 16), "y", "x"), some((16, 16), "x", "y"), search=mode)


def test_free_axes_stay_split_inside():
    planned = check(partly, some((8, 16), "y", "x"), some((16, 16), "x", None))
    reduced = [one for one in instructions(planned.program.instructions) if isinstance(one, ManualCollective)]
    (psum,) = (one for one in reduced if one.kind == "all_reduce")
    assert psum.operands[0].layout.parts == (4, 1) and str(psum.groups) == "x"


# -- StableHLO by itself

HEAD = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'
X = '%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}'


def module(body: str, out: str = "tensor<8x16xf32>", arguments: str = X):
    return from_stablehlo(f"{HEAD}func.func public @main({arguments}) -> ({out}) {{\n{body}\n}}")


def check_module(imported, search="factor"):
    planned = plan(imported, search=search)
    verify_program(planned.program)
    feeds = random_inputs(planned.graph, 0)
    found = Executor(planned.program, LocalComm(planned.plan.mesh.devices))(*feeds)
    assert differences(found, evaluate(imported.graph, feeds)) == []
    return planned


MANUAL = (
    '%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}, {"y"}]>] '
    'out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x", "y"} (%a: tensor<4x4xf32>) {\n'
)
REDUCER = (
    "({\n^bb0(%p: tensor<f32>, %q: tensor<f32>):\n%r = stablehlo.REDUCE %p, %q : tensor<f32>\n"
    "stablehlo.return %r : tensor<f32>\n})"
)


@pytest.mark.parametrize("reduce", ("add", "maximum", "multiply", "subtract"))
@pytest.mark.parametrize("groups", ("[[0, 1], [2, 3], [4, 5], [6, 7]]", "[[0, 3], [1, 2], [4, 7], [5, 6]]"))
def test_listed_groups_and_any_reducer(groups, reduce):
    """Groups that are no axes, and reductions that no collective does, which ranks gather and do by themselves."""
    width = 2
    text = (
        f'{MANUAL}%1 = "stablehlo.all_reduce"(%a) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, '
        f"replica_groups = dense<{groups}> : tensor<{8 // width}x{width}xi64>, use_global_device_ids}}> "
        f"{REDUCER.replace('REDUCE', reduce)} : (tensor<4x4xf32>) -> tensor<4x4xf32>\n"
        "sdy.return %1 : tensor<4x4xf32>\n} : (tensor<8x16xf32>) -> tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>"
    )
    check_module(module(text))


def test_an_if_is_a_choice():
    text = (
        "%c = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%s = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0, 1] : "
        "(tensor<8x16xf32>, tensor<f32>) -> tensor<f32>\n"
        "%p = stablehlo.compare LT, %s, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        '%0 = "stablehlo.if"(%p) ({\n%n = stablehlo.negate %x : tensor<8x16xf32>\nstablehlo.return %n : '
        "tensor<8x16xf32>\n}, {\nstablehlo.return %x : tensor<8x16xf32>\n}) : (tensor<i1>) -> tensor<8x16xf32>\n"
        "return %0 : tensor<8x16xf32>"
    )
    for mode in MODES:
        planned = check_module(module(text), mode)
        assert any(node.op.name == "Case" for node in planned.graph.nodes)


def test_tokens_and_barriers():
    text = (
        "%t = stablehlo.create_token : !stablehlo.token\n%u = stablehlo.after_all %t, %k : !stablehlo.token\n"
        "%y:2 = stablehlo.optimization_barrier %x, %x : tensor<8x16xf32>, tensor<8x16xf32>\n"
        "%0 = stablehlo.add %y#0, %y#1 : tensor<8x16xf32>\n"
        "return %0, %u : tensor<8x16xf32>, !stablehlo.token"
    )
    imported = module(text, "tensor<8x16xf32>, !stablehlo.token", f"{X}, %k: !stablehlo.token")
    for mode in MODES:
        check_module(imported, mode)


def test_collectives_along_axes_of_size_1():
    """JAX writes them outside of any manual computation, in groups of one device each."""
    text = (
        f'%1 = "stablehlo.all_reduce"(%x) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, '
        "replica_groups = dense<[[0], [1], [2], [3], [4], [5], [6], [7]]> : tensor<8x1xi64>, use_global_device_ids}> "
        f"{REDUCER.replace('REDUCE', 'add')} : (tensor<8x16xf32>) -> tensor<8x16xf32>\n"
        '%2 = "stablehlo.collective_permute"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, '
        "source_target_pairs = dense<[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 5], [6, 6], [7, 7]]> : "
        "tensor<8x2xi64>}> : (tensor<8x16xf32>) -> tensor<8x16xf32>\nreturn %2 : tensor<8x16xf32>"
    )
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    np.testing.assert_array_equal(plan(module(text)).run(x)[0], x)


def test_what_is_refused():
    gather = (
        '%0 = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : '
        "tensor<1x2xi64>} : (tensor<8x16xf32>) -> tensor<16x16xf32>\nreturn %0 : tensor<16x16xf32>"
    )
    with pytest.raises(
        PlanError, match=r"cannot plan %0 .AllGather.*says itself what ranks do, and outside of a manual"
    ):
        plan(module(gather, "tensor<16x16xf32>"))
    effects = "%0 = stablehlo.custom_call @announce(%a) {has_side_effect = true} : "
    effects += "(tensor<8x16xf32>) -> tensor<8x16xf32>"
    loop = (
        "%r = stablehlo.while(%a = %x) : tensor<8x16xf32>\n"
        "cond {\n%c = stablehlo.constant dense<false> : tensor<i1>\n"
        f"stablehlo.return %c : tensor<i1>\n}} do {{\n{effects}\n"
        "stablehlo.return %0 : tensor<8x16xf32>\n}\nreturn %r : tensor<8x16xf32>"
    )
    with pytest.raises(PlanError, match=r"cannot plan .*UnruledCustomCall 'announce'.*: it has side effects"):
        plan(module(loop))
    manual_body = (
        f'{MANUAL}%1 = "stablehlo.all_reduce"(%a) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, '
        "replica_groups = dense<[[0, 1, 2], [3, 4, -1]]> : tensor<2x3xi64>, use_global_device_ids}> "
        f"{REDUCER.replace('REDUCE', 'add')} : (tensor<4x4xf32>) -> tensor<4x4xf32>\n"
        "sdy.return %1 : tensor<4x4xf32>\n} : (tensor<8x16xf32>) -> tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>"
    )
    with pytest.raises((PlanError, ShapeError), match="do not have each of the 8 devices once"):
        _ = plan(module(manual_body)).program


def test_a_token_is_run_and_reported(tmp_path):
    text = "%u = stablehlo.after_all %k : !stablehlo.token\nreturn %x, %u : tensor<8x16xf32>, !stablehlo.token"
    planned = plan(module(text, "tensor<8x16xf32>, !stablehlo.token", f"{X}, %k: !stablehlo.token"))
    feeds = random_inputs(planned.graph, 1)
    np.testing.assert_array_equal(planned.run(*feeds)[0], feeds[0])
    assert "AfterAll" in planned.report() and planned.to_json()["operators"][0]["op"] == "AfterAll"
    assert planned.dump(tmp_path, [0])
