"""How large each dim is held where a layout does not divide it: one padded size for all places that belong together.

A dim that is whole on a rank has its true size. A split one is held as part of a larger dim that all layouts divide
which the value, and the values that operators bind to it by split factors, ever have: so blocks meet blocks, and a
finer layout follows from a coarser one by local cuts. The sizes of one class grow by one common ratio, because a dim
`(a b)` can only grow with its major factor `a`. Where a minor factor is split, its dims must not be padded at all:
they are `exact` for that operator.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from fractions import Fraction

from autoshard.core.rule import Rule
from autoshard.core.strategy import Strategy
from autoshard.ir.flow import is_nest, manual_axes, node_links, value_at
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.ops.control import Edge
from autoshard.plan.plan import Plan
from autoshard.util.errors import StrategyError
from autoshard.util.errors import at as where

Shape = tuple[int, ...]


class Padding:
    """Collects in which layouts values lie and which operators bind their dims; then tells padded shapes.

    First `add_layout`, `add_equal` and `add_operator` for all values and operators of a program, then `shape` and
    `of_node`.
    """

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}
        self._members: dict[Hashable, set[tuple[int, int]]] = {}
        self._ratios: dict[Hashable, Fraction] | None = None

    # -- what is known of the program

    def add_layout(self, value: Value, layout: Layout) -> None:
        """The value lies in this layout somewhere in the program."""
        for dim, (size, parts) in enumerate(zip(value.type.shape, layout.parts, strict=True)):
            if parts > 1 and size:
                self._member((value, dim), size, parts)

    def add_equal(self, values: Iterable[Value]) -> None:
        """These values are held in the same blocks, in dims of equal size: what a loop carries, results of branches."""
        first, *others = values
        for other in others:
            for dim, (size, same) in enumerate(zip(first.type.shape, other.type.shape, strict=True)):
                if size == same:
                    self._join((first, dim), (other, dim))

    def add_operator(self, node: Node, strategy: Strategy) -> None:
        """The operator runs by this strategy: dims with the same split factor are held alike."""
        for value, layout in zip(node.operands, strategy.operand_layouts, strict=True):
            self.add_layout(value, layout)
        for value, layout in zip(node.results, strategy.result_layouts, strict=True):
            self.add_layout(value, layout)
        rule, exact = strategy.rule, exact_factors(strategy)
        tensors = zip((*node.operands, *node.results), (*rule.operands, *rule.results), strict=True)
        for value, dims in tensors:
            for dim, factors in enumerate(dims):
                for i in leading(rule, factors, value.type.shape[dim]):
                    parts = strategy.parts[rule.leaders[i]]
                    if parts > 1 and i not in exact:
                        self._member((node, i), rule.factors[i].size, parts)
                        self._join((node, i), (value, dim))

    def _member(self, key: Hashable, size: int, parts: int) -> None:
        self._members.setdefault(self._top(key), set()).add((size, parts))
        self._ratios = None

    def _top(self, key: Hashable) -> Hashable:
        top = key
        while (above := self._above.get(top)) is not None:
            top = above
        while key != top:
            self._above[key], key = top, self._above[key]
        return top

    def _join(self, a: Hashable, b: Hashable) -> None:
        a, b = self._top(a), self._top(b)
        if a != b:
            self._above[b] = a
            self._members.setdefault(a, set()).update(self._members.pop(b, ()))
            self._ratios = None

    # -- what follows

    def shape(self, value: Value, layout: Layout) -> Shape:
        """The shape as a part of which the value is held in this layout; the value's own where that divides it."""
        sizes = value.type.shape
        if not self._members or not any(layout.dims):
            return sizes
        parts = enumerate(zip(sizes, layout.parts, strict=True))
        return tuple(self._padded((value, dim), size) if count > 1 else size for dim, (size, count) in parts)

    def of_node(self, node: Node, strategy: Strategy) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """The same for all operands and results of an operator while it runs."""
        if not self._members:
            return tuple(of.shape for of in node.operand_types), tuple(of.shape for of in node.result_types)
        rule, exact = strategy.rule, exact_factors(strategy)

        def shapes(
            values: Sequence[Value], layouts: Sequence[Layout], rows: Sequence[tuple[tuple[int, ...], ...]]
        ) -> tuple[Shape, ...]:
            return tuple(
                tuple(
                    size if exact.intersection(factors) else padded
                    for factors, size, padded in zip(dims, value.type.shape, self.shape(value, layout), strict=True)
                )
                for value, layout, dims in zip(values, layouts, rows, strict=True)
            )

        return (
            shapes(node.operands, strategy.operand_layouts, rule.operands),
            shapes(node.results, strategy.result_layouts, rule.results),
        )

    def of_manual(self, node: Node, value: Value, layout: Layout) -> Shape:
        """The same of an operand or result of a manual computation: its blocks are those that its words say, so nothing
        is padded where these cut. Of other nests it is `shape`."""
        manual = manual_axes(node)
        rows = zip(value.type.shape, self.shape(value, layout), layout.dims, strict=True)
        return tuple(size if any(ref.name in manual for ref in refs) else padded for size, padded, refs in rows)

    def _padded(self, key: Hashable, size: int) -> int:
        if self._ratios is None:
            self._ratios = {top: _ratio(members) for top, members in self._members.items() if members}
        ratio = self._ratios.get(self._top(key), Fraction(1))
        return int(size * ratio)


