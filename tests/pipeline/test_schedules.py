"""Schedules by name: closed forms, a second simulator, an executor that knows nothing of dependences."""

from __future__ import annotations

import doctest
import importlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import networkx as nx
import pytest

from autoshard.pipeline.schedules import (
    SCHEDULES,
    Action,
    Activations,
    Durations,
    Schedule,
    check,
    csv_text,
    make_schedule,
    peak_activations,
    period,
    read_schedule,
    simulate,
    with_transfers,
)
from autoshard.pipeline.schedules.dependences import dependences
from autoshard.pipeline.schedules.grid import grid
from autoshard.util.errors import ScheduleError, UnknownNameError
from tests.pipeline.closed_forms import closed_form

RANKS, MICRO_BATCHES = (2, 3, 4, 7, 16), (1, 2, 3, 5, 8, 11, 32)
TIMES = [(1, 1, 1), (3, 4, 2), (2, 2, 2), (5, 3, 7)]


def sizes(name: str, ranks=RANKS, micro_batches=MICRO_BATCHES) -> Iterator[tuple[int, int, int]]:
    """Ranks, micro batches and chunks at which a schedule is looked at; the largest with one number of chunks."""
    kind = SCHEDULES[name]
    for p, m in itertools.product(ranks, micro_batches):
        if m >= kind.fewest_per_rank * p:
            yield p, m, kind.chunks
            if not kind.fixed and p * m < 60:
                yield from ((p, m, chunks) for chunks in (1, 2, 3) if chunks != kind.chunks)


@pytest.mark.parametrize("name", SCHEDULES)
def test_bubble_and_memory_are_those_of_the_closed_forms(name):
    known = 0
    for number, (p, m, chunks) in enumerate(sizes(name)):
        seconds = TIMES[number % len(TIMES)]
        made = make_schedule(name, p, m, chunks)
        form = closed_form(name, p, m, chunks, seconds)
        work = m * chunks * sum(seconds)
        line = simulate(made, Durations.equal(made.stages, seconds[0], seconds[1:]))
        assert tuple(peak_activations(made)) == form.peaks, (p, m, chunks)
        assert set(line.busy) == {work}
        if form.bubble is not None:
            known += 1
            assert line.makespan - work == form.bubble, (p, m, chunks, seconds)
            if p * m < 60:
                assert period(made, line.durations) - work == form.period_bubble, (p, m, chunks, seconds)
    assert known >= 5


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_can_be_run_and_read_back(name):
    for p, m, chunks in sizes(name, (1, 2, 3, 5), (1, 2, 3, 7)):
        made = check(make_schedule(name, p, m, chunks))
        sent = check(with_transfers(made))
        assert executes(made) and executes(sent)
        assert read_schedule(csv_text(made)) == made
        assert read_schedule(csv_text(sent)) == sent == with_transfers(sent)
        assert replace(sent, orders=tuple(tuple(one for one in order if one.computes) for order in sent.orders)) == made


@pytest.mark.parametrize("name", SCHEDULES)
def test_simulated_times_are_the_longest_path_with_and_without_transfers(name):
    rng = random.Random(7)
    for p, m, chunks in ((2, 5, None), (3, 7, None), (4, 8, None)):
        made = make_schedule(name, p, m, chunks)
        draws = [tuple(rng.randrange(1, 9) for _ in range(made.stages)) for _ in range(3)]
        durations = Durations(*draws, transfer=rng.randrange(4))
        line = simulate(made, durations)
        assert line.makespan == longest_path(made, durations)
        # What the first of two actions in a slot has made is sent after both.
        apart = replace(made, overlapped=frozenset())
        assert simulate(with_transfers(apart), durations).makespan == line.makespan
        assert simulate(with_transfers(made), durations).makespan >= line.makespan
        assert line.makespan >= max(line.busy) and 0 <= line.bubble_share < 1


def longest_path(schedule: Schedule, durations: Durations) -> float:
    """The length by networkx: each action an edge from its begin to its end."""
    graph = nx.DiGraph()
    for action in schedule:
        graph.add_edge((action, 0), (action, 1), weight=durations.of(action))
    for before, action, crosses in dependences(schedule).edges(data="crosses"):
        graph.add_edge((before, 1), (action, 0), weight=durations.transfer if crosses else 0)
    return nx.dag_longest_path_length(graph)


def executes(schedule: Schedule) -> bool:
    """Whether ranks that do their lists in turn, with messages in order, come to the end with every result there."""
    places = [0] * schedule.ranks
    made: set[tuple] = set()
    mail: dict[tuple[int, int], list[Action]] = {}
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            while places[rank] < len(order) and _can(schedule, order[places[rank]], rank, made, mail):
                places[rank] += 1
                moved = True
    units = schedule.stages * schedule.micro_batches
    done = [one[0] for one in made if len(one) == 3]
    whole = done.count("F") == units == done.count("W")
    return whole and all(place == len(order) for place, order in zip(places, schedule.orders, strict=True))


