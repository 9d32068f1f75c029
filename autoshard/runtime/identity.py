"""Which rank of how many this process is, by the variables of whoever started it; MPI is not started for that.

    RANK_ID=3 RANK_SIZE=8 python train.py          identity() == RankIdentity(rank=3, ranks=8, by="RANK_ID", ...)

mpiexec's ranks are connected by it. Those that were started one by one, as by torchrun, MindSpore's run.sh or by srun
without PMIx, have to find each other first (`joining`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoshard.runtime.placing import count_ranks
from autoshard.util.errors import RuntimeSetupError

_OF_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_PMIX = "PMIX_RANK"
"""Set for ranks that a server of PMIx connects, as srun is with --mpi=pmix."""


@dataclass(frozen=True)
class RankIdentity:
    """Rank `rank` of `ranks`, as the variable `by` says; `connected` if MPI knows it, too.

    `table` is MindSpore's rank table, if one is named; `job` what tells the job from others, as far as is known.
    """

    rank: int
    ranks: int
    by: str
    connected: bool
    table: Path | None = None
    job: str = ""


def identity(variables: Mapping[str, str] = os.environ) -> RankIdentity | None:
    """The identity of this process; None if it was started alone.

    Raises:
        RuntimeSetupError: the variables contradict each other, or the rank table cannot be read.
    """
    torchrun = _of_torchrun(variables)
    for rank, ranks in _OF_MPI:
        if variables.get(rank, "").isdecimal() and variables.get(ranks, "").isdecimal():
            found = RankIdentity(int(variables[rank]), int(variables[ranks]), rank, connected=True)
            _check_agree(found, torchrun)
            return found
    return torchrun or _of_mindspore(variables) or _of_slurm(variables)


def _check_agree(found: RankIdentity, other: RankIdentity | None) -> None:
    if other is not None and (other.rank, other.ranks) != (found.rank, found.ranks):
        raise RuntimeSetupError(
            f"{found.by} says that this is rank {found.rank} of {found.ranks}, but {other.by} that it is rank "
            f"{other.rank} of {other.ranks}: start torchrun without mpiexec, or ranks without torchrun"
        )


def _of_torchrun(variables: Mapping[str, str]) -> RankIdentity | None:
    """RANK and WORLD_SIZE, if torchrun has set them: others mean other things by these names."""
    if not all(name in variables for name in (_TORCHRUN, "RANK", "WORLD_SIZE")):
        return None
    rank, ranks = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    if not rank < ranks:
        raise RuntimeSetupError(f"RANK is {rank}, but WORLD_SIZE {ranks}; ranks count from 0 to {ranks - 1}")
    if variables.get("GROUP_WORLD_SIZE", "1") != "1":
        raise RuntimeSetupError(
            f"torchrun has started {ranks} ranks on {variables['GROUP_WORLD_SIZE']} hosts, which MPI cannot bring "
            f"together; use `autoshard run -n {ranks} --hosts FILE SCRIPT`"
        )
    job = ".".join(variables.get(name, "") for name in (_TORCHRUN, "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    return RankIdentity(rank, ranks, "RANK", connected=_PMIX in variables, job=_named(variables) or job)


def _of_mindspore(variables: Mapping[str, str]) -> RankIdentity | None:
    """RANK_ID, with RANK_SIZE or the table in RANK_TABLE_FILE."""
    table = Path(variables["RANK_TABLE_FILE"]) if variables.get("RANK_TABLE_FILE") else None
    if "RANK_ID" not in variables:
        return None
    if "RANK_SIZE" in variables:
        ranks = _number(variables, "RANK_SIZE")
    elif table is not None:
        ranks = count_ranks(table)
    else:
        return None
    rank = _number(variables, "RANK_ID")
    if not rank < ranks:
        raise RuntimeSetupError(f"RANK_ID is {rank}, but there are {ranks} ranks; they count from 0 to {ranks - 1}")
    return RankIdentity(rank, ranks, "RANK_ID", connected=_PMIX in variables, table=table, job=_named(variables))


def _of_slurm(variables: Mapping[str, str]) -> RankIdentity | None:
    """SLURM_PROCID and SLURM_NTASKS of a task of srun; a batch script has them, too, but is no task of a step."""
    step = variables.get("SLURM_STEP_ID", variables.get("SLURM_STEPID", ""))
    batch = "SLURM_JOB_ID" in variables and not step
    if batch or "SLURM_PROCID" not in variables or "SLURM_NTASKS" not in variables:
        return None
    sizes = [name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in variables]
    rank, ranks = _number(variables, "SLURM_PROCID"), _number(variables, sizes[0])
    nodes = variables.get("SLURM_STEP_NUM_NODES", variables.get("SLURM_NNODES", "1"))
    connected = _PMIX in variables
    if nodes != "1" and not connected and ranks > 1:
        raise RuntimeSetupError(
            f"srun has started {ranks} tasks on {nodes} nodes, and no way for MPI to connect them; use srun --mpi=pmix"
        )
    job = f"{variables.get('SLURM_JOB_ID', '')}.{step}" if step else ""
    return RankIdentity(rank, ranks, "SLURM_PROCID", connected, job=_named(variables) or job)


def _named(variables: Mapping[str, str]) -> str:
    return variables.get("AUTOSHARD_JOB", "")


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables[name]
    if not text.isdecimal() or len(text) > 9:
        raise RuntimeSetupError(f"{name} is {text[:80]!r}; a number of ranks is expected")
    return int(text)
