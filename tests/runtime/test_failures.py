"""Ranks that die without a word, in the middle of a collective: the job ends, and says which, how and where.

Another rank waits until the doomed one is inside the collective and then ends it, so that nothing depends on time.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoshard.runtime import launch as launcher
from autoshard.runtime import watch
from autoshard.runtime.job import TIMED_OUT
from autoshard.runtime.launch import find_mpiexec, launch
from autoshard.runtime.processes import descendants, runs
from autoshard.runtime.progress import COLLECTIVE, ENDED
from autoshard.runtime.watch import Watch

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec"),
]
LONGEST = 120

START = """
import os, sys, time
from pathlib import Path
import numpy as np
from autoshard.layout.mesh import Mesh
from autoshard.runtime.mpi import MpiComm
from autoshard.runtime.progress import COLLECTIVE, FOLDER, read

comm = MpiComm()
groups = Mesh(dp=comm.world).groups(Mesh(dp=comm.world).all_axes)
folder = Path(os.environ[FOLDER])

def inside(rank, count):
    \"\"\"Wait until the rank is in its collective number `count`; its process.\"\"\"
    while True:
        one = read(folder, rank)
        if one is not None and (one.state, one.count) == (COLLECTIVE, count):
            return one.pid
        time.sleep(0.01)

comm.all_gather([np.ones(2)], groups, 0)
place = comm.place("scores (MatMul) at model.py:7")
"""


@pytest.fixture
def script(tmp_path: Path):
    def write(body: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(START + body)
        return str(path)

    return write


def numbered(text: str, body: str) -> int:
    """The line of the script, whose end is `body`, that holds this text."""
    return 1 + (START + body).splitlines().index(text)


# -- a rank that is killed --------------------------------------------------------------------------------

KILL = """
doomed, number = map(int, sys.argv[1:])
if comm.rank == (doomed + 1) % comm.world:
    os.kill(inside(doomed, 2), number)
    time.sleep(300)
comm.at(place)
comm.all_reduce([np.ones((5, 3), np.float32)], groups)
"""


@pytest.mark.parametrize("doomed, number", [(0, signal.SIGKILL), (2, signal.SIGSEGV)])
def test_a_rank_killed_in_a_collective_is_named(script, doomed: int, number: int, capfd) -> None:
    if not find_mpiexec().open_mpi:
        pytest.skip("MPICH does not say which rank was killed")
    assert launch([script(KILL), str(doomed), str(number)], 3, timeout=LONGEST) == 128 + number
    err = capfd.readouterr().err
    where = r"in all_reduce of float32\[5, 3\] over ranks 0-2 \(collective 2\), for scores \(MatMul\) at model\.py:7"
    if number == signal.SIGSEGV:
        line = numbered("comm.all_reduce([np.ones((5, 3), np.float32)], groups)", KILL)
        assert re.search(rf'File ".*script\.py", line {line} in <module>', err), err
    last = err.splitlines()[-1]
    assert re.fullmatch(
        rf"rank {doomed} failed: ended by signal {number} \([\w ]+\); process \d+ on \S+, {where}", last
    )
    assert "Process received signal" not in err and "prterun" not in err


PLANNED = """
import autoshard as ash
from autoshard import ops
from autoshard.runtime import prepared
x, w = np.ones((8, 6), np.float32), np.ones((6, 4), np.float32)
product = ops.MatMul().shard(((1, 2), (2, 1)))
planned = ash.plan(lambda x, w: ops.exp(product(x, w)), (x, w), devices=2)
if comm.rank == 1:
    prepared.all_reduce = prepared.reduce_scatter = lambda *told: lambda part: os.kill(os.getpid(), 9)
planned.run(x, w)
"""


def test_a_rank_killed_in_a_program_is_told_with_its_operator(script, capfd) -> None:
    if not find_mpiexec().open_mpi:
        pytest.skip("MPICH does not say which rank was killed")
    assert launch([script(PLANNED)], 2, timeout=LONGEST) == 128 + 9
    last = capfd.readouterr().err.splitlines()[-1]
    line = numbered("planned = ash.plan(lambda x, w: ops.exp(product(x, w)), (x, w), devices=2)", PLANNED)
    where = rf"in \w+ of float32\[8, 4\] over ranks 0, 1 \(collective \d+\), for exp \(Exp\) at .*script\.py:{line}"
    assert re.fullmatch(rf"rank 1 failed: ended by signal 9 \(Killed\); process \d+ on \S+, {where}", last), last


DIFFERING = """
import autoshard as ash
from autoshard import ops
x = np.ones((8, 6), np.float32)
last = ops.tanh if comm.rank == 1 else ops.exp
ash.plan(lambda x: last(x), (x,), devices=3).run(x)
"""


def test_ranks_with_different_programs_say_so_once_and_do_not_begin(script, capfd) -> None:
    assert launch([script(DIFFERING)], 3, timeout=LONGEST) == 1
    err = capfd.readouterr().err
    assert err.count("failed: RuntimeSetupError: the ranks have different programs") == 1
    assert err.count("Traceback") == 1
    assert re.search(r"^  ranks 0, 2: .* = Exp .*script\.py:\d+\)$", err, re.MULTILINE), err
    assert re.search(r"^  rank 1: .* = Tanh .*script\.py:\d+\)$", err, re.MULTILINE), err
    assert re.fullmatch(r"the same on ranks \d, \d", err.splitlines()[-1]), err


def test_a_rank_that_leaves_without_an_error_has_failed_too(script, capfd) -> None:
    body = "if comm.rank == 1:\n    os._exit(0)\ncomm.barrier()\n"
    assert launch([script(body)], 2, timeout=LONGEST) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    where = r"outside of collectives, after all_gather of float64\[2\] over ranks 0, 1 \(collective 1\)"
    line = numbered("comm.all_gather([np.ones(2)], groups, 0)", body)
    death = r"rank 1 failed: it left before its end, without an error; process \d+ on \S+"
    assert re.fullmatch(rf"{death}, {where}, at .*script\.py:{line}", last), last


# -- a rank that does not come ----------------------------------------------------------------------------

STALL = """
def spin():
    Path(sys.argv[1], "spins").touch()
    while True: pass

