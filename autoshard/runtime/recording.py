"""When each instruction of a step really ran on a rank: recorded into a file while it runs, read back by `recorded`.

Two files a rank: `rank_3.json` says which rank it is and where its clock stood when all began, `rank_3.times` has a
begin and an end for each instruction, in nanoseconds. The latter is memory of the rank as much as a file: what a rank
that dies has recorded stays.
"""

from __future__ import annotations

import json
import mmap
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from autoshard.runtime.comm import Comm
from autoshard.util.errors import RuntimeSetupError
from autoshard.util.files import read_bytes, read_json, write_atomically
from costmodel.json_door import Natural, Record

_FILES = re.compile(r"rank_\d+\.(json|times)")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Recorded(Record, frozen=True):
    """A rank, the machine that it ran on, and its clock when all ranks began, in nanoseconds."""

    rank: Natural
    machine: str
    began: Natural
    instructions: Natural


class Timed(Protocol):
    """What runs steps and can record when: an Executor its instructions, a group of a pipeline its pieces."""

    times: memoryview | None
    """A begin and an end for each of `moments`, in nanoseconds; None: nothing is recorded."""

    @property
    def moments(self) -> int:
        """How many a step has."""
        ...


@contextmanager
def recording(timed: Timed, comm: Comm, folder: Path) -> Iterator[None]:
    """Record each step that is run; a later one overwrites the one before.

    Args:
        comm: of all ranks that run.

    Raises:
        RuntimeSetupError: several ranks live in this process, or the files cannot be written.
    """
    count = timed.moments
    if len(comm.ranks) != 1:
        raise RuntimeSetupError(f"a run is recorded where each rank is a process; {len(comm.ranks)} share this one")
    rank = comm.ranks[0]
    path = folder / f"rank_{rank}.times"
    write_atomically(path, bytes(max(16 * count, 1)), RuntimeSetupError, folders=True)
    comm.barrier()
    told = {"rank": rank, "machine": _machine(), "began": perf_counter_ns(), "instructions": count}
    write_atomically(folder / f"rank_{rank}.json", json.dumps(told), RuntimeSetupError)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        times = memoryview(mapped)[: 16 * count].cast("q")
        timed.times = times
        try:
            yield
        finally:
            timed.times = None
            times.release()


def _machine() -> str:
    """What ranks have in common that share a clock."""
    boot = _BOOT.read_text(encoding="utf-8").strip() if _BOOT.is_file() else ""
    return f"{socket.gethostname()} {boot}"


def record_files(folder: Path) -> list[Path]:
    """What runs have recorded in a folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if _FILES.fullmatch(path.name))


def recorded(folder: Path, instructions: Callable[[int], int]) -> dict[int, list[tuple[int, float, float]]]:
    """For each rank that left something the instructions that it ran: place, begin and end, in seconds.

    Args:
        instructions: from a rank to how many a step has there.

    Times count from the first begin of all ranks. Ranks of one machine share its clock; those of others are
    aligned at the moment when all began, up to what a message between them takes.

    Raises:
        RuntimeSetupError: nothing was recorded there, or of another program.
    """
    paths = [path for path in record_files(folder) if path.suffix == ".json"]
    heads = [read_json(path, Recorded, "record", RuntimeSetupError) for path in paths]
    if not heads:
        raise RuntimeSetupError(f"no rank has recorded anything in {folder}")
    if wrong := next((one for one in heads if one.instructions != instructions(one.rank)), None):
        raise RuntimeSetupError(
            f"rank {wrong.rank} recorded {wrong.instructions} instructions in {folder}; the program has "
            f"{instructions(wrong.rank)}"
        )
    zero = {head.machine: min(one.began for one in heads if one.machine == head.machine) for head in heads}
    times = {one.rank: (_read(folder / f"rank_{one.rank}.times", one), zero[one.machine]) for one in heads}
    begins = [int(one[one > 0].min()) - began for one, began in times.values() if one.any()]
    first = min(begins, default=0)
    return {rank: list(_spans(one, began + first)) for rank, (one, began) in times.items()}


def _read(path: Path, head: Recorded) -> np.ndarray:
    data = read_bytes(path, "record", RuntimeSetupError)[: 16 * head.instructions]
    if len(data) != 16 * head.instructions:
        raise RuntimeSetupError(f"{path} is cut off: {len(data)} bytes for {head.instructions} instructions")
    return np.frombuffer(data, np.int64).reshape(-1, 2)


def _spans(times: np.ndarray, first: int) -> Iterator[tuple[int, float, float]]:
    for moment, (begin, end) in enumerate(times.tolist()):
        if begin > 0 and end >= begin:  # what was not reached has no times, what failed no end
            yield moment, (begin - first) / 1e9, (end - first) / 1e9
