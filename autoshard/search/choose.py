"""Choose a strategy for one operator against its decided neighbours; equal situations are judged once.

The order, from first to last:
1. least time of redistribution on the edges to decided neighbours;
2. least time to complete partial results that no neighbour has asked for yet;
3. the smallest share of the work on a rank: work is split rather than repeated, so free axes are used;
4. fewest bytes of operands that are still open (a free axis splits a parameter rather than the batch: that saves the
   memory of its optimizer states and its gradient's reduction as well);
5. least time of the work, then fewest bytes touched on a rank;
6. what neighbours suggested before what was enumerated, larger leading splits first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from autoshard.errors import PlanError
from autoshard.errors import at as where
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.plan import Option
from autoshard.redistribute.planner import is_cut
from autoshard.search.candidates import suggested
from autoshard.search.prices import Prices, local_bytes, local_nbytes
from autoshard.strategy import Strategy, enumerate_strategies
from costmodel import Hardware

ALTERNATIVES = 3
MOST_PRICED = 32
"""Strategies priced exactly where none is free of communication."""


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
        self, node: Node, operands: Sequence[Layout | None], wanted: Sequence[tuple[Layout, ...]]
    ) -> tuple[Option, tuple[Option, ...]]:
        """The best option and the runners-up.

        Args:
            operands: layouts that operands have, None where open.
            wanted: per result, the layouts that decided users want.
        """
        key = (node.key, tuple(operands), tuple(wanted))
        if key not in self._known:
            self._known[key] = self._judge(node, operands, wanted)
        return self._known[key]

    def _judge(self, node: Node, operands: Sequence, wanted: Sequence) -> tuple[Option, tuple[Option, ...]]:
        first = suggested(node, self.mesh, operands, wanted)
        free = [strategy for strategy in first if self._is_free(strategy, operands, wanted)]
        options = [self.option(node, strategy, operands, wanted) for strategy in free]
        if not options:
            options = self._priced(
                node, dict.fromkeys((*first, *enumerate_strategies(node.rule, self.mesh))), operands, wanted
            )
        if not options:
            raise PlanError(f"{node.label} ({node.op.name}){where(node.source)} has no strategy on mesh '{self.mesh}'")
        ranked = sorted(range(len(options)), key=lambda i: _rank(node, options[i], operands, i))
        chosen = [options[i] for i in ranked[: ALTERNATIVES + 1]]
        return chosen[0], tuple(chosen[1:])

    def _is_free(self, strategy: Strategy, operands: Sequence, wanted: Sequence) -> bool:
        """Whether no edge to a decided neighbour needs communication."""
        into = zip(operands, strategy.operand_layouts, strict=True)
        if any(have is not None and have is not need and not is_cut(have, need) for have, need in into):
            return False
        out = zip(strategy.result_layouts, wanted, strict=True)
        return all(have is need or is_cut(have, need) for have, needs in out for need in needs)

    def _priced(self, node: Node, strategies: Iterable[Strategy], operands: Sequence, wanted: Sequence) -> list[Option]:
        """Options for the strategies, most promising by a bound first, until the bound or MOST_PRICED ends it."""
        bounds = [(self._at_least(node, one, operands, wanted), i, one) for i, one in enumerate(strategies)]
        options, best = [], math.inf
        for bound, _, strategy in sorted(bounds)[:MOST_PRICED]:
            if bound > best:
                break
            options.append(self.option(node, strategy, operands, wanted))
            best = min(best, options[-1].edge_seconds)
        return options

    def option(self, node: Node, strategy: Strategy, operands: Sequence, wanted: Sequence) -> Option:
        """Price one strategy."""
        prices, edges, asked = self.prices, 0.0, False
        for have, need, of in zip(operands, strategy.operand_layouts, node.operand_types, strict=True):
            if have is not None and have is not need:
                edges += prices.redistribution(have, need, of)
        for have, needs, of in zip(strategy.result_layouts, wanted, node.result_types, strict=True):
            for need in needs:
                asked = True
                edges += prices.redistribution(have, need, of)
        completion = 0.0 if asked else prices.completion(node, strategy)
        return Option(strategy, edges, completion, prices.work(node, strategy))

    def _at_least(self, node: Node, strategy: Strategy, operands: Sequence, wanted: Sequence) -> float:
        """A bound below the edges' time of a strategy, cheap enough to skip most of an enumeration."""
        bound = 0.0
        for have, need, of in zip(operands, strategy.operand_layouts, node.operand_types, strict=True):
            if have is not None and have is not need:
                bound += self.prices.at_least(have, need, of)
        for have, needs, of in zip(strategy.result_layouts, wanted, node.result_types, strict=True):
            bound += sum(self.prices.at_least(have, need, of) for need in needs)
        return bound


def _rank(node: Node, option: Option, operands: Sequence, place: int) -> tuple:
    strategy = option.strategy
    open_bytes = sum(
        local_nbytes(of, layout)
        for of, layout, have in zip(node.operand_types, strategy.operand_layouts, operands, strict=True)
        if have is None
    )
    return (
        _rounded(option.edge_seconds),
        _rounded(option.completion_seconds),
        -strategy.work_split,
        open_bytes,
        _rounded(option.work_seconds),
        local_bytes(node, strategy),
        place,
    )


def _rounded(value: float) -> float:
    """Nine digits, so that sums in another order still tie."""
    return float(f"{value:.9e}")
