"""Where an operator would see padding, and what the padding must hold there.

A reduction over a dim with padding comes out right if the padding holds its neutral element; indices that have to be
in range hold what their operator says. Everywhere else padding is free to hold anything, NaN included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoshard.core.rule import Rule
from autoshard.ir.graph import Node
from autoshard.ops.attributes import Valid
from autoshard.ops.padding import neutral_element
from autoshard.partition.program import Register
from autoshard.util.errors import StrategyError
from autoshard.util.errors import at as where


def masks(node: Node, rule: Rule, operands: Sequence[Register]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The operands whose padding must be overwritten: (number, attributes of MaskPadding).

    Raises:
        StrategyError: the operator reduces over padding, and what that must hold is not known.
    """
    fills = node.op.fills(node.attrs)
    for i, register in enumerate(operands):
        padded = padded_dims(register)
        if not padded:
            continue
        if i in fills:
            yield i, _attributes(register, fills[i])
            continue
        contracted = set(rule.summed)
        seen = [dim for dim in padded if contracted.intersection(rule.operands[i][dim])]
        if seen and node.op.neutral == "yes":
            yield i, _attributes(register, neutral_element(rule.reduction, register.whole.dtype))
        elif seen and node.op.neutral != "own":
            raise StrategyError(
                f"{node.label} ({node.op.name}){where(node.source)} reduces dim {seen[0]} of {register.true}, which "
                f"{register.layout.parts[seen[0]]} parts do not divide: what its padding must hold is not known; split "
                "the dim evenly, or say `neutral` where the operator is defined"
            )


def padded_dims(register: Register) -> list[int]:
    """The dims whose blocks reach beyond the value."""
    sizes = enumerate(zip(register.whole.shape, register.true.shape, strict=True))
    return [dim for dim, (held, size) in sizes if held > size]


def _attributes(register: Register, fill: float) -> Mapping[str, Any]:
    layout, local, true, padded = register.layout, register.local.shape, register.true.shape, padded_dims(register)
    valid = (
        Valid(layout.mesh, layout.dims[dim], size, true[dim]) if dim in padded else size
        for dim, size in enumerate(local)
    )
    return {"valid": tuple(valid), "fill": fill}
