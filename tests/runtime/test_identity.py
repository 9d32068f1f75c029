"""Which rank a process is, by the variables of all kinds of launchers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.runtime.identity import RankIdentity, identity
from autoshard.runtime.launch import launch
from autoshard.util.errors import RuntimeSetupError

CASES = {
    "alone": ({}, None),
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, (3, 8, True)),
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, True)),
    "MindSpore": ({"RANK_ID": "5", "RANK_SIZE": "8", "DEVICE_ID": "5"}, (5, 8, False)),
    "MindSpore's size without a rank": ({"RANK_SIZE": "8"}, None),
    "MindSpore's rank without a size": ({"RANK_ID": "3"}, None),
    "mpiexec within MindSpore's variables": (
        {"RANK_ID": "0", "RANK_SIZE": "8", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        (1, 2, True),
    ),
    "torchrun": (
        {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"},
        (3, 4, False),
    ),
    "names that torchrun uses, set by others": ({"RANK": "3", "WORLD_SIZE": "4"}, None),
    "torchrun within a task of srun": (
        {"TORCHELASTIC_RUN_ID": "7", "RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        (1, 2, False),
    ),
    "srun": (
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_NNODES": "1"},
        (2, 4, False),
    ),
    "srun of some of a job's tasks": (
        {"SLURM_STEP_ID": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"},
        (1, 2, False),
    ),
    "srun --mpi=pmix": (
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_NNODES": "2", "PMIX_RANK": "9"},
        (9, 16, True),
    ),
    "SLURM's tasks alone": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 4, False)),
    "a batch script": ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
    "a shell of salloc": ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, None),
}


@pytest.mark.parametrize("variables, expected", CASES.values(), ids=CASES)
def test_identities(variables: dict, expected: tuple | None) -> None:
    found = identity(variables)
    assert (found and (found.rank, found.ranks, found.connected)) == expected


def test_a_rank_table_counts_the_ranks(tmp_path: Path) -> None:
    devices = [{"device_id": str(i), "rank_id": str(i)} for i in range(6)]
    table = {"version": "1.0", "server_list": [{"server_id": "localhost", "device": devices}]}
    (tmp_path / "table.json").write_text(json.dumps(table))
    found = identity({"RANK_ID": "4", "RANK_TABLE_FILE": str(tmp_path / "table.json")})
    assert found == RankIdentity(4, 6, "RANK_ID", connected=False, table=tmp_path / "table.json")


def test_jobs_have_names() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    names = [identity(step), identity({**step, "AUTOSHARD_JOB": "mine"}), identity({"RANK_ID": "0", "RANK_SIZE": "2"})]
    assert [one and one.job for one in names] == ["7.3", "mine", ""]


@pytest.mark.parametrize(
    "variables, text",
    [
        ({"RANK_ID": "8", "RANK_SIZE": "8"}, "RANK_ID is 8, but there are 8 ranks; they count from 0 to 7"),
        ({"RANK_ID": "-1", "RANK_SIZE": "8"}, "RANK_ID is '-1'; a number of ranks is expected"),
        ({"RANK_ID": "0", "RANK_SIZE": "x" * 999}, "RANK_SIZE is 'x{80}'; a number"),
        ({"TORCHELASTIC_RUN_ID": "7", "RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4, but WORLD_SIZE 4"),
        (
            {"TORCHELASTIC_RUN_ID": "7", "RANK": "1", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"},
            "torchrun has started 4 ranks on 2 hosts, which MPI cannot bring together; use `autoshard run -n 4 --hosts",
        ),
        (
            {"TORCHELASTIC_RUN_ID": "7", "RANK": "1", "WORLD_SIZE": "4"}
            | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            "OMPI_COMM_WORLD_RANK says that this is rank 0 of 2, but RANK that it is rank 1 of 4",
        ),
        ({"RANK_ID": "0", "RANK_TABLE_FILE": "/no/table.json"}, "cannot read the rank table /no/table.json"),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"},
            "srun has started 4 tasks on 2 nodes, and no way for MPI to connect them; use srun --mpi=pmix",
        ),
    ],
)
def test_contradictions_are_told(variables: dict, text: str) -> None:
    with pytest.raises(RuntimeSetupError, match=text):
        identity(variables)


def test_a_launcher_started_once_per_rank_is_told(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "script.py").write_text("")
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "8")
    with pytest.raises(RuntimeSetupError, match="RANK_ID says that this process is rank 3 of 8, but `autoshard run`"):
        launch([str(tmp_path / "script.py")], 8)
