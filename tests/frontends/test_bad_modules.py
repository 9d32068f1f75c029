"""What cannot be imported or run says so: what was being done, the values, and what would be right."""

from __future__ import annotations

import re

import numpy as np
import pytest
from jaxlib.mlir import ir

from autoshard.core.tensortype import TensorType
from autoshard.engines import extras
from autoshard.frontends import from_jax, from_stablehlo
from autoshard.frontends.stablehlo.reader import check_results, parse_module, read_module
from autoshard.ir.graph import Node, Value
from autoshard.ops.registry import lookup
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import AutoshardError, ParseError, RuntimeSetupError, ShapeError, ShardingError
from tests.frontends.jax_models import floats

pytestmark = pytest.mark.jax

GOOD = """\
sdy.mesh @mesh = <["x"=2, "y"=3]>
func.func @main(%a: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x6xf32> {
  %0 = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}
"""
SHARDED = '#sdy.sharding<@mesh, [{"x"}, {}]>}) ->'


def test_the_good_one_is_good() -> None:
    assert len(from_stablehlo(GOOD).graph.nodes) == 1


CHANGES = [
    # what is changed, into what, the error, what its text says
    ("tanh", "tan h", ParseError, "cannot read this as a StableHLO module: line 3, column 21: expected SSA operand"),
    ("return %0", "return %1", ParseError, "use of undeclared SSA value name"),
    (": tensor<4x6xf32>\n  return", ": tensor<4x7xf32>\n  return", ParseError, "different type than prior uses"),
    (SHARDED, SHARDED.replace(", {}]", "]"), ParseError, "sharding doesn't match tensor rank: 1 != 2"),
    (SHARDED, SHARDED.replace('"x"', '"z"'), ParseError, 'unknown axis name: "z"'),
    (SHARDED, SHARDED.replace("@mesh", "@grid"), ParseError, "unknown mesh: @grid"),
    (SHARDED, SHARDED.replace("{}", '{"x"}'), ParseError, 'duplicate axis ref: "x"'),
    ('"y"=3', '"x"=3', ParseError, 'duplicate axis name: "x"'),
    ("4x6", "?x6", ShapeError, "cannot import tensor<?x6xf32>: its shape is dynamic; every size has to be known"),
    ("4x6xf32", "4x6x!quant.uniform<i8:f32, 0.5>", AutoshardError, "uniform"),
    ("func.func", "func.fun", ParseError, "func.fun"),
]


@pytest.mark.parametrize(("old", "new", "kind", "told"), CHANGES)
def test_a_broken_module_is_refused(old: str, new: str, kind: type, told: str) -> None:
    assert old in GOOD
    with pytest.raises(kind, match=re.escape(told)):
        from_stablehlo(GOOD.replace(old, new))


def test_the_line_of_a_dynamic_shape_is_told() -> None:
    text = """
func.func @main(%a: tensor<4xf32>, %n: tensor<1xi32>) -> tensor<4xf32> {
  %0 = stablehlo.dynamic_broadcast_in_dim %a, %n, dims = [0] : (tensor<4xf32>, tensor<1xi32>) -> tensor<?xf32> loc("model.py":7:3)
  return %a : tensor<4xf32>
}"""  # noqa: E501
    told = r"reading the operation stablehlo.dynamic_broadcast_in_dim at model.py:7: cannot import tensor<\?xf32>"
    with pytest.raises(ShapeError, match=told):
        from_stablehlo(text)


