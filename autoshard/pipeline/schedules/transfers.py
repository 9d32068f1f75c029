"""Sends and receives of a schedule: derived from its computing actions."""

from __future__ import annotations

from dataclasses import replace

from autoshard.pipeline.schedules.action import FORWARD, SEND_BACKWARD, SEND_FORWARD, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.dependences import dependences, receive_of, second_in_slot
from autoshard.pipeline.schedules.schedule import Schedule


def with_transfers(schedule: Schedule) -> Schedule:
    """The schedule with a send after each action whose result another rank reads, and the receive there.

    A receive is posted before the action that its rank runs when the message can be on its way at the earliest, each
    action counted as one step, so that both ends of a pair of ranks list their messages in one order: a transport
    that matches messages by order alone serves.

    Args:
        schedule: one that `check` accepts; one that has its transfers is returned as it is.
    """
    if schedule.has_transfers:
        return schedule
    orders: list[list[Action]] = [[] for _ in schedule.orders]
    made: list[Action] = []
    for action in _by_steps(schedule):
        orders[schedule.rank_of(action)].append(action)
        made.append(action)
        if action in schedule.overlapped:
            # What the first of two actions in a slot has made is sent after both.
            continue
        for send, receive in (pair for one in made for pair in _message(schedule, one)):
            orders[schedule.rank_of(send)].append(send)
            orders[schedule.rank_of(receive)].append(receive)
        made = []
    return replace(schedule, orders=tuple(map(tuple, orders)))


def _by_steps(schedule: Schedule) -> list[Action]:
    """All actions by the step in which each can be done at the earliest; the order on a rank is its own.

    Two that share a slot stand side by side.
    """
    import networkx as nx  # only here: ranks start without it

    graph = dependences(schedule, slots=True)
    second = second_in_slot(schedule)
    step: dict[Action, int] = {}
    for action in nx.topological_sort(graph):
        if action in second:
            step[action] = step[second[action]]
        else:
            step[action] = max((step[before] + 1 for before in graph.predecessors(action)), default=0)
    return sorted(schedule, key=lambda action: (step[action], schedule.rank_of(action)))


def _message(schedule: Schedule, action: Action) -> list[tuple[Action, Action]]:
    if action.kind == WEIGHT_GRADIENT:
        return []
    forward = action.kind == FORWARD
    reader = action.stage + (1 if forward else -1)
    if not 0 <= reader < schedule.stages or schedule.ranks_of_stages[reader] == schedule.rank_of(action):
        return []
    send = Action(SEND_FORWARD if forward else SEND_BACKWARD, action.stage, action.micro)
    return [(send, receive_of(action))]
