"""Choose a strategy for one operator against its decided neighbours; equal situations are judged once.

The order, from first to last:
1. least time of redistribution on the edges to decided neighbours;
2. least own time: work, and completing partial results that no neighbour has asked for yet. Work that is split is
   shorter than work that is repeated, so free axes are used;
3. fewest bytes touched on a rank (a split parameter is preferred to a split batch of equal work);
4. what neighbours suggested before what was enumerated, larger leading splits first.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.errors import PlanError
from autoshard.errors import at as where
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.plan import Option
from autoshard.search.candidates import suggested
from autoshard.search.prices import Prices, local_bytes
from autoshard.strategy import Strategy, enumerate_strategies

ALTERNATIVES = 3


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
        options = [self.option(node, strategy, operands, wanted) for strategy in suggested(node, self.mesh, operands, wanted)]
        ranked = sorted(range(len(options)), key=lambda i: self._rank(node, options[i], i))
        if options[ranked[0]].edge_seconds > 0:
            known = {option.strategy for option in options}
            limit = options[ranked[0]].edge_seconds
            for strategy in enumerate_strategies(node.rule, self.mesh):
                if strategy not in known:
                    option = self.option(node, strategy, operands, wanted, limit)
                    if option is not None:
                        options.append(option)
            ranked = sorted(range(len(options)), key=lambda i: self._rank(node, options[i], i))
        if not ranked:
            raise PlanError(f"{node.label} ({node.op.name}){where(node.source)} has no strategy on mesh '{self.mesh}'")
        best = [options[i] for i in ranked[: ALTERNATIVES + 1]]
        return best[0], tuple(best[1:])

    def _rank(self, node: Node, option: Option, place: int) -> tuple:
        return (
            _rounded(option.edge_seconds),
            _rounded(option.own_seconds),
            local_bytes(node, option.strategy),
            place,
        )

    def option(
        self, node: Node, strategy: Strategy, operands: Sequence, wanted: Sequence, limit: float = float("inf")
    ) -> Option | None:
        """Price one strategy; None as soon as its edges cost more than `limit`."""
        edges = 0.0
        for have, need, of in zip(operands, strategy.operand_layouts, node.operand_types, strict=True):
            if have is not None and have is not need:
                edges += self.prices.redistribution(have, need, of)
                if edges > limit:
                    return None
        asked = False
        for have, needs, of in zip(strategy.result_layouts, wanted, node.result_types, strict=True):
            for need in needs:
                asked = True
                edges += self.prices.redistribution(have, need, of)
                if edges > limit:
                    return None
        own = self.prices.work(node, strategy)
        if not asked:
            own += self.prices.completion(node, strategy)
        return Option(strategy, edges, own)


def _rounded(value: float) -> float:
    """Nine digits, so that sums in another order still tie."""
    return float(f"{value:.9e}")