def test_tuples_that_an_operation_makes_are_refused() -> None:
    text = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @two(%a) : (tensor<4xf32>) -> tuple<tensor<4xf32>>
  return %a : tensor<4xf32>
}"""
    with pytest.raises(ShapeError, match=r"a value of type tuple<tensor<4xf32>>: only tensors of static shape and"):
        from_stablehlo(text)


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="cannot read an empty text as a StableHLO module: there is nothing in it"):
        from_stablehlo(text)


def test_a_module_without_functions_is_refused() -> None:
    for text in ('sdy.mesh @mesh = <["x"=2]>', "func.func private @outside(tensor<4xf32>) -> tensor<4xf32>"):
        with pytest.raises(ParseError, match="the module has no function with a body"):
            from_stablehlo(text)


FILES = [
    (b"", "there is nothing in it"),
    (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", "it is neither text nor MLIR bytecode"),
    (b"import numpy as np\n", "bad.mlir:1:1: custom op 'import' is unknown"),
    (b"ML\xefR\x01\x02\x03", "malformed null-terminated string"),
    (b"ML\xefR\x0dStableHLO_v1.15.0\x00\x01\x02", "as a StableHLO artifact"),
]


@pytest.mark.parametrize(("data", "told"), FILES)
def test_a_file_that_is_no_module_is_refused(tmp_path, data: bytes, told: str) -> None:
    path = tmp_path / "bad.mlir"
    path.write_bytes(data)
    with pytest.raises(ParseError, match=re.escape(told)) as error:
        from_stablehlo(str(path))
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ParseError, match=r"cannot read .*none.mlir: No such file"):
        from_stablehlo(tmp_path / "none.mlir")


def test_what_mlir_reports_is_a_line_with_the_place(tmp_path) -> None:
    """Also where it repeats the operation, and lists all dialects."""
    path, start = tmp_path / "bad.mlir", "cannot read {} as a StableHLO module: "
    later = GOOD.replace("%0 = stablehlo.tanh %a", "%0 = stablehlo.tanh %1").replace(
        "  return", "  %1 = math.cos %0 : tensor<4x6xf32>\n  return"
    )
    path.write_text(later)
    with pytest.raises(ParseError) as error:
        from_stablehlo(path)
    told = f"{path}:3:8: operand #0 does not dominate this use; {path}:4:8: operand defined here (op in the same block)"
    assert str(error.value) == start.format(path) + told
    with pytest.raises(ParseError) as error:
        from_stablehlo("foo.bar\n")
    told = "line 1, column 1: Dialect `foo' not found for custom op 'foo.bar'"
    assert str(error.value) == start.format("this") + told


def test_something_else_is_refused() -> None:
    with pytest.raises(ParseError, match="cannot import a int: give MLIR text, the path of a .mlir file, bytecode"):
        from_stablehlo(3)


RECURSIVE = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @even(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @even(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @odd(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @odd(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @even(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_functions_that_call_themselves_are_refused() -> None:
    with pytest.raises(ParseError, match="that call themselves cannot be imported: @even -> @odd -> @even"):
        from_stablehlo(RECURSIVE)


def test_a_call_of_a_function_without_body_is_refused() -> None:
    text = RECURSIVE[: RECURSIVE.index("func.func private")]
    with pytest.raises(ParseError, match="@main calls @even, which has no body in this module"):
        from_stablehlo(text + "func.func private @even(tensor<4xf32>) -> tensor<4xf32>")


def test_several_blocks_are_refused() -> None:
    text = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  cf.br ^next(%a : tensor<4xf32>)
^next(%b: tensor<4xf32>):
  return %b : tensor<4xf32>
}"""
    with pytest.raises(ParseError, match="cannot import the function @main: it has 2 blocks; only regions of one"):
        from_stablehlo(text)


def test_unknown_operations_are_listed_when_they_should_run() -> None:
    text = """
func.func @main(%a: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %0 = math.erf %a : tensor<4xf32> loc("model.py":5:1)
  %1 = math.erf %0 : tensor<4xf32> loc("model.py":8:1)
  %2 = func.call @other(%1) : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
func.func private @other(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = math.cbrt %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
    graph = from_stablehlo(text).graph
    told = r"autoshard has no operator for math.erf \(2 times, first at model.py:5\), math.cbrt \(once\)"
    with pytest.raises(ShapeError, match=told):
        evaluate(graph, [floats(0, 4), np.int32(3)])


def test_inputs_of_other_types_are_refused() -> None:
    graph = from_stablehlo(GOOD).graph
    with pytest.raises(RuntimeSetupError, match=r"input %arg0 is f32\[4, 6\], but got f32\[6, 4\]"):
        evaluate(graph, [floats(0, 6, 4)])
    with pytest.raises(RuntimeSetupError, match=r"2 arrays for 1 inputs \(%arg0\)"):
        evaluate(graph, [floats(0, 4, 6), floats(0, 4, 6)])


def test_shardings_that_mlir_never_checked_are_checked() -> None:
    """A module that a program put together may be wrong in ways that a parsed one cannot be."""
    module = parse_module(GOOD)
    with module.context:
        tanh = module.body.operations[1].regions[0].blocks[0].operations[0]
        wrong = '#sdy.sharding_per_value<[<@mesh, [{"x"}, {}, {}]>]>'
        tanh.attributes["sdy.sharding"] = ir.Attribute.parse(wrong)
        with pytest.raises(ShardingError, match=r"reading the operation stablehlo.tanh.*%0 has sharding"):
            read_module(module)
        tanh.attributes["sdy.sharding"] = ir.Attribute.parse(wrong.replace(", {}]", "]").replace("mesh", "grid"))
        with pytest.raises(ParseError, match="unknown mesh @grid"):
            read_module(module)


def test_an_operator_that_makes_other_types_is_an_internal_error() -> None:
    x, y = (Value(TensorType.of(shape), name) for shape, name in (((4, 6), "x"), ((6, 4), "y")))
    with pytest.raises(AutoshardError, match=r"internal error: .*operator Tanh differ: f32\[6, 4\] and f32\[4, 6\]"):
        check_results(Node(lookup("Tanh"), (x,), {}, (y,)))


def test_jax_that_is_missing_is_named(monkeypatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    told = re.escape("needs jax and jaxlib, which the extra jax brings: pip install 'autoshard[jax]'")
    with pytest.raises(RuntimeSetupError, match=told):
        from_stablehlo(GOOD)
    with pytest.raises(RuntimeSetupError, match=told):
        from_jax(lambda x: x, floats(0, 4))
