"""Rows that people flatten, worked on as they were: `unmerged(graph)`, of a graph without gradients.

    x: [b, s, d] -> [(b s), d] -> product, bias -> [(b s), n] -> [b, s, n]    ->    product, bias on [b, s, ...]

Blocks of batch and sequence together are no blocks of their merged dim, so that a mesh that splits both would have to
gather what is flattened. Operators that work on each row alone, or sum over all rows, do the same on rows of several
dims. Tokens that go to experts and back do so sample by sample, and what works on experts' rows does on those of each:

    rows of experts [e, (b c), d] -> product -> [e, (b c), n]    ->    [b, e, c, d] -> product -> [b, e, c, n]

Rows stay flattened where something else needs them so: the tokens that are sorted, outputs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autoshard.core.rule import PASS, REDUCTION, Rule
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Graph, Node, Value, renamed
from autoshard.ops.registry import lookup
from autoshard.transform.simplify import live_nodes, with_nodes
from autoshard.util.errors import AutoshardError

Shape = tuple[int, ...]
ROWS = -2
"""The dim of experts' rows: behind the experts', before the columns."""
AXES = ("axis", "axes", "dim", "dims", "perm", "begin_norm_axis", "begin_params_axis")
"""Attributes that number dims."""
WHOLE = {"begin": None, "end": None, "strides": 1}
"""Attributes that say something of each dim, and what they say where all of it is taken."""
_RESHAPE = lookup("Reshape")
EXPERTS = ("DispatchTokens", "CombineTokens")
"""The operators that send tokens to experts, and back."""


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
    outputs = renamed(graph.outputs, found.instead)
    return with_nodes(replace(graph, outputs=outputs), live_nodes(nodes, outputs))


class _Rows:
    """One look at a graph. `rows` has, for each value with flattened rows, the one with rows of several dims;
    `dims` the leading dims of these; `sent` are values with rows of experts. `needed` are the reshapes that flatten
    what something needs flattened, `instead` values that are others now."""

    def __init__(self, graph: Graph, stays: Collection[Node]) -> None:
        self.graph, self.stays = graph, stays
        self.rows: dict[Value, Value] = {}
        self.dims: dict[Value, Shape] = {}
        self.sent: set[Value] = set()
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
        return replace(node, operands=renamed(node.operands, self.instead))

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
        own = node.op.name == "CustomGradient"  # whose gradients lie as what they are of
        if node in self.stays or node.regions or node.given_rule is not None or not (node.op.has_rule or own):
            return None
        flat = [value for value in node.operands if value in self.rows]
        leads = {self.dims[value] for value in flat}
        if len(leads) != 1 or node.op.has_effects(node.attrs):
            return None
        (lead,) = leads
        makers = frozenset[Node]().union(*(self.makers[value] for value in flat))
        if own:
            all_rows = tuple(self.rows[value] for value in flat)
            return (self._made(node, all_rows, dict(node.attrs), lead, makers),) if flat == [*node.operands] else None
        if node.op.name == "Reshape":
            return None if self.sent.issuperset(flat) else self._reshaped(node, self.rows[flat[0]], lead, makers)
        fills = self._fills(node, lead)
        for new in (fills, {}, {**fills, **self._apart(node, lead, fills)}):
            made = {value: one.results[0] for value, one in new.items()}
            operands = tuple(made.get(one) or self.rows.get(one, self.instead.get(one, one)) for one in node.operands)
            attrs = self._attributes(node, operands, [one in self.rows or one in made for one in node.operands], lead)
            if attrs is not None:
                return (*new.values(), self._made(node, operands, attrs, lead, makers))
        return None

    def _fills(self, node: Node, lead: Shape) -> dict[Value, Node]:
        """Operands that are one number for each flattened row, as what makes it for each of the rows as they were."""
        found = {}
        for value in node.operands:
            maker = self.graph.producers.get(value, (None, 0))[0]
            if maker is not None and maker.op.name == "Fill" and value.type.shape[:1] == (math.prod(lead),):
                of = TensorType.of((*lead, *value.type.shape[1:]), value.type.dtype)
                attrs = maker.op.check_attributes({**maker.attrs, "shape": of.shape})
                found[value] = Node(maker.op, (), attrs, (Value(of, value.name),), maker.name, maker.source)
        return found

    def _apart(self, node: Node, lead: Shape, fills: Collection[Value]) -> dict[Value, Node]:
        """Other operands that have a number or more for each flattened row (random numbers), and no more than the rows
        have, with their rows taken apart."""
        most = max(value.type.elements for value in node.operands if value in self.rows)
        found = {}
        for value in node.operands:
            shape = value.type.shape
            if value in self.rows or value in fills or shape[:1] != (math.prod(lead),) or value.type.elements > most:
                continue
            of = TensorType.of((*lead, *shape[1:]), value.type.dtype)
            made, attrs = Value(of, f"{value.name}.apart"), _RESHAPE.check_attributes({"shape": of.shape})
            found[value] = Node(_RESHAPE, (self.instead.get(value, value),), attrs, (made,), source=node.source)
        return found

    def _made(
        self, node: Node, operands: tuple[Value, ...], attrs: dict[str, Any], lead: Shape, makers: frozenset[Node]
    ) -> Node:
        """The operator on rows of several dims. Its results are rows of experts if that is what it sends tokens to, or
        if it works on such."""
        sends = node.op.name == EXPERTS[0] or node.op.name not in EXPERTS and any(
            value in self.sent for value in node.operands)  # fmt: skip
        results = []
        for value, of in zip(node.results, node.op.result_types(_types(operands), attrs), strict=True):
            results.append(Value(of, value.name))
            if of == value.type:
                self.instead[value] = results[-1]
            else:
                self._note(value, results[-1], lead, makers)
                self.sent.update([value] if sends else [])
        return Node(node.op, tuple(operands), attrs, tuple(results), node.name, node.source, is_custom=node.is_custom)

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

    def _attributes(
        self, node: Node, operands: tuple[Value, ...], flat: list[bool], lead: Shape
    ) -> dict[str, Any] | None:
        """The attributes with which the operator does to rows of several dims what it did to flattened ones."""
        sent = [value in self.sent for value in node.operands]
        if node.op.name in EXPERTS:
            return _of_samples(node, lead) if all(flat) and sent == [node.op.name != EXPERTS[0], False, False] else None
        if any(sent):
            wanted = _spread_sent(node.rule, sent, lead) if sent == flat else None
        else:
            wanted = _spread(node.rule, flat, lead)
        shifted = _behind(node, len(lead) - 1) if any(sent) else _shifted(node, len(lead))
        if isinstance(shape := shifted.get("shape"), tuple) and len(shape) > 1:
            rows = (*shape[:ROWS], shape[ROWS] // math.prod(lead[:-1]), *shape[ROWS + 1 :])
            shifted["shape"] = (*lead[:-1], *rows) if any(sent) else (*lead, *shape[1:])
        for attrs in (dict(node.attrs), shifted) if wanted else ():
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
    return _widened(found, count - 1)


def _behind(node: Node, count: int) -> dict[str, Any]:
    """The attributes where so many dims have come before the first."""

    def moved(axis: Any) -> Any:
        if isinstance(axis, tuple):
            return tuple(map(moved, axis))
        return axis + count if isinstance(axis, int) and not isinstance(axis, bool) and axis >= 0 else axis

    return _widened({name: moved(of) if name in AXES else of for name, of in node.attrs.items()}, count)


def _widened(attrs: dict[str, Any], count: int) -> dict[str, Any]:
    """The attributes with what they say of each dim also for so many before the first, of which all is taken."""
    return {name: (WHOLE[name],) * count + of if name in WHOLE and isinstance(of, tuple) else of
            for name, of in attrs.items()}  # fmt: skip


def _of_samples(node: Node, lead: Shape) -> dict[str, Any] | None:
    """The attributes with which tokens go to experts, or back, sample by sample; None where blocks are of several."""
    samples, blocks = math.prod(lead[:-1]), node.attrs["blocks"]
    if blocks % samples or lead[-1] % (blocks // samples):
        return None
    return {**node.attrs, "blocks": blocks // samples}


def _spread(rule: Rule, flat: list[bool], lead: Shape) -> tuple | None:
    """The form of the rule with the rows' factor as several, where it is that of rows which each stand alone or are all
    summed: the first dim of what is flattened, of some results, and of nothing else."""
    firsts = {dims[0] for dims, is_flat in zip(rule.operands, flat, strict=True) if is_flat and dims}
    row = firsts.pop() if len(firsts) == 1 else ()
    if len(row) != 1:
        return None
    (number,) = row
    if not _is_plain(rule, number):
        return None
    sides = [*zip(rule.operands, flat, strict=True), *((dims, number in sum(dims, ())) for dims in rule.results)]
    for dims, is_flat in sides:
        places = [i for i, dim in enumerate(dims) if number in dim]
        if places != ([0] if is_flat else []) or is_flat and dims[0] != row:
            return None
    return _form(rule, {number: lead})


def _spread_sent(rule: Rule, sent: list[bool], lead: Shape) -> tuple | None:
    """The same for rows of experts, whose samples come before all other dims."""
    found = {dims[ROWS] for dims, is_sent in zip(rule.operands, sent, strict=True) if is_sent}
    row = found.pop() if len(found) == 1 else ()
    samples = math.prod(lead[:-1])
    if len(row) != 1 or not _is_plain(rule, row[0]) or rule.factors[row[0]].size % samples:
        return None
    (number,) = row
    sides = [*zip(rule.operands, sent, strict=True), *((dims, True) for dims in rule.results)]
    for dims, is_sent in sides:
        places = [i for i, dim in enumerate(dims) if number in dim]
        if places != ([len(dims) + ROWS] if is_sent else []) or is_sent and dims[ROWS] != row:
            return None
    return _form(rule, {number: (*lead[:-1], rule.factors[number].size // samples)}, before=True)


def _is_plain(rule: Rule, number: int) -> bool:
    """Whether a factor is that of rows which each stand alone or are all summed."""
    factor = rule.factors[number]
    if factor.kind not in (PASS, REDUCTION) or factor.whole or factor.exchange or factor.blocked or factor.follows:
        return False
    return not any(one.follows == factor.name or one.joins for one in rule.factors)


def _form(rule: Rule, spread: Mapping[int, Shape] | None = None, before: bool = False) -> tuple:
    """What a rule says, whatever its letters are; with the factors of `spread` in several dims instead of one, in its
    place or, all but the last of them, `before` all other dims."""
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
        if before:
            spreads = [dim[0] for dim in dims if len(dim) == 1 and dim[0] in spread]
            found += [(number(i, part),) for i in spreads for part in range(len(spread[i]) - 1)]
        for dim in dims:
            if len(dim) == 1 and dim[0] in spread:
                parts = range(len(spread[dim[0]]))
                found += [(number(dim[0], part),) for part in (parts[-1:] if before else parts)]
            else:
                found.append(tuple(number(i, 0) for i in dim))
        return tuple(found)

    sides = tuple(map(side, rule.operands)), tuple(map(side, rule.results))
    return sides, tuple(kinds), rule.reduction
