"""Our own mpiexec: ranks that are connected, exit codes, ends of all kinds, and nobody who listens beyond loopback."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from autoshard.runtime import launch as launcher
from autoshard.runtime.launch import find_mpiexec, launch
from autoshard.runtime.mpiexec import DEATH
from autoshard.runtime.pmix import PmixError, Server
from autoshard.runtime.processes import descendants, runs, stopped

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py"),
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads processes and sockets in /proc"),
]
LONGEST = 120
HEAD = """import os, pathlib, signal, sys, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
def await_go():
    while not pathlib.Path({0!r}).exists():
        time.sleep(0.01)
"""


@pytest.fixture
def library() -> str:
    found = find_mpiexec().pmix
    if found is None:
        pytest.skip("no Open MPI 5 with its PMIx library")
    return found


@pytest.fixture
def start(library: str, tmp_path: Path) -> Iterator:
    """Starts a script on some ranks, without a launcher."""
    jobs = []

    def started(body: str, ranks: int, parent: int | None = None, **options) -> subprocess.Popen:
        script, folder = tmp_path / f"script{len(jobs)}.py", tmp_path / f"folder{len(jobs)}"
        script.write_text(HEAD.format(str(tmp_path / "go")) + body)
        folder.mkdir()
        command = [sys.executable, "-I", str(launcher._MPIEXEC), library, str(ranks), str(folder)]
        command += [str(parent or os.getpid()), sys.executable]
        job = subprocess.Popen([*command, str(script)], text=True, stderr=subprocess.PIPE, **options)
        jobs.append(job)
        return job

    yield started
    for job in jobs:
        job.kill()
        job.communicate()


def deaths(err: str) -> dict[int, str]:
    """What is said of each rank."""
    lines = [line.split(DEATH) for line in err.split("\n") if line.startswith(DEATH)]
    return {int(rank): reason for _, rank, reason in lines}


def gone(pids: Iterable[int]) -> bool:
    """Whether these processes end, in far more time than they may take."""
    end = time.monotonic() + 30
    while any(map(runs, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(runs, pids))


def below(pid: int, count: int) -> list[int]:
    """The processes below one, as soon as there are so many."""
    end = time.monotonic() + LONGEST
    while len(found := descendants(pid)) < count:
        assert time.monotonic() < end, "the ranks did not start"
        time.sleep(0.02)
    return list(found)


# -- a job that goes well ---------------------------------------------------------------------------------


def test_ranks_are_connected_and_the_first_reads_what_is_typed(start) -> None:
    body = """
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.rank == rank and world.size == 3 == int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
total = world.allreduce(rank + 1)
print(f"{rank} {total} {sys.stdin.read()!r}\\n", end="", flush=True)
"""
    job = start(body, 3, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = job.communicate("typed", timeout=LONGEST)
    assert sorted(out.splitlines()) == ["0 6 'typed'", "1 6 ''", "2 6 ''"]
    assert (job.returncode, deaths(err)) == (0, {0: "", 1: "", 2: ""})


# -- jobs that do not -------------------------------------------------------------------------------------

WAIT = "time.sleep(300)\n"


@pytest.mark.parametrize(
    "body, code, reason",
    [
        ("if rank == 1: sys.exit(7)\n", 7, "exit code 7"),
        ("if rank == 1: os.kill(os.getpid(), 9)\n", 128 + 9, "ended by signal 9 (Killed)"),
        ("signal.signal(15, signal.SIG_IGN)\nif rank == 1: sys.exit(3)\n", 3, "exit code 3"),
    ],
)
def test_a_rank_that_fails_ends_the_others(start, tmp_path: Path, body: str, code: int, reason: str) -> None:
    job = start("await_go()\n" + body + WAIT, 3)
    ranks = below(job.pid, 3)
    (tmp_path / "go").touch()
    _, err = job.communicate(timeout=LONGEST)
    assert (job.returncode, deaths(err)) == (code, {1: reason})
    assert gone(ranks)


def test_an_abort_has_its_code(start) -> None:
    job = start("from mpi4py import MPI\nif rank == 0: MPI.COMM_WORLD.Abort(5)\nMPI.COMM_WORLD.Barrier()\n", 2)
    _, err = job.communicate(timeout=LONGEST)
    assert (job.returncode, deaths(err)) == (5, {0: "exit code 5"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_ranks_be_they_stopped(start, number: int) -> None:
    job = start(WAIT, 2)
    ranks = below(job.pid, 2)
    os.kill(ranks[0], signal.SIGSTOP)
    while not stopped(ranks[0]):
        time.sleep(0.01)
    job.send_signal(number)
    job.communicate(timeout=LONGEST)
    assert job.returncode == 128 + number
    assert gone(ranks)


def test_no_rank_is_started_for_a_parent_that_has_gone_before(start, tmp_path: Path) -> None:
    """As where `autoshard run` is killed while this program is loaded."""
    before = subprocess.Popen(["true"])
    before.wait()
    job = start(f"open({str(tmp_path / 'begun')!r}, 'w')\n" + WAIT, 2, parent=before.pid)
    job.communicate(timeout=LONGEST)
    assert job.returncode == 128 + signal.SIGHUP and not (tmp_path / "begun").exists()
    assert not (tmp_path / "folder0").exists(), "nobody else could remove it"


def test_a_library_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(PmixError, match="/no/libpmix.so is no PMIx library"):
        Server("/no/libpmix.so", 2, str(tmp_path))
    command = [sys.executable, "-I", str(launcher._MPIEXEC), "/no/libpmix.so", "2", str(tmp_path), "1", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 125
    assert done.stderr.startswith("cannot start 2 ranks: /no/libpmix.so is no PMIx library")
    assert "AUTOSHARD_MPIEXEC" in done.stderr


# -- under the launcher -----------------------------------------------------------------------------------

STAY = """
import os, sys, time
from autoshard.runtime.mpi import MpiComm
MpiComm().barrier()
open(f"{sys.argv[1]}/{os.getpid()}.pid", "w").close()
time.sleep(300)
"""


@pytest.fixture
def job(library: str, tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A job of two ranks, which have met."""
    (tmp_path / "script.py").write_text(STAY)
    environment = {**os.environ, "PYTHONPATH": launcher.search_path(os.environ.get("PYTHONPATH"))}
    command = [sys.executable, "-m", "autoshard", "run", "-n", "2", str(tmp_path / "script.py"), str(tmp_path)]
    running = subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)
    end = time.monotonic() + LONGEST
    while len(list(tmp_path.glob("*.pid"))) < 2:
        assert time.monotonic() < end, "the ranks did not start"
        time.sleep(0.05)
    yield running
    running.kill()
    running.communicate()


