"""Choose a strategy for one operator against its decided neighbours; equal situations are judged once.

The order, from first to last:
1. no redistribution on the edges to decided neighbours, and no partial sum passed on that is dearer to complete behind
   the operator than before it. Where every strategy has one: least time of the redistributions, of completing partial
   results and of the work together. Operands are had from the nearest of their copies: what other users had
   redistributed is paid for once;
2. least time to complete partial results that no neighbour has asked for yet;
3. operands that are to be `kept` lie as they are left: free axes are not spent on them before later users are seen;
4. the smallest share of the work on a rank: work is split rather than repeated, so free axes are used; then the fewest
   collectives;
5. fewest bytes of operands that are still open (a free axis splits a parameter rather than the batch: that saves the
   memory of its optimizer states and its gradient's reduction as well), unless free axes are to go to `leading` dims;
6. least time of the work, then fewest bytes touched on a rank;
7. what neighbours suggested first, larger leading splits first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.cost.blocks import local_bytes, local_nbytes
from autoshard.cost.prices import Prices, prices_for
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.plan.plan import Option
from autoshard.redistribute.planner import is_cut
from autoshard.search.greedy.candidates import joined, suggested
from autoshard.util.errors import PlanError
from autoshard.util.errors import at as where
from autoshard.util.memo import Memo
from costmodel import Hardware, grouped_seconds

AtLeast = Callable[[Layout, Layout, TensorType], float]
Held = Sequence[tuple[Layout, ...]]
"""Per operand, the layout it is left in and those of the copies that decided users have; () where it is open."""

Spending = tuple[tuple[int, ...], bool]
"""What free axes are spent on: the operands that are kept, and whether leading dims come first."""

ALTERNATIVES = 3
JUDGED = 1 << 12
"""Situations that are remembered."""
LEAST_GAIN = 1e-9
"""By how much, relatively, it has to take less to complete partial sums at once, so that they are not passed on."""
MOST_PRICED = 32
"""Strategies that may be priced exactly, beyond those of neighbours, where none is free of communication."""


@lru_cache(maxsize=8)
def chooser(mesh: Mesh, hardware: Hardware) -> Chooser:
    """The judge for a mesh and hardware, with all that it has judged so far: plans of like graphs share it."""
    return Chooser(mesh, prices_for(hardware))


class Chooser:
    """Judges situations (operator, layouts around it) on one mesh; remembers each."""

    def __init__(self, mesh: Mesh, prices: Prices) -> None:
        self.mesh, self.prices = mesh, prices
        self._known: Memo[tuple, tuple[Option, tuple[Option, ...]]] = Memo(JUDGED)
        self._ways: Memo[tuple, tuple[bool, Sequence[_Way]]] = Memo(JUDGED)
        self._followed: Memo[tuple, Option] = Memo(JUDGED)

    def _speed(self, piece: AxisRef) -> tuple:
        """The links along a piece of the mesh: by themselves, and how many ranks of it each level joins."""
        levels, gap = self.prices.levels(self.mesh.groups((piece,))), self.mesh.spacing(piece)
        if gap is None:
            return levels, piece  # nothing is like it
        joined = (min(piece.size, (span or math.inf) // gap) for span, _ in self.prices.hardware.topology.levels)
        return levels, *joined

    def choose(
        self,
        node: Node,
        operands: Held,
        wanted: Sequence[tuple[Layout, ...]],
        compared: bool = True,
        kept: tuple[int, ...] = (),
        leading: bool = False,
    ) -> tuple[Option, tuple[Option, ...]]:
        """The best option and the runners-up.

        Args:
            operands: the layouts in which operands can be had.
            wanted: per result, the layouts that decided users want.
            compared: look for runners-up where the choice is made without.
            kept: the operands that are not to be cut further for the sake of this operator alone.
            leading: free axes go to factors in their order, not to open operands.
        """
        situation = (node.key, tuple(operands), tuple(wanted), compared)
        key = (*situation, kept, leading)
        if key not in self._known:
            if situation not in self._ways:
                self._ways[situation] = self._found(node, operands, wanted, compared)
            free, ways = self._ways[situation]
            chosen = [self._told(node, one) for one in self._ranked(node, ways, operands, (kept, leading), free)]
            self._known[key] = chosen[0], tuple(chosen[1:])
        return self._known[key]

    def _found(self, node: Node, operands: Held, wanted: Sequence, compared: bool) -> tuple[bool, Sequence[_Way]]:
        """The ways to choose from, whatever free axes are spent on, and whether they are free of communication."""
        first = suggested(node, self.mesh, operands, wanted, self._speed)
        ways = [
            self._way(node, one, operands, wanted)
            for one in first
            if self._is_free(one, operands, wanted) and not self._postponed(node, one, operands, wanted)
        ]
        free = bool(ways)
        if not free:
            ways = self._priced(node, first, operands, wanted, ALTERNATIVES if compared else 0)
        elif compared and len(ways) <= ALTERNATIVES:
            ways += self._runners_up(node, first, ways, operands, wanted)
        if not ways:
            raise PlanError(f"{node.label} ({node.op.name}){where(node.source)} has no strategy on mesh '{self.mesh}'")
        return free, ways

    def _postponed(self, node: Node, strategy: Strategy, operands: Held, wanted: Sequence) -> float:
        """What it takes to complete the partial sums behind an operator that passes them on, if nobody has asked for
        its results and it would take less before it; else 0."""
        if not strategy.carried or any(wanted):
            return 0.0
        seconds = partial(self._scattered, strategy.carried)
        before = sum(seconds(node.operand_types[i], operands[i][0]) for i in strategy.carriers if operands[i])
        behind = sum(map(seconds, node.result_types, strategy.result_layouts))
        return behind if behind > before * (1 + LEAST_GAIN) else 0.0

    def _scattered(self, axes: Refs, of: TensorType, layout: Layout) -> float:
        """Seconds to complete partial sums along the axes, at best."""
        levels = self.prices.levels(self.mesh.groups(axes))
        return grouped_seconds("reduce_scatter", local_nbytes(of, layout), levels)

    def _ranked(self, node: Node, ways: Sequence[_Way], operands: Held, spending: Spending, free: bool) -> list[_Way]:
        """The best ways, best first; the work is asked for only where it may decide."""
        if free:
            keys = [_rank(node, way, operands, spending) for way in ways]
        else:
            keys = [(self._seconds(node, way), *_rank(node, way, operands, spending)) for way in ways]
        last = sorted(keys)[: ALTERNATIVES + 1][-1]
        near = [i for i, key in enumerate(keys) if key <= last]

        def rank(i: int) -> tuple:
            strategy = ways[i].strategy
            return (*keys[i], _rounded(self.prices.work(node, strategy)), local_bytes(node, strategy), i)

        return [ways[i] for i in sorted(near, key=rank)[: ALTERNATIVES + 1]]

    def _seconds(self, node: Node, way: _Way) -> float:
        return _rounded(way.edge_seconds + way.completion_seconds + self.prices.work(node, way.strategy))

    def _is_free(self, strategy: Strategy, operands: Held, wanted: Sequence) -> bool:
        """Whether no edge to a decided neighbour needs communication."""
        into = zip(operands, strategy.operand_layouts, strict=True)
        if not all(not held or need in held or any(is_cut(have, need) for have in held) for held, need in into):
            return False
        out = zip(strategy.result_layouts, wanted, strict=True)
        return all(have is need or is_cut(have, need) for have, needs in out for need in needs)

    def _runners_up(
        self, node: Node, suggestions: Sequence[Strategy], free: Sequence[_Way], operands: Held, wanted: Sequence
    ) -> list[_Way]:
        """What would come next where few strategies are free of communication: the neighbours' own splits, then further
        suggested ones, so that a decision can be compared with something."""
        known = {way.strategy for way in free}
        others = dict.fromkeys((*joined(node, self.mesh, operands, wanted), *suggestions))
        rest = [strategy for strategy in others if strategy not in known]
        return [self._way(node, strategy, operands, wanted) for strategy in rest[: 2 * ALTERNATIVES]]

    def _priced(
        self, node: Node, suggestions: Iterable[Strategy], operands: Held, wanted: Sequence, others: int
    ) -> list[_Way]:
        """The way of least seconds and at least so many others where none is free of communication: of all that
        neighbours have or want, and of further suggested strategies, the most promising by a bound first."""
        near = joined(node, self.mesh, operands, wanted)
        more = self._promising(node, suggestions, set(near), operands, wanted)
        found = [(self._bound(node, one, operands, wanted), i, one) for i, one in enumerate((*near, *more))]
        ways: dict[int, _Way] = {}
        best = math.inf
        for bound, i, strategy in sorted(found, key=lambda way: way[:2]):
            if bound > best and len(ways) > others:
                break
            way = ways[i] = self._way(node, strategy, operands, wanted)
            best = min(best, self._seconds(node, way))
        return [ways[i] for i in sorted(ways)]

    def _promising(
        self, node: Node, suggestions: Iterable[Strategy], known: set[Strategy], operands: Held, wanted: Sequence
    ) -> list[Strategy]:
        """Of suggested strategies that are not known yet MOST_PRICED with the least bounds; in the order of the bounds,
        then of the strategies."""
        first = [one for one in dict.fromkeys(suggestions) if one not in known]
        at_least = self.prices.at_least
        found = [(self._bound(node, one, operands, wanted, at_least), i, one) for i, one in enumerate(first)]
        return [one for _, _, one in sorted(found, key=lambda way: way[:2])[:MOST_PRICED]]

    def option(self, node: Node, strategy: Strategy, operands: Held, wanted: Sequence) -> Option:
        """Price one strategy."""
        return self._told(node, self._way(node, strategy, operands, wanted))

    def _told(self, node: Node, way: _Way) -> Option:
        work = self.prices.work(node, way.strategy)
        return Option(way.strategy, way.edge_seconds, way.completion_seconds, work, way.collectives)

    def _way(self, node: Node, strategy: Strategy, operands: Held, wanted: Sequence) -> _Way:
        prices, edges, asked, count = self.prices, 0.0, False, 0
        for held, need, of in zip(operands, strategy.operand_layouts, node.operand_types, strict=True):
            if held and need not in held:
                nearest, seconds = self._nearest(held, need, of)
                edges += seconds
                count += prices.collectives(nearest, need, of)
        for have, needs, of in zip(strategy.result_layouts, wanted, node.result_types, strict=True):
            for need in needs:
                asked = True
                edges += prices.redistribution(have, need, of)
                count += prices.collectives(have, need, of)
        edges += self._postponed(node, strategy, operands, wanted)
        return _Way(strategy, edges, 0.0 if asked else prices.completion(node, strategy), count)

    def _nearest(self, held: Sequence[Layout], need: Layout, of: TensorType) -> tuple[Layout, float]:
        """The copy from which a layout is had in least time, the first of them, and that time."""
        prices, nearest, least = self.prices, held[0], math.inf
        for have in held:
            if len(held) > 1 and prices.surely(have, need, of) >= least:
                continue
            seconds = prices.redistribution(have, need, of)
            if seconds < least:
                nearest, least = have, seconds
        return nearest, least

    def following(self, node: Node, strategy: Strategy, held: Sequence[Layout]) -> Option:
        """`option` of a node whose operands lie so, where nothing is wanted of its results yet; remembered."""
        key = (node.key, strategy, tuple(held))
        known = self._followed.get(key)
        if known is None:
            lie, free = [(layout,) for layout in held], ((),) * len(node.results)
            known = self._followed[key] = self.option(node, strategy, lie, free)
        return known

    def _bound(
        self, node: Node, strategy: Strategy, operands: Held, wanted: Sequence, at_least: AtLeast | None = None
    ) -> float:
        """A bound below the edges' time of a strategy, without planning any redistribution; `at_least` bounds one."""
        entering, leaving = 0.0, 0.0
        at_least = at_least or self.prices.surely
        for held, need, of in zip(operands, strategy.operand_layouts, node.operand_types, strict=True):
            if held and need not in held:
                entering += min([at_least(have, need, of) for have in held])
        for have, needs, of in zip(strategy.result_layouts, wanted, node.result_types, strict=True):
            leaving += sum([at_least(have, need, of) for need in needs])
        return entering + leaving


class _Way(NamedTuple):
    """A strategy, and what its edges take; the fields are those of `Option`."""

    strategy: Strategy
    edge_seconds: float
    completion_seconds: float
    collectives: int


def _rank(node: Node, way: _Way, operands: Held, spending: Spending) -> tuple:
    """What decides first, up to the work."""
    strategy, (kept, leading) = way.strategy, spending
    cut = sum(bool(operands[i]) and strategy.operand_layouts[i] not in operands[i] for i in kept)
    open_bytes = sum(
        local_nbytes(of, layout)
        for of, layout, held in zip(node.operand_types, strategy.operand_layouts, operands, strict=True)
        if not held
    )
    return (
        _rounded(way.edge_seconds),
        _rounded(way.completion_seconds),
        cut,
        -strategy.work_split,
        way.collectives,
        tuple(-parts for parts in strategy.parts) if leading else open_bytes,
    )


def _rounded(value: float) -> float:
    """Nine digits, so that sums in another order still tie."""
    return float(f"{value:.9e}")
