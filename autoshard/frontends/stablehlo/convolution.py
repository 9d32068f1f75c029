"""Translator of convolution."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir.dialects.stablehlo import ConvDimensionNumbers

from autoshard.frontends.stablehlo.attributes import attribute, tensor_type
from autoshard.frontends.stablehlo.table import Translation, translates
from autoshard.frontends.stablehlo.window import pairs


@translates("stablehlo.convolution")
def _(op: Any) -> Translation:
    numbers = ConvDimensionNumbers(op.attributes["dimension_numbers"])
    lhs = (numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions)
    rhs = (
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
        *numbers.kernel_spatial_dimensions,
    )
    out = (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions)
    return "Convolution", {
        "lhs_dims": lhs,
        "rhs_dims": rhs,
        "out_dims": out,
        "strides": attribute(op, "window_strides", ()),
        "padding": pairs(op, "padding"),
        "lhs_dilation": attribute(op, "lhs_dilation", ()),
        "rhs_dilation": attribute(op, "rhs_dilation", ()),
        "reversal": attribute(op, "window_reversal", ()),
        "feature_groups": attribute(op, "feature_group_count"),
        "batch_groups": attribute(op, "batch_group_count"),
        "dtype": tensor_type(str(op.results[0].type)).dtype.name,
    }
