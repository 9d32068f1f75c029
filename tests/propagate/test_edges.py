"""Data-flow edges: of loops, branches, barriers, bodies with manual axes, and of operators that users define."""

from __future__ import annotations

import pytest
from against_shardy import check, facts, released, work_of

from autoshard.core.tensortype import TensorType
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Graph, Node, Region, Value
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import OPEN, DimSharding, Sharding
from autoshard.ops import registry
from autoshard.ops.control import ARG, OPERAND, RESULT, YIELD, Edge, Sizes, ValueLocation, data_flow_edge, typed
from autoshard.ops.options import Spreading
from autoshard.propagate.edges import add_edges, sink_edges
from autoshard.propagate.mutable_ir import Operation, from_graph
from autoshard.propagate.run import propagate, run_basic
from autoshard.propagate.values import outer_shardings
from autoshard.util.errors import GraphError

pytestmark = pytest.mark.jax
HEAD = 'module { sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4]> '
LOOP = f"""{HEAD} func.func @main(%x: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a", ?}}, {{?}}]>}},
    %y: tensor<4x6xf32>, %p: tensor<i1>) -> (tensor<8x6xf32>, tensor<4x6xf32>
      {{sdy.sharding = #sdy.sharding<@mesh, [{{"b"}}, {{"c"}}]>}}) {{
  %0:3 = stablehlo.while(%i = %x, %j = %y, %q = %p) : tensor<8x6xf32>, tensor<4x6xf32>, tensor<i1>
    cond {{ %c = stablehlo.negate %j : tensor<4x6xf32>
      stablehlo.return %q : tensor<i1> }}
    do {{
      %2 = stablehlo.sine %i : tensor<8x6xf32>
      %3 = stablehlo.cosine %j : tensor<4x6xf32>
      %4 = stablehlo.tanh %x : tensor<8x6xf32>
      %5 = stablehlo.add %2, %4 : tensor<8x6xf32>
      stablehlo.return %5, %3, %q : tensor<8x6xf32>, tensor<4x6xf32>, tensor<i1> }}
  %1 = stablehlo.tanh %0#0 : tensor<8x6xf32>
  return %1, %0#1 : tensor<8x6xf32>, tensor<4x6xf32> }} }}"""
CASE = f"""{HEAD} func.func @main(%n: tensor<i32>,
    %x: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}]>}},
    %y: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{?}}, {{"b", ?}}]>}}) -> tensor<8x6xf32> {{
  %0 = "stablehlo.case"(%n) ({{
      %1 = stablehlo.sine %x : tensor<8x6xf32>
      stablehlo.return %1 : tensor<8x6xf32> }}, {{
      stablehlo.return %y : tensor<8x6xf32> }}) : (tensor<i32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32> }} }}"""
MANUAL = f"""{HEAD} func.func @main(
    %x: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a", ?}}, {{"b", ?}}]>}})
    -> (tensor<8x6xf32>, tensor<8x6xf32>) {{
  %0 = stablehlo.sine %x : tensor<8x6xf32>
  %1 = sdy.manual_computation(%0)
      in_shardings=[<@mesh, [{{"a", ?}}, {{?}}]>] out_shardings=[<@mesh, [{{"a"}}, {{?}}]>]
      manual_axes={{"a"}} (%i: tensor<4x6xf32>) {{
    %2 = sdy.manual_computation(%i)
        in_shardings=[<@mesh, [{{"c", ?}}, {{?}}]>] out_shardings=[<@mesh, [{{"c", ?}}, {{?}}]>]
        manual_axes={{"c"}} (%j: tensor<1x6xf32>) {{
      %3 = stablehlo.cosine %j : tensor<1x6xf32>
      sdy.return %3 : tensor<1x6xf32> }} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    sdy.return %2 : tensor<4x6xf32> }} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %4 = stablehlo.tanh %x {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"a", "c"}}, {{?}}]>]>}} : tensor<8x6xf32>
  return %1, %4 : tensor<8x6xf32>, tensor<8x6xf32> }} }}"""
# The body's edge is visited before "c" arrives at its operand; Shardy does not come back to it in the same run.
LATE = f"""{HEAD} func.func @main(%x: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {{
  %0 = stablehlo.sine %x : tensor<8x6xf32>
  %1 = sdy.named_computation<"f">(%0) (%i: tensor<8x6xf32>) {{
    %2 = stablehlo.cosine %i : tensor<8x6xf32>
    sdy.return %2 : tensor<8x6xf32> }} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %3 = sdy.sharding_constraint %x <@mesh, [{{"c", ?}}, {{?}}]> : tensor<8x6xf32>
  return %1, %3 : tensor<8x6xf32>, tensor<8x6xf32> }} }}"""
BARRIER = f"""{HEAD} func.func @main(%x: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}]>}},
    %y: tensor<4xf32>) -> (tensor<8x6xf32>, tensor<4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"c"}}]>}}) {{
  %0:2 = stablehlo.optimization_barrier %x, %y : tensor<8x6xf32>, tensor<4xf32>
  %1 = sdy.propagation_barrier %0#0 allowed_direction=BACKWARD : tensor<8x6xf32>
  %2 = stablehlo.sine %1 : tensor<8x6xf32>
  return %2, %0#1 : tensor<8x6xf32>, tensor<4xf32> }} }}"""
