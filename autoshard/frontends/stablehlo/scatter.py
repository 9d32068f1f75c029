"""Translator of StableHLO's scatter."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.stablehlo import ScatterDimensionNumbers

from autoshard.frontends.stablehlo.attributes import tensor_type
from autoshard.frontends.stablehlo.bodies import read_body
from autoshard.frontends.stablehlo.table import Translation, translates
from autoshard.ops.body import Body
from autoshard.ops.hlo_scatter import REPLACE

_REDUCTIONS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
}
# On bools, adding and or are a maximum, multiplying and and a minimum.
_OF_BOOLS = {
    "stablehlo.add": "max",
    "stablehlo.or": "max",
    "stablehlo.maximum": "max",
    "stablehlo.multiply": "min",
    "stablehlo.and": "min",
    "stablehlo.minimum": "min",
}


@translates("stablehlo.scatter")
def _(op: Any) -> Translation:
    numbers = ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    attrs = {
        "update_window_dims": tuple(numbers.update_window_dims),
        "inserted_window_dims": tuple(numbers.inserted_window_dims),
        "input_batching_dims": tuple(numbers.input_batching_dims),
        "scatter_indices_batching_dims": tuple(numbers.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": tuple(numbers.scattered_dims_to_operand_dims),
        "index_vector_dim": numbers.index_vector_dim,
    }
    body = _body(op)
    if body.name == "add" and len(op.results) == 1:
        return "ScatterAddSlices", attrs
    return "ScatterSlices", {"body": body, **attrs}


def _body(op: Any) -> Body:
    """How an update changes an element; known by name where each input is combined with its own update alone.

    Shardy's test (isSupportedReduction) asks the same of the returned values and does not mind dead operations.
    """
    block = op.regions[0].blocks[0]
    count = len(op.results)
    arguments = list(block.arguments)
    *_, last = block.operations
    pairs = list(zip(arguments[:count], arguments[count:], strict=True))
    returned = list(last.operation.operands)
    if returned == arguments[count:]:
        return REPLACE
    found = {_reduction(value, pair) for value, pair in zip(returned, pairs, strict=True)}
    name = found.pop()
    return Body(name) if name and not found else read_body(op.regions[0])


def _reduction(value: Any, pair: tuple[Any, Any]) -> str:
    """The name of the reduction that makes a returned value from an input and its update; '' if it is none."""
    owner = value.owner
    if isinstance(owner, ir.Block) or set(owner.operands) != set(pair):
        return ""
    of_bools = tensor_type(str(value.type)).dtype.name == "bool"
    return (_OF_BOOLS if of_bools else _REDUCTIONS).get(owner.name, "")
