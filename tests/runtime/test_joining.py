"""Processes that are started one by one and told their ranks, as by MindSpore's run.sh and by srun, are one job."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autoshard.runtime import joining, private
from autoshard.runtime import launch as launcher
from autoshard.runtime.identity import RankIdentity
from autoshard.runtime.launch import Mpiexec, find_mpiexec
from autoshard.runtime.rendezvous import Arrival, complete, missing
from autoshard.util.errors import RuntimeSetupError

LONGEST = 120

# -- who belongs together ---------------------------------------------------------------------------------


def arrival(rank: int, born: int, *parents: int) -> Arrival:
    return Arrival(rank, born, str(born), tuple((pid, "") for pid in parents))


def born(job: Sequence[Arrival] | None) -> list[int] | None:
    return None if job is None else [one.pid for one in job]


def test_a_job_is_complete_when_all_ranks_have_come() -> None:
    arrived = [arrival(rank, 10 + rank, 2, 1) for rank in (2, 0, 1)]
    assert complete(arrived[:2], 3, exact=False) is None
    assert born(complete(arrived, 3, exact=False, settled=False)) == [10, 11, 12]
    assert complete([], 1, exact=False) is None


def test_scripts_that_run_at_once_have_a_job_each() -> None:
    """Of two ranks each; the parents 2 and 3 have one of their own, 1."""
    first, second = ([arrival(rank, 10 * i + rank, 1 + i, 1) for rank in (0, 1)] for i in (1, 2))
    mixed = [first[0], second[1]]
    assert complete(mixed, 2, exact=False, settled=False) is None, "one of each, but a nearer one may come"
    assert born(complete([*mixed, second[0]], 2, exact=False, settled=False)) == [20, 21]
    assert born(complete([*mixed, first[1]], 2, exact=False, settled=False)) == [10, 11]


def test_ranks_may_have_starters_of_their_own() -> None:
    """As where a script starts each with `timeout 100 python train.py`."""
    arrived = [arrival(rank, 10 + rank, 4 + rank, 2, 1) for rank in (0, 1, 2)]
    assert complete(arrived, 3, exact=False, settled=False) is None
    assert born(complete(arrived, 3, exact=False, settled=True)) == [10, 11, 12]


def test_half_a_job_is_not_filled_up_from_another() -> None:
    first, second = [arrival(rank, 10 + rank, 2, 1) for rank in (0, 1, 2)], [arrival(3, 23, 3, 1)]
    assert complete([*first, *second], 4, exact=False) is None


def test_one_process_may_start_several_jobs() -> None:
    first, second = [arrival(rank, 10 + rank, 1) for rank in (0, 1)], [arrival(rank, 20 + rank, 1) for rank in (0, 1)]
    assert complete([*second, first[0]], 2, exact=False) is None, "which of both claims rank 0 rightly?"
    assert born(complete([*second, *first], 2, exact=False)) == [10, 11]


def test_ranks_of_a_named_job_may_come_from_anywhere() -> None:
    arrived = [arrival(0, 10, 2), arrival(1, 11, 3)]
    assert complete(arrived, 2, exact=False) is None
    assert born(complete(arrived, 2, exact=True, settled=False)) == [10, 11]


@pytest.mark.parametrize(
    "ranks, text",
    [
        ([0, 2], r"ranks 1, 3 did not come within 9 s"),
        ([0, 0, 1, 2, 3], r"rank 0 came more than once within 9 s"),
        ([0, 1, 2, 3], r"they were not started by one process within 9 s"),
    ],
)
def test_what_is_missing_is_told(ranks: list[int], text: str) -> None:
    told = missing([arrival(rank, 10 + i) for i, rank in enumerate(ranks)], 4, "RANK_ID", 9)
    assert told.startswith("RANK_ID says that there are 4 ranks, but ")
    assert re.search(text, told) and "AUTOSHARD_JOB" in told and "`autoshard run -n 4`" in told


def test_what_cannot_be_joined_is_told_at_once(tmp_path: Path, monkeypatch) -> None:
    own = RankIdentity(0, 2, "RANK_ID", connected=False)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(RuntimeSetupError, match="MPI was started before autoshard could connect the ranks"):
        joining.join(own)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    monkeypatch.setattr(joining, "find_mpiexec", lambda: Mpiexec("/usr/bin/mpiexec", False))
    with pytest.raises(RuntimeSetupError, match="with Open MPI 5 only .*, and /usr/bin/mpiexec is none"):
        joining.join(own)
    monkeypatch.setattr(joining, "place_ranks", lambda ranks, rank_table: ["far.example"] * ranks)
    with pytest.raises(RuntimeSetupError, match="names other hosts.*`autoshard run -n 2 SCRIPT --rank-table t.json`"):
        joining.join(RankIdentity(0, 2, "RANK_ID", connected=False, table=Path("t.json")))


def test_a_folder_that_others_may_write_to_is_not_used(monkeypatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setattr(private.tempfile, "gettempdir", lambda: base)
        home = Path(base, f"autoshard-{os.getuid()}")
        home.mkdir()
        home.chmod(0o777)
        with pytest.raises(RuntimeSetupError, match="should be a folder that is this user's alone"):
            joining._folder(RankIdentity(0, 2, "RANK_ID", connected=False))
        home.chmod(0o700)
        assert joining._folder(RankIdentity(0, 2, "RANK_ID", connected=False)).parent == home


# -- processes -----------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, time
import numpy as np
from autoshard.layout.mesh import Mesh
from autoshard.runtime.mpi import default_comm
from autoshard.runtime.world import started_ranks

ranks = started_ranks()
mpi, groups = default_comm(ranks), Mesh(dp=ranks).groups(Mesh(dp=ranks).all_axes)
rank = mpi.rank
own = np.array([float(rank), float(sys.argv[1])])
total = mpi.all_reduce([own], groups)[0]
"""
TELL = "print(f'{rank} of {ranks}: {total.tolist()} in {os.path.basename(os.getcwd())}')\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """A folder for scripts, and variables with which they find this autoshard."""
    if importlib.util.find_spec("mpi4py") is None or find_mpiexec().pmix is None:
        pytest.skip("needs mpi4py and Open MPI 5")
    monkeypatch.setenv("PYTHONPATH", launcher.search_path(os.environ.get("PYTHONPATH")))
    return tmp_path


def wait(processes: Sequence[subprocess.Popen]) -> Iterator[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each process."""
    try:
        for one in processes:
            out, err = one.communicate(timeout=LONGEST)
            yield one.returncode, out, err
    finally:
        for one in processes:
            one.kill()