def _ratio(members: Iterable[tuple[int, int]]) -> Fraction:
    """The least ratio, at least 1, by which all sizes must grow so that their numbers of parts divide them."""
    units = [Fraction(parts, size) for size, parts in members]
    unit = Fraction(math.lcm(*(one.numerator for one in units)), math.gcd(*(one.denominator for one in units)))
    return unit * math.ceil(1 / unit)


def leading(rule: Rule, factors: Sequence[int], size: int) -> tuple[int, ...]:
    """The factor with which a dim grows: its major one of more than one element.

    None where the factors do not make the dim: one whose blocks are made of what ranks exchange.
    """
    if math.prod(rule.factors[i].size for i in factors) != size:
        return ()
    major = next((i for i in factors if rule.factors[i].size > 1), None)
    return () if major is None else (major,)


def exact_factors(strategy: Strategy) -> frozenset[int]:
    """Factors that the operator can only run split as they are.

    Those in a dim with a split minor factor, and those that share a dim with one of them.
    """
    rule, parts = strategy.rule, strategy.parts
    found: set[int] = set()
    dims = {dim for dims in (*rule.operands, *rule.results) for dim in dims if len(dim) > 1}
    for dim in dims:
        large = [i for i in dim if rule.factors[i].size > 1]
        if any(parts[i] > 1 for i in large[1:]):
            found.update(large)
    grown = bool(found)
    while grown:
        more = {i for dim in dims if found.intersection(dim) for i in dim} - found
        found |= more
        grown = bool(more)
    return frozenset(found)


# -- of a plan


def padding_of(plan: Plan) -> Padding:
    """The padding of the program that a plan is lowered to.

    Raises:
        StrategyError: a manual computation cuts a dim into parts that do not divide it.
    """
    padding = Padding()
    if _divides_all(plan):
        return padding
    for value, layout in (*plan.layouts.items(), *zip(plan.graph.outputs, plan.outputs, strict=True)):
        padding.add_layout(value, layout)
    for value, replaced in plan.graph.tied.items():
        padding.add_equal((value, replaced))
    nests = [node for node in plan.decisions if is_nest(node)]
    for node, decision in plan.decisions.items():
        padding.add_operator(node, decision.strategy)
    for node in nests:
        for edge in _edges(node):
            padding.add_equal(value_at(node, spot) for spot in (*edge.sources, *edge.targets))
    for node in nests:
        _check_manual(node, plan.strategy(node))
    return padding


def _divides_all(plan: Plan) -> bool:
    """Whether nothing has to be padded."""
    ends = zip(plan.graph.outputs, plan.outputs, strict=True)
    if not all(layout.divides(value.type.shape) for value, layout in (*plan.layouts.items(), *ends)):
        return False
    return all(_divides(node, decision.strategy) for node, decision in plan.decisions.items())


def _divides(node: Node, strategy: Strategy) -> bool:
    sides = (*zip(node.operands, strategy.operand_layouts, strict=True),)
    sides += (*zip(node.results, strategy.result_layouts, strict=True),)
    if not all(layout.divides(value.type.shape) for value, layout in sides):
        return False
    factors = zip(strategy.rule.factors, strategy.parts, strict=True)
    return all(factor.size % parts == 0 for factor, parts in factors if not factor.exchange)


def _edges(node: Node) -> Iterator[Edge]:
    found = node_links(node)
    yield from dict.fromkeys((*found.sources.values(), *found.targets.values()))


def _check_manual(node: Node, strategy: Strategy) -> None:
    """That what a manual computation cuts is cut into equal blocks: nothing is padded there."""
    manual = manual_axes(node)
    values = zip((*node.operands, *node.results), (*strategy.operand_layouts, *strategy.result_layouts), strict=True)
    for value, layout in values if manual else ():
        for dim, (size, parts) in enumerate(zip(value.type.shape, layout.parts, strict=True)):
            if size % parts and any(ref.name in manual for ref in layout.dims[dim]):
                raise StrategyError(
                    f"{node.label} ({node.op.name}){where(node.source)} is written for equal blocks along "
                    f"{', '.join(manual)}, but {value.name}: {value.type} as [{layout}] has dim {dim} in "
                    f"{parts} parts, which do not divide it"
                )
