"""Which operations Shardy copies as parts of constants, and which it drops when unused: our marks say the same."""

from __future__ import annotations

import pytest
from jaxlib.mlir.passmanager import PassManager

from autoshard.frontends.stablehlo.pointwise import _CHLO, _STABLEHLO
from autoshard.frontends.stablehlo.reader import load_translators, parse_module
from autoshard.frontends.stablehlo.table import TABLE
from autoshard.ops.registry import Operator, lookup
from tests.frontends.test_rules_pointwise import _OF_WHOLE, _RESULTS, _TWO

pytestmark = pytest.mark.jax

_F, _I, _B, _C = (f"tensor<4x6x{element}>" for element in ("f32", "i32", "i1", "complex<f32>"))
_CONSTANTS = f"""
  %f = stablehlo.constant dense<0.5> : {_F}
  %i = stablehlo.constant dense<3> : {_I}
  %b = stablehlo.constant dense<true> : {_B}
  %z = stablehlo.constant dense<(1.0, 2.0)> : {_C}
  %s = stablehlo.constant dense<0.0> : tensor<f32>
"""
_GROUPS = "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
_ADD = """({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %t = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %t : tensor<f32>
  })"""
_TWO_CHLO = {"mulhi", "next_after", "polygamma", "zeta"}
_IS = ("is_inf", "is_pos_inf", "is_neg_inf")


def _plain(dialect: str, name: str) -> str:
    whole = name in _OF_WHOLE or name == "mulhi"
    value, of = ("%i", _I) if whole else ("%z", _C) if name == "conj" else ("%f", _F)
    many = 2 if name in _TWO or (dialect == "chlo" and name in _TWO_CHLO) else 1
    result = f"tensor<4x6x{_RESULTS[name]}>" if name in _RESULTS else _B if name in _IS else of
    return f'"{dialect}.{name}"({", ".join([value] * many)}) : ({", ".join([of] * many)}) -> {result}'


CASES = {
    **{
        f"stablehlo.{name}": _plain("stablehlo", name)
        for name in {*_STABLEHLO, "divide", "power"} - {"select", "clamp"}
    },
    **{f"chlo.{name}": _plain("chlo", name) for name in _CHLO},
    "stablehlo.select": f'"stablehlo.select"(%b, %f, %f) : ({_B}, {_F}, {_F}) -> {_F}',
    "stablehlo.clamp": f'"stablehlo.clamp"(%s, %f, %s) : (tensor<f32>, {_F}, tensor<f32>) -> {_F}',
    "stablehlo.compare": f"stablehlo.compare EQ, %f, %f : ({_F}, {_F}) -> {_B}",
    "compare totally": f"stablehlo.compare EQ, %f, %f, TOTALORDER : ({_F}, {_F}) -> {_B}",
    "stablehlo.convert": f"stablehlo.convert %f : ({_F}) -> {_I}",
    "stablehlo.reduce_precision": f"stablehlo.reduce_precision %f, format = e5m2 : {_F}",
    "stablehlo.bitcast_convert": f"stablehlo.bitcast_convert %f : ({_F}) -> {_I}",
    "bitcast apart": f"stablehlo.bitcast_convert %f : ({_F}) -> tensor<4x6x2xi16>",
    "chlo.top_k": f"chlo.top_k(%f, k=2) : {_F} -> (tensor<4x2xf32>, tensor<4x2xi32>)",
    "stablehlo.iota": f"stablehlo.iota dim = 0 : {_F}",
    "stablehlo.constant": f"stablehlo.constant dense<7.0> : {_F}",
    "stablehlo.get_dimension_size": f"stablehlo.get_dimension_size %f, dim = 0 : ({_F}) -> tensor<i32>",
    "stablehlo.broadcast_in_dim": f"stablehlo.broadcast_in_dim %f, dims = [1, 2] : ({_F}) -> tensor<2x4x6xf32>",
    "stablehlo.reshape": f"stablehlo.reshape %f : ({_F}) -> tensor<24xf32>",
    "stablehlo.transpose": f"stablehlo.transpose %f, dims = [1, 0] : ({_F}) -> tensor<6x4xf32>",
    "stablehlo.reverse": f"stablehlo.reverse %f, dims = [1] : {_F}",
    "stablehlo.pad": f"stablehlo.pad %f, %s, low = [0, 1], high = [0, 0], interior = [0, 0] "
    f": ({_F}, tensor<f32>) -> tensor<4x7xf32>",
    "stablehlo.slice": f"stablehlo.slice %f [0:4, 0:2] : ({_F}) -> tensor<4x2xf32>",
    "stablehlo.concatenate": f"stablehlo.concatenate %f, %f, dim = 0 : ({_F}, {_F}) -> tensor<8x6xf32>",
    "stablehlo.all_reduce": f'"stablehlo.all_reduce"(%f) <{{{_GROUPS}}}> {_ADD} : ({_F}) -> {_F}',
    "stablehlo.all_gather": f'"stablehlo.all_gather"(%f) <{{all_gather_dim = 1 : i64, {_GROUPS}}}> '
    f": ({_F}) -> tensor<4x12xf32>",
    "stablehlo.reduce_scatter": f'"stablehlo.reduce_scatter"(%f) <{{scatter_dimension = 1 : i64, {_GROUPS}}}> {_ADD} '
    f": ({_F}) -> tensor<4x3xf32>",
    "stablehlo.all_to_all": f'"stablehlo.all_to_all"(%f) <{{split_dimension = 1 : i64, concat_dimension = 0 : i64, '
    f"split_count = 2 : i64, {_GROUPS}}}> : ({_F}) -> tensor<8x3xf32>",
    "stablehlo.collective_permute": '"stablehlo.collective_permute"(%f) <{source_target_pairs = dense<[[0, 1]]> '
    f": tensor<1x2xi64>}}> : ({_F}) -> {_F}",
    "stablehlo.collective_broadcast": f'"stablehlo.collective_broadcast"(%f) <{{{_GROUPS}}}> : ({_F}) -> {_F}',
    "stablehlo.cross-replica-sum": f'"stablehlo.cross-replica-sum"(%f) <{{{_GROUPS}}}> : ({_F}) -> {_F}',
    "stablehlo.partition_id": "stablehlo.partition_id : tensor<ui32>",
    "stablehlo.replica_id": "stablehlo.replica_id : tensor<ui32>",
}


