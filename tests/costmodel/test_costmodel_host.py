"""Hosts: what they start, devices wait for; in timelines, in programs, in files of hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import Task, load, preset, save, seconds, simulate
from costmodel.hardware import FUSIONS
from costmodel.host import HOSTS, hosted

TIMES = st.integers(0, 40).map(lambda eighths: eighths / 8)
TASKS = st.lists(st.tuples(TIMES, TIMES, st.booleans()), max_size=12)


@given(TASKS)
def test_a_step_takes_no_less_than_its_host_and_its_device(rows):
    tasks = [Task(took, talks, tuple(range(i)), host=host) for i, (took, host, talks) in enumerate(rows)]
    line, alone = simulate(tasks), simulate([replace(task, host=0.0) for task in tasks])
    assert max(alone.seconds, sum(task.host for task in tasks)) <= line.seconds
    assert line.seconds <= alone.seconds + sum(task.host for task in tasks)
    assert list(line.critical) == sorted(line.critical)


@given(TIMES, TIMES, st.sampled_from((1, 2, 4, 8)), TASKS)
def test_pieces_are_tasks_of_their_own(took, host, pieces, before):
    first = [Task(one, host=other) for one, other, _ in before]
    whole = simulate([*first, Task(took, host=host, pieces=pieces)])
    apart = simulate([*first, *[Task(took / pieces, host=host / pieces)] * pieces])
    assert whole.seconds == pytest.approx(apart.seconds)


def test_a_device_ahead_of_its_host_waits_and_one_behind_does_not():
    assert simulate([Task(1.0, host=3.0)] * 4).seconds == 13.0
    assert simulate([Task(3.0, host=1.0)] * 4).seconds == 13.0
    assert simulate([Task(8.0, host=1.0), Task(1.0, host=3.0), Task(1.0, host=3.0)]).seconds == 11.0


@pytest.mark.parametrize(("wrong", "message"), [({"host": -1.0}, "is started in -1.0 seconds"),
                                               ({"host": float("nan")}, "is started in nan"),
                                               ({"pieces": 0}, "has 0 pieces")])  # fmt: skip
def test_what_no_host_does_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Task(1.0, name="a", **wrong)


def test_hosts_are_known_for_each_way_to_make_kernels(tmp_path):
    assert set(HOSTS) == set(FUSIONS) and all(one.source for one in HOSTS.values())
    base = preset("h100")
    assert base.device.host_seconds == base.device.host_collective_seconds == 0
    slow = replace(base, device=hosted(base.device, "eager"))
    assert load(save(slow, tmp_path / "eager.json")) == slow
    with pytest.raises(ValueError, match="made by 'cudagraph'; it is one of none, eager"):
        hosted(base.device, "cudagraph")
    with pytest.raises(ValueError, match="host_seconds is -1"):
        replace(base.device, host_seconds=-1.0)


ALL_REDUCES_OF_8_A100 = {2: 63.11, 4: 84.77, 8: 131.1, 16: 220.5, 32: 353.9, 64: 579.2, 128: 1157.6, 1024: 8212.6}
"""Microseconds by MiB: nccl-tests on one node of Azure's NDm A100 v4 (readme of AML_NCCL_Test)."""


@pytest.mark.parametrize("size", ALL_REDUCES_OF_8_A100)
def test_all_reduces_over_nvlink_take_what_was_published(size):
    found = seconds("all_reduce", size * 2**20, 8, preset("a100").topology.link(8))
    assert found * 1e6 == pytest.approx(ALL_REDUCES_OF_8_A100[size], rel=0.12)


def test_gathers_over_nvlink_take_what_was_published():
    """394 GB/s of a GiB among 8, and intercepts of 8, 17 and 30 us (nccl-tests; PyTorch's AutoParallel)."""
    link = preset("h100").topology.link(8)
    assert 2**30 / seconds("all_gather", 2**30, 8, link) / 1e9 == pytest.approx(394, rel=0.05)
    assert [round(seconds("all_gather", 0, n, link) * 1e6) for n in (2, 4, 8)] == [10, 20, 30]  # 8, 17, 30


def test_collectives_of_more_ranks_of_a_node_start_later():
    """The last of their hosts counts; presets of hosts that were not measured so say nothing of it."""
    for times in HOSTS.values():
        starts = [times.collective_among(ranks) for ranks in (1, 2, 4, 8)]
        assert starts[0] == times.collective and starts == sorted(starts)
    fitted = HOSTS["kernels"]
    assert fitted.collective_among(8) - fitted.collective == pytest.approx(49 * fitted.crowd)