def start(script: Path, variables: dict[str, str], job: str = "1") -> subprocess.Popen:
    command = [sys.executable, str(script), job]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **variables}, **pipes)


def start_all(home: Path, body: str, ranks: int, **variables: str) -> list[subprocess.Popen]:
    """All ranks of a job, with MindSpore's variables."""
    script = home / "train.py"
    script.write_text(SCRIPT + body)
    return [start(script, {"RANK_ID": str(i), "RANK_SIZE": str(ranks), **variables}) for i in range(ranks)]


RUN_SH = """
export RANK_SIZE={ranks}
for ((i = 0; i < RANK_SIZE; i++)); do
  mkdir -p device$i && cp train.py device$i && cd device$i
  export RANK_ID=$i DEVICE_ID=$i
  {python} ./train.py $1 >train.log$i 2>&1 &
  cd ..
done
wait
cat device*/train.log*
"""


def run_sh(folder: Path, ranks: int, job: str) -> subprocess.Popen:
    """A script as MindSpore's users have it."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT + TELL)
    (folder / "run.sh").write_text(RUN_SH.format(ranks=ranks, python=sys.executable))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(["bash", "run.sh", job], cwd=folder, **pipes)


@pytest.mark.mpi
def test_eight_processes_are_one_job(home: Path) -> None:
    ((code, out, err),) = wait([run_sh(home / "job", 8, "1")])
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{rank} of 8: [28.0, 8.0] in device{rank}" for rank in range(8)]


@pytest.mark.mpi
def test_two_jobs_at_once_are_two(home: Path) -> None:
    jobs = [run_sh(home / name, 2, name) for name in ("10", "20")]
    for job, (code, out, err) in zip((10, 20), wait(jobs), strict=True):
        assert (code, err) == (0, "")
        assert out.splitlines() == [f"{rank} of 2: [1.0, {2.0 * job}] in device{rank}" for rank in range(2)]


@pytest.mark.mpi
def test_tasks_of_slurm_are_one_job(home: Path) -> None:
    init = "import autoshard.mindspore.communication as comm\ncomm.init()\nassert comm.get_rank() == rank\n"
    (home / "train.py").write_text(f"{SCRIPT}{init}{TELL}")
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}
    done = list(wait([start(home / "train.py", {**step, "SLURM_PROCID": str(i)}) for i in range(2)]))
    assert [code for code, _, _ in done] == [0, 0]
    assert [out.partition(" in ")[0] for _, out, _ in done] == [f"{rank} of 2: [1.0, 2.0]" for rank in range(2)]


@pytest.mark.mpi
@pytest.mark.parametrize(
    "body, reason",
    [
        ("if rank == 1: raise ValueError('boom')\n", "it has said why itself"),
        ("if rank == 1: os.kill(os.getpid(), 9)\n", "it is gone"),
        ("if rank == 1: sys.exit(0)\n", "it has ended, while rank"),
        ("if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n", "a signal .* has stopped it, while rank"),
    ],
    ids=["raises", "is killed", "ends", "is stopped"],
)
def test_a_rank_that_fails_ends_the_others(home: Path, body: str, reason: str) -> None:
    processes = start_all(home, f"{body}mpi.barrier()\n", 3)
    codes, errs = zip(*((code, err) for code, _, err in wait(processes)), strict=True)
    assert codes[0] == codes[2] == 1
    for err in (errs[0], errs[2]):
        assert re.match(rf"rank 1 failed: {reason}", err.splitlines()[-1]), err
    if "raise" in body:
        assert codes[1] == 1 and errs[1].splitlines()[-1] == "rank 1 failed: ValueError: boom"


@pytest.mark.mpi
def test_a_rank_that_never_comes_is_named(home: Path) -> None:
    (home / "train.py").write_text(SCRIPT)
    rank = {"RANK_ID": "1", "RANK_SIZE": "3", "AUTOSHARD_JOIN_SECONDS": "0.5"}
    ((code, _, err),) = wait([start(home / "train.py", rank)])
    assert code == 1
    last = err.splitlines()[-1]
    assert "RANK_ID says that there are 3 ranks, but ranks 0, 2 did not come within 0.5 s" in last


@pytest.mark.mpi
def test_ranks_end_with_the_rendezvous(home: Path) -> None:
    body = """
