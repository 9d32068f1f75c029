"""Graphs as text: what is printed reads back to the same graph; what cannot be read says where and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from autoshard.core.tensortype import TensorType, dtype
from autoshard.ir.graph import PARAMETER, ROLES, STATE, Builder, Graph, Source
from autoshard.ir.scan import Scanner
from autoshard.ir.text import SMALL_LITERAL, parse, read_value, show, show_value
from autoshard.layout import Mesh
from autoshard.ops.attributes import Literal, Offset
from autoshard.ops.registry import lookup
from autoshard.util.errors import GraphError, ParseError

TEXT = """\
graph net(x: f32[4, 6] data, dense.w: f32[6, 10] parameter, "steps done": i32[] state)
  h: f32[4, 10] = MatMul(x, dense.w) "dense.matmul" @ train.py:33 | x = self.matmul(x, self.weight)
  t: f32[10, 4] = MatMul(dense.w, x) {transpose_a=True, transpose_b=True}
  c: f64[2, 2] = Constant() {value=Literal(f64[2, 2], [[1.0, -inf], [0.1, 5e-324]])}
  low: f32[4, 4], high: f32[4, 6] = Split(h) {sizes=(4, 6), axis=1} @ "my file.py":7
  y: f16[4, 6] = Cast(high) {dtype="f16"} @ <stdin>:1 | y = high.to("f16")  # {1}
  return y, dense.w -> dense.w, "steps done"
"""


def run(graph: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Evaluate the graph node by node."""
    values = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        results = node.op.evaluate([values[one] for one in node.operands], node.attrs)
        values.update(zip(node.results, results, strict=True))
    return [values[one] for one in graph.outputs]


def test_text_reads_and_prints_back_as_it_is() -> None:
    assert show(parse(TEXT)) == TEXT


def test_what_the_text_says_is_in_the_graph() -> None:
    graph = parse("\n# a comment\n" + TEXT)
    assert graph.name == "net" and graph.roles == ROLES and graph.updates == {1: 1}
    h, t, c, split, y = graph.nodes
    assert h.name == "dense.matmul" and h.source == Source("train.py", 33, "x = self.matmul(x, self.weight)")
    assert h.attrs == {"transpose_a": False, "transpose_b": False}
    assert t.attrs == {"transpose_a": True, "transpose_b": True} and t.name == "" and t.source is None
    assert [one.name for one in split.results] == ["low", "high"] and split.source == Source("my file.py", 7, "")
    np.testing.assert_array_equal(c.attrs["value"].array, [[1.0, -np.inf], [0.1, 5e-324]])
    assert y.result_types == (TensorType.of((4, 6), "f16"),) and y.source.file == "<stdin>"
    assert graph.outputs[0] is y.results[0] and graph.outputs[1] is graph.inputs[1]


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
DTYPES = [dtype(name).numpy for name in ("f64", "f32", "f16", "i64", "i32", "u8", "bool")]
LITERALS = st.sampled_from(DTYPES).flatmap(
    lambda of: arrays.arrays(of, arrays.array_shapes(min_dims=0, min_side=0, max_side=5))
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=6) | LITERALS.map(Literal),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def read(text: str):
    line = Scanner(text, 1)
    value = read_value(line)
    line.end()
    return value


