"""The collectives in what JAX has traced, before XLA compiles it: kinds, groups, bytes, as StableHLO says them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.engines.grid import Grid, Rows

Found = tuple[str, Rows, int]
"""Kind, groups in the order of their first members (of a permute: pairs of sender and receiver), bytes."""

_KINDS = {
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_gather": "all_gather",
    "stablehlo.reduce_scatter": "reduce_scatter",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_permute": "permute",
}
_OF_DEVICES = ("stablehlo.partition_id", "stablehlo.replica_id", "stablehlo.rng")
_REDUCED_IN = 4
"""Bytes that XLA's CPU reduces narrower floats in (its AllReducePromotion pass)."""


@dataclass(frozen=True)
class CompiledCollective:
    """A collective, as XLA's CPU compiles it, and whether its operand is known before the run."""

    found: Found
    compiled: Found
    is_known: bool


def asked(module: Any, grid: Grid) -> Iterator[CompiledCollective]:
    """The collectives of a module, `lowered.compiler_ir("stablehlo")`, on devices that stand as `grid` says."""
    known: set[Any] = set()
    for op in _walk(module.operation):
        is_known = op.name not in _OF_DEVICES and all(one in known for one in op.operands)
        if op.name in _KINDS:
            yield _asked(op, grid, is_known)
        if is_known and (op.name in _KINDS or not len(op.regions)):
            known.update(op.results)  # every device has the same: what they make of it together is known, too


def _walk(op: Any) -> Iterator[Any]:
    """All operations below one, in order, each before what it holds."""
    for region in op.regions:
        for block in region:
            for one in block:
                yield one.operation
                yield from _walk(one.operation)


def _asked(op: Any, grid: Grid, is_known: bool) -> CompiledCollective:
    from jaxlib.mlir import ir

    kind = _KINDS[op.name]
    attribute = "source_target_pairs" if kind == "permute" else "replica_groups"
    listed = np.array(ir.DenseIntElementsAttr(op.attributes[attribute])).tolist()
    rows = tuple(sorted(tuple(grid.ranks[place] for place in row if place >= 0) for row in listed))
    types = [ir.RankedTensorType(one.type) for one in op.results]
    sizes = [(math.prod(of.shape), _itemsize(of.element_type), str(of.element_type)) for of in types]
    nbytes = sum(count * width for count, width, _ in sizes)
    reduces = kind in ("all_reduce", "reduce_scatter")
    wide = sum(
        count * (max(width, _REDUCED_IN) if reduces and element in ("bf16", "f16") else width)
        for count, width, element in sizes
    )
    return CompiledCollective((kind, rows, nbytes), (kind, rows, wide), is_known)


def _itemsize(element: Any) -> int:
    from jaxlib.mlir import ir

    if isinstance(element, ir.ComplexType):
        return 2 * _itemsize(ir.ComplexType(element).element_type)
    return max(1, element.width // 8)
