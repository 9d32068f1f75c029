"""Rows that people flatten, worked on as they were: `unmerged(graph)`, of a graph without gradients.

    x: [b, s, d] -> [(b s), d] -> product, bias -> [(b s), n] -> [b, s, n]    ->    product, bias on [b, s, ...]

Blocks of batch and sequence together are no blocks of their merged dim, so that a mesh that splits both would have to
gather what is flattened. Operators that work on each row alone, or sum over all rows, do the same on rows of several
dims. Rows stay flattened where something else needs them so: the tokens that are sorted for experts, outputs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autoshard.core.rule import PASS, REDUCTION, Rule
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Graph, Node, Value
from autoshard.transform.simplify import live_nodes, with_nodes
from autoshard.util.errors import AutoshardError

Shape = tuple[int, ...]
AXES = ("axis", "axes", "dim", "dims", "begin_norm_axis", "begin_params_axis")
"""Attributes that number dims."""


def unmerged(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph with operators on rows of several dims where these were flattened before them, else itself.

    The new operators' results have the names of the flattened ones. Nodes in `keep` (annotated ones) and what they use
    stay.
    """
    stays = {*keep}
    while True:
        found = _Rows(graph, stays)
        nodes = found.run()
        if not found.needed:
            break
        stays |= found.needed
    if not found.rows:
        return graph
    outputs = tuple(found.instead.get(value, value) for value in graph.outputs)
    return with_nodes(replace(graph, outputs=outputs), live_nodes(nodes, outputs))


class _Rows:
    """One look at a graph. `rows` has, for each value with flattened rows, the one with rows of several dims;
    `needed` the reshapes that flatten what something needs flattened, `instead` values that are others now."""

    def __init__(self, graph: Graph, stays: Collection[Node]) -> None:
        self.graph, self.stays = graph, stays
        self.rows: dict[Value, Value] = {}
        self.dims: dict[Value, Shape] = {}
        self.makers: dict[Value, frozenset[Node]] = {}
        self.needed: set[Node] = set()
        self.instead: dict[Value, Value] = {}

    def run(self) -> tuple[Node, ...]:
        made = tuple(one for node in self.graph.nodes for one in self._of(node))
        for value in self.graph.outputs:
            self._need(value)
        return made

    def _need(self, value: Value) -> None:
        self.needed |= self.makers.get(value, frozenset())

    def _of(self, node: Node) -> Iterator[Node]:
        """The node as it is now, and as it was for as long as its results are needed."""
        lead = self._flattened(node)
        if lead is not None:
            (value,), (result,) = node.operands, node.results
            self._note(result, self.instead.get(value, value), lead, frozenset({node}))
            yield self._reading(node)
            return
        flat = [value for value in node.uses if value in self.rows]
        if not flat:
            yield self._reading(node)
            return
        made = self._on_rows(node)
        if made is None:
            for value in flat:
                self._need(value)
            yield self._reading(node)
        else:
            yield self._reading(node)
            yield from made

    def _reading(self, node: Node) -> Node:
        """The node with what its operands are now."""
        if not any(value in self.instead for value in node.operands):
            return node
        return replace(node, operands=tuple(self.instead.get(value, value) for value in node.operands))

    def _note(self, flat: Value, rows: Value, lead: Shape, makers: frozenset[Node]) -> None:
        self.rows[flat], self.dims[flat], self.makers[flat] = rows, lead, makers

    def _flattened(self, node: Node) -> Shape | None:
        """The leading dims that a reshape makes one of, if that is all it does."""
        if node.op.name != "Reshape" or node in self.stays or node.operands[0] in self.rows:
            return None
        before, after = node.operand_types[0].shape, node.result_types[0].shape
        merged = len(before) - len(after) + 1
        if merged < 2 or before[merged:] != after[1:] or not after or math.prod(before[:merged]) != after[0]:
            return None
        return before[:merged] if min(before[:merged]) > 1 else None

    def _on_rows(self, node: Node) -> tuple[Node, ...] | None:
        """What does the same on rows of several dims; None if nothing does."""
        if node in self.stays or node.regions or node.given_rule is not None or not node.op.has_rule:
            return None
        flat = [value for value in node.operands if value in self.rows]
        leads = {self.dims[value] for value in flat}
        if len(leads) != 1 or node.op.has_effects(node.attrs):
            return None
        (lead,) = leads
        operands = tuple(self.rows.get(value, self.instead.get(value, value)) for value in node.operands)
        makers = frozenset[Node]().union(*(self.makers[value] for value in flat))
        if node.op.name == "Reshape":
            return self._reshaped(node, operands[0], lead, makers)
        attrs = self._attributes(node, operands, lead)
        if attrs is None:
            return None
        results = []
        for value, of in zip(node.results, node.op.result_types(_types(operands), attrs), strict=True):
            results.append(Value(of, value.name))
            if of == value.type:
                self.instead[value] = results[-1]
            else:
                self._note(value, results[-1], lead, makers)
        return (Node(node.op, operands, attrs, tuple(results), node.name, node.source, is_custom=node.is_custom),)

    def _reshaped(self, node: Node, rows: Value, lead: Shape, makers: frozenset[Node]) -> tuple[Node, ...] | None:
        """A reshape of rows: back to what they were, or of what lies behind them."""
        (result,) = node.results
        shape = result.type.shape
        if shape == rows.type.shape:
            self.instead[result] = rows
            return ()
        if shape[: len(lead)] == lead:
            made = Value(result.type, result.name)
            self.instead[result] = made
        elif shape[:1] == (math.prod(lead),) and len(shape) > 1:
            made = Value(TensorType.of((*lead, *shape[1:]), result.type.dtype), result.name)
            self._note(result, made, lead, makers)
        else:
            return None
        attrs = node.op.check_attributes({**node.attrs, "shape": made.type.shape})
        return (Node(node.op, (rows,), attrs, (made,), node.name, node.source),)

    def _attributes(self, node: Node, operands: tuple[Value, ...], lead: Shape) -> dict[str, Any] | None:
        """The attributes with which the operator does to rows of several dims what it did to flattened ones."""
        flat = [value in self.rows for value in node.operands]
        wanted = _spread(node.rule, flat, lead)
        for attrs in (dict(node.attrs), _shifted(node, len(lead))) if wanted else ():
            with suppress(AutoshardError):
                if _form(node.op.rule(_types(operands), attrs)) == wanted:
                    return attrs
        return None