def _module(op: str, used: bool = False) -> tuple[str, Operator, dict]:
    """The text of a module with the operation, twice used or not at all, and what it is to us."""
    many = ":2" if op.startswith("chlo.top_k") else ""
    result = op.rpartition(" -> ")[2] if " -> " in op else op.rpartition(" : ")[2]
    result = result.removeprefix("(").partition(", ")[0] if many else result
    value = "%r#0" if many else "%r"
    end = f"return {value}, {value} : {result}, {result}" if used else "return"
    types = f" -> ({result}, {result})" if used else ""
    text = f"func.func @main(){types} {{{_CONSTANTS}  %r{many} = {op}\n  {end}\n}}"
    module = parse_module(text)
    with module.context:
        operation = _operations(module)[-2]
        name, attrs = TABLE[operation.name](operation)
    return text, lookup(name), attrs


def _operations(module) -> list:
    return [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations]


def _after(text: str, passes: str) -> list[str]:
    """The operations' names after a pass."""
    module = parse_module(text)
    with module.context:
        PassManager.parse(f"builtin.module({passes})").run(module.operation)
        return [op.name for op in _operations(module)]


@pytest.fixture(autouse=True, scope="module")
def translators():
    load_translators()


@pytest.mark.parametrize("case", sorted(CASES))
def test_what_is_copied_with_the_constants_it_is_made_of(case):
    text, operator, _ = _module(CASES[case], used=True)
    name = CASES[case].split()[0].partition("(")[0].strip('"').replace("stablehlo.constant", "sdy.constant")
    scalar = CASES[case].endswith(("tensor<i32>", "tensor<ui32>"))
    copies = _after(text, "sdy-constant-or-scalar-splitter").count(name)
    assert (copies > 1) == (operator.constant != "" and not scalar), f"{copies} copies of {name}"


@pytest.mark.parametrize("case", sorted(CASES))
def test_what_is_dropped_when_unused(case):
    text, operator, attrs = _module(CASES[case])
    name = CASES[case].split()[0].partition("(")[0].strip('"')
    left = _after(text, "sdy-basic-propagate").count(name)
    assert (left > 0) == operator.has_effects(operator.check_attributes(attrs)), f"{left} of {name} are left"