def _can(schedule: Schedule, action: Action, rank: int, made: set[tuple], mail: dict) -> bool:
    """Do an action if all that it reads is on its rank; transfers without sends are there at once."""
    kind, stage, micro = action
    if not (0 <= stage < schedule.stages and 0 <= micro < schedule.micro_batches):
        return False
    if schedule.ranks_of_stages[stage] != rank:
        return False

    def there(kind: str, of: int) -> bool:
        here = schedule.ranks_of_stages[of] == rank or not schedule.has_transfers
        return (kind, of, micro, *(() if here else (rank,))) in made

    if kind in ("SEND_F", "SEND_B"):
        ready = (kind[-1:].replace("B", "I"), stage, micro) in made
        peer = schedule.ranks_of_stages[stage + (1 if kind == "SEND_F" else -1)]
        if ready:
            mail.setdefault((rank, peer), []).append(action)
        return ready
    if kind in ("RECV_F", "RECV_B"):
        source = stage + (-1 if kind == "RECV_F" else 1)
        box = mail.get((schedule.ranks_of_stages[source], rank), [])
        if not box or box[0] != Action(kind.replace("RECV", "SEND"), source, micro):
            return False
        box.pop(0)
        made.add((kind[-1:].replace("B", "I"), source, micro, rank))
        return True
    results = {"F": ["F"], "I": ["I"], "W": ["W"], "B": ["I", "W"]}[kind]
    ready = {
        "F": stage == 0 or there("F", stage - 1),
        "W": ("I", stage, micro) in made,
    }.get(kind, ("F", stage, micro) in made and (stage == schedule.stages - 1 or there("I", stage + 1)))
    if not ready or any((one, stage, micro) in made for one in results):
        return False
    made.update((one, stage, micro) for one in results)
    return True


def test_corrupted_schedules_are_refused_exactly_if_they_do_not_execute():
    rng = random.Random(11)
    outcomes = {True: 0, False: 0}
    for _ in range(1000):
        name = rng.choice(list(SCHEDULES))
        made = make_schedule(name, rng.choice((2, 3)), rng.choice((2, 3, 4)) if name != "dualpipev" else 6)
        # Pairs that share a slot would have to be corrupted as pairs.
        made = replace(made, overlapped=frozenset())
        corrupt = corrupted(made, rng)
        try:
            check(corrupt)
            valid = True
        except ScheduleError:
            valid = False
        assert valid == executes(corrupt), str(corrupt)
        outcomes[valid] += 1
    assert min(outcomes.values()) > 100


def corrupted(schedule: Schedule, rng: random.Random) -> Schedule:
    """The schedule with one action swapped with another, moved, doubled, dropped or renamed."""
    orders = [list(order) for order in schedule.orders]
    order = rng.choice(orders)
    i, j = rng.randrange(len(order)), rng.randrange(len(order))
    how = rng.randrange(6)
    if how == 0:
        order[i], order[j] = order[j], order[i]
    elif how == 1:
        order.insert(j, order.pop(i))
    elif how == 2:
        order.insert(j, order[i])
    elif how == 3:
        order.pop(i)
    elif how == 4:
        k = min(i + 1, len(order) - 1)
        order[i], order[k] = order[k], order[i]
    else:
        order[i] = order[i]._replace(**{rng.choice(("micro", "stage")): rng.randrange(7)})
    return replace(schedule, orders=tuple(map(tuple, orders)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows; a schedule has one for each rank"),
        ("0F0,0B0\n\n1F0,1B0", "row 2 is empty: rank 1 has nothing to do"),
        ("0F0,0Q0", "row 1, cell 2: '0Q0' is no action"),
        ("0F0,0B0junk", "row 1, cell 2: '0B0junk' is no action"),
        ("0F0,0UNSHARD,0B0", "0UNSHARD gathers, drops or reduces parameters"),
        ("99999999999999999999999F0", "too large for 64 bits"),
        ("0F2000000,0B0", "numbered below 1048576"),
        ("0F0,0B0\n2F0,2B0", "no rank has an action of stage 1; the last stage is 2"),
        ("0F0,0B0,0F0", "rank 0 does 0F0 twice, as actions 0 and 2"),
        ("0F0,0B0,0F1", "stage 0 has no backward of micro batch 1: rank 0 must do 0B1, or 0I1 and 0W1"),
        ("0F0,0B0,0B1", "stage 0 has no forward of micro batch 1: rank 0 must do 0F1"),
        ("0F0,0B0,0W0", "rank 0 does 0B0 and 0W0, which is a part of it"),
        ("0F0,0I0", "rank 0 does 0I0, but not 0W0"),
        ("0F0,0B0,1B0\n1F0", "rank 1, action 0: 1F0 is of stage 1, which rank 0 runs"),
        ("0B0,0F0", "rank 0 does 0B0 as action 0, before 0F0 (action 1), which it waits for"),
        ("0F0,0W0,0I0", "rank 0 does 0W0 as action 1, before 0I0 (action 2)"),
        (
            "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1",
            "the schedule deadlocks: ",
        ),
        ("(0F0;0B0)OVERLAP_F_B", "0F0 shares a slot with 0B0, which must wait for it"),
        ("0F0,0SEND_F0,0B0\n1F0,1B0", "rank 0 must do 0RECV_B0: some transfers are there, it is not"),
        ("0F0,0SEND_F0,0B0", "rank 0 does 0SEND_F0, which no other rank needs"),
        (
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
            "message 0 from rank 0 to rank 1 is 0SEND_F0, and rank 1 expects 0SEND_F1",
        ),
    ],
)
def test_bad_texts_are_refused_with_their_place(text, message):
    with pytest.raises(ScheduleError) as caught:
        read_schedule(text, "mine.csv")
    assert message in str(caught.value) and "mine.csv" in str(caught.value)


