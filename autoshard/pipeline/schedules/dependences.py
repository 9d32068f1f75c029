"""What must be done before what: the directed graph of a schedule's data and of the orders of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from autoshard.pipeline.schedules.action import FORWARD, RECEIVES, SEND_FORWARD, SENDS, Action
from autoshard.pipeline.schedules.schedule import Schedule

if TYPE_CHECKING:
    import networkx as nx


def dependences(schedule: Schedule, slots: bool = False) -> nx.DiGraph:
    """A node per action and an edge to each that must wait for it.

    An edge's `crosses` says that a message goes from rank to rank on it. Sends and receives do not block: a rank goes
    on once a receive is posted, and the action that reads the message waits for it. The graph of a schedule that can
    be run has no cycle.

    Args:
        slots: whether two actions that share a slot begin when both can, and what they make is there after both.
    """
    import networkx as nx  # only here: ranks start without it

    graph = nx.DiGraph()
    graph.add_nodes_from(schedule)
    for action, some in waits(schedule).items():
        graph.add_edges_from(((before, action, {"crosses": crosses}) for before, crosses in some))
    if slots:
        for second, first in second_in_slot(schedule).items():
            _join(graph, first, second)
    return graph


def waits(schedule: Schedule) -> dict[Action, list[tuple[Action, bool]]]:
    """For each action those that it must wait for, and whether a message brings what they made."""
    found: dict[Action, list[tuple[Action, bool]]] = {action: [] for action in schedule}
    for order in schedule.orders:
        for before, action in _turns(order):
            found[action].append((before, False))
    for action, some in found.items():
        some.extend(pair for pair in _reads(schedule, action) if pair[0] in found)
    return found


def second_in_slot(schedule: Schedule) -> dict[Action, Action]:
    """The actions that share the slot of the action before them, and that action."""
    neighbours = (pair for order in schedule.orders for pair in pairwise(order))
    return {second: first for first, second in neighbours if first in schedule.overlapped}


def _join(graph: nx.DiGraph, first: Action, second: Action) -> None:
    for before, crosses in [(one, graph.edges[one, second]["crosses"]) for one in graph.predecessors(second)]:
        if before != first and not graph.has_edge(before, first):
            graph.add_edge(before, first, crosses=crosses)
    for after, crosses in [(one, graph.edges[first, one]["crosses"]) for one in graph.successors(first)]:
        if after != second and not graph.has_edge(second, after):
            graph.add_edge(second, after, crosses=crosses)


def _turns(order: tuple[Action, ...]) -> Iterator[tuple[Action, Action]]:
    """The order of a rank: each action waits for the last one before it that is no receive."""
    blocking = [action for action in order if action.kind not in RECEIVES]
    yield from pairwise(blocking)
    last = None
    for action in order:
        if action.kind not in RECEIVES:
            last = action
        elif last is not None:
            yield last, action


def _reads(schedule: Schedule, action: Action) -> Iterator[tuple[Action, bool]]:
    """What an action waits for because it reads it, and whether that lies on another rank."""
    kind, stage, micro = action
    if kind in SENDS:
        yield (Action(FORWARD, stage, micro) if kind == SEND_FORWARD else schedule.backward(stage, micro)), False
    elif kind in RECEIVES:
        yield send_of(action), True
    else:
        for before in schedule.inputs_of(action):
            crosses = schedule.rank_of(before) != schedule.rank_of(action)
            yield (
                (receive_of(before) if crosses and schedule.has_transfers else before),
                (crosses and not schedule.has_transfers),
            )


def send_of(receive: Action) -> Action:
    """The send whose message a receive takes."""
    step = -1 if RECEIVES[receive.kind] == SEND_FORWARD else 1
    return Action(RECEIVES[receive.kind], receive.stage + step, receive.micro)


def receive_of(made_by: Action) -> Action:
    """The receive of what a forward, input gradient or backward makes for its neighbour."""
    if made_by.kind == FORWARD:
        return Action("RECV_F", made_by.stage + 1, made_by.micro)
    return Action("RECV_B", made_by.stage - 1, made_by.micro)
