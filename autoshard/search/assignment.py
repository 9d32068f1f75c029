"""Assignment: a strategy for every operator, whose cost is known at any moment and changes by what a change touches.

The cost is that of `evaluate_plan`: a sum of the work of each operator and of one multi-layout cost per value (the
redistributions to all layouts in which the value is wanted, each paid once). Inputs that nobody fixed take the best
layout for their users; what replaces an input leaves in its layout, so both are one term. What runs in a loop counts
as often as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.cost.blocks import local_nbytes
from autoshard.cost.prices import Prices
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.search.local.byte_prices import NOTHING, BytePrices
from autoshard.search.problem import Problem
from autoshard.util.moved import former

ROUNDED = 1e-15
"""Seconds by which an input's price is rounded."""

Wants = frozenset[Layout]
Use = tuple[Node, int]
"""A node and which of its operands or results."""
Ends = tuple[tuple[Layout | None, Wants], ...]
"""How values are left that lie as an input does (None: as it lies), and in which layouts their users want them."""
Kept = tuple[tuple[Layout, float], ...]
"""Layouts in which a value is wanted, each with what a byte of a copy costs that is kept for it."""


@dataclass(eq=False, slots=True)
class Choice:
    """A strategy of a node (and of all that are equal to it), the layouts around it, and its work in seconds.

    Attributes:
        least: the work as far as it is known: what a rank computes, and all of it once it was asked for.
        rest: what tells the rest of the work, which ranks exchange meanwhile; None if none is missing.
    """

    strategy: Strategy
    least: float
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    rest: Callable[[], float] | None

    @property
    def work(self) -> float:
        if self.rest is not None:
            self.least, self.rest = self.least + self.rest(), None
        return self.least


@dataclass(eq=False, slots=True)
class ValueCost:
    """What is paid for one value.

    Attributes:
        kind: a number that values share of one type, and of one `share`; `outs` and the rest aside, equal terms
            cost the same.
        fixed: the layout of an input that is settled.
        outs: the outputs by which the value leaves as it comes, or as is asked of them.
        kept: the layout of the settled input that the value replaces.
        updates: what replaces an input that is not settled: which node makes it, and who uses it besides. Behind it
            what leaves a loop as the input lies, which nobody makes.
        times: how often a step pays.
        share: of the latency, what the value's redistributions count (`Problem.share`).
        counts: per value of `updates`, how often a step pays, and its share.
        held: what a byte of the value costs, where bytes are given a price.
        keeps: what a byte of a copy costs for each of `users`; empty where nothing does.
    """

    value: Value
    kind: int
    source: Use | None
    users: tuple[Use, ...]
    fixed: Layout | None = None
    outs: tuple[int, ...] = ()
    kept: Layout | None = None
    updates: tuple[tuple[Use | None, tuple[Use, ...]], ...] = ()
    times: int = 1
    share: float = 1.0
    counts: tuple[tuple[int, float], ...] = ()
    held: float = 0.0
    keeps: tuple[float, ...] = ()

    @property
    def nodes(self) -> Iterator[Node]:
        made = [self.source] if self.source is not None else []
        for node, _ in (*made, *self.users):
            yield node
        for source, users in self.updates:
            for node, _ in users if source is None else (source, *users):
                yield node


Spread = Callable[[ValueCost, Layout, Iterable[Layout], float], float]