open(f"{sys.argv[0]}.{rank}", "w").close()
if rank == 0:
    from autoshard.runtime.processes import descendants
    while not os.path.exists(f"{sys.argv[0]}.1"): time.sleep(0.02)
    parents = [os.getppid(), *descendants(os.getppid())]
    commands = {pid: open(f"/proc/{pid}/cmdline").read() for pid in parents}
    for pid, command in commands.items():
        if "autoshard.runtime.rendezvous" in command: os.kill(pid, 9)
time.sleep(300)
"""
    done = list(wait(start_all(home, body, 2)))
    assert [code for code, _, _ in done] == [1, 1]
    assert all(err.splitlines()[-1] == "the process that keeps the ranks together has gone" for _, _, err in done)


@pytest.mark.mpi
def test_nothing_is_left_behind(home: Path) -> None:
    """The rendezvous of a job ends with it."""
    (home / "train.py").write_text(SCRIPT)
    begun = time.monotonic()
    name = {"AUTOSHARD_JOB": f"test-{os.getpid()}"}
    done = list(wait(start_all(home, "", 2, **name)))
    assert [code for code, _, _ in done] == [0, 0]
    while time.monotonic() < begun + LONGEST and serving(name["AUTOSHARD_JOB"]):
        time.sleep(0.05)
    assert not serving(name["AUTOSHARD_JOB"])


def serving(job: str) -> bool:
    """Whether a rendezvous runs with this name in its variables."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if b"autoshard.runtime.rendezvous" in command and f"AUTOSHARD_JOB={job}".encode() in variables:
            return True
    return False
