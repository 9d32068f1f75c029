"""Choose a strategy for one operator against its decided neighbours; equal situations are judged once.

The order, from first to last:
1. least time of redistribution on the edges to decided neighbours, from the nearest of the copies that an operand has
   already: what other users had redistributed is paid for once;
2. least time to complete partial results that no neighbour has asked for yet;
3. the smallest share of the work on a rank: work is split rather than repeated, so free axes are used; then the fewest
   collectives;
4. fewest bytes of operands that are still open (a free axis splits a parameter rather than the batch: that saves the
   memory of its optimizer states and its gradient's reduction as well);
5. least time of the work, then fewest bytes touched on a rank;
6. what neighbours suggested before what was enumerated, larger leading splits first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import count

from autoshard.errors import PlanError
from autoshard.errors import at as where
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.plan import Option
from autoshard.redistribute.planner import is_cut
from autoshard.search.candidates import joined, suggested
from autoshard.search.prices import Prices, local_bytes, local_nbytes
from autoshard.strategy import Strategy, some_strategies
from costmodel import Hardware

Held = Sequence[tuple[Layout, ...]]
"""Per operand, the layout it is left in and those of the copies that decided users have; () where it is open."""

ALTERNATIVES = 3
MOST_PRICED = 32
"""Strategies priced exactly, beyond those of neighbours, where none is free of communication."""


@lru_cache(maxsize=16)
def chooser(mesh: Mesh, hardware: Hardware) -> Chooser:
    """The judge for a mesh and hardware, with all that it has judged so far: plans of like graphs share it."""
    return Chooser(mesh, Prices(hardware))


class Chooser:
    """Judges situations (operator, layouts around it) on one mesh; remembers each."""

    def __init__(self, mesh: Mesh, prices: Prices) -> None:
        self.mesh, self.prices = mesh, prices
        self._known: dict[tuple, tuple[Option, tuple[Option, ...]]] = {}

    def choose(
        self, node: Node, operands: Held, wanted: Sequence[tuple[Layout, ...]]
    ) -> tuple[Option, tuple[Option, ...]]:
        """The best option and the runners-up.

        Args:
            operands: the layouts in which operands can be had.
            wanted: per result, the layouts that decided users want.
        """
        key = (node.key, tuple(operands), tuple(wanted))
        if key not in self._known:
            self._known[key] = self._judge(node, operands, wanted)
        return self._known[key]

    def _judge(self, node: Node, operands: Held, wanted: Sequence) -> tuple[Option, tuple[Option, ...]]:
        first = suggested(node, self.mesh, operands, wanted)
        free = [strategy for strategy in first if self._is_free(strategy, operands, wanted)]
        options = [self.option(node, strategy, operands, wanted) for strategy in free]
        if not options:
            options = self._priced(node, first, operands, wanted)
        elif len(options) <= ALTERNATIVES:
            options += self._runners_up(node, first, free, operands, wanted)
        if not options:
            raise PlanError(f"{node.label} ({node.op.name}){where(node.source)} has no strategy on mesh '{self.mesh}'")
        ranked = sorted(range(len(options)), key=lambda i: _rank(node, options[i], operands, i))
        chosen = [options[i] for i in ranked[: ALTERNATIVES + 1]]
        return chosen[0], tuple(chosen[1:])

    def _is_free(self, strategy: Strategy, operands: Held, wanted: Sequence) -> bool:
        """Whether no edge to a decided neighbour needs communication."""
        into = zip(operands, strategy.operand_layouts, strict=True)
        if not all(not held or need in held or any(is_cut(have, need) for have in held) for held, need in into):
            return False
        out = zip(strategy.result_layouts, wanted, strict=True)
        return all(have is need or is_cut(have, need) for have, needs in out for need in needs)

    def _runners_up(
        self, node: Node, suggestions: Sequence[Strategy], free: Sequence[Strategy], operands: Held, wanted: Sequence
    ) -> list[Option]:
        """What would come next where few strategies are free of communication: the neighbours' own splits, then further
        suggested ones, so that a decision can be compared with something."""
        known = set(free)
        others = dict.fromkeys((*joined(node, self.mesh, operands, wanted), *suggestions))
        rest = [strategy for strategy in others if strategy not in known]
        return [self.option(node, strategy, operands, wanted) for strategy in rest[: 2 * ALTERNATIVES]]

    def _priced(self, node: Node, suggestions: Iterable[Strategy], operands: Held, wanted: Sequence) -> list[Option]:
        """Options where none is free of communication: for all that neighbours have or want, and for further suggested
        and enumerated strategies, the most promising by a bound first, until the bound or MOST_PRICED ends it."""
        near = joined(node, self.mesh, operands, wanted)
        options = [self.option(node, strategy, operands, wanted) for strategy in near]
        best = min((option.edge_seconds for option in options), default=math.inf)
        rest = dict.fromkeys((*suggestions, *some_strategies(node.rule, self.mesh)))
        known = set(near)
        far = [strategy for strategy in rest if strategy not in known]
        at_least = self._bound(node, operands, wanted)
        bounds = [(at_least(one), i, one) for i, one in enumerate(far)]
        for bound, _, strategy in sorted(bounds)[:MOST_PRICED]:
            if bound > best:
                break
            options.append(self.option(node, strategy, operands, wanted))
            best = min(best, options[-1].edge_seconds)
        return options

    def option(self, node: Node, strategy: Strategy, operands: Held, wanted: Sequence) -> Option:
        """Price one strategy."""
        prices, edges, asked, count = self.prices, 0.0, False, 0
        for held, need, of in zip(operands, strategy.operand_layouts, node.operand_types, strict=True):
            if held and need not in held:
                nearest = min(held, key=lambda have: prices.redistribution(have, need, of))
                edges += prices.redistribution(nearest, need, of)
                count += prices.collectives(nearest, need, of)
        for have, needs, of in zip(strategy.result_layouts, wanted, node.result_types, strict=True):
            for need in needs:
                asked = True
                edges += prices.redistribution(have, need, of)
                count += prices.collectives(have, need, of)
        completion = 0.0 if asked else prices.completion(node, strategy)
        return Option(strategy, edges, completion, prices.work(node, strategy), count)

    def _bound(self, node: Node, operands: Held, wanted: Sequence) -> Callable[[Strategy], float]:
        """A bound below the edges' time of a strategy, cheap enough to skip most of an enumeration: what operands and
        results take at least, worked out once for each of their layouts."""

        def into(i: int, need: Layout) -> float:
            held, of = operands[i], node.operand_types[i]
            return min(self.prices.at_least(have, need, of) for have in held) if held and need not in held else 0.0

        def out(i: int, have: Layout) -> float:
            return sum(self.prices.at_least(have, need, node.result_types[i]) for need in wanted[i])

        entering, leaving = cache(into), cache(out)

        def bound(strategy: Strategy) -> float:
            return sum(map(entering, count(), strategy.operand_layouts)) + sum(
                map(leaving, count(), strategy.result_layouts)
            )

        return bound


def _rank(node: Node, option: Option, operands: Held, place: int) -> tuple:
    strategy = option.strategy
    open_bytes = sum(
        local_nbytes(of, layout)
        for of, layout, held in zip(node.operand_types, strategy.operand_layouts, operands, strict=True)
        if not held
    )
    return (
        _rounded(option.edge_seconds),
        _rounded(option.completion_seconds),
        -strategy.work_split,
        option.collectives,
        open_bytes,
        _rounded(option.work_seconds),
        local_bytes(node, strategy),
        place,
    )


def _rounded(value: float) -> float:
    """Nine digits, so that sums in another order still tie."""
    return float(f"{value:.9e}")
