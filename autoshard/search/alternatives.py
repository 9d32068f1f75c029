"""Alternatives of a decision: the strategies of an operator, priced with all else as it is in the plan.

The operands lie as the plan has them and are brought to what the strategy needs, and its results are brought to what
the plan leaves; neither is shared with other users. So a plan of any mode can be asked, whatever the mode weighed.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.core.strategy import Strategy
from autoshard.cost.prices import Prices
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Node, walk
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Option, Plan
from autoshard.search.greedy.candidates import suggested
from autoshard.util.errors import AutoshardError
from autoshard.util.gc_paused import gc_paused

MOST = 6
"""Strategies besides the chosen one: the cheapest."""
Layouts = tuple[Layout, ...]


@gc_paused()
def options_around(plan: Plan, prices: Prices) -> dict[Node, tuple[Option, ...]]:
    """For each operator without bodies the strategy that it has, then others, the cheapest first."""
    known: dict[tuple, tuple[Option, ...]] = {}
    found: dict[Node, tuple[Option, ...]] = {}
    for node in walk(plan.graph.nodes):
        if not is_nest(node):
            key = surroundings(plan, node)
            if key not in known:
                known[key] = node_options(plan, node, prices)
            found[node] = known[key]
    return found


def node_options(plan: Plan, node: Node, prices: Prices) -> tuple[Option, ...]:
    """The same for one operator; empty where not even its own strategy can be priced alone."""
    operands, results = _lying(plan, node)
    chosen = plan.strategy(node)
    own = list(_priced(node, chosen, operands, results, prices))
    wanted = [(layout,) for layout in results]
    others = [one for one in suggested(node, plan.mesh, [(layout,) for layout in operands], wanted) if one != chosen]
    priced = [option for one in others for option in _priced(node, one, operands, results, prices)]
    return (*own, *sorted(priced, key=option_seconds)[:MOST]) if own else ()


def surroundings(plan: Plan, node: Node) -> tuple:
    """What the options of an operator depend on: those that agree in it have the same."""
    return (node.key, *_lying(plan, node), plan.strategy(node))


def _lying(plan: Plan, node: Node) -> tuple[Layouts, Layouts]:
    operands, results = (tuple(plan.layouts[value] for value in some) for some in (node.operands, node.results))
    return operands, results


def _priced(node: Node, strategy: Strategy, operands: Layouts, results: Layouts, prices: Prices) -> Iterator[Option]:
    """The option, unless no redistribution leads there or its work cannot be priced."""
    try:
        needed = zip(operands, strategy.operand_layouts, node.operand_types, strict=True)
        left = zip(strategy.result_layouts, results, node.result_types, strict=True)
        edges, completion = (sum(prices.redistribution(*one) for one in some) for some in (needed, left))
        yield Option(strategy, edges, completion, prices.work(node, strategy))
    except AutoshardError:
        return


def option_seconds(option: Option) -> float:
    """Seconds of redistributions, of completing partial results and of the work together."""
    return option.edge_seconds + option.completion_seconds + option.work_seconds
