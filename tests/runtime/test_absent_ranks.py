"""Ranks that do not come to where others wait for them: the job ends, nonzero, and names the rank and why.

And those that may look so: ranks that end at different times, or compute for long, or wait for one that does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard.runtime import launch as launcher
from autoshard.runtime import watch
from autoshard.runtime.job import GRACE_SECONDS
from autoshard.runtime.launch import find_mpiexec, launch
from autoshard.runtime.progress import ENDED, RankProgress
from autoshard.runtime.watch import MISSED_SECONDS, STOPPED_SECONDS, Absence, Watch

LONGEST = 120
needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py")
PROMISED_SECONDS = 10
"""Within which a job is to end: what the launcher grants, and what it then takes to end the others."""


def test_what_is_granted_is_within_what_is_promised() -> None:
    assert max(MISSED_SECONDS, STOPPED_SECONDS, GRACE_SECONDS) + GRACE_SECONDS < PROMISED_SECONDS


# -- what the launcher reads of the ranks -----------------------------------------------------------------


@pytest.fixture
def ranks(tmp_path: Path) -> list[RankProgress]:
    """Three ranks that have begun."""
    return [RankProgress(tmp_path, rank) for rank in range(3)]


def enter(rank: RankProgress, text: str = "barrier", group: tuple[int, ...] = (0, 1, 2)) -> None:
    rank.enter(rank.place((text, group), text, group))


def absent(folder: Path) -> list[Absence]:
    return list(Watch(folder, 3)._absent())


def test_a_rank_that_has_ended_is_missed_by_those_that_wait_for_it(ranks: list[RankProgress], tmp_path: Path) -> None:
    enter(ranks[0])
    assert absent(tmp_path) == []
    ranks[2].end(ENDED)
    assert absent(tmp_path) == [Absence(2, False, 0, 1, 1)]
    enter(ranks[1])
    assert [one.waiting for one in absent(tmp_path)] == [0, 1]


def test_a_rank_that_has_ended_is_not_missed_where_it_has_been(ranks: list[RankProgress], tmp_path: Path) -> None:
    """As after a gather, which those who send leave at once, and the one that receives when the last has sent."""
    enter(ranks[2], "gather")
    ranks[2].leave()
    ranks[2].end(ENDED)
    enter(ranks[0], "gather")
    assert absent(tmp_path) == []
    ranks[0].leave()
    enter(ranks[0], "gather")
    assert absent(tmp_path) == [Absence(2, False, 0, 2, 2)]


def test_a_rank_that_has_ended_is_not_missed_by_other_groups(ranks: list[RankProgress], tmp_path: Path) -> None:
    ranks[2].end(ENDED)
    enter(ranks[0], group=(0, 1))
    assert absent(tmp_path) == []


def test_a_rank_that_communicates_at_its_very_end_has_not_ended(ranks: list[RankProgress], tmp_path: Path) -> None:
    ranks[2].end(ENDED)
    enter(ranks[2])
    enter(ranks[0])
    assert absent(tmp_path) == []


def test_ranks_meet_outside_of_programs(ranks: list[RankProgress], tmp_path: Path) -> None:
    with ranks[0].meeting("start of MPI", range(3)):
        ranks[2].end(ENDED)
        (found,) = absent(tmp_path)
        assert (found.rank, found.waiting) == (2, 0)
        standing = Watch(tmp_path, 3).standing(0)
        assert standing is not None and standing.doing.startswith("in the start of MPI, at ")
        assert "test_absent_ranks.py" in standing.doing
    assert absent(tmp_path) == []
    standing = Watch(tmp_path, 3).standing(0)
    assert standing is not None and standing.doing == "outside of collectives, before its first collective"


def test_a_meeting_within_a_collective_is_a_part_of_it(ranks: list[RankProgress], tmp_path: Path) -> None:
    enter(ranks[0], "all_reduce of x")
    with ranks[0].meeting("set-up of a group", range(3)):
        pass
    standing = Watch(tmp_path, 3).standing(0)
    assert standing is not None and standing.doing.startswith("in all_reduce of x (collective 1)")


class Clock:
    """In place of the module `time` in `watch`."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_only_what_is_seen_all_the_time_counts(ranks: list[RankProgress], tmp_path: Path, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    found = Watch(tmp_path, 3)
    enter(ranks[0])
    monkeypatch.setattr(watch, "stopped", lambda pid: True)
    found._processes = {2: (os.getpid(), watch.birth(os.getpid()))}
    found._count_absences()
    # The launcher was stopped along with the ranks: it has not seen what was in between.
    clock.now += 3600
    found._count_absences()
    assert found.absent is None
    for _ in range(4):
        clock.now += 1
        found._count_absences()
    ranks[0].leave()
    enter(ranks[0])
    clock.now += 1
    found._count_absences()
    assert found.absent is None, "a rank that goes on to its next collective does not wait for one that is stopped"
    for _ in range(6):
        clock.now += 1
        found._count_absences()
    assert found.absent == (2, True)
    (told,) = found.tell_absent(2, True)
    assert told.startswith("rank 2 failed: a signal (SIGSTOP, SIGTSTP) has stopped it, while rank 0 waits for it")
    assert "(rank 0 in barrier (collective 2), at " in told


def test_damaged_notes_of_an_end_are_none(ranks: list[RankProgress], tmp_path: Path) -> None:
    enter(ranks[2])
    ranks[2].end(ENDED)
    assert json.loads((tmp_path / "rank-2.turns").read_text()) == {"0,1,2": 1}
    (tmp_path / "rank-2.turns").write_text("{")
    standing = Watch(tmp_path, 3).standing(2)
    assert standing is not None and standing.turns == {}