class Pricing:
    """The terms of a problem and what they cost; remembered by the layouts around a value.

    Args:
        nbytes: prices for bytes of memory, which are added to what takes time.
        like: a pricing of the same problem in which bytes cost nothing; what it knows is used again.
    """

    def __init__(
        self, problem: Problem, prices: Prices, nbytes: BytePrices = NOTHING, like: Pricing | None = None
    ) -> None:
        self.problem, self.prices, self.graph, self.nbytes = problem, prices, problem.graph, nbytes
        self._kinds: dict[tuple, int] = like._kinds if like else {}
        self._classes: dict[tuple, int] = {}
        self._choices: dict[tuple, Choice] = {}
        self.listed: dict[tuple[int, bool], dict[Choice, None]] = {}
        self._bounds: dict[tuple, float] = like._bounds if like else {}
        self._made: dict[tuple, float] = like._made if like else {}
        self._inputs: dict[tuple, tuple[float, Layout]] = {}
        self._input_bounds: dict[tuple, float] = {}
        self.class_of = {node: self._class(node) for node in self.graph.nodes}
        self.terms = [self._priced(term) for term in like.terms] if like else list(self._terms())
        self.around: dict[Node, list[int]] = like.around if like else self._around()
        self.of_node = {node: [self.terms[i] for i in places] for node, places in self.around.items()}

    def _around(self) -> dict[Node, list[int]]:
        """Which terms depend on a node."""
        found: dict[Node, list[int]] = {node: [] for node in self.graph.nodes}
        for i, term in enumerate(self.terms):
            if not _is_settled(term):
                for node in dict.fromkeys(term.nodes):
                    found[node].append(i)
        return found

    def _priced(self, term: ValueCost) -> ValueCost:
        """A term of a pricing without prices for bytes, with these."""
        held, keeps = self._bytes(term.value)
        return replace(term, held=held, keeps=keeps) if held or keeps else term

    def _bytes(self, value: Value) -> tuple[float, tuple[float, ...]]:
        """What a byte of a value costs, and of a copy for each of the term's users."""
        held, keeps = self.nbytes.of_value.get(value, (0.0, ()))
        pairs = zip(keeps, self.graph.users[value], strict=True) if keeps else ()
        return held, tuple([price for price, use in pairs if use[0] not in self.problem.leaving_loops])

    def _class(self, node: Node) -> int:
        """A number that nodes share which compute the same function and are left alike."""
        annotation = self.problem.annotations.get(node)
        own = node if annotation is not None and annotation.out_strategy is not None else None
        key = node.key, own, self.problem.runs.get(node, 1), self.nbytes.of_scratch.get(node)
        return self._classes.setdefault(key, len(self._classes))

    def _kind(self, of: TensorType, *counts: float | tuple[int, float]) -> int:
        return self._kinds.setdefault((of, *counts), len(self._kinds))

    def _terms(self) -> Iterator[ValueCost]:
        graph, settled = self.graph, self.problem.input_layouts
        tied, users = graph.tied, graph.users
        replaced: dict[Value, list[Value]] = {}
        for value, into in tied.items():
            if value in graph.producers and into not in settled:
                replaced.setdefault(into, []).append(value)
        outs: dict[Value, list[int]] = {}
        for i, value in enumerate(graph.outputs):
            if value not in tied:
                outs.setdefault(value, []).append(i)
        for value in graph.values:
            if value in tied and value in replaced.get(tied[value], ()):
                continue  # its input's term has it
            share, again = self.problem.share(value), replaced.get(value, [])
            behind = [use for use in users[value] if use[0] in self.problem.leaving_loops]
            counts = [(self.problem.times(one), self.problem.share(one)) for one in again]
            counts += [(self.problem.times(node.results[0]), share) for node, _ in behind]
            kind = self._kind(value.type, share, *counts)
            inside = tuple(use for use in users[value] if use not in behind)
            term = ValueCost(value, kind, graph.producers.get(value), inside, share=share, counts=tuple(counts))
            term.outs = tuple(outs.get(value, ()))
            term.fixed, term.kept = settled.get(value), settled.get(tied[value]) if value in tied else None
            term.updates = tuple((graph.producers[one], tuple(users[one])) for one in again)
            term.updates += tuple((None, (use,)) for use in behind)
            term.times = self.problem.times(value)
            term.held, term.keeps = self._bytes(value)
            yield term

    # -- strategies

    def choice(self, node: Node, strategy: Strategy) -> Choice:
        """The node's strategy with what pricing needs of it; the same object whenever the same is asked."""
        key = (self.class_of[node], strategy)
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = self._made_choice(node, strategy)
        return known

    def _made_choice(self, node: Node, strategy: Strategy) -> Choice:
        prices, runs, left = self.prices, self.problem.runs.get(node, 1), self.problem.left(node, strategy)
        changed = [
            (before, after, of)
            for before, after, of in zip(strategy.result_layouts, left, node.result_types, strict=True)
            if before is not after
        ]

        def rest() -> float:
            return runs * prices.exchange(node, strategy) + sum(prices.redistribution(*one) for one in changed)

        least = self.nbytes.scratch(node, strategy) + runs * prices.local_work(node, strategy)
        more = rest if changed or prices.exchanges(node, strategy) else None
        return Choice(strategy, least, strategy.operand_layouts, left, more)

    # -- terms

    def computed_cost(self, term: ValueCost, left: Layout, wants: Wants) -> float:
        """Seconds to bring a computed value, left in this layout, to those in which it is wanted."""
        key, wanted = self._asked(term, left, wants)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = term.times * self._spread(term, left, wanted, term.share)
        return known

    def computed_cost_bound(self, term: ValueCost, left: Layout, wants: Wants) -> float:
        """A bound below `computed_cost` that plans no redistribution; the same where that is known."""
        key, wanted = self._asked(term, left, wants)
        known = self._made.get(key)
        if known is None:
            known = self._bounds.get(key)
        if known is None:
            known = self._bounds[key] = term.times * self._spread_at_least(term, left, wanted, term.share)
        return known

    def _asked(self, term: ValueCost, left: Layout, wants: Wants) -> tuple[tuple, Wants]:
        """What a computed value's price is remembered by, and all layouts in which it is wanted."""
        if term.outs:
            wants = wants.union([self.problem.leaving(i, left) for i in term.outs])
        if term.kept is not None:
            wants = wants.union((term.kept,))
        return (term.kind, term.times, left, wants), wants

    def _spread(self, term: ValueCost, left: Layout, wanted: Iterable[Layout], share: float) -> float:
        """Seconds to bring a value to all layouts in which it is wanted, summed in an order that does not change."""
        of, price = term.value.type, self.prices.redistribution
        return sum(sorted(price(left, one, of, share) for one in wanted if one is not left))

    def _spread_at_least(self, term: ValueCost, left: Layout, wanted: Iterable[Layout], share: float) -> float:
        of = term.value.type
        return sum([self.prices.surely(left, one, of, share) for one in wanted if one is not left])

    def byte_cost(self, term: ValueCost, left: Layout, kept: Kept) -> float:
        """What a value's bytes cost, as it is left and in copies, where bytes have a price."""
        if not term.held and not kept:
            return 0.0
        of = term.value.type
        copies = sum([price * local_nbytes(of, layout) for layout, price in kept if layout is not left])
        return term.held * local_nbytes(of, left) + copies

    def input_cost(self, term: ValueCost, wants: Wants, ends: Ends, kept: Kept = ()) -> tuple[float, Layout]:
        """Seconds of an input's term, and the layout in which it lies best.

        Args:
            ends: per value that replaces it, how that is left, and the layouts in which its users want it.
        """
        key = _input_key(term, wants, ends, kept)
        known = self._inputs.get(key)
        if known is None:
            known = self._inputs[key] = self._lying(term, wants, ends, kept)
        return known

    def input_cost_bound(self, term: ValueCost, wants: Wants, ends: Ends, kept: Kept = ()) -> float:
        """A bound below `input_cost` that plans no redistribution; the same where that is known."""
        key = _input_key(term, wants, ends, kept)
        known = self._inputs.get(key)
        if known is not None:
            return known[0]
        bound = self._input_bounds.get(key)
        if bound is None:
            bound = min(
                [
                    self._lies(self._spread_at_least, term, one, wants, ends, kept)
                    for one in self._open(term, wants, ends)
                ]
            )
            self._input_bounds[key] = bound
        return bound

    def _lying(self, term: ValueCost, wants: Wants, ends: Ends, kept: Kept) -> tuple[float, Layout]:
        """Computes what `input_cost` remembers: the cheapest layout, then the one of fewest bytes; those whose bound is
        above the best are not priced."""
        found = self._open(term, wants, ends)
        if len(found) > 1:
            bounds = {one: self._lies(self._spread_at_least, term, one, wants, ends, kept) for one in found}
            found = sorted(found, key=lambda one: (bounds[one], str(one)))
        best: tuple | None = None
        for layout in found:
            if best is not None and bounds[layout] > best[0] * (1 + ROUNDED) + ROUNDED:
                break
            seconds = round(self._lies(self._spread, term, layout, wants, ends, kept), 15)
            way = seconds, local_nbytes(term.value.type, layout), str(layout), layout
            best = way if best is None else min(best, way, key=lambda one: one[:3])
        assert best is not None
        return best[0], best[3]

    def _open(self, term: ValueCost, wants: Wants, ends: Ends) -> Collection[Layout]:
        """The layouts in which an input may lie."""
        if term.fixed:
            return (term.fixed,)
        whole = Layout.replicated(self.problem.mesh, term.value.type.rank)
        return {one for one in wants if not one.partial} | _lying_so(ends, whole)

    def _lies(self, spread: Spread, term: ValueCost, layout: Layout, wants: Wants, ends: Ends, kept: Kept) -> float:
        """Seconds of an input's term if it lies so, where redistributions take what `spread` says."""
        wanted = wants.union([self.problem.leaving(i, layout) for i in term.outs])
        seconds = term.times * spread(term, layout, wanted, term.share)
        for (left, again), (times, share) in zip(ends, term.counts, strict=True):
            seconds += times * spread(term, layout if left is None else left, again | {layout}, share)
        return seconds + self.byte_cost(term, layout, kept)


