"""The fixed point equals Shardy's, also where the order of steps decides; dead code; the log."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import pytest
from against_shardy import PASSES, check, facts, propagated, released, work_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from random_modules import Features, random_module

from autoshard.api.propagate import PASSES as PIPELINES
from autoshard.api.propagate import propagate as spread_module
from autoshard.propagate.run import Options, propagate
from autoshard.util.errors import ContextError

pytestmark = pytest.mark.jax
HEAD = 'module { sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]> sdy.mesh @other = <["x"=2]> '


def asked(text: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {text}>}}"


@settings(max_examples=80)
@given(st.randoms(use_true_random=False))
def test_random_modules(rng: random.Random):
    features = Features(
        sharded=rng.choice((0.05, 0.15, 0.4)),
        priorities=rng.random() < 0.5,
        groups=rng.random() < 0.3,
        second_mesh=rng.random() < 0.2,
        maximal=rng.random() < 0.2,
        edges=rng.random() < 0.7,
        manual=rng.random() < 0.5,
    )
    text = random_module(rng, features, rng.randint(3, 12))
    check(text, rng.choice(list(PASSES)), edges=rng.random() < 0.8)


@pytest.mark.parametrize("first", ["a", "b"])
def test_order_decides_a_conflict(first: str):
    # Both arguments want the sum; the one that is visited first wins.
    second = "b" if first == "a" else "a"
    text = f"""{HEAD} func.func @main(%x: tensor<8x6xf32> {asked(f'[{{"{first}", ?}}, {{?}}]')},
      %y: tensor<8x6xf32> {asked(f'[{{"{second}", ?}}, {{?}}]')}) -> (tensor<8x6xf32>, tensor<8x6xf32>) {{
      %0 = stablehlo.sine %x : tensor<8x6xf32>
      %1 = stablehlo.add %0, %y : tensor<8x6xf32>
      %2 = stablehlo.cosine %y : tensor<8x6xf32>
      %3 = stablehlo.multiply %1, %2 : tensor<8x6xf32>
      return %3, %2 : tensor<8x6xf32>, tensor<8x6xf32> }} }}"""
    check(text)


def test_dead_ops_do_not_steer():
    # The first dead chain would bring "a" to x before the live op brings "b".
    split = "{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{{0}, ?}}, {{?}}]>]>}}"
    text = f"""{HEAD} func.func @main(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {{
      %0 = stablehlo.sine %x {split.format('"a"')} : tensor<8x6xf32>
      %1 = stablehlo.cosine %0 : tensor<8x6xf32>
      %2 = stablehlo.cosine %x {split.format('"b"')} : tensor<8x6xf32>
      return %2 : tensor<8x6xf32> }} }}"""
    check(text)
    assert [row[0] for row in facts(propagated(text, "sdy-basic-propagate")[0])].count("Cos") == 1


def test_only_main_meets_its_outputs():
    # The only function counts as main, whatever its name; with others beside it, the name decides.
    body = """(%x: tensor<8x6xf32>) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {?}]>}) {
      %0 = stablehlo.sine %x : tensor<8x6xf32>
      return %0 : tensor<8x6xf32> }"""
    check(f"{HEAD} func.func @elsewhere{body} }}")
    check(f"{HEAD} func.func @main{body} func.func private @f{body} }}")


def test_meshes_do_not_mix():
    text = f"""{HEAD} func.func @main(%x: tensor<8x6xf32> {asked('[{"a", ?}, {?}]')},
      %y: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@other, [{{?}}, {{"x", ?}}]>}}) -> tensor<8x6xf32> {{
      %0 = stablehlo.sine %y : tensor<8x6xf32>
      %1 = stablehlo.add %x, %0 : tensor<8x6xf32>
      %2 = stablehlo.cosine %x : tensor<8x6xf32>
      %3 = stablehlo.add %1, %2 : tensor<8x6xf32>
      return %3 : tensor<8x6xf32> }} }}"""
    check(text)


def test_tokens():
    text = f"""{HEAD} func.func @main(%t: !stablehlo.token, %x: tensor<8x6xf32> {asked('[{"a"}, {}]')})
      -> (!stablehlo.token, tensor<8x6xf32>) {{
      %0:2 = stablehlo.optimization_barrier %t, %x : !stablehlo.token, tensor<8x6xf32>
      %1 = stablehlo.sine %0#1 : tensor<8x6xf32>
      return %0#0, %1 : !stablehlo.token, tensor<8x6xf32> }} }}"""
    check(text)


def lowered_mlp() -> str:
    mesh = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def of(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    def loss(weights, x):
        def layer(h, w):
            return jnp.tanh(h @ w), None

        h, _ = jax.lax.scan(layer, x @ weights["in"], weights["layers"])
        return jnp.mean(jnp.square(h @ weights["out"]))

    weights = {
        "in": of((12, 16), None, "model"),
        "layers": of((3, 16, 16), None, None, "model"),
        "out": of((16, 5), "model", None),
    }
    return (
        jax.jit(jax.grad(loss)).trace(weights, of((8, 12), "data", None)).lower(lowering_platforms=("cpu",)).as_text()
    )


def test_model_with_scan():
    # Calls are resolved by the passes before propagation, so that only propagation is compared.
    before = ("sdy-add-data-flow-edges", "sdy-flatten-call-graph", "symbol-dce")
    before += ("sdy-import-func-calls{add-data-flow-edges-on-named-computations=true}", "symbol-dce")
    check(released(lowered_mlp(), *before), edges=False)


def test_log_tells_steps_and_walls():
    text = f"""{HEAD} func.func @main(%x: tensor<8x6xf32> {asked('[{"a"}, {}]')}) -> tensor<8x6xf32> {{
      %0 = stablehlo.sine %x : tensor<8x6xf32>
      %1 = stablehlo.custom_call @sdy_testonly(%0) : (tensor<8x6xf32>) -> tensor<8x6xf32>
      return %1 : tensor<8x6xf32> }} }}"""
    log = propagate(work_of(text))
    [event] = log.events
    assert (event.op.name, event.level, event.priority, event.output) == ("Sin", 0, 0, None)
    assert event.before == (event.op.operands[0].sharding, None)
    assert event.step.changes == ((1, event.op.results[0].sharding),)
    [wall] = log.without_rule
    assert wall.operands == event.op.results


def test_rules_are_kept_on_request():
    text = f"""{HEAD} func.func @main(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {{
      %0 = stablehlo.sine %x : tensor<8x6xf32>
      return %0 : tensor<8x6xf32> }} }}"""
    mutable = work_of(text)
    propagate(mutable, Options(keep_rules=True))
    assert [str(op.op_class.rule) for op in mutable.op.walk() if op.name == "Sin"] == ["_0 _1 -> _0 _1 {_0=8, _1=6}"]
    propagate(mutable)
    assert all(op.op_class is None for op in mutable.op.walk())


def test_unknown_options():
    with pytest.raises(ContextError, match="unknown propagation strategy 'greedy'; known are basic, aggressive"):
        Options(strategy="greedy")


@pytest.mark.parametrize("which", PIPELINES)
def test_what_a_border_takes_away_again_and_again_ends(which: str):
    """The manual axis stands behind a free one: the edge takes "x" away, the sum gives it back. Shardy never ends."""
    module = """
        sdy.mesh @mesh = <["x"=2, "y"=4]>
        func.func @main(%a: tensor<1x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}]>})
            -> tensor<1x32xf32> {
          %r = sdy.manual_computation(%a) in_shardings=[<@mesh, [{}, {?}]>]
              out_shardings=[<@mesh, [{?}, {"y", "x"}]>] manual_axes={"y"} (%b: tensor<1x8xf32>) {
            %c = stablehlo.add %b, %b : tensor<1x8xf32>
            sdy.return %c : tensor<1x8xf32>
          } : (tensor<1x8xf32>) -> tensor<1x32xf32>
          return %r : tensor<1x32xf32>
        }"""
    spread = spread_module(module, which=which)
    assert len(spread.log.events) < 20
