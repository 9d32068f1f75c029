"""The form of dumps: the tutorial's own listings read and print back, and all else the form can hold."""

from __future__ import annotations

import golden
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.core.tensortype import TensorType
from autoshard.exporters.ir_parse import (
    Dump,
    DumpNode,
    DumpParameter,
    DumpReturn,
    DumpSource,
    DumpType,
    Elision,
    ListedValue,
    parse_attr,
    parse_dump,
    show_attr,
    show_dump,
)
from autoshard.ir.scan import Scanner
from autoshard.util.errors import ParseError


@pytest.mark.parametrize("name", ["tutorial_step_parallel_begin.ir", "tutorial_validate.ir"])
def test_tutorial_listings_print_back_as_they_are(name: str) -> None:
    text = golden.read(name)
    assert show_dump(parse_dump(text)) == text


def test_strategies_of_the_tutorials_first_listing() -> None:
    nodes = parse_dump(golden.read("tutorial_step_parallel_begin.ir")).nodes
    assert [(one.op, one.in_strategy) for one in nodes if one.op != "Load"] == [
        ("MatMul", ((2, 1), (1, 4))),
        ("Add", ((2, 4), (4,))),
        ("ReLU", ((2, 4),)),
        ("MatMul", ((2, 4), (4, 1))),
        ("Add", ((2, 4), (4,))),
    ]
    assert nodes[0].attr("in_strategy") == ((2, 1), (1, 4)) and nodes[0].attr("transpose_b") is False
    assert nodes[0].attr("input_names") == ListedValue(("x1", "x2"))
    assert nodes[1].operands == ("$(@1_construct_wrapper.298:para4_dense1.bias)", "%para15_u")
    assert nodes[1].operand_types[0].tensor == TensorType.of((64,))
    assert nodes[1].operand_types[1].tensor is None


def test_collectives_of_the_tutorials_second_listing() -> None:
    dump = parse_dump(golden.read("tutorial_validate.ir"))
    assert [type(one) for one in (dump.body[0], dump.body[-1])] == [Elision, Elision]
    reduce = next(one for one in dump.nodes if one.op == "AllReduce")
    assert reduce.instance == "forward_op_4025687080669949636"
    assert [value for _, value in reduce.attrs] == ["4-6301172352641561019", 0, "sum", "0-1-2-3", 0]
    cut = next(one for one in dump.nodes if one.op == "StridedSlice")
    assert cut.operands == ("%8", (0, 0), (32, 16), (1, 1))
    assert cut.result_types == (DumpType("Tensor[Float32]", (32, 16)),)
    assert dump.nodes[0].source == DumpSource("./train.py", 33, "        x = self.matmul(x, self.weight)")


WORDS = st.text("abcdef_.-:0123456789e", min_size=1, max_size=8)
ATTRS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | WORDS
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3).map(tuple).map(ListedValue),
    max_leaves=8,
)


@given(ATTRS)
def test_attribute_values_read_back_with_their_kind(value) -> None:
    line = Scanner(show_attr(value), 1)
    back = parse_attr(line)
    line.end()
    assert repr(back) == repr(value)


SHAPES = st.lists(st.integers(0, 24), max_size=3).map(tuple)
TYPES = st.one_of(
    st.builds(DumpType, st.sampled_from(["Tensor[Float32]", "Tensor[Bool]", "Ref[Tensor(F32)]"]), SHAPES),
    st.sampled_from([DumpType("UMonad"), DumpType("Tuple[Int64*2]")]),
)
SOURCES = st.builds(
    DumpSource,
    st.sampled_from(["train.py", "./a b.py"]),
    st.integers(1, 999),
    st.sampled_from(["        y = f(x)", "{/", ""]),
)
PARTS = st.lists(st.lists(st.integers(1, 12), max_size=3).map(tuple), max_size=3).map(tuple)
OPERANDS = st.sampled_from(["%3", "%4[1]", "%para2_dense1.weight", "U"]) | SHAPES
NODES = st.builds(
    DumpNode,
    number=st.integers(0, 99),
    name=st.sampled_from(["x", "equiv[CNode]453", "a, b", ""]),
    op=st.sampled_from(["MatMul", "AllReduce"]),
    operands=st.lists(OPERANDS, max_size=3).map(tuple),
    operand_types=st.lists(TYPES, max_size=3).map(tuple),
    result_types=st.lists(TYPES, max_size=2).map(tuple),
    instance=st.none() | st.sampled_from(["dense1.matmul", ""]),
    attrs=st.none() | st.lists(st.tuples(st.sampled_from(["axes", "dim"]), ATTRS), max_size=3).map(tuple),
    in_strategy=st.none() | PARTS,
    source=st.none() | SOURCES,
)
RETURNS = st.builds(DumpReturn, st.lists(OPERANDS, max_size=2).map(tuple), st.lists(TYPES, max_size=2).map(tuple))
BODIES = st.lists(NODES | RETURNS | st.just(Elision("...")), min_size=1, max_size=4).map(tuple)
PARAMETERS = st.lists(st.builds(DumpParameter, st.just("para1_x"), TYPES), max_size=2).map(tuple)
DUMPS = st.builds(Dump, st.just("net"), PARAMETERS, BODIES) | st.builds(Dump, st.none(), st.just(()), BODIES)


@given(DUMPS)
def test_whole_dumps_read_back(dump: Dump) -> None:
    text = show_dump(dump)
    assert show_dump(parse_dump(text)) == text
    assert repr(parse_dump(text)) == repr(dump)


HEAD = "# IR entry: @net\n# Total params: 1\n\n%para1_x: <Tensor[Float32], (4)> : [4]\n\nsubgraph @net() {\n"
NODE = "  %0(y) = ReLU(%para1_x)\n      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)\n"


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        (HEAD + NODE, "line 9", "the closing } is expected here"),
        (HEAD.replace("params: 1", "params: 2") + "}\n", "line 5", "counts 2 parameters, but 1 are listed"),
        (HEAD.replace("subgraph @net", "subgraph @other"), "line 6", "subgraph @net() { is expected here"),
        (HEAD + NODE + "}\nmore\n", "line 10", "nothing may follow the closing }"),
        (HEAD + "  %0(y) ReLU\n}\n", "line 7", "a node"),
        (HEAD + NODE.replace("->", "-") + "}\n", "line 8", "-> (types)"),
        (HEAD + NODE.replace("<Tensor[Float32], (4)>)\n", "(4))\n") + "}\n", "line 8", "a type such as"),
        (NODE.replace("      :", " {in_strategy: (2, 1)}      :"), "line 2", "a tuple of whole numbers"),
        (NODE.replace("(%para1_x)", "(%para1_x) primitive_attrs: {axis=0}"), "line 1", "':' is expected"),
    ],
)  # fmt: skip
def test_errors_name_the_line(text: str, where: str, reason: str) -> None:
    with pytest.raises(ParseError) as error:
        parse_dump(text)
    assert where in str(error.value) and reason in str(error.value), str(error.value)
