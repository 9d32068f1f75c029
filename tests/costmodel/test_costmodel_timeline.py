"""Timelines: engines take tasks in order, overlap hides what it can and never lengthens a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import Link, Task, seconds, simulate

LINK = Link("l", 2e-6, 1e9)


@st.composite
def programs(draw) -> list[Task]:
    tasks: list[Task] = []
    for i in range(draw(st.integers(0, 12))):
        # Sums of such times are exact, whatever their order.
        took = draw(st.integers(0, 40)) / 8
        after = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        tasks.append(Task(took, draw(st.booleans()), tuple(sorted(after))))
    return tasks


@given(programs())
def test_without_overlap_times_add_up(tasks):
    line = simulate(tasks, overlap=False)
    assert line.seconds == sum(task.seconds for task in tasks)
    assert line.hidden_seconds == 0


@given(programs())
def test_with_overlap_every_task_has_its_engine_and_what_it_waits_for(tasks):
    line = simulate(tasks)
    for i, task in enumerate(tasks):
        assert line.ends[i] == line.starts[i] + task.seconds
        assert all(line.ends[j] <= line.starts[i] for j in task.after)
        earlier = [j for j in range(i) if tasks[j].communicates == task.communicates]
        assert all(line.ends[j] <= line.starts[i] for j in earlier)
        # Nothing waits for nothing.
        assert line.starts[i] in {0.0, *(line.ends[j] for j in (*task.after, *earlier))}
    bounds = line.compute_seconds, line.communication_seconds
    assert max(bounds) <= line.seconds <= sum(bounds)


@given(programs())
def test_what_is_hidden_is_what_overlap_saves_at_most(tasks):
    line = simulate(tasks)
    step = 1 / 16
    ticks = [(k + 0.5) * step for k in range(int(line.seconds / step))]
    rows = list(zip(tasks, line.starts, line.ends, strict=True))

    def busy(at: float, communicates: bool) -> bool:
        return any(task.communicates == communicates and start <= at < end for task, start, end in rows)

    assert line.hidden_seconds == pytest.approx(sum(step for at in ticks if busy(at, True) and busy(at, False)))
    assert line.exposed_seconds == line.communication_seconds - line.hidden_seconds


@given(programs())
def test_the_critical_path_has_no_gap(tasks):
    line = simulate(tasks)
    path = line.critical
    assert bool(path) == bool(tasks)
    assert sum(tasks[i].seconds for i in path) == line.seconds
    assert list(path) == sorted(path)


def test_collective_tasks_are_priced_by_their_groups():
    task = Task.collective("all_reduce", 6e6, [(3, LINK)], after=(0,))
    assert task == Task(seconds("all_reduce", 6e6, 3, LINK), True, (0,), "all_reduce")
    assert Task.collective("all_gather", 100.0, []).seconds == 0


@pytest.mark.parametrize("after", [(0,), (1,), (-1,)])
def test_tasks_wait_for_earlier_ones(after):
    with pytest.raises(ValueError, match="task 0 .*waits for"):
        simulate([Task(1.0, after=after)])


@pytest.mark.parametrize("took", [-1.0, float("nan"), float("inf")])
def test_tasks_take_finite_times(took):
    with pytest.raises(ValueError, match="finite number from 0 up"):
        Task(took)