def _lying_so(ends: Ends, whole: Layout) -> set[Layout]:
    """The layouts around an input besides those in which it is wanted itself: as it is replaced and leaves loops."""
    behind = {one for left, wants in ends if left is None for one in wants if not one.partial}
    return {left.final() for left, _ in ends if left is not None} | behind or {whole}


def _input_key(term: ValueCost, wants: Wants, ends: Ends, kept: Kept) -> tuple:
    return term.kind, term.times, term.fixed, term.outs, wants, ends, term.held, kept


class Assignment:
    """Strategies of all nodes, and what they cost."""

    def __init__(self, pricing: Pricing, strategies: Mapping[Node, Strategy]) -> None:
        self.pricing = pricing
        self.chosen = {node: pricing.choice(node, strategies[node]) for node in pricing.graph.nodes}
        self.costs = {term: self.price(term)[0] for term in pricing.terms}

    @property
    def seconds(self) -> float:
        return sum(choice.work for choice in self.chosen.values()) + sum(self.costs.values())

    @property
    def byte_seconds(self) -> float:
        """What bytes add to `seconds` by their prices."""
        pricing = self.pricing
        nodes = sum(pricing.nbytes.scratch(node, self.chosen[node].strategy) for node in pricing.nbytes.of_scratch)
        priced = (term for term in pricing.terms if term.held or term.keeps)
        return nodes + sum(pricing.byte_cost(term, self._lies(term), self.kept(term)) for term in priced)

    def _lies(self, term: ValueCost) -> Layout:
        layout = self._left(term.source) if term.source is not None else self.price(term)[1]
        assert layout is not None, "an input lies somewhere"
        return layout

    @property
    def strategies(self) -> dict[Node, Strategy]:
        return {node: choice.strategy for node, choice in self.chosen.items()}

    def price(self, term: ValueCost) -> tuple[float, Layout | None]:
        """Seconds of a term, and for an input the layout in which it lies."""
        wants, kept = self.wants(term.users), self.kept(term)
        if term.source is not None:
            left = self._left(term.source)
            return self.pricing.computed_cost(term, left, wants) + self.pricing.byte_cost(term, left, kept), None
        ends = tuple(
            [(None if source is None else self._left(source), self.wants(users)) for source, users in term.updates]
        )
        return self.pricing.input_cost(term, wants, ends, kept)

    def kept(self, term: ValueCost) -> Kept:
        """The layouts for which a copy of a value is kept while bytes cost something."""
        pairs = zip(term.users, term.keeps, strict=True) if term.keeps else ()
        return tuple([(self.chosen[node].operands[i], price) for (node, i), price in pairs if price])

    def wants(self, users: Iterable[Use]) -> Wants:
        return frozenset([self.chosen[node].operands[i] for node, i in users])

    def _left(self, source: Use) -> Layout:
        return self.chosen[source[0]].results[source[1]]

    def change(self, node: Node, choice: Choice) -> None:
        self.chosen[node] = choice
        for term in self.pricing.of_node[node]:
            self.costs[term] = self.price(term)[0]

    def layouts(self) -> dict[Value, Layout]:
        """The layout of every value."""
        found = {value: self._left(source) for value, source in self.pricing.graph.producers.items()}
        for term in self.pricing.terms:
            layout = self.price(term)[1] if term.source is None else None
            if layout is not None:
                found[term.value] = layout
        return {value: found[value] for value in self.pricing.graph.values}


def _is_settled(term: ValueCost) -> bool:
    """Whether a value is a number that no operator leaves as terms of a sum, such as the count of steps: it lies whole
    whatever is chosen, and nothing is paid for it, though all that is updated may use it."""
    if term.value.type.rank:
        return False
    if term.source is None:
        return True
    node = term.source[0]
    return node.op.has_rule and not node.rule.summed and not node.op.linear


def __getattr__(name: str) -> Any:
    return former(__name__, name)
