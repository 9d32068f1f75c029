"""Modules as graphs: nothing is reordered or lost; names, source lines, shardings and rules are read."""

from __future__ import annotations

import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoshard as ash
from autoshard.frontends import from_jax, from_stablehlo
from autoshard.frontends.stablehlo.bodies import read_body
from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.ir.graph import walk
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.layout.sdy_text import show_sharding
from autoshard.ops.body import Body
from autoshard.propagate.mutable_ir import from_graph
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ParseError
from tests.frontends.jax_models import floats

pytestmark = pytest.mark.jax

MODULE = """\
sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @other = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
func.func private @twice(%z: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %0 = stablehlo.add %z, %z : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}
func.func public @main(%a: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}, %n: tensor<i32>,
    %t: !stablehlo.token) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@other, [{}, {"x", ?}p1]>}, tensor<i32>) {
  %0 = call @twice(%a) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"y":(1)2}]>]>} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %1:2 = stablehlo.while(%i = %0, %j = %n) : tensor<8x6xf32>, tensor<i32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>, <@mesh, []>]>} cond {
    %2 = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.tanh %i {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x6xf32>
    %3 = stablehlo.subtract %2, %a : tensor<8x6xf32>
    stablehlo.return %3, %j : tensor<8x6xf32>, tensor<i32>
  }
  %4 = sdy.sharding_constraint %1#0 <@mesh, [{"y"}, {}]> : tensor<8x6xf32>
  sdy.sharding_group %4 group_id=21 : tensor<8x6xf32>
  %5 = sdy.propagation_barrier %4 allowed_direction=BACKWARD : tensor<8x6xf32>
  %cosine = stablehlo.cosine %5 : tensor<8x6xf32>
  %6 = sdy.data_flow_edge %cosine sharding=<@mesh, [{?}, {?}]> : tensor<8x6xf32>
  %7, %8 = stablehlo.optimization_barrier %6, %t : tensor<8x6xf32>, !stablehlo.token
  %9 = sdy.named_computation<"part">(%7) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] (%b: tensor<8x6xf32>) {
    %11 = stablehlo.negate %b : tensor<8x6xf32>
    sdy.return %11 : tensor<8x6xf32>
  } : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %10 = stablehlo.custom_call @mine(%9) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, k]) {i=8, j=6, k=6}, custom>} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %10, %1#1 : tensor<8x6xf32>, tensor<i32>
}
"""  # noqa: E501


def imported():
    return from_stablehlo(MODULE)


def test_everything_stands_where_it_stood() -> None:
    found = imported()
    graph = found.graph
    assert found.order == ("twice", "main") and found.public == ("main",) and graph.name == "main"
    assert " ".join(node.op.name for node in graph.nodes).startswith(
        "Call While ShardingConstraint ShardingGroup PropagationBarrier Cos DataFlowEdge OptimizationBarrier "
        "NamedComputation"
    )
    loop = graph.nodes[1]
    assert [[node.op.name for node in region.nodes] for region in loop.regions] == [["Less"], ["Tanh", "Sub"]]
    assert loop.regions[1].captured == (graph.inputs[0],), "the loop's body uses the function's argument"
    verify(graph)
    for node in walk(graph.nodes):
        assert [str(value.type) for value in found.operations[node].results] == [
            {"f32[8, 6]": "tensor<8x6xf32>", "i32[]": "tensor<i32>", "bool[]": "tensor<i1>"}.get(
                str(value.type), "!stablehlo.token"
            )
            for value in node.results
        ]


