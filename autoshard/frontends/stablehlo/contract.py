"""Translators of StableHLO's contractions: dot_general, dot, einsum."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.stablehlo import DotDimensionNumbers

from autoshard.frontends.stablehlo.attributes import attribute, tensor_type
from autoshard.frontends.stablehlo.table import Translation, translates


def _result_element(op: Any) -> str:
    return str(tensor_type(str(op.results[0].type)).dtype)


def _precision(op: Any) -> tuple[str, ...]:
    """One word per operand, () if it is the default for all; the attribute prints `#stablehlo<precision HIGHEST>`."""
    given = op.attributes.get("precision_config", ())
    found = tuple(str(one).rstrip(">").split()[-1].lower() for one in given)
    return () if set(found) <= {"default"} else found


@translates("stablehlo.dot_general")
def _(op: Any) -> Translation:
    numbers = DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return "DotGeneral", {
        "lhs_batch": tuple(numbers.lhs_batching_dimensions),
        "rhs_batch": tuple(numbers.rhs_batching_dimensions),
        "lhs_contract": tuple(numbers.lhs_contracting_dimensions),
        "rhs_contract": tuple(numbers.rhs_contracting_dimensions),
        "dtype": _result_element(op),
        "precision": _precision(op),
    }


@translates("stablehlo.dot")
def _(op: Any) -> Translation:
    """A product of vectors and matrices: the last dim of the left with the first of the right."""
    last = ir.RankedTensorType(op.operands[0].type).rank - 1
    return "DotGeneral", {
        "lhs_contract": (last,),
        "rhs_contract": (0,),
        "dtype": _result_element(op),
        "precision": _precision(op),
    }


@translates("stablehlo.einsum", "stablehlo.unary_einsum")
def _(op: Any) -> Translation:
    return "HloEinsum", {"equation": attribute(op, "einsum_config"), "dtype": _result_element(op)}
