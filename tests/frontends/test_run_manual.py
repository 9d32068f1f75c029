"""Manual computations run: shard_map on eight devices, every collective, nested and partly manual ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard as ash
from autoshard.frontends import from_jax, from_stablehlo
from autoshard.ir.text import parse, show, show_value
from autoshard.ir.verify import verify
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import CLOSED, DimSharding, Sharding
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ShapeError
from tests.frontends.jax_manual import COLLECTIVES, MESH, manual
from tests.frontends.jax_models import floats

pytestmark = pytest.mark.jax


def check(program, *args) -> None:
    imported = from_jax(program, *args)
    verify(imported.graph)
    assert any(node.op.name == "ManualComputation" for node in imported.graph.nodes)
    wanted = jax.tree.leaves(jax.jit(program)(*args))
    graph = parse(show(imported.graph))
    for one, other in zip(evaluate(graph, jax.tree.leaves(args)), wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name: str) -> None:
    body, out = COLLECTIVES[name]
    check(manual(body, in_specs=P("x", "y"), out_specs=out), floats(0, 16, 12))


def test_axes_of_one_dim_in_both_orders() -> None:
    for axes in (("x", "y"), ("y", "x")):
        check(
            manual(lambda a: a * (1 + lax.axis_index("x")), in_specs=P(axes), out_specs=P(None, axes[::-1])),
            floats(0, 8, 3),
        )


def test_a_mesh_whose_devices_are_in_another_order() -> None:
    devices = np.array(jax.devices())[[3, 1, 0, 2, 7, 6, 4, 5]].reshape(2, 4)
    mesh = jax.sharding.Mesh(devices, ("x", "y"))

    def body(a):
        return lax.ppermute(lax.psum(a, "x") + lax.axis_index("y"), "y", [(i, (i + 1) % 4) for i in range(4)])

    check(
        jax.shard_map(body, mesh=mesh, in_specs=P("x", "y"), out_specs=P(None, "y"), check_vma=False), floats(0, 6, 8)
    )


def test_matmul_and_its_gradient() -> None:
    f = manual(lambda a, b: lax.psum(a @ b, "y"), in_specs=(P("x", "y"), P("y")), out_specs=P("x"))
    check(jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2), (0, 1)), floats(0, 6, 8), floats(1, 8, 5))


def test_loops_and_branches_with_collectives_inside() -> None:
    def body(a):
        def step(i, b):
            b = lax.ppermute(b, "y", [(j, (j + 1) % 4) for j in range(4)])
            return lax.cond(i % 2 == 0, lambda c: lax.psum(c, "x") / 2, lambda c: c + 1, b)

        return lax.fori_loop(0, 3, step, a)

    check(manual(body, in_specs=P("x", "y"), out_specs=P("x", "y")), floats(0, 6, 8))


def test_branches_without_collectives_may_differ_by_position() -> None:
    def body(a):
        return lax.while_loop(lambda b: b.sum() < 9 + lax.axis_index("y"), lambda b: b + 1, a)

    def plain(a):
        return lax.cond(a.sum() > 0, jnp.sin, jnp.cos, a)

    check(manual(lambda a: plain(body(a)), in_specs=P("x", "y"), out_specs=P("x", "y")), floats(0, 6, 8))


def test_partly_manual() -> None:
    f = jax.shard_map(
        lambda a: lax.psum(a * (1 + lax.axis_index("x")), "x"),
        mesh=MESH, in_specs=P("x"), out_specs=P(), axis_names={"x"}, check_vma=False,
    )  # fmt: skip
    check(jax.jit(f, in_shardings=NamedSharding(MESH, P("x", "y"))), floats(0, 6, 8))


def test_nested() -> None:
    def inner(a):
        return lax.all_gather(a, "y", axis=1, tiled=True) + lax.axis_index("y") * 0

    def outer(a):
        a = lax.psum(a, "x")
        return jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"}, check_vma=False)(a)

    f = jax.shard_map(outer, mesh=MESH, in_specs=P("x"), out_specs=P(), axis_names={"x"}, check_vma=False)
    check(f, floats(0, 6, 8))


UNREDUCED = """
sdy.mesh @mesh = <["x"=2, "y"=3]>
func.func @main(%arg0: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>]
      out_shardings=[<@mesh, [{"x"}, {}], unreduced={"y"}>] manual_axes={"x", "y"} (%arg1: tensor<3x4xf32>) {
    sdy.return %arg1 : tensor<3x4xf32>
  } : (tensor<6x4xf32>) -> tensor<6x4xf32>
  return %0 : tensor<6x4xf32>
}
"""


@pytest.mark.parametrize("search", ["sharding_propagation", "factor"])
def test_in_a_call_whose_result_is_wanted_otherwise(search: str) -> None:
    """The loop carries what the manual computation takes, split along both axes, and that leaves it along one."""
    layer = manual(lambda a, b: jnp.tanh(lax.psum(a @ b, "y")), in_specs=(P("x", "y"), P("y")), out_specs=P("x"))

    def program(x, weights):
        return lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0]

    x, weights = floats(0, 6, 8), floats(1, 3, 8, 8) / 4
    planned = ash.plan(from_jax(program, x, weights), search=search)
    np.testing.assert_allclose(planned.run(x, weights)[0], program(x, weights), 1e-5, 1e-5)


def test_terms_along_an_unreduced_axis_are_summed() -> None:
    x = floats(0, 6, 4)
    np.testing.assert_allclose(evaluate(from_stablehlo(UNREDUCED).graph, [x])[0], 3 * x, 1e-6)


BROADCAST = """
sdy.mesh @mesh = <["x"=2, "y"=3]>
func.func @main(%arg0: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", "y"}, {}]>]
      out_shardings=[<@mesh, [{"x", "y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<1x4xf32>) {
    %1 = "stablehlo.collective_broadcast"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[2, 0], [4, 5]]> : tensor<2x2xi64>}> : (tensor<1x4xf32>) -> tensor<1x4xf32>
    sdy.return %1 : tensor<1x4xf32>
  } : (tensor<6x4xf32>) -> tensor<6x4xf32>
  return %0 : tensor<6x4xf32>
}
"""


def test_broadcast_gives_zeros_to_who_is_in_no_group() -> None:
    x = floats(0, 6, 4)
    wanted = np.stack([x[2], x[1] * 0, x[2], x[3] * 0, x[4], x[4]])
    np.testing.assert_array_equal(evaluate(from_stablehlo(BROADCAST).graph, [x])[0], wanted)


def test_groups_across_axes_that_are_not_manual_are_refused() -> None:
    text = BROADCAST.replace('[{"x", "y"}, {}]', '[{"x"}, {}]').replace('{"x", "y"} (', '{"x"} (').replace("1x4", "3x4")
    with pytest.raises(ShapeError, match=r"its group \[2, 0\] joins devices along an axis that is not manual there"):
        evaluate(from_stablehlo(text).graph, [floats(0, 6, 4)])


UNEVEN = """\
graph g(x: f32[6, 4] data)
  y: f32[6, 4] = ManualComputation(x) {in_shardings=(S,), out_shardings=(S,), manual_axes=("y",), types=(f32[6, 4],)}
    region(a: f32[6, 2])
      yield a
  return y
"""


def test_sizes_that_do_not_divide_are_refused() -> None:
    sharding = show_value(Sharding(Mesh(x=2, y=3), [CLOSED, DimSharding((Mesh(y=3).axis("y"),))]))
    graph = parse(UNEVEN.replace("S,", f"{sharding},"))
    with pytest.raises(ShapeError, match="dim 1 of size 4 does not divide by the 3 parts that the manual axes y cut"):
        evaluate(graph, [floats(0, 6, 4)])


def test_positions_that_go_different_ways_to_a_collective_are_refused() -> None:
    def body(a):
        return lax.cond(lax.axis_index("y") == 2, lambda b: lax.psum(b, "x"), lambda b: b, a)

    imported = from_jax(manual(body, in_specs=P("x", "y"), out_specs=P("x", "y")), floats(0, 6, 8))
    with pytest.raises(ShapeError, match=r"positions go different ways \(0, 0, 1, 0, 0, 0, 1, 0\)"):
        evaluate(imported.graph, [floats(0, 6, 8)])