def test_shardings_are_read() -> None:
    found = imported()
    graph, asked = found.graph, found.asked
    told = {value.name: show_sharding(sharding) for value, sharding in asked.values.items()}
    assert told == {
        "%arg0": '<@mesh, [{"x"}, {?}]>',
        "%0": '<@mesh, [{?}, {"y":(1)2}]>',
        "%1#0": '<@mesh, [{"x"}, {}]>',
        "%1#1": "<@mesh, []>",
        graph.nodes[1].regions[1].nodes[0].results[0].name: '<@mesh, [{"x"}, {}]>',
    }
    assert list(asked.meshes) == ["mesh", "other"] and asked.meshes["other"].order == tuple(range(7, -1, -1))
    first, second = asked.outputs["main"]
    assert show_sharding(first) == '<@other, [{}, {"x", ?}p1]>' and second is None
    assert asked.outputs["twice"] == (None,)
    constraint, group, barrier, _, edge = graph.nodes[2:7]
    assert show_sharding(constraint.attrs["sharding"]) == '<@mesh, [{"y"}, {}]>' and group.attrs["group"] == 21
    assert barrier.attrs["direction"] == "backward" and not edge.attrs["sharding"].is_closed
    named = graph.nodes[8].attrs
    assert named["name"] == "part" and show_sharding(named["in_shardings"][0]) == '<@mesh, [{"x"}, {}]>'


@pytest.mark.parametrize("direction", ["NONE", "FORWARD", "BACKWARD"])
def test_directions_of_barriers(direction: str) -> None:
    graph = from_stablehlo(MODULE.replace("=BACKWARD", f"={direction}")).graph
    assert graph.nodes[4].attrs["direction"] == direction.lower()


RULED = """
func.func @main(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %0 = stablehlo.tanh %a {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, k]) {i=8, j=6, k=6}, custom>} : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}"""  # noqa: E501


@pytest.mark.parametrize(("text", "place"), [(MODULE, 9), (RULED, 0)])
def test_a_rule_that_the_user_gave_is_the_node_s(text: str, place: int) -> None:
    graph = from_stablehlo(text).graph
    rule = graph.nodes[place].rule
    assert [factor.size for factor in rule.factors] == [8, 6, 6] and rule.results == (((0,), (2,)),)
    assert all(factor.whole for factor in rule.factors)
    assert parse(show(graph)).nodes[place].rule == rule


def test_the_graph_reads_back_from_its_text() -> None:
    text = show(imported().graph)
    assert show(parse(text)) == text and "function twice(%arg0" in text and "    region(%1#0.b.iterArg" in text


def test_values_have_the_names_that_mlir_prints() -> None:
    found = imported()
    printed = str(found.module)
    for node in found.graph.nodes:
        for value in node.results:
            assert f"{value.name.partition('#')[0]}" in printed
    assert [value.name for value in found.graph.inputs] == ["%arg0", "%arg1", "%arg2"]


def test_names_and_source_lines_of_a_jax_program() -> None:
    def program(params, x):
        with jax.named_scope("mlp"):
            h = x @ params["w"]  # the line
            h = h @ params["w"]
        return {"loss": h.sum(), "h": [h]}

    found = from_jax(program, {"w": floats(0, 6, 6)}, floats(1, 4, 6))
    assert [value.name for value in found.graph.inputs] == ["params['w']", "x"]
    assert found.output_names == ("result['h'][0]", "result['loss']")
    first, second = (node for node in found.graph.nodes if node.op.name == "DotGeneral")
    assert (first.name, second.name) == ("mlp/dot_general", "mlp/dot_general_1")
    assert first.source is not None and first.source.text == 'h = x @ params["w"]  # the line'
    assert first.source.file.endswith("test_reader.py") and first.source.line == second.source.line - 1


LOCATIONS = [
    ('loc("dense.matmul")', "dense.matmul", None),
    ('loc("jit(f)/add")', "", None),
    ('loc("jit(f)/jvp(mlp)/add"("model.py":3:4))', "jvp(mlp)/add", "model.py:3"),
    ('loc("model.py":3:4)', "", "model.py:3"),
    ('loc(callsite("g"("inner.py":5:6) at "f"("outer.py":7:8)))', "", "inner.py:5"),
    ('loc(fused["first.py":1:2, "second.py":3:4])', "", "first.py:1"),
    ("loc(unknown)", "", None),
]