# -- jobs ----------------------------------------------------------------------------------------------------

START = """
import os, signal, sys, time
import numpy as np
import autoshard as ash
from autoshard.layout.mesh import Mesh
from autoshard.runtime.mpi import MpiComm, import_mpi

rank = import_mpi().COMM_WORLD.Get_rank()
"""
PLANNED = "p = ash.plan(lambda x, w: ash.ops.matmul(x, w), (np.ones((12, 6)), np.ones((6, 24))), devices=3)\n"
PLANNED += "p.run(np.ones((12, 6)), np.ones((6, 24)))\n"


@pytest.fixture
def run(tmp_path: Path, capfd):
    """Runs a script on three ranks: the exit code, and what was said."""

    def start(body: str) -> tuple[int, str]:
        (tmp_path / "script.py").write_text(START + body)
        code = launch([str(tmp_path / "script.py")], 3, timeout=LONGEST)
        return code, capfd.readouterr().err

    return start


WAITED = r"while ranks? \d(, \d)? waits? for it \(rank \d in .*, at .*script\.py:\d+\); process \d+ on \S+"


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize(
    "body, reason",
    [
        pytest.param("if rank == 2: sys.exit(0)\n" + PLANNED, "it has ended", id="exits before all others"),
        pytest.param(
            "c = MpiComm()\nc.barrier()\nif rank == 1: sys.exit()\nc.barrier()\n", "it has ended", id="exits in between"
        ),
        pytest.param(
            "c = MpiComm()\nc.barrier()\nif rank != 0: c.barrier()\n", "it has ended", id="returns one barrier early"
        ),
        pytest.param(
            "c = MpiComm()\nc.barrier()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\nc.barrier()\n",
            r"a signal \(SIGSTOP, SIGTSTP\) has stopped it",
            id="is stopped",
        ),
    ],
)
def test_a_rank_that_does_not_come_ends_the_job(run, body: str, reason: str, monkeypatch) -> None:
    monkeypatch.setattr(watch, "MISSED_SECONDS", 0.5)
    monkeypatch.setattr(watch, "STOPPED_SECONDS", 0.5)
    code, err = run(body)
    assert code == 1
    assert re.fullmatch(rf"rank \d failed: {reason}, {WAITED}.*", err.splitlines()[-1]), err


@needs_mpi
@pytest.mark.mpi
def test_ranks_that_end_at_different_times_or_compute_for_long_are_left_alone(run, monkeypatch) -> None:
    """Rank 2 ends first; rank 1 computes, and rank 0 waits for it in a gather to which rank 2 has sent already."""
    monkeypatch.setattr(watch, "MISSED_SECONDS", 0.3)
    monkeypatch.setattr(watch, "STOPPED_SECONDS", 0.3)
    gather = "c = MpiComm()\nif rank == 1: time.sleep(3)\nc.collect([np.ones(2)])\n"
    assert run(gather + "if rank == 0: time.sleep(2)\n") == (0, "")


@needs_mpi
@pytest.mark.mpi
def test_a_rank_may_communicate_when_python_ends(run, monkeypatch) -> None:
    monkeypatch.setattr(watch, "MISSED_SECONDS", 0.3)
    late = "c = MpiComm()\nimport atexit\nif rank == 1: atexit.register(lambda: (time.sleep(2), c.barrier()))\n"
    assert run(late + "else: c.barrier()\n") == (0, "")


@needs_mpi
@pytest.mark.mpi
def test_a_part_of_the_ranks_counts_by_itself(run, monkeypatch) -> None:
    """Ranks 1 and 2 go on for long among themselves when rank 0, which has the same number there, has ended."""
    monkeypatch.setattr(watch, "MISSED_SECONDS", 0.3)
    part = "world = import_mpi().COMM_WORLD\nhalf = MpiComm(world.Split(rank > 0, rank))\n"
    work = "for _ in range(3):\n    if rank == 1: time.sleep(1)\n    if rank: half.barrier()\n"
    assert run(part + work) == (0, "")


# -- under an mpiexec of the user's own ----------------------------------------------------------------------


@pytest.fixture
def mpiexec(tmp_path: Path, monkeypatch):
    """Runs a script on three ranks of a plain mpiexec: the exit code, and what was said."""
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": "/tmp"}
    path = launcher.search_path(os.environ.get("PYTHONPATH"))

    def start(body: str) -> tuple[int, str]:
        (tmp_path / "script.py").write_text(START + body)
        flags = ["--map-by", ":OVERSUBSCRIBE"] if find_mpiexec().open_mpi else []
        command = [find_mpiexec().path, "-n", "3", *flags, sys.executable, str(tmp_path / "script.py")]
        variables = {**os.environ, **environment, "PYTHONPATH": path}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LONGEST)
        return done.returncode, done.stderr

    return start


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize(
    "body, reason",
    [
        ("if rank == 2: sys.exit(0)\n" + PLANNED, "it has ended"),
        (
            "c = MpiComm()\nif rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\nc.barrier()\n",
            "a signal .* has stopped it",
        ),
    ],
    ids=["ends", "is stopped"],
)
def test_ranks_of_a_plain_mpiexec_look_after_each_other(mpiexec, body: str, reason: str) -> None:
    code, err = mpiexec(body)
    assert code == 1
    assert re.search(rf"^rank \d failed: {reason}, {WAITED}", err, re.MULTILINE), err


@needs_mpi
@pytest.mark.mpi
def test_ranks_of_a_plain_mpiexec_may_end_at_different_times(mpiexec) -> None:
    code, err = mpiexec("c = MpiComm()\nc.barrier()\nif rank == 1: time.sleep(4)\n")
    assert (code, err) == (0, "")