TEXTS = {"loop": LOOP, "case": CASE, "manual": MANUAL, "late": LATE, "barrier": BARRIER}


@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_propagation(name: str, edges: bool):
    check(TEXTS[name], edges=edges)


@pytest.mark.parametrize("name", TEXTS)
def test_adding_and_sinking(name: str):
    module = work_of(TEXTS[name])
    add_edges(module)
    assert facts(module) == facts(work_of(released(TEXTS[name], "sdy-add-data-flow-edges")))
    add_edges(module)
    assert facts(module) == facts(work_of(released(TEXTS[name], "sdy-add-data-flow-edges")))
    sink_edges(module)
    assert facts(module) == facts(work_of(TEXTS[name]))


def test_edges_in_the_module_are_taken_as_they_are():
    check(released(LOOP, "sdy-add-data-flow-edges"), edges=False)


def test_sinking_gives_the_other_results_an_open_sharding():
    module = work_of(BARRIER)
    add_edges(module)
    run_basic(module)
    sink_edges(module)
    [barrier] = [op for op in module.op.walk() if op.name == "OptimizationBarrier"]
    assert [len(value.sharding.dims) for value in barrier.results if value.sharding is not None] == [2, 1]


def test_an_edge_op_must_stand_on_an_owner():
    module = work_of(BARRIER)
    [sine] = [op for op in module.op.walk() if op.name == "Sin"]
    assert sine.parent is not None
    sine.parent.insert(
        Operation(data_flow_edge, [sine.results[0]], [sine.results[0].type], {"sharding": None}), sine.next
    )
    with pytest.raises(GraphError, match=r"stands on f32\[8, 6\], which owns no data-flow edge"):
        propagate(module)


MESH = Mesh(x=2, y=2)


def _twice(sizes: Sizes) -> tuple[Edge, ...]:
    """Operand i flows into argument i (the owner) and what is yielded into result i."""
    into = (Edge((ValueLocation(OPERAND, i),), (ValueLocation(ARG, i),), "into") for i in range(sizes.operands))
    out = (Edge((ValueLocation(YIELD, i),), (ValueLocation(RESULT, i),), "out of") for i in range(sizes.results))
    return (*into, *out)


@pytest.fixture
def region_operator():
    """A user's operator with a body that is local along manual axes."""

    @registry.operator("TestShardMap", **typed(), spread=Spreading(edges=_twice))
    def shard_map(*xs, in_shardings, out_shardings, manual_axes, types, regions):
        raise NotImplementedError

    yield shard_map
    registry.remove("TestShardMap")


def test_operators_of_users(region_operator):
    x, local = Value(TensorType.of((8, 6)), "x"), Value(TensorType.of((4, 6)), "local")
    inside, made = Value(local.type, "inside"), Value(x.type, "made")
    x_axis = Sharding(MESH, (DimSharding((MESH.axis("x"),), False), OPEN))
    sine = registry.lookup("Sin")
    attrs = {"in_shardings": (x_axis,), "out_shardings": (x_axis,), "manual_axes": ("x",), "types": (x.type,)}
    body = Region((local,), (Node(sine, (local,), {}, (inside,)),), (inside,))
    node = Node(region_operator, (x,), attrs, (made,), regions=(body,))
    both = Sharding(MESH, (DimSharding((MESH.axis("x"),), False), DimSharding((MESH.axis("y"),), False)))
    module = from_graph(
        Graph("main", (x,), (node,), (made,), ("data",)), ShardingAnnotations({"mesh": MESH}, {x: both})
    )
    add_edges(module)
    propagate(module)
    sink_edges(module)
    [op] = [op for op in module.op.walk() if op.name == "TestShardMap"]
    assert outer_shardings(op) == ((both,), (both,))
    assert [value.sharding for value in op.blocks[0].first.results] == [both.with_dims((OPEN, both.dims[1]))]


def test_edges_that_do_not_fit_the_op():
    @registry.operator(
        "TestBadEdges",
        **typed(),
        spread=Spreading(edges=lambda sizes: (Edge((ValueLocation(OPERAND, 7),), (ValueLocation(RESULT, 0),)),)),
    )
    def bad(*xs, types):
        raise NotImplementedError

    x, made = Value(TensorType.of((8,)), "x"), Value(TensorType.of((8,)), "made")
    graph = Graph("main", (x,), (Node(bad, (x,), {"types": (x.type,)}, (made,)),), (made,), ("data",))
    module = from_graph(graph, ShardingAnnotations({"mesh": MESH}))
    add_edges(module)
    try:
        with pytest.raises(GraphError, match="names operand 7 .* which it lacks; it has 1 operands, 1 results"):
            propagate(module)
    finally:
        registry.remove("TestBadEdges")