def test_a_deadlock_names_ranks_and_actions():
    with pytest.raises(ScheduleError) as caught:
        read_schedule("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1")
    waits = str(caught.value).partition("deadlocks: ")[2].split("; ")
    assert set(waits) == {
        "rank 0 does 0B0 only after 1B0 of rank 1",
        "rank 1 does 1B0 only after 1F1",
        "rank 1 does 1F1 only after 0F1 of rank 0",
        "rank 0 does 0F1 only after 0B0",
    }


def test_pairs_that_wait_for_each_other_deadlock():
    made = make_schedule("1f1b", 2, 3)
    assert str(made) == "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"
    # 0B1 waits for 1B1, and 1F2 for 0F2: in turn they could be done, two at once not.
    with pytest.raises(ScheduleError, match="deadlocks"):
        read_schedule("0F0,0F1,0B0,(0F2;0B1)OVERLAP_F_B,0B2\n1F0,1B0,1F1,(1F2;1B1)OVERLAP_F_B,1B2")


def test_idle_cells_line_ends_and_blanks_are_read():
    made = make_schedule("1f1b", 2, 1)
    assert read_schedule(" 0F0 ,,,0B0\r\n,1F0,1B0,\r\n\r\n") == made


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("1f1b", (0, 2, None), "of 0 ranks"),
        ("1f1b", (2, -1, None), "of -1 micro batches"),
        ("1f1b", (2, 2.0, None), "of 2.0 micro batches"),
        ("gpipe", (2, 2, 3), "has 1 chunks a rank, not 3"),
        ("zbv", (2, 2, 1), "has 2 chunks a rank, not 1"),
        ("dualpipev", (4, 7, None), "on 4 ranks needs at least 8 micro batches, not 7"),
        ("gpipe", (1024, 65536, None), "too long"),
    ],
)
def test_numbers_with_which_no_schedule_exists(name, numbers, message):
    with pytest.raises(ScheduleError, match=message):
        make_schedule(name, *numbers)


@pytest.mark.parametrize("module", ["", ".action", ".schedule", ".validity", ".simulate", ".memory", ".grid"])
def test_examples_in_docstrings(module):
    found = importlib.import_module(f"autoshard.pipeline.schedules{module}")
    result = doctest.testmod(found)
    assert result.failed == 0 and result.attempted > 0


def test_names():
    assert make_schedule("ZBVZeroBubble", 2, 2) == make_schedule("zbv", 2, 2)
    assert make_schedule("Interleaved1F1B", 2, 2).name == "interleaved_1f1b"
    with pytest.raises(UnknownNameError, match="did you mean 1f1b"):
        make_schedule("1b1f", 2, 2)


def test_what_input_gradients_free_counts_from_them_on():
    made = make_schedule("zb_h1", 3, 5)
    late, early = Activations((0,) * 3, (4,) * 3), Activations((3,) * 3, (1,) * 3)
    assert peak_activations(made, late) == (12, 12, 12)
    # 1F1B holds 3, 2 and 1 micro batches; weight gradients that wait hold a quarter of one each.
    assert peak_activations(made, early) == (12, 9, 6)
    assert peak_activations(make_schedule("1f1b", 3, 5), early) == (12, 8, 4)


def test_times_of_other_sizes_are_refused():
    made = make_schedule("1f1b", 2, 2)
    with pytest.raises(ScheduleError, match="durations of 3 stages for a schedule of 2"):
        simulate(made, Durations.equal(3))
    with pytest.raises(ScheduleError, match="none is below zero"):
        Durations.equal(2, -1)
    with pytest.raises(ScheduleError, match="activations of 3 stages"):
        peak_activations(made, Activations.equal(3))


def test_a_picture_has_a_column_per_unit():
    line = simulate(make_schedule("1f1b", 2, 2), Durations.equal(2, 0.5, (0.5, 1), 0.5))
    assert grid(line) == (
        "rank 0  F0 F1 .  .  .  .  .  B0 -- -- .  B1 -- --\nrank 1  .  .  F0 B0 -- -- F1 B1 -- -- .  .  .  ."
    )
    with pytest.raises(ScheduleError, match="too wide"):
        grid(simulate(make_schedule("gpipe", 2, 300)))