def listeners(pids: Iterable[int]) -> list[str]:
    """The addresses on which these processes await connections."""
    sockets = {opened(link) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and f"socket:[{fields[9]}]" in sockets:
                found.append(address(fields[1].partition(":")[0]))
    return found


LISTEN = "0A"


def opened(link: Path) -> str:
    """What a file descriptor stands for; nothing if it has been closed."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def address(text: str) -> str:
    """An address as the system lists it: 32 bits after 32 bits, each in the machine's byte order."""
    words = [int(text[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(text), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def test_listeners_are_found() -> None:
    with socket.create_server(("0.0.0.0", 0)), socket.create_server(("::1", 0), family=socket.AF_INET6):
        assert {"0.0.0.0", "::1"} <= set(listeners([os.getpid()]))


def test_nobody_listens_beyond_loopback(job: subprocess.Popen) -> None:
    processes = [job.pid, *descendants(job.pid)]
    assert len(processes) >= 4, "the launcher, mpiexec and two ranks"
    assert set(listeners(processes)) == {"127.0.0.1"}


def test_a_launcher_that_is_killed_takes_even_stopped_ranks_along(job: subprocess.Popen, tmp_path: Path) -> None:
    processes = list(descendants(job.pid))
    for file in tmp_path.glob("*.pid"):
        os.kill(int(file.stem), signal.SIGSTOP)
    job.kill()
    assert gone(processes)


def test_ranks_pause_with_their_launcher(job: subprocess.Popen, tmp_path: Path) -> None:
    ranks = [int(file.stem) for file in tmp_path.glob("*.pid")]
    for number, stands in ((signal.SIGTSTP, True), (signal.SIGCONT, False)):
        job.send_signal(number)
        end = time.monotonic() + LONGEST
        while any(stopped(pid) != stands for pid in (job.pid, *ranks)):
            assert time.monotonic() < end, f"after {number.name}"
            time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=LONGEST)
    assert job.returncode == 128 + signal.SIGTERM and gone(ranks)


def test_what_failed_ranks_have_started_ends_with_them(library: str, tmp_path: Path, capfd) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "open(f'{sys.argv[1]}/{child.pid}.child', 'w').close()\nos.kill(os.getpid(), 9)\n"
    )
    assert launch([str(script), str(tmp_path)], 1, timeout=LONGEST) == 128 + 9
    assert gone([int(file.stem) for file in tmp_path.glob("*.child")])
