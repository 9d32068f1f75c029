"""Regions and functions: printed and read back, checked, run, and written out where they are called."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import DATA, Graph, Node, Region, Value, walk
from autoshard.ir.run import Elementwise
from autoshard.ir.scan import Scanner
from autoshard.ir.text import body, parse, read_value, show, show_value
from autoshard.ir.verify import verify
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import CLOSED, DimSharding, Sharding
from autoshard.ops.attributes import Literal
from autoshard.ops.body import Body
from autoshard.ops.registry import lookup
from autoshard.trace.evaluate import evaluate
from autoshard.transform.inline import inline
from autoshard.util.errors import GraphError, ParseError, ShapeError

TEXT = """\
graph main(x: f32[4, 6] data, n: i32[] data)
  zero: i32[] = Fill() {shape=(), dtype="i32"}
  %3#0: f32[4, 6], %3#1: i32[] = While(x, zero) "loop" @ train.py:7 | while i < n:
    region(a: f32[4, 6], i: i32[])
      more: bool[] = Less(i, n)
      yield more
    region(b: f32[4, 6], j: i32[])
      one: i32[] = Fill() {shape=(), value=1, dtype="i32"}
      next: i32[] = Add(j, one)
      c: f32[4, 6] = If(more2) {types=(f32[4, 6],)}
        region()
          d: f32[4, 6] = Call(b, x) {callee="step", types=(f32[4, 6],)}
          yield d
        region()
          yield x
      yield c, next
  return %3#0, zero
function step(p: f32[4, 6] data, q: f32[4, 6] data)
  r: f32[4, 6] = Add(p, q)
  s: f32[4, 6] = Call(r) {callee="half", types=(f32[4, 6],)}
  return s
function half(t: f32[4, 6] data)
  u: f32[4, 6] = NamedComputation(t) {name="scale", types=(f32[4, 6],)}
    region(v: f32[4, 6])
      w: f32[4, 6] = Mul(v, v)
      yield w
  return u
""".replace("      next: i32", "      more2: bool[] = Less(j, one)\n      next: i32")


def meaning(x: np.ndarray, n: int) -> np.ndarray:
    b = x
    for j in range(n):
        b = (b + x) ** 2 if j < 1 else x
    return b


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_graph_with_regions_and_functions_runs(n: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    graph = parse(TEXT)
    for one in (graph, inline(graph)):
        verify(one)
        found = evaluate(one, [x, np.int32(n)])
        np.testing.assert_allclose(found[0], meaning(x, n), 1e-6)
        assert found[1] == 0


def test_it_prints_as_it_was_read() -> None:
    assert show(parse(TEXT)) == TEXT


def test_inlining_keeps_what_holds_no_call() -> None:
    graph = parse(TEXT)
    flat = inline(graph)
    assert flat.nodes[0] is graph.nodes[0] and flat.nodes[1] is not graph.nodes[1]
    assert flat.nodes[1].results == graph.nodes[1].results and flat.outputs == graph.outputs
    assert flat.nodes[1].regions[0] is graph.nodes[1].regions[0]
    assert not {node.op.name for node in walk(flat.nodes)} & {"Call", "NamedComputation"}
    names = [value.name for node in walk(flat.nodes) for value in node.results]
    assert "d" in names and "d.r" in names and len(names) == len(set(names))
    assert inline(flat) is flat


def test_a_function_called_twice_is_written_out_twice() -> None:
    text = """\
graph g(x: f32[4] data)
  y: f32[4] = Call(x) {callee="f", types=(f32[4],)}
  z: f32[4] = Call(y) {callee="f", types=(f32[4],)}
  return z, y
function f(a: f32[4] data)
  b: f32[4] = Add(a, a)
  c: f32[4] = Add(b, a)
  return c
function passed(a: f32[4] data)
  return a, a
"""
    graph = parse(text)
    flat = inline(graph)
    verify(flat)
    assert [node.op.name for node in flat.nodes] == ["Add"] * 4 and flat.outputs == graph.outputs
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(flat, [x])[0], 9 * x)


def test_a_function_that_returns_its_argument_twice() -> None:
    text = """\
graph g(x: f32[4] data)
  y: f32[4], z: f32[4] = Call(x) {callee="f", types=(f32[4], f32[4])}
  s: f32[4] = Add(y, z)
  return y, s
function f(a: f32[4] data)
  return a, a