@pytest.mark.parametrize(("location", "name", "source"), LOCATIONS)
def test_locations(location: str, name: str, source: str | None) -> None:
    text = (
        f"func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{\n%0 = stablehlo.tanh %a : tensor<4xf32> {location}\n"
    )
    node = from_stablehlo(text + "return %0 : tensor<4xf32>\n}").graph.nodes[0]
    assert (node.name, str(node.source) if node.source else None) == (name, source)


def test_lines_of_a_file_are_sources(tmp_path) -> None:
    path = tmp_path / "small.mlir"
    path.write_text(MODULE)
    loop = from_stablehlo(path).graph.nodes[1]
    assert loop.source == (str(path), 10, "") and from_stablehlo(str(path)).order == ("twice", "main")


def test_uses_are_in_the_order_that_mlir_has() -> None:
    def program(x, w):
        def step(h, _):
            h = lax.cond(h.sum() > 0, lambda: h @ w, lambda: w @ h + x)
            return jnp.tanh(h), w.sum()

        return lax.scan(step, x @ x, None, length=3), w

    module = parse_module(str(jax.jit(program).lower(floats(0, 4, 4), floats(1, 4, 4)).compiler_ir("stablehlo")))
    found = read_module(module)
    work = from_graph(found.graph, found.asked, found.order)
    pairs = []
    for function, theirs in zip(work.functions, module.body.operations, strict=True):
        pairs += zip(function.blocks[0].args, theirs.regions[0].blocks[0].arguments, strict=True)
        inside = [op for op in function.walk() if op.origin is not None and op is not function]
        for op in inside:
            pairs += zip(op.results, found.operations[op.origin].results, strict=True)
            for block, region in zip(op.blocks, found.operations[op.origin].regions, strict=False):
                pairs += zip(block.args, region.blocks[0].arguments, strict=True)
    assert sum(len(list(ours.users)) > 1 for ours, _ in pairs) > 4
    for ours, theirs in pairs:
        wanted = [(_short(use.owner.operation), use.operand_number) for use in theirs.uses]
        assert [(_short(found.operations.get(op.origin)), index) for op, index in ours.users] == wanted


def _short(operation) -> str:
    """Which operation it is; terminators, which are no nodes, are all alike."""
    return "end" if operation is None or operation.name.endswith("return") else str(operation)


def test_bytecode_artifacts_and_lowered_programs_are_the_same_program(tmp_path) -> None:
    from jax import export

    def program(x):
        return jnp.sin(x) * 2

    x = floats(0, 4, 6)
    lowered = jax.jit(program).lower(x)
    exported = export.export(jax.jit(program))(x)
    data = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(data)
    path = tmp_path / "program.mlir"
    path.write_bytes(data.getvalue())
    sources = [lowered, lowered.as_text(), data.getvalue(), path, str(path), lowered.compiler_ir("stablehlo")]
    sources += [exported, exported.mlir_module_serialized, exported.mlir_module()]
    for source in sources:
        np.testing.assert_allclose(evaluate(from_stablehlo(source).graph, [x])[0], program(x), 1e-6)


def test_shardings_that_xla_wrote_as_frontend_attributes() -> None:
    text = """
module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\\22x\\22=2]>}"}} {
  func.func @main(%a: tensor<4x6xf32> {mhlo.frontend_attributes =
      {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\\22x\\22}, {}]>"}}) -> tensor<4x6xf32> {
    return %a : tensor<4x6xf32>
  }
}"""
    found = from_stablehlo(text)
    (sharding,) = found.asked.values.values()
    assert show_sharding(sharding) == '<@mesh, [{"x"}, {}]>'


def test_several_public_functions() -> None:
    text = "func.func @{}(%a: tensor<{}xf32>) -> tensor<{}xf32> {{ return %a : tensor<{}xf32> }}\n"
    found = from_stablehlo(text.format("one", 4, 4, 4) + text.format("two", 6, 6, 6))
    assert found.graph.name == "one" and found.public == ("one", "two") and list(found.graph.functions) == ["two"]
    found = from_stablehlo(text.format("one", 4, 4, 4) + text.format("main", 6, 6, 6))
    assert found.graph.name == "main"