if comm.rank == 1:
    spin()
if comm.rank == 3:
    sys.exit(0)
comm.at(place if comm.rank else None)
inside(2, 2) if comm.rank == 0 else None
comm.barrier()
"""


def test_the_timeout_says_which_rank_waits_where(script, tmp_path: Path, monkeypatch, capfd) -> None:
    def ready(told: Watch) -> bool:
        ranks = [told.standing(rank) for rank in range(4)]
        states = [one and (one.state, one.count) for one in ranks]
        waits = (COLLECTIVE, 2)
        return (states[0], states[2], states[3]) == (waits, waits, (ENDED, 1)) and (tmp_path / "spins").exists()

    def stall(told: Watch) -> list[str]:
        """However slow the machine is, the ranks are where they get stuck when their time is up."""
        end = time.monotonic() + LONGEST
        while not ready(told) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.2)
        return told_by_launcher(told)

    told_by_launcher = Watch.stall
    monkeypatch.setattr(Watch, "stall", stall)
    monkeypatch.setattr(watch, "_ANSWER_SECONDS", LONGEST)
    assert launch([script(STALL), str(tmp_path)], 4, timeout=0.5) == TIMED_OUT
    told = capfd.readouterr().err.splitlines()
    assert told[0] == "autoshard run: not done after 0.5 s, all ranks ended"
    spinning = numbered("    while True: pass", STALL)
    lines = [
        r"rank 0: waiting in barrier over ranks 0-3 \(collective 2\), at .*script\.py:"
        rf"{numbered('comm.barrier()', STALL)}, for [\d.]+ s",
        rf"rank 1: at .*script\.py:{spinning} in spin, after all_gather of .* \(collective 1\)",
        r"rank 2: waiting in barrier over ranks 0-3 \(collective 2\), for scores .*, for [\d.]+ s",
        r"rank 3: ended",
    ]
    assert len(told) == 1 + len(lines)
    for pattern, line in zip(lines, told[1:], strict=True):
        assert re.fullmatch(pattern, line), line


# -- the launcher and mpiexec themselves ------------------------------------------------------------------

WAIT = """
Path(sys.argv[1], f"{comm.rank}.tmp").write_text(str(os.getpid()))
os.rename(f"{sys.argv[1]}/{comm.rank}.tmp", f"{sys.argv[1]}/{comm.rank}.pid")
if comm.rank == 1: time.sleep(300)
comm.barrier()
"""


@pytest.fixture
def waiting(script, tmp_path: Path) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """A job of two ranks, of which one waits in a collective for the other: the launcher, the ranks' processes."""
    program = "import sys; from autoshard.runtime.launch import launch; sys.exit(launch(sys.argv[1:], 2))"
    search = launcher.search_path(os.environ.get("PYTHONPATH"))
    job = subprocess.Popen(
        [sys.executable, "-c", program, script(WAIT), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": search, "TMPDIR": str(tmp_path)},
    )
    end = time.monotonic() + LONGEST
    while len(files := list(tmp_path.glob("*.pid"))) < 2:
        assert time.monotonic() < end, "the ranks did not start"
        time.sleep(0.05)
    yield job, [int(file.read_text()) for file in files]
    job.kill()


def gone(pids: list[int]) -> bool:
    """Whether these processes end, in far more time than they may take."""
    end = time.monotonic() + 30
    while any(map(runs, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(runs, pids))


def test_ranks_end_with_their_launcher(waiting, tmp_path: Path) -> None:
    job, ranks = waiting
    below = list(descendants(job.pid))
    assert set(ranks) < set(below)
    job.kill()
    assert gone(below)
    assert not list(tmp_path.glob("autoshard-*")), "what the launcher has left behind is removed"


def test_ranks_end_with_mpiexec(waiting) -> None:
    job, ranks = waiting
    (mpiexec,) = (pid for pid in descendants(job.pid) if pid not in ranks)
    os.kill(mpiexec, signal.SIGKILL)
    _, err = job.communicate(timeout=LONGEST)
    assert (job.returncode, err) == (128 + 9, "autoshard run: mpiexec was ended by SIGKILL, all ranks ended\n")
    assert gone(ranks)


def test_a_launcher_that_notices_nothing_is_not_waited_for(script, tmp_path: Path, capfd) -> None:
    """An mpiexec that goes on although a rank is gone: the launcher sees it and ends the job."""
    path, mpiexec = script("time.sleep(1)\nos.kill(os.getpid(), 9)\n"), tmp_path / "mpiexec"
    mpiexec.write_text(
        '#!/bin/sh\nif [ "$1" = "--version" ]; then echo "HYDRA build"; exit 0; fi\n'
        f"PMI_RANK=0 PMI_SIZE=1 {sys.executable} -m autoshard.runtime.worker {path} 2>/dev/null\nsleep 300\n"
    )
    mpiexec.chmod(0o755)
    code = launch([path], 1, timeout=LONGEST, env={"AUTOSHARD_MPIEXEC": str(mpiexec)})
    assert code not in (0, TIMED_OUT)
    assert re.match(r"rank 0 failed: it is gone; process \d+ on \S+, outside of coll", capfd.readouterr().err)
