"""Training on several hosts, one of which is lost: Linux network namespaces stand for hosts, an agent for ssh.

Two namespaces with a link between them, each with a host name of its own, share files as hosts share a folder over the
network. Where namespaces are not allowed the test is skipped, and says why.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("hosts_training.py")
EPOCHS, BATCHES = 3, 4
AGENT = """#!/bin/bash
# Runs a command on a host as ssh does: agent.sh [options of ssh] HOST COMMAND
while [[ "$1" == -* ]]; do case "$1" in -p|-l|-i|-o) shift 2;; *) shift;; esac; done
host=$1; shift
case "$host" in {second}) space={b};; *) space={a};; esac
exec ip netns exec $space unshare --uts bash -c "hostname $space; $*"
"""


@dataclass(frozen=True)
class Hosts:
    """Two network namespaces, their addresses, and the agent that stands for ssh."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    agent: Path

    def run(self, *arguments: str) -> subprocess.Popen:
        """`autoshard run` with these arguments on the first host."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)),
            "PRTE_MCA_plm_ssh_agent": str(self.agent),
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMP_NUM_THREADS": "1",
        }
        here = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "bash", "-c"]
        command = [*here, f'hostname {self.names[0]}; exec "$@"', "-", sys.executable, "-m", "autoshard", "run"]
        return subprocess.Popen(
            [*command, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def lose(self, number: int) -> None:
        """A host goes: its link first, then all that runs there."""
        _ip("netns", "exec", self.names[number], "ip", "link", "set", f"v{self.names[number]}", "down")
        for pid in _ip("netns", "pids", self.names[number]).split():
            os.kill(int(pid), signal.SIGKILL)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts; all that is left running there ends with them."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("network namespaces need ip and unshare")
    number = os.getpid() % 250
    names = (f"hA{os.getpid()}", f"hB{os.getpid()}")
    addresses = (f"10.77.{number}.1", f"10.77.{number}.2")
    made = []
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
                made.append(name)
            _ip("link", "add", f"v{names[0]}", "type", "veth", "peer", "name", f"v{names[1]}")
            for name, address in zip(names, addresses, strict=True):
                _ip("link", "set", f"v{name}", "netns", name)
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", f"v{name}")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", f"v{name}", "up")
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        agent = tmp_path / "agent.sh"
        agent.write_text(AGENT.format(a=names[0], b=names[1], second=addresses[1]), encoding="utf-8")
        agent.chmod(0o755)
        yield Hosts(names, addresses, agent)
    finally:
        for name in made:
            for pid in _ip("netns", "pids", name).split():
                os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_host_is_lost_and_training_goes_on_without_it(hosts: Hosts, tmp_path: Path) -> None:
    """4 ranks on 2 hosts; the second host goes; 2 ranks on the first go on from what was saved, to the same losses."""
    folder = tmp_path / "training"
    folder.mkdir()
    file = tmp_path / "hosts"
    file.write_text("".join(f"{address} slots=2\n" for address in hosts.addresses), encoding="utf-8")
    job = hosts.run("-n", "4", "--hosts", str(file), str(SCRIPT), str(folder), str(EPOCHS), "1")
    try:
        _await_losses(folder, 3, job)
        hosts.lose(1)
        told, _ = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode not in (0, None), told
    assert hosts.names[1] in told, told
    ran_on = sorted(line.split() for line in (folder / "hosts").read_text(encoding="utf-8").splitlines())
    assert ran_on == [[str(rank), "4", hosts.names[rank // 2]] for rank in range(4)]
    before = _losses(folder)
    assert 3 <= len(before) < EPOCHS * BATCHES

    file.write_text(f"{hosts.addresses[0]} slots=2\n", encoding="utf-8")
    again = hosts.run("-n", "2", "--hosts", str(file), str(SCRIPT), str(folder), str(EPOCHS), "0")
    told, _ = again.communicate(timeout=240)
    assert again.returncode == 0, told
    whole = tmp_path / "whole"
    whole.mkdir()
    alone = [sys.executable, str(SCRIPT), str(whole), str(EPOCHS), "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    subprocess.run(alone, env=environment, check=True, timeout=240)
    found, wanted = _losses(folder), _losses(whole)
    assert sorted(found) == sorted(wanted) == list(range(1, EPOCHS * BATCHES + 1))
    np.testing.assert_allclose([found[i] for i in wanted], [wanted[i] for i in wanted], rtol=1e-4)


def _losses(folder: Path) -> dict[int, float]:
    """Loss by the number of the step; what was done again counts as it was done last."""
    path = folder / "losses"
    rows = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {int(step): float(loss) for step, loss, _ in map(str.split, rows)}


def _await_losses(folder: Path, count: int, job: subprocess.Popen) -> None:
    until = time.monotonic() + 240
    while len(_losses(folder)) < count:
        if job.poll() is not None or time.monotonic() > until:
            job.kill()
            pytest.fail(f"no {count} steps were done: {job.communicate()[0]}")
        time.sleep(0.1)
