"""How an operator runs for one micro batch, by its rule: which part of each operand it takes, and what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Node, Value
from autoshard.layout.mesh import Mesh
from autoshard.ops.attributes import OperatorPlacement, resolve
from autoshard.ops.hlo_reduce import begins_with_nothing, reduce_add, reduce_with
from autoshard.ops.hlo_scatter import scatter_add_slices, scatter_slices
from autoshard.transform.micro.forms import Form, MicroPartial, MicroRows, factor_of, local, part_in
from autoshard.transform.micro.statistics import COMPOSITES, same_everywhere
from autoshard.util.errors import ShapeError

AXIS = "micro"


@dataclass(frozen=True)
class Cut:
    """How an operator runs for one micro batch: the forms of its operands (None: whole) and results, and attributes."""

    operands: tuple[Form | None, ...]
    results: tuple[Form, ...]
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]


class MicroRefusal(Exception):
    """Why an operator cannot run for one micro batch alone."""


def _begins_with_nothing(node: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether its first part begins with initial values, which change nothing however often they count."""
    if node.op in (reduce_add, reduce_with):
        starts = node.operands[len(node.operands) // 2 :]
    elif node.op in (scatter_add_slices, scatter_slices):
        starts = node.operands[: len(node.operands) // 2]
    else:
        return False
    known = [number for value in starts if (number := same_everywhere(value, makers)) is not None]
    return len(known) == len(starts) and begins_with_nothing(known, node.attrs)


def cut_statistics(node: Node, factor: int, inner: int, parts: int) -> Cut:
    """How an operator that takes statistics inside runs on the rows of a micro batch alone."""
    rule = node.rule
    wants = tuple(part_in(rule, dims, factor, inner) for dims in rule.operands)
    types = tuple(
        of if part is None else of.with_shape(local(of.shape, part, parts))
        for of, part in zip(node.operand_types, wants, strict=True)
    )
    forms = tuple(part_in(rule, dims, factor, inner) or COMPOSITES[node.op] for dims in rule.results)
    return Cut(wants, forms, node.attrs, node.op.result_types(types, node.attrs))


def cut_by(node: Node, factor: int, inner: int, mesh: Mesh, makers: Mapping[Value, Node]) -> Cut:
    """How a node runs if each micro batch has its share of one factor.

    Args:
        makers: the node that makes each value of the graph, as far as one does.

    Raises:
        Refused: the operator needs all of it, or knows where in the batch a row lies.
    """
    rule, parts = node.rule, mesh.devices
    of = rule.factors[factor]
    if not of.splittable or of.exchange or of.whole or factor in rule.contracted and factor not in rule.summed:
        raise MicroRefusal("needs all rows of the batch at once")
    if of.size % (inner * parts):
        raise MicroRefusal(f"has {of.size // inner} rows, which {parts} does not divide")
    axes = tuple((mesh.ref(AXIS),) if i == factor else () for i in range(len(rule.factors)))
    strategy = Strategy(rule, mesh, axes)
    placement = OperatorPlacement(
        node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts
    )
    try:
        attrs = node.op.local_attributes(node.attrs, placement)
        operands = tuple(of.with_shape(placement.local_operand(i)) for i, of in enumerate(node.operand_types))
        results = tuple(of.with_shape(placement.local_result(i)) for i, of in enumerate(node.result_types))
        fits = node.op.result_types(operands, attrs) == results
    except ShapeError as error:
        raise MicroRefusal(f"cannot run on a part of the batch: {error}") from None
    first, last = ({name: resolve(value, rank) for name, value in attrs.items()} for rank in (0, parts - 1))
    if first != last and not _begins_with_nothing(node, makers):
        raise MicroRefusal("does something else for the first rows of the batch than for others")
    if not fits:
        raise MicroRefusal("makes something else of a part of the batch")
    forms = tuple(part_in(rule, dims, factor, inner) or MicroPartial(rule.reduction) for dims in rule.results)
    wants = tuple(part_in(rule, dims, factor, inner) for dims in rule.operands)
    return Cut(wants, forms, first, results)


def cut_at(node: Node, position: int, part: MicroRows, mesh: Mesh, makers: Mapping[Value, Node]) -> Cut:
    """How a node makes a micro batch's rows of one of its results.

    Raises:
        MicroRefusal: it cannot.
    """
    if node.regions or not node.op.has_rule:
        raise MicroRefusal("holds computations of its own, which are not cut into micro batches yet")
    found = factor_of(node.rule, node.rule.results[position], part, mesh.devices)
    if found is None:
        raise MicroRefusal("takes apart or joins the rows of the batch")
    cut = cut_by(node, *found, mesh, makers)
    if cut.results[position] != part:
        raise MicroRefusal("makes the rows of the batch in another order")
    return cut
