"""How often the nodes inside of loops run: known for loops that count, assumed for all others.

A loop counts if its condition compares a carried number with a constant, and its body adds a constant to that number,
which starts from a constant: what JAX makes of scan and fori_loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from autoshard.ir.graph import Graph, Node, Value, walk

ASSUMED_TRIPS = 16
"""How often a loop is taken to run whose condition depends on data. A guess: enough to keep what moves out of it."""

_UP, _DOWN = {"Less": 0, "LessEqual": 1}, {"Greater": 0, "GreaterEqual": 1}
_TRIED = (3, 4, 11, 57)
"""Numbers at which an operator that adds a constant is told from others."""
Makers = Mapping[Value, Node]


def runs(graph: Graph) -> dict[Node, int]:
    """For each node inside of loops, at any depth, how often it runs in one step; nodes that run once are absent.

    The condition is counted as often as the body; each branch of a choice as if it were always taken.
    """
    makers = {value: node for node in walk(graph.nodes) for value in node.results}
    found: dict[Node, int] = {}
    _count(graph.nodes, 1, makers, found)
    return found


def _count(nodes: Iterable[Node], times: int, makers: Makers, found: dict[Node, int]) -> None:
    for node in nodes:
        if times > 1:
            found[node] = times
        inside = times * max(trips(node, makers), 1) if node.op.name == "While" else times
        for region in node.regions:
            _count(region.nodes, inside, makers, found)


def trips(node: Node, makers: Makers) -> int:
    """How often the body of a loop runs; ASSUMED_TRIPS where that is not known.

    Args:
        makers: the node that makes each value, as far as one does.
    """
    known = known_trips(node, makers)
    return ASSUMED_TRIPS if known is None else known


def known_trips(node: Node, makers: Makers) -> int | None:
    """How often the body of a loop runs; None where that is not known."""
    cond, body = node.regions
    test = _maker(cond.outputs[0], makers)
    if test is None or test.op.name not in (*_UP, *_DOWN):
        return None
    tested, bound = (_origin(one, makers) for one in test.operands)
    if tested not in cond.args:
        return None
    position = cond.args.index(tested)
    start, limit = _number(node.operands[position], makers), _number(bound, makers)
    step = _step(body.outputs[position], body.args[position], makers)
    if start is None or step is None or limit is None:
        return None
    up = test.op.name in _UP
    if step == 0 or (step > 0) is not up:
        return None
    distance = (limit - start if up else start - limit) + (_UP | _DOWN)[test.op.name]
    return max(0, int(-(-distance // abs(step))))


def _step(made: Value, carried: Value, makers: Makers) -> int | None:
    """What one operator adds to the carried number each time; None if it is not known to add always the same."""
    node = _maker(made, makers)
    if node is None or node.regions or carried.type.dtype.numpy.kind not in "iu" or made.type != carried.type:
        return None
    operands = [_origin(one, makers) for one in node.operands]
    numbers = {one: constant_scalar(one, makers) for one in operands if one is not carried}
    if carried not in operands or any(one is None for one in numbers.values()):
        return None

    def after(number: int) -> int:
        given = [numbers.get(one, np.asarray(number, one.type.dtype.numpy)) for one in operands]
        return int(node.op.evaluate([np.asarray(one) for one in given], node.attrs)[0])

    steps = {after(number) - number for number in _TRIED}
    return steps.pop() if len(steps) == 1 else None


def _origin(value: Value, makers: Makers) -> Value:
    """The value that identities pass on."""
    while (node := makers.get(value)) is not None and node.op.name == "Identity":
        value = node.operands[0]
    return value


def _maker(value: Value, makers: Makers) -> Node | None:
    return makers.get(_origin(value, makers))


def _number(value: Value, makers: Makers) -> int | None:
    """The whole number that a scalar always is, None if it is not known to be one."""
    if value.type.shape or value.type.dtype.numpy.kind not in "iu":
        return None
    found = constant_scalar(value, makers)
    return None if found is None else int(found)


def constant_scalar(value: Value, makers: Makers) -> np.ndarray | None:
    """The number that a scalar always is; None if it is not known to be one.

    Args:
        makers: the node that makes each value, as far as one does.
    """
    node = _maker(value, makers)
    if node is None or node.regions or node.op.has_effects(node.attrs) or value.type.shape:
        return None
    if not node.op.constant:
        return None
    operands = [constant_scalar(one, makers) for one in node.operands]
    if any(one is None for one in operands):
        return None
    results = node.op.evaluate([one for one in operands if one is not None], node.attrs)
    return results[node.results.index(_origin(value, makers))]
