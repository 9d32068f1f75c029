"""Operators that read the same input, configured by numbers of parts: placed so that they agree on how it lies.

A tuple says into how many parts dims are split, and not on which ranks the parts lie. The table of an embedding that is
the head's weight, too, is what both want in as many parts: one place for it serves both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from autoshard.core.place import place_with
from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Graph, Node, Value


def agreeing(
    graph: Graph, strategies: Mapping[Node, Strategy], movable: Collection[Node], values: Collection[Value]
) -> dict[Node, Strategy]:
    """The strategies, with those of movable nodes placed otherwise where that makes users of a value agree on it.

    The user that most devices share the work of stays, of equal ones the one with most work.

    Args:
        movable: nodes whose strategies say numbers of parts alone.
        values: inputs that lie in one way.
    """
    found = dict(strategies)
    for value in values:
        users = [(node, i) for node, i in graph.users[value] if node in found]
        if len({found[node].operand_layouts[i] for node, i in users}) < 2:
            continue
        leader, at = max(users, key=lambda one: (one[0] not in movable, _weight(one[0], found[one[0]])))
        layout = found[leader].operand_layouts[at]
        for node, i in users:
            own = found[node].operand_layouts[i]
            if node in movable and own is not layout and own.parts == layout.parts:
                found[node] = place_with(found[node], i, layout) or found[node]
    return found


def _weight(node: Node, strategy: Strategy) -> tuple[int, float]:
    return prod(strategy.parts), node.op.flops(node.operand_types, node.attrs)