"""
    flat = inline(parse(text))
    verify(flat)
    assert flat.outputs[0] is flat.inputs[0] and len(flat.nodes) == 1


BROKEN = [
    ("      yield more\n", "      yield\n", "region 0 yields () instead of (bool[])"),
    ("      yield more\n", "      yield i\n", "region 0 yields (i32[]) instead of (bool[])"),
    (
        "      yield c, next\n",
        "      yield next, next\n",
        "region 1 yields (i32[], i32[]) instead of (f32[4, 6], i32[])",
    ),
    ("region(a: f32[4, 6], i: i32[])", "region(a: f32[4, 7], i: i32[])", "what flows along an edge has several types"),
    ("region(a: f32[4, 6], i: i32[])", "region(i: i32[])", "region 0 has 1 arguments instead of 2"),
    ("return %3#0", "return b", "'b' is not defined before this line"),
    ("Less(i, n)", "Less(j, n)", "'j' is not defined before this line"),
    ("region(b:", "region(a:", "'a' is already defined"),
    ("yield c, next", "yield c, later", "'later' is not defined before this line"),
    (
        "Mul(v, v)",
        'Call(v) {callee="half", types=(f32[4, 6],)}',
        "functions that call themselves: half -> half",
    ),
    ('callee="half"', 'callee="third"', "calls 'third'; the functions are (step, half)"),
    ("function half(t: f32[4, 6] data)", "function half(t: f32[4, 6] data, z: i32[] data)", "calls 'half' as"),
    ("function half", "function step", "there is a function named 'step' already"),
    ("        region()\n          yield x\n", "", "has 1 regions; the operator takes 2"),
    ("  return u\n", "", "the text ends here, without 'return'"),
    ("      yield w\n", "", "'yield' is expected here"),
]


@pytest.mark.parametrize(("old", "new", "told"), BROKEN)
def test_a_broken_law_is_named(old: str, new: str, told: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ParseError, match=re.escape(told)):
        parse(TEXT.replace(old, new))


def test_a_region_where_there_is_none() -> None:
    x = Value(TensorType.of((4,)), "x")
    y = Value(TensorType.of((4,)), "y")
    node = Node(lookup("ReLU"), (x,), {}, (y,), regions=(Region((), (), ()),))
    with pytest.raises(GraphError, match="has 1 regions; the operator takes 0"):
        verify(Graph("g", (x,), (node,), (y,), (DATA,)))


def test_a_value_of_a_region_is_not_known_outside() -> None:
    graph = parse(TEXT)
    inside = graph.nodes[1].regions[1].nodes[0].results[0]
    with pytest.raises(GraphError, match="output 0 of graph 'main', 'one', is no value of the graph"):
        verify(Graph("main", graph.inputs, graph.nodes, (inside,), graph.roles, functions=graph.functions))


VALUES = [
    Body("add"),
    Sharding(Mesh(x=2, y=4), [DimSharding((Mesh(x=2, y=4).axis("y"),), False, 1), CLOSED], mesh_name="mesh"),
    TensorType.of((4, 6), "bf16"),
    complex(-0.0, float("inf")),
    Literal(np.array([1 + 2j, 3], np.complex64)),
    (Body("max"), (TensorType.of(()), "a")),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_attribute_values_read_back(value) -> None:
    line = Scanner(show_value(value), 1)
    found = read_value(line)
    line.end()
    assert found == value and repr(found) == repr(value)


def test_arrays_of_ml_dtypes_read_back() -> None:
    import ml_dtypes

    value = Literal(np.array([1.5, -2, np.nan], ml_dtypes.bfloat16))
    assert read_value(Scanner(show_value(value), 1)) == value


SCALAR = """\
graph body(a: f32[] data, b: f32[] data)
  p: bool[] = Less(a, b)
  two: f32[] = Fill() {shape=(), value=2.0, dtype="f32"}
  c: f32[] = Mul(a, two)
  d: f32[] = Select(p, c, b)
  return d, p
"""
LOOPED = """\
graph body(a: f32[] data, b: f32[] data)
  c: f32[] = While(a)
    region(i: f32[])
      p: bool[] = Less(i, b)
      yield p
    region(j: f32[])
      k: f32[] = Add(j, j)
      yield k
  return c
