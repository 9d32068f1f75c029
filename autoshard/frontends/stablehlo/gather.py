"""Translators of StableHLO's gather and torch_index_select."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir.dialects.stablehlo import GatherDimensionNumbers

from autoshard.frontends.stablehlo.attributes import attribute, tensor_type
from autoshard.frontends.stablehlo.table import Translation, translates


def _gather_numbers(op: Any) -> dict[str, Any]:
    numbers = GatherDimensionNumbers(op.attributes["dimension_numbers"])
    return {
        "offset_dims": tuple(numbers.offset_dims),
        "collapsed_slice_dims": tuple(numbers.collapsed_slice_dims),
        "operand_batching_dims": tuple(numbers.operand_batching_dims),
        "start_indices_batching_dims": tuple(numbers.start_indices_batching_dims),
        "start_index_map": tuple(numbers.start_index_map),
        "index_vector_dim": numbers.index_vector_dim,
    }


@translates("stablehlo.gather")
def _(op: Any) -> Translation:
    of_bools = tensor_type(str(op.results[0].type)).dtype.name == "bool"
    return "GatherSlices", {
        **_gather_numbers(op),
        "slice_sizes": attribute(op, "slice_sizes"),
        "reduction": "max" if of_bools else "sum",
    }


@translates("stablehlo.dynamic_gather")
def _(op: Any) -> Translation:
    """A gather whose slice sizes are an operand; the result's shape has to be static all the same."""
    return "DynamicGather", {**_gather_numbers(op), "shape": tensor_type(str(op.results[0].type)).shape}


@translates("stablehlo.torch_index_select")
def _(op: Any) -> Translation:
    return "TorchIndexSelect", {"dim": attribute(op, "dim"), "batch_dims": attribute(op, "batch_dims")}
