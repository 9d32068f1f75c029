"""Translators of reduce, map, sort and batch normalization."""

from __future__ import annotations

from typing import Any

from autoshard.frontends.stablehlo.attributes import attribute, tensor_type
from autoshard.frontends.stablehlo.bodies import read_body
from autoshard.frontends.stablehlo.table import Translation, translates
from autoshard.ops.body import Body

# Of bools: names that say how partial results combine.
_OF_BOOLS = {"add": "max", "or": "max", "mul": "min", "and": "min"}


@translates("stablehlo.reduce")
def _(op: Any) -> Translation:
    dimensions = tuple(attribute(op, "dimensions"))
    body = read_body(op.regions[0])
    if len(op.operands) != 2:
        return "Reduce", {"dimensions": dimensions, "body": body}
    if tensor_type(str(op.operands[0].type)).dtype.name == "bool":
        body = Body(_OF_BOOLS[body.name]) if body.name in _OF_BOOLS else body
    if body.name == "add":
        return "ReduceAdd", {"dimensions": dimensions}
    return "Reduce", {"dimensions": dimensions, "body": body}


@translates("stablehlo.map")
def _(op: Any) -> Translation:
    return "Map", {"body": read_body(op.regions[0]), "dtype": tensor_type(str(op.results[0].type)).dtype.name}


@translates("stablehlo.sort")
def _(op: Any) -> Translation:
    rank = tensor_type(str(op.operands[0].type)).rank
    dimension = attribute(op, "dimension", -1)
    attrs = {"body": read_body(op.regions[0]), "stable": attribute(op, "is_stable", False)}
    return "Sort", {"dimension": dimension % rank if rank else dimension, **attrs}


def _normalization(operator: str) -> Any:
    def translate(op: Any) -> Translation:
        return operator, {"epsilon": attribute(op, "epsilon"), "feature": attribute(op, "feature_index")}

    return translate


for _name, _operator in (
    ("inference", "BatchNormInference"),
    ("training", "BatchNormTraining"),
    ("grad", "BatchNormGrad"),
):
    translates(f"stablehlo.batch_norm_{_name}")(_normalization(_operator))