"""


def test_a_scalar_function_applies_to_whole_arrays() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    found = Elementwise(parse(SCALAR))(a, b)
    np.testing.assert_array_equal(found[0], np.where(a < b, a * 2, b))
    np.testing.assert_array_equal(found[1], a < b)
    assert found[0].dtype == np.float32


def test_a_loop_in_a_scalar_function_runs_for_each_element() -> None:
    a = np.array([[1, 3, 5], [2, 100, 7]], np.float32)
    (found,) = Elementwise(parse(LOOPED))(a, np.float32(8))
    np.testing.assert_array_equal(found, [[8, 12, 10], [8, 100, 14]])


def test_a_body_reads_back_with_its_function() -> None:
    made = body(SCALAR)
    again = read_value(Scanner(show_value(made), 1, lambda text: Elementwise(parse(text))))
    assert again == made
    np.testing.assert_array_equal(again(np.float32(1), np.float32(3))[0], 2)


def test_a_body_that_only_has_a_description_cannot_run_once_it_was_read() -> None:
    described = Body("", "a < b", np.less)
    again = read_value(Scanner(show_value(described), 1))
    assert again == described
    with pytest.raises(ShapeError, match="cannot run the function 'a < b': it was read from a text"):
        again(np.float32(1), np.float32(3))


class Maker:
    """Draws random graphs with nested regions; every tensor is f32[6, 6], so that every operator fits."""

    TYPE = TensorType.of((6, 6))
    FLAG = TensorType.of((), "bool")

    def __init__(self, draw, callees: tuple[str, ...]) -> None:
        self.draw, self.callees, self.count = draw, callees, 0

    def value(self, of: TensorType = TYPE) -> Value:
        self.count += 1
        stem = self.draw(st.sampled_from(["v", "%", "region", "a b", "yield"]))
        return Value(of, f"{stem}{self.count}")

    def node(self, name: str, operands: tuple, attrs: dict, regions: tuple = (), of: TensorType = TYPE) -> Node:
        op = lookup(name)
        return Node(op, operands, op.check_attributes(attrs), (self.value(of),), regions=regions)

    def region(self, known: list[Value], args: int, depth: int) -> Region:
        made = tuple(self.value() for _ in range(args))
        nodes, values = self.nodes([*known, *made], depth)
        return Region(made, nodes, (self.draw(st.sampled_from(values)),))

    def nodes(self, known: list[Value], depth: int) -> tuple[tuple[Node, ...], list[Value]]:
        values, nodes = list(known), []
        for _ in range(self.draw(st.integers(0, 3))):
            kinds = ["ReLU", "Add"] + (["If", "Case", "Named"] if depth else []) + (["Call"] if self.callees else [])
            node = self.one(self.draw(st.sampled_from(kinds)), values, depth, nodes)
            nodes.append(node)
            values.append(node.results[0])
        return tuple(nodes), values

    def one(self, kind: str, values: list[Value], depth: int, nodes: list[Node]) -> Node:
        x, y = (self.draw(st.sampled_from(values)) for _ in range(2))
        types = {"types": (self.TYPE,)}
        if kind == "ReLU":
            return self.node("ReLU", (x,), {})
        if kind == "Add":
            return self.node("Add", (x, y), {})
        if kind == "Call":
            return self.node("Call", (x, y), {"callee": self.draw(st.sampled_from(self.callees)), **types})
        if kind == "Named":
            return self.node("NamedComputation", (x,), {"name": "part", **types}, (self.region(values, 1, depth - 1),))
        of = self.FLAG if kind == "If" else TensorType.of((), "i32")
        value = self.draw(st.booleans()) if kind == "If" else self.draw(st.integers(-1, 2))
        chosen = self.node("Fill", (), {"shape": (), "value": value, "dtype": of.dtype.name}, of=of)
        nodes.append(chosen)
        regions = tuple(self.region(values, 0, depth - 1) for _ in range(2))
        return self.node(kind, chosen.results, types, regions)


@st.composite
def graphs(draw) -> Graph:
    functions: dict[str, Graph] = {}
    for name in ("first", "second", "main"):
        maker = Maker(draw, tuple(functions))
        inputs = (maker.value(), maker.value())
        nodes, values = maker.nodes(list(inputs), 2)
        outputs = (draw(st.sampled_from(values)),)
        functions[name] = Graph(name, inputs, nodes, outputs, (DATA, DATA))
    main = functions.pop("main")
    return Graph("main", main.inputs, main.nodes, main.outputs, main.roles, functions=functions)


@settings(max_examples=60)
@given(graphs())
def test_random_graphs_read_back_inline_and_compute_the_same(graph: Graph) -> None:
    verify(graph)
    text = show(graph)
    again = parse(text)
    assert show(again) == text
    flat = inline(again)
    verify(flat)
    assert not any(node.op.name in ("Call", "NamedComputation") for node in walk(flat.nodes))
    inputs = list(np.random.default_rng(1).integers(-3, 4, (2, 6, 6)).astype(np.float32))
    wanted = evaluate(graph, inputs)
    np.testing.assert_array_equal(evaluate(again, inputs), wanted)
    np.testing.assert_array_equal(evaluate(flat, inputs), wanted)
