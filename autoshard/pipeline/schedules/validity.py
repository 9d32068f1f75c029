"""Whether a schedule can be run to its end: every action once, where it belongs, after what it reads, no deadlock.

`torch.distributed.pipelining`'s own check (2.13) counts sets of actions per stage and looks at F before B; it accepts
orders that deadlock across ranks and actions that are done twice. Here a schedule is refused unless it can be run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, SENDS, WEIGHT_GRADIENT, Action
from autoshard.pipeline.schedules.dependences import dependences, receive_of, send_of
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.util.errors import ScheduleError

if TYPE_CHECKING:
    import networkx as nx

_SHOWN = 4


def check(schedule: Schedule) -> Schedule:
    """The schedule itself, if it can be run to its end.

    Raises:
        ScheduleError: an action is missing, is done twice, belongs to no stage or micro batch, stands on a rank that
            does not run its stage, comes before one that it reads; ranks would wait for each other for ever; or both
            ends of a pair of ranks list their messages in different orders. The message has rank, position, action.

    Example:
        >>> from autoshard.pipeline.schedules import read_schedule
        >>> read_schedule("0F0,0B0,0F1,0I1")
        Traceback (most recent call last):
            ...
        autoshard.util.errors.ScheduleError: the text: rank 0 does 0I1, but not 0W1
    """
    _check_placed(schedule)
    _check_once(schedule)
    _check_complete(schedule)
    _check_pairs(schedule)
    if schedule.has_transfers:
        _check_transfers(schedule)
    graph = dependences(schedule)
    _check_order_on_ranks(schedule, graph)
    _check_no_deadlock(schedule, dependences(schedule, slots=True) if schedule.overlapped else graph)
    if schedule.has_transfers:
        _check_messages(schedule)
    return schedule


def _positions(schedule: Schedule) -> Iterator[tuple[int, int, Action]]:
    for rank, order in enumerate(schedule.orders):
        for position, action in enumerate(order):
            yield rank, position, action


def _check_placed(schedule: Schedule) -> None:
    if min(schedule.stages, schedule.ranks, schedule.micro_batches) < 1:
        raise ScheduleError("a schedule has at least one stage, one rank and one micro batch")
    strange = next((rank for rank in schedule.ranks_of_stages if not 0 <= rank < schedule.ranks), None)
    if strange is not None:
        raise ScheduleError(f"a stage is given to rank {strange}; there are {schedule.ranks}")
    for rank, position, action in _positions(schedule):
        at = f"rank {rank}, action {position}: {action}"
        if not 0 <= action.stage < schedule.stages:
            raise ScheduleError(f"{at} is of stage {action.stage}; there are {schedule.stages}")
        if not 0 <= action.micro < schedule.micro_batches:
            raise ScheduleError(f"{at} is of micro batch {action.micro}; there are {schedule.micro_batches}")
        if schedule.rank_of(action) != rank:
            raise ScheduleError(f"{at} is of stage {action.stage}, which rank {schedule.rank_of(action)} runs")


def _check_once(schedule: Schedule) -> None:
    twice = [action for action, count in Counter(schedule).items() if count > 1]
    if twice:
        rank = schedule.rank_of(twice[0])
        first, second = islice((i for i, one in enumerate(schedule.orders[rank]) if one == twice[0]), 2)
        raise ScheduleError(f"rank {rank} does {twice[0]} twice, as actions {first} and {second}")


def _check_complete(schedule: Schedule) -> None:
    for stage, rank in enumerate(schedule.ranks_of_stages):
        for micro in range(schedule.micro_batches):
            forward, backward, first, second = (
                Action(kind, stage, micro) for kind in (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
            )
            if forward not in schedule.actions:
                raise ScheduleError(
                    f"stage {stage} has no forward of micro batch {micro}: rank {rank} must do {forward}"
                )
            halves = [one for one in (first, second) if one in schedule.actions]
            if backward in schedule.actions and halves:
                raise ScheduleError(f"rank {rank} does {backward} and {halves[0]}, which is a part of it")
            if backward not in schedule.actions and not halves:
                raise ScheduleError(
                    f"stage {stage} has no backward of micro batch {micro}: rank {rank} must do {backward}, "
                    f"or {first} and {second}"
                )
            if len(halves) == 1:
                raise ScheduleError(f"rank {rank} does {halves[0]}, but not {second if halves[0] == first else first}")


def _check_pairs(schedule: Schedule) -> None:
    """Actions that share a slot are two neighbours that compute, and neither needs the other."""
    for action in schedule.overlapped:
        if action not in schedule.actions:
            raise ScheduleError(f"{action} shares a slot, and no rank does it")
        order = schedule.orders[schedule.rank_of(action)]
        after = next(iter(order[order.index(action) + 1 :]), None)
        if not action.computes or after is None or not after.computes or after in schedule.overlapped:
            raise ScheduleError(f"{action} shares a slot with {after or 'nothing'}; a slot holds two computing actions")
        if action in schedule.inputs_of(after):
            raise ScheduleError(f"{action} shares a slot with {after}, which must wait for it")


def _check_transfers(schedule: Schedule) -> None:
    """Each result that another rank reads is sent once and received once, and nothing else is."""
    wanted = set()
    for action in filter(lambda one: one.computes, schedule):
        for before in schedule.inputs_of(action):
            if schedule.rank_of(before) != schedule.rank_of(action):
                wanted |= {receive_of(before), send_of(receive_of(before))}
    found = {action for action in schedule.actions if not action.computes}
    for missing in sorted(wanted - found):
        raise ScheduleError(f"rank {schedule.rank_of(missing)} must do {missing}: some transfers are there, it is not")
    for needless in sorted(found - wanted):
        raise ScheduleError(f"rank {schedule.rank_of(needless)} does {needless}, which no other rank needs")


def _check_order_on_ranks(schedule: Schedule, graph: nx.DiGraph) -> None:
    place = {action: (rank, position) for rank, position, action in _positions(schedule)}
    for before, action in graph.edges:
        (rank, position), (other, earlier) = place[action], place[before]
        if rank == other and earlier > position:
            raise ScheduleError(
                f"rank {rank} does {action} as action {position}, "
                f"before {before} (action {earlier}), which it waits for"
            )


def _check_no_deadlock(schedule: Schedule, graph: nx.DiGraph) -> None:
    import networkx as nx  # only here: ranks start without it

    if nx.is_directed_acyclic_graph(graph):
        return
    circle = _smallest_cycle(graph)
    waits = [
        f"rank {schedule.rank_of(action)} does {action} only after {before}"
        + (f" of rank {schedule.rank_of(before)}" if schedule.rank_of(before) != schedule.rank_of(action) else "")
        for before, action in circle
    ]
    more = f" ... ({len(waits) - 2 * _SHOWN} more) ..." if len(waits) > 2 * _SHOWN else ""
    shown = waits if not more else [*waits[:_SHOWN], more.strip(), *waits[-_SHOWN:]]
    raise ScheduleError(f"the schedule deadlocks: {'; '.join(shown)}")


def _smallest_cycle(graph: nx.DiGraph) -> list[tuple[Action, Action]]:
    """A cycle through as few actions as any that passes the same one, as edges, each against its wait."""
    import networkx as nx  # only here: ranks start without it

    start = nx.find_cycle(graph)[0][0]
    back = min(graph.predecessors(start), key=lambda one: _length(graph, start, one))
    path = [*nx.shortest_path(graph, start, back), start]
    return [(path[i], path[i + 1]) for i in reversed(range(len(path) - 1))]


def _length(graph: nx.DiGraph, start: Action, end: Action) -> float:
    import networkx as nx  # only here: ranks start without it

    try:
        return nx.shortest_path_length(graph, start, end)
    except nx.NetworkXNoPath:
        return float("inf")


def _check_messages(schedule: Schedule) -> None:
    """Messages between two ranks are matched by order: both ends must list them alike."""
    for rank, order in enumerate(schedule.orders):
        for peer in range(schedule.ranks):
            sent = [action for action in order if action.kind in SENDS and _peer(schedule, action) == peer]
            got = [send_of(one) for one in schedule.orders[peer] if one.kind in SENDS.values()]
            _check_alike(rank, peer, sent, [one for one in got if schedule.rank_of(one) == rank])


def _peer(schedule: Schedule, send: Action) -> int:
    return schedule.ranks_of_stages[send.stage + (1 if send.kind == "SEND_F" else -1)]


def _check_alike(rank: int, peer: int, sent: list[Action], received: Iterable[Action]) -> None:
    for place, (one, other) in enumerate(zip(sent, received, strict=True)):
        if one != other:
            raise ScheduleError(
                f"message {place} from rank {rank} to rank {peer} is {one}, and rank {peer} expects {other}: "
                f"messages of a pair of ranks must be received in the order in which they are sent"
            )