def _types(values: tuple[Value, ...]) -> tuple[TensorType, ...]:
    return tuple(value.type for value in values)


def _shifted(node: Node, count: int) -> dict[str, Any]:
    """The attributes where the first dim has become so many; numbers of dims from behind stay."""

    def places(axis: int) -> tuple[int, ...]:
        return (axis,) if axis < 0 else tuple(range(count)) if axis == 0 else (axis + count - 1,)

    found = dict(node.attrs)
    for name in AXES:
        axes = found.get(name)
        if axes == 0 and not node.op.name.startswith("Reduce"):  # others take one dim
            continue
        if isinstance(axes, tuple) and all(isinstance(one, int) for one in axes):
            found[name] = tuple(place for one in axes for place in places(one))
        elif isinstance(axes, int) and not isinstance(axes, bool):
            moved = places(axes)
            found[name] = moved[0] if len(moved) == 1 else moved
    return found


def _spread(rule: Rule, flat: list[bool], lead: Shape) -> tuple | None:
    """The form of the rule with the rows' factor as several, where it is that of rows which each stand alone or are all
    summed: the first dim of what is flattened, of some results, and of nothing else."""
    firsts = {dims[0] for dims, is_flat in zip(rule.operands, flat, strict=True) if is_flat and dims}
    row = firsts.pop() if len(firsts) == 1 else ()
    if len(row) != 1:
        return None
    (number,) = row
    factor = rule.factors[number]
    if factor.kind not in (PASS, REDUCTION) or factor.whole or factor.exchange or factor.blocked:
        return None
    if any(one.follows == factor.name or one.joins for one in rule.factors) or factor.follows:
        return None
    sides = [*zip(rule.operands, flat, strict=True), *((dims, number in sum(dims, ())) for dims in rule.results)]
    for dims, is_flat in sides:
        places = [i for i, dim in enumerate(dims) if number in dim]
        if places != ([0] if is_flat else []) or is_flat and dims[0] != row:
            return None
    return _form(rule, {number: lead})


def _form(rule: Rule, spread: Mapping[int, Shape] | None = None) -> tuple:
    """What a rule says, whatever its letters are; with the factors of `spread` in several dims instead of one."""
    spread = spread or {}
    known: dict[tuple[int, int], int] = {}
    kinds: list[tuple] = []

    def number(i: int, part: int) -> int:
        if (i, part) not in known:
            known[i, part] = len(known)
            factor = rule.factors[i]
            size = spread[i][part] if i in spread else factor.size
            kinds.append((size, factor.kind, factor.blocked, factor.whole, factor.exchange))
        return known[i, part]

    def side(dims: tuple[tuple[int, ...], ...]) -> tuple:
        found: list[tuple[int, ...]] = []
        for dim in dims:
            if len(dim) == 1 and dim[0] in spread:
                found += [(number(dim[0], part),) for part in range(len(spread[dim[0]]))]
            else:
                found.append(tuple(number(i, 0) for i in dim))
        return tuple(found)

    sides = tuple(map(side, rule.operands)), tuple(map(side, rule.results))
    return sides, tuple(kinds), rule.reduction
