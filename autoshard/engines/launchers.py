"""Which rank a process is, by the variables of whatever started it: torchrun, mpiexec, srun.

This file needs nothing: exported code carries it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpiexec (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpiexec (MPICH)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
"""For each launcher its variables of a process: rank, ranks in all, rank on the host."""
_FIRST_PORT, _PORTS = 20000, 10000
"""Ports that no service has by custom, below those that Linux gives out by itself (from 32768 on)."""


class LauncherError(RuntimeError):
    """Variables of launchers that contradict each other, or are no numbers."""


@dataclass(frozen=True)
class Here:
    """The rank of a process among how many, its number on its host, and who started it ("" for a process alone)."""

    rank: int
    world: int
    local_rank: int
    launcher: str


def where_am_i(environment: Mapping[str, str] | None = None) -> Here:
    """Which rank this process is.

    >>> where_am_i({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    Here(rank=3, world=8, local_rank=1, launcher='torchrun')

    Raises:
        LauncherError: a variable is no number, is missing, or two launchers' variables contradict each other.
    """
    known = os.environ if environment is None else environment
    found = [_read(launcher, names, known) for launcher, names in _VARIABLES.items() if names[0] in known]
    # What srun starts may itself start the ranks: its variables are then those of one task.
    real = [one for one in found if one.launcher != "srun" or len(found) == 1]
    if not real:
        return Here(0, 1, 0, "")
    first = real[0]
    for other in real[1:]:
        if (other.rank, other.world) != (first.rank, first.world):
            raise LauncherError(
                f"{first.launcher} says that this is rank {first.rank} of {first.world}, but {other.launcher} that it "
                f"is rank {other.rank} of {other.world}; unset the variables of one of them"
            )
    return first


def _read(launcher: str, names: tuple[str, str, str], known: Mapping[str, str]) -> Here:
    rank, world = (_number(name, launcher, known) for name in names[:2])
    local = _number(names[2], launcher, known) if names[2] in known else 0
    if not 0 <= rank < world:
        raise LauncherError(f"{launcher} says {names[0]}={rank} of {names[1]}={world}; ranks go from 0 to {world - 1}")
    return Here(rank, world, local, launcher)


def _number(name: str, launcher: str, known: Mapping[str, str]) -> int:
    text = known.get(name)
    if text is None:
        raise LauncherError(f"{launcher} sets {name}, but it is not there")
    if not re.fullmatch(r"[0-9]+", text):
        raise LauncherError(f"{name}={text!r} is no number of {launcher}'s")
    return int(text)


def rendezvous(here: Here, environment: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Where rank 0 listens for the others: host and port.

    Raises:
        LauncherError: neither MASTER_ADDR and MASTER_PORT nor SLURM's variables say so.
    """
    known = os.environ if environment is None else environment
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in known]
    if not missing:
        return known["MASTER_ADDR"], _number("MASTER_PORT", here.launcher, known)
    if here.launcher == "srun":
        return slurm_rendezvous(known)
    raise LauncherError(
        f"{' and '.join(missing)} say where rank 0 listens, and are not set; torchrun sets them, with "
        f"{here.launcher or 'a process alone'} set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port"
    )


def slurm_rendezvous(known: Mapping[str, str]) -> tuple[str, int]:
    """The first host of a SLURM job, and a port by the job's number, the same on all ranks.

    >>> slurm_rendezvous({"SLURM_STEP_NODELIST": "gpu[03-05,11]", "SLURM_JOB_ID": "4242"})
    ('gpu03', 24242)

    Raises:
        LauncherError: SLURM's variables do not say.
    """
    hosts = known.get("SLURM_STEP_NODELIST") or known.get("SLURM_JOB_NODELIST")
    if not hosts:
        raise LauncherError("srun sets SLURM_STEP_NODELIST, but it is not there; set MASTER_ADDR and MASTER_PORT")
    return first_host(hosts), _FIRST_PORT + _number("SLURM_JOB_ID", "srun", known) % _PORTS


def first_host(hosts: str) -> str:
    """The first of SLURM's list of hosts, as `scontrol show hostnames` writes it.

    >>> first_host("n[1-4],m7"), first_host("login2"), first_host("a[2,5]b[07-09]")
    ('n1', 'login2', 'a2b07')
    """
    depth, end = 0, len(hosts)
    for i, letter in enumerate(hosts):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            end = i
            break
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", hosts[:end])
