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
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from autoshard.errors import PlanError
from autoshard.errors import at as where
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.plan import Option
from autoshard.redistribute.planner import is_cut
from autoshard.search.candidates import joined, suggested
from autoshard.search.listing import Listing, listing
from autoshard.search.prices import Prices, local_bytes, local_nbytes
from autoshard.strategy import Strategy
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
        self._followed: dict[tuple, Option] = {}

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
        for bound, strategy in self._promising(node, suggestions, set(near), operands, wanted):
            if bound > best:
                break
            options.append(self.option(node, strategy, operands, wanted))
            best = min(best, options[-1].edge_seconds)
        return options

    def _promising(
        self, node: Node, suggestions: Iterable[Strategy], known: set[Strategy], operands: Held, wanted: Sequence
    ) -> list[tuple[float, Strategy]]:
        """Of suggested and enumerated strategies that are not known yet MOST_PRICED with the least bounds, and these;
        in the order of the bounds, then of the strategies."""
        first = [one for one in dict.fromkeys(suggestions) if one not in known]
        found = [(self._bound(node, one, operands, wanted), i, one) for i, one in enumerate(first)]
        listed = listing(node.rule, self.mesh)
        seconds = self._bounds(node, listed, operands, wanted)
        skipped = [listed.places[one] for one in known.union(first) if one in listed.places]
        seconds[skipped] = math.inf
        least = np.argsort(seconds, kind="stable")[: min(MOST_PRICED, len(seconds) - len(skipped))].tolist()
        found += [(float(seconds[i]), len(first) + i, listed.strategies[i]) for i in least]
        return [(bound, one) for bound, _, one in sorted(found, key=lambda way: way[:2])[:MOST_PRICED]]

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

    def following(self, node: Node, strategy: Strategy, held: Sequence[Layout]) -> Option:
        """`option` of a node whose operands lie so, where nothing is wanted of its results yet; remembered."""
        key = (node.key, strategy, tuple(held))
        known = self._followed.get(key)
        if known is None:
            lie, free = [(layout,) for layout in held], ((),) * len(node.results)
            known = self._followed[key] = self.option(node, strategy, lie, free)
        return known

    def _bound(self, node: Node, strategy: Strategy, operands: Held, wanted: Sequence) -> float:
        """A bound below the edges' time of a strategy, without planning any redistribution."""
        at_least, entering, leaving = self.prices.at_least, 0.0, 0.0
        for held, need, of in zip(operands, strategy.operand_layouts, node.operand_types, strict=True):
            if held and need not in held:
                entering += min([at_least(have, need, of) for have in held])
        for have, needs, of in zip(strategy.result_layouts, wanted, node.result_types, strict=True):
            leaving += sum([at_least(have, need, of) for need in needs])
        return entering + leaving

    def _bounds(self, node: Node, listed: Listing, operands: Held, wanted: Sequence) -> np.ndarray:
        """The same for all strategies of a listing."""
        entering, leaving = np.zeros(len(listed.strategies)), np.zeros(len(listed.strategies))
        for i, (held, of) in enumerate(zip(operands, node.operand_types, strict=True)):
            if held:
                entering += np.min([listed.entering(i, have, of, self.prices) for have in held], axis=0)
        for i, (needs, of) in enumerate(zip(wanted, node.result_types, strict=True)):
            leaving += sum([listed.leaving(i, need, of, self.prices) for need in needs], np.zeros(len(leaving)))
        return entering + leaving


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