def test_what_the_region_of_an_unknown_operation_uses_counts_as_used() -> None:
    text = """
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %1 = scf.execute_region -> tensor<4xf32> {
    %2 = stablehlo.add %a, %b : tensor<4xf32>
    scf.yield %2 : tensor<4xf32>
  }
  return %1 : tensor<4xf32>
}"""
    (node,) = from_stablehlo(text).graph.nodes
    assert node.op.name == "Opaque" and node.attrs["name"] == "scf.execute_region"
    assert [value.name for value in node.uses] == ["%arg0", "%arg1"]


def test_tokens_run() -> None:
    text = """
func.func @main(%t: !stablehlo.token, %a: tensor<4xf32>) -> (tensor<4xf32>, !stablehlo.token) {
  %0 = stablehlo.after_all %t, %t : !stablehlo.token
  %1:2 = stablehlo.while(%i = %a, %j = %0) : tensor<4xf32>, !stablehlo.token cond {
    %c = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    stablehlo.return %i, %j : tensor<4xf32>, !stablehlo.token
  }
  %2, %3 = stablehlo.optimization_barrier %1#0, %1#1 : tensor<4xf32>, !stablehlo.token
  return %2, %3 : tensor<4xf32>, !stablehlo.token
}"""
    graph = from_stablehlo(text).graph
    verify(graph)
    x = floats(0, 4)
    found, token = evaluate(graph, [None, x])
    np.testing.assert_array_equal(found, x)
    assert token is None


REDUCE = """
func.func @main(%x: tensor<4x6xf32>, %init: tensor<f32>) -> tensor<4xf32> {{
  %0 = "stablehlo.reduce"(%x, %init) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    {body}
  }}) {{dimensions = array<i64: 1>}} : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}"""
BODIES = [
    ("%1 = stablehlo.add %a, %b : tensor<f32>\nstablehlo.return %1 : tensor<f32>", "add"),
    ("%1 = stablehlo.maximum %b, %a : tensor<f32>\nstablehlo.return %1 : tensor<f32>", "max"),
    ("%1 = stablehlo.multiply %a, %a : tensor<f32>\nstablehlo.return %1 : tensor<f32>", ""),
    ("%1 = stablehlo.add %a, %b : tensor<f32>\nstablehlo.return %a : tensor<f32>", ""),
    ("%1 = stablehlo.subtract %a, %b : tensor<f32>\nstablehlo.return %1 : tensor<f32>", ""),
    ("%1 = func.call @g(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>\nstablehlo.return %1 : tensor<f32>", ""),
]
CALLED = """
func.func private @g(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.minimum %a, %b : tensor<f32>
  return %0 : tensor<f32>
}"""


def body_of(text: str) -> Body:
    module = parse_module(REDUCE.format(body=text) + CALLED)
    with module.context:
        reduce = module.body.operations[0].regions[0].blocks[0].operations[0]
        return read_body(reduce.operation.regions[0])


@pytest.mark.parametrize(("text", "name"), BODIES)
def test_functions_inside_operations(text: str, name: str) -> None:
    body = body_of(text)
    assert body.name == name and body == body_of(text.replace("%1", "%other"))
    assert name or body.text.startswith("graph body(v0: f32[] data, v1: f32[] data)\n")
    a, b = floats(0, 2, 5, 3)
    meanings = {"add %a, %b : tensor<f32>\nstablehlo.return %1": a + b, "maximum": np.maximum(a, b), "multiply": a * a}
    meanings |= {"return %a": a, "subtract": a - b, "call": np.minimum(a, b)}
    (wanted,) = (value for words, value in meanings.items() if words in text)
    np.testing.assert_array_equal(body(a, b)[0], wanted)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(body))(a, b)[0], wanted)


def test_a_function_inside_an_operation_that_uses_more_than_its_arguments_is_refused() -> None:
    with pytest.raises(ParseError, match="uses a value from outside"):
        body_of("%1 = stablehlo.subtract %a, %init : tensor<f32>\nstablehlo.return %1 : tensor<f32>")