def same(a, b) -> bool:
    """Equal and of one kind throughout: True is not 1, 0.0 is not -0.0."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b if isinstance(a, Literal) else type(a) is type(b) and repr(a) == repr(b)


@given(VALUES)
def test_attribute_values_read_back(value) -> None:
    assert same(value, read(show_value(value)))


def test_values_at_the_edges() -> None:
    assert show_value((4,)) == "(4,)" and show_value(()) == "()" and show_value([4, 6]) == "(4, 6)"
    assert show_value(np.float32) == "dtype(f32)" and read("dtype(f32)") is dtype("f32")
    assert np.isnan(read(show_value(float("nan")))) and read("-inf") == -np.inf and read("1e+20") == 1e20
    big = Literal(np.arange(SMALL_LITERAL + 1, dtype=np.float32))
    assert '"' in show_value(big) and read(show_value(big)) == big
    swapped = Literal(np.arange(3, dtype=">i4"))
    np.testing.assert_array_equal(read(show_value(swapped)).array, [0, 1, 2])
    payload = Literal(np.array([0x7FC00123], np.uint32).view(np.float32))
    assert read(show_value(payload)) == payload, "the bits of a NaN are kept"


def test_a_value_without_text_is_an_error() -> None:
    mesh = Mesh(a=2)
    with pytest.raises(GraphError, match="has no text; a graph can hold numbers"):
        show_value((4, Offset(mesh, mesh.all_axes, 6)))


NAMES = st.sampled_from(
    ["x", "dense1.weight", "return", "graph", "a b", 'quo"te', "é", "x-", "->", "3", "lines\nbreak"]
)
SOURCES = st.none() | st.builds(
    Source,
    st.sampled_from(["train.py", "a b.py", 'c:"d".py', "<stdin>", "d:3", ""]),
    st.integers(0, 9999),
    st.sampled_from(["", "y = f(x)", "@ train.py:3 | {", "two\nlines", " | "]),
)


@st.composite
def graphs(draw) -> Graph:
    """Random graphs of square tensors, so that every operator fits every value."""
    builder = Builder(draw(NAMES))
    values = [
        builder.input(TensorType.of((6, 6)), draw(NAMES), draw(st.sampled_from(ROLES)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    for _ in range(draw(st.integers(0, 6))):
        op = lookup(draw(st.sampled_from(["ReLU", "Add", "MatMul", "Split", "Select"])))
        operands = [draw(st.sampled_from(values)) for _ in op.operand_names]
        attrs: dict = {}
        if op.name == "MatMul":
            attrs = {"transpose_a": draw(st.booleans()), "transpose_b": draw(st.booleans())}
        if op.name == "Split":
            attrs = {"axis": draw(st.integers(-2, 1)), "output_num": draw(st.sampled_from([2, 3]))}
        if op.name == "Select":
            operands[0] = builder.add(lookup("Less"), operands[1:], {}).results[0]
        name = draw(st.sampled_from(["", "net.layer0", 'a "b"']))
        node = builder.add(op, operands, op.check_attributes(attrs), name, draw(SOURCES), draw(NAMES))
        values += [one for one in node.results if one.type.shape == (6, 6)]
    outputs = [draw(st.sampled_from(values)) for _ in range(draw(st.integers(0, 3)))]
    stored = [i for i, role in enumerate(builder.roles) if role in (PARAMETER, STATE)]
    return builder.build(outputs, dict(zip(range(len(outputs)), stored, strict=False)))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_graphs_read_back_and_compute_the_same(graph: Graph) -> None:
    text = show(graph)
    back = parse(text)
    assert show(back) == text
    assert (back.name, back.roles, back.updates) == (graph.name, graph.roles, graph.updates)
    assert [one.attrs for one in back.nodes] == [one.attrs for one in graph.nodes]
    assert [one.key for one in back.nodes] == [one.key for one in graph.nodes]
    rng = np.random.default_rng(3)
    inputs = [rng.normal(size=one.type.shape).astype(np.float32) for one in graph.inputs]
    with np.errstate(all="ignore"):
        for got, want in zip(run(back, inputs), run(graph, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("graph net", "net", 1, "'graph ' is expected here"),
        (" data,", ",", 1, "the input's role is expected here: data, parameter, state"),
        ("f32[4, 6] data", "q8[4, 6] data", 1, "unknown element type 'q8'"),
        ('"steps done": i32', "x: i32", 1, "'x' is already defined"),
        ("h: f32[4, 10]", "x: f32[4, 10]", 2, "'x' is already defined"),
        ("MatMul(x, dense.w)", "MatMul(x, h)", 2, "'h' is not defined before this line"),
        ("h: f32[4, 10]", "h: f32[10, 4]", 2, "has results of type (f32[10, 4])"),
        ("h: f32[4, 10] =", "h = ", 2, "':' is expected here"),
        ("MatMul(x, dense.w)", "MatMull(x, dense.w)", 2, "did you mean 'MatMul'"),
        ("MatMul(x, dense.w)", "MatMul(x)", 2, "takes 2 operands (x, w), not 1"),
        ("MatMul(dense.w, x)", "MatMul(x, x)", 3, "MatMul"),
        ("transpose_a=True", "transpose=True", 3, "MatMul has no attribute 'transpose'"),
        ("transpose_a=True", "transpose_a=yes", 3, "a value (number, string"),
        ("[[1.0, -inf], [0.1, 5e-324]]", "[1.0, 2.0]", 4, "bad data for a Literal of type f64[2, 2]"),
        ("[[1.0, -inf], [0.1, 5e-324]]", '"QUJD"', 4, "bad data for a Literal of type f64[2, 2]"),
        ("sizes=(4, 6)", "sizes=(4, 6", 5, "is expected here"),
        ('"my file.py":7', '"my file.py"', 5, "nothing more may stand here"),
        ('"f16"}', '"f16}', 6, "',' is expected here"),
        ("return y,", "return z,", 7, "'z' is not defined before this line"),
        ("-> dense.w", "-> h", 7, "'h' is no input"),
        ("-> dense.w", '-> "steps done"', 7, "cannot replace"),
        ("  return", "  give", 7, "'return' is expected here"),
    ],
)
def test_errors_name_the_line_and_the_reason(old: str, new: str, line: int, reason: str) -> None:
    assert TEXT.count(old) >= 1
    with pytest.raises(ParseError) as error:
        parse(TEXT.replace(old, new, 1))
    assert f"line {line}:" in str(error.value) and reason in str(error.value), str(error.value)


def test_errors_point_at_the_place() -> None:
    with pytest.raises(ParseError) as error:
        parse("graph g(x: f32[4] data)\n  y: f32[4] = ReLU(x;)\n  return y\n")
    assert str(error.value).splitlines()[1:] == ["      y: f32[4] = ReLU(x;)", "                        ^"]


def test_empty_text_is_an_error() -> None:
    with pytest.raises(ParseError, match="empty text"):
        parse("\n# nothing\n")


def test_attributes_at_their_defaults_are_left_out_by_kind() -> None:
    builder = Builder("g")
    builder.add(lookup("Fill"), [], lookup("Fill").check_attributes({"shape": (4, 6), "value": 0.0}))
    builder.add(lookup("Fill"), [], lookup("Fill").check_attributes({"shape": (4,), "value": 0}))
    text = show(builder.build([]))
    assert "{shape=(4, 6), value=0.0}" in text and "{shape=(4,)}" in text
