"""The scalar functions in regions of operations (what reduce combines with, what sort compares by) as Body values."""

from __future__ import annotations

from typing import Any

from autoshard.frontends.stablehlo.attributes import CONSTRAINT
from autoshard.ir.run import Elementwise
from autoshard.ir.text import show
from autoshard.ops.body import Body

_KNOWN = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.xor": "xor",
}


def read_body(region: Any) -> Body:
    """The function that a region computes, known by name if it is one of the usual reductions.

    Any other one has the text of its graph, with values numbered in order, so that equal functions are equal.

    Raises:
        ParseError: the region uses values from outside it, or has more than one block.
    """
    name = _known(region.blocks[0])
    return Body(name) if name else _unknown(region)


def _known(block: Any) -> str:
    """The name of the reduction, '' if it is none of the usual ones."""
    operations = block.operations
    if len(block.arguments) != 2 or not 2 <= len(operations) <= 3:
        return ""
    op, *constraint, last = (one.operation for one in operations)
    if constraint and (constraint[0].name != CONSTRAINT or list(constraint[0].operands) != list(op.results)):
        return ""
    if op.name not in _KNOWN or list(last.operands) != list((*constraint, op)[0].results):
        return ""
    return _KNOWN[op.name] if set(op.operands) == set(block.arguments) else ""


def _unknown(region: Any) -> Body:
    from autoshard.frontends.stablehlo.reader import read_scalar_function

    graph = read_scalar_function(region)
    return Body("", show(graph), Elementwise(graph))