def test_functions_inside_operations_may_use_constants_from_outside() -> None:
    """To where `jax.export` moves them."""
    text = jax.export.export(jax.jit(lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1))))(floats(0, 4, 6)).mlir_module()
    x = np.array([[0.0, np.nan, -0.0, 2.0, -1.0, 0.5]], np.float32).repeat(4, 0) * np.array([[1], [-1], [3], [2]])
    x = x.astype(np.float32)
    sharded = '%arg0: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>} loc'
    text = text.replace("%arg0: tensor<4x6xf32> loc", sharded, 1)
    text = text.replace("  func.func", '  sdy.mesh @mesh = <["a"=2]>\n  func.func', 1)
    written = ash.propagate(text).to_mlir()
    for imported in map(ash.from_stablehlo, (text, written)):
        for found, wanted in zip(ash.plan(imported).run(x), (jnp.sort(x, 0), jnp.argsort(x, 1)), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_function_may_return_a_constant_from_outside() -> None:
    text = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<7.0> : tensor<f32>
  %0 = "stablehlo.map"(%a) ({
  ^bb0(%x: tensor<f32>):
    stablehlo.return %c : tensor<f32>
  }) {dimensions = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
    np.testing.assert_array_equal(evaluate(ash.from_stablehlo(text).graph, [floats(0, 4)])[0], [7, 7, 7, 7])


TUPLES = """
func.func @main(%p: tuple<tensor<4x6xf32>, !pair>, %x: tensor<4x6xf32>) -> tuple<tensor<4x8xf32>, tensor<8xf32>> {
  %0 = stablehlo.get_tuple_element %p[0] : (tuple<tensor<4x6xf32>, !pair>) -> tensor<4x6xf32>
  %1 = stablehlo.get_tuple_element %p[1] : (tuple<tensor<4x6xf32>, !pair>) -> !pair
  %2 = stablehlo.add %0, %x : tensor<4x6xf32>
  %3 = stablehlo.tuple %2, %1 : tuple<tensor<4x6xf32>, !pair>
  %4 = func.call @dense(%3) : (tuple<tensor<4x6xf32>, !pair>) -> tuple<tensor<4x8xf32>>
  %5 = stablehlo.get_tuple_element %4[0] : (tuple<tensor<4x8xf32>>) -> tensor<4x8xf32>
  %6 = stablehlo.get_tuple_element %1[1] : (!pair) -> tensor<8xf32>
  %7 = stablehlo.tuple %5, %6 : tuple<tensor<4x8xf32>, tensor<8xf32>>
  return %7 : tuple<tensor<4x8xf32>, tensor<8xf32>>
}
func.func private @dense(%q: tuple<tensor<4x6xf32>, !pair>) -> tuple<tensor<4x8xf32>> {
  %0 = stablehlo.get_tuple_element %q[0] : (tuple<tensor<4x6xf32>, !pair>) -> tensor<4x6xf32>
  %1 = stablehlo.get_tuple_element %q[1] : (tuple<tensor<4x6xf32>, !pair>) -> !pair
  %2 = stablehlo.get_tuple_element %1[0] : (!pair) -> tensor<6x8xf32>
  %3 = stablehlo.dot %0, %2 : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %4 = stablehlo.tuple %3 : tuple<tensor<4x8xf32>>
  return %4 : tuple<tensor<4x8xf32>>
}
""".replace("!pair", "tuple<tensor<6x8xf32>, tensor<8xf32>>")


def test_tuples_of_functions_become_their_elements() -> None:
    imported = ash.from_stablehlo(TUPLES)
    shapes = [value.type.shape for value in imported.graph.inputs]
    assert shapes == [(4, 6), (6, 8), (8,), (4, 6)]
    assert {node.op.name for node in walk(imported.graph.nodes)} == {"Add", "Call"}
    given = [floats(i, *shape) for i, shape in enumerate(shapes)]
    wanted = [(given[0] + given[3]) @ given[1], given[2]]
    for found, want in zip(ash.plan(imported, mesh="a=2").run(*given), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5)
    assert "tuple" not in ash.propagate(TUPLES).to_mlir()
