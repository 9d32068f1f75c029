"""Measure devices as torch meets them: `calibrate_device("cuda")`, or "cpu", returns Hardware, fitted by costmodel.

Operators are measured on one device in this process. With several ranks, collectives are measured by a job in which
each is a process, on a device of its own where there are as many, as the engine torch sends.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import torch

from autoshard.calibrate import (
    FULL,
    KINDS,
    MOST_RANKS,
    QUICK,
    Calibration,
    CalibrationError,
    Effort,
    machine_memory,
)
from autoshard.calibrate.torch_operators import effort_of, host_copies, measure_device, memory_of, name_of
from autoshard.engines.grid import Grid
from autoshard.engines.placement import placements
from autoshard.engines.torch_collectives import TorchCollectives
from autoshard.engines.torch_devices import seen, settle
from autoshard.engines.torch_engine import join_world
from autoshard.layout.mesh import Mesh
from autoshard.runtime.comm import Comm
from autoshard.runtime.launch import launch
from autoshard.runtime.mpi import MpiComm
from costmodel import Hardware, Link, Topology
from costmodel.fit import CurveErrors, compare_device, compare_link, fit_link
from costmodel.fit_roofline import fit_roofline
from costmodel.measure import Agree, CollectiveSample, seconds_each

_TIMEOUT = 300.0
_MOST_BYTES = {"cuda": 2**28, "cpu": 2**24}
"""Bytes of the largest message that is measured."""


def calibrate_device(
    device: str, ranks: int | None = None, *, quick: bool = False, tell: Callable[[str], None] | None = None
) -> Calibration:
    """Measure a device by torch, and with several ranks the collectives among them, and fit.

    Args:
        device: "cuda", "cpu", or "auto", which is cuda where torch sees a CUDA device.
        ranks: the ranks that collectives are measured among; default: as many as there are CUDA devices, or 1.
        quick: fewer sizes and less time for each: rougher.
        tell: is given a line of progress.

    Raises:
        UnknownNameError: no such device.
        RuntimeSetupError: there is no such device.
        CalibrationError: too many ranks, or a job that failed.
    """
    found = seen()
    (placement,) = placements(device, [found])
    here = torch.device(placement.device)
    count = ranks if ranks is not None else max(1, len(found.cuda)) if here.type == "cuda" else 1
    if not 1 <= count <= MOST_RANKS:
        raise CalibrationError(f"cannot calibrate with {count} ranks; a job has 1 to {MOST_RANKS}")
    settle(placement)
    tell = tell or (lambda _: None)
    tell(f"measuring {name_of(here)}")
    samples = measure_device(here, effort_of(here, quick))
    source = f"measured by torch {torch.__version__} on {name_of(here)}"
    fitted = fit_roofline(name_of(here), samples, memory_of(here, machine_memory()), "eager", source)
    comparisons: list[tuple[str, tuple[CurveErrors, ...]]] = [("operators", compare_device(fitted, samples.operators))]
    if count == 1:
        latency, bandwidth = host_copies(here, 0.05)
        told = "copies to the host and no messages: one rank was measured"
        link = Link("copies to the host", latency, bandwidth, told)
    else:
        tell(f"measuring with {count} ranks")
        collectives, how = _job(here.type, count, QUICK if quick else FULL)
        link = fit_link(how, collectives, f"measured: {count} ranks of torch.distributed, {how}")
        comparisons.append((f"collectives of {count} ranks", compare_link(link, collectives)))
    return Calibration(Hardware("calibrated", fitted, Topology(((None, link),))), tuple(comparisons))


def _job(device: str, ranks: int, effort: Effort) -> tuple[list[CollectiveSample], str]:
    """What ranks started for it measured, and how they sent it."""
    with tempfile.TemporaryDirectory(prefix="autoshard-") as folder:
        answer = Path(folder) / "samples.json"
        code = launch([__file__, str(answer), device, effort.text()], ranks, timeout=_TIMEOUT)
        if code or not answer.is_file():
            raise CalibrationError(f"measuring with {ranks} ranks failed: the job ended with exit code {code}")
        data = json.loads(answer.read_text())
    return [CollectiveSample(**one) for one in data["collectives"]], data["how"]


# -- on the ranks --------------------------------------------------------------------------------------------


def measure_sent(comm: Comm, device: str, effort: Effort) -> tuple[list[CollectiveSample], str]:
    """Time each kind of collective among these ranks, in groups of each size that divides them, as the engine sends."""
    placement = join_world(comm, device)
    agree, found = _agreement(comm, torch.device(placement.device)), []
    for size in (one for one in range(2, comm.world + 1) if comm.world % one == 0):
        grid = Grid((("outer", comm.world // size), ("inner", size)), tuple(range(comm.world)))
        collectives = TorchCollectives(grid, comm.ranks[0], placement.device, placement.wire)
        collectives.prepare([("inner",)])
        for nbytes, kind in product(_sizes(effort, device), KINDS):
            action, counted = _collective(collectives, kind, size, nbytes, torch.device(placement.device))
            seconds = seconds_each(action, agree, budget=effort.collective_seconds, rounds=effort.rounds)
            found.append(CollectiveSample(kind, size, counted, seconds))
    how = "gloo" if placement.is_cpu else "NCCL" if placement.wire != "cpu" else "gloo through copies on the host"
    return found, how


def _sizes(effort: Effort, device: str) -> Iterator[int]:
    """Bytes of messages: those of CPUs, and larger ones where links are faster."""
    yield from effort.nbytes
    largest = effort.nbytes[-1] * 8
    while largest <= _MOST_BYTES[device]:
        yield largest
        largest *= 8


def _agreement(comm: Comm, device: torch.device) -> Agree:
    """The largest of what the ranks give, after their devices are done."""
    mesh = Mesh.flat(comm.world)
    groups = mesh.groups(mesh.all_axes)

    def agree(seconds: float) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return float(comm.all_reduce([np.array([seconds])], groups, "max")[0][0])

    return agree


def _collective(
    collectives: TorchCollectives, kind: str, size: int, nbytes: int, device: torch.device
) -> tuple[Callable[[], object], int]:
    """A call of the collective in groups of `size`, and the bytes that its prices count, about `nbytes`."""
    axes, columns = ("inner",), max(1, round(nbytes / (4 * size * size)))
    rows = size if kind != "all_gather" else 1
    x = torch.randn((rows, size * columns), generator=torch.Generator().manual_seed(0)).to(device)
    world = collectives.grid.size
    sources = tuple(rank - rank % size + (rank - 1) % size for rank in range(world))
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: collectives.all_reduce(x, axes, "sum"),
        "all_gather": lambda: collectives.all_gather(x, axes, 0),
        "reduce_scatter": lambda: collectives.reduce_scatter(x, axes, 0, "sum"),
        "all_to_all": lambda: collectives.all_to_all(x, axes, 0, 1),
        "permute": lambda: collectives.permute(x, sources),
    }
    return calls[kind], x.nbytes * (size if kind == "all_gather" else 1)


def main(arguments: list[str]) -> None:
    """Measure on this rank; rank 0 writes the samples to the file that is named first."""
    comm = MpiComm()
    found, how = measure_sent(comm, arguments[1], Effort.from_text(arguments[2]))
    if comm.ranks[0] == 0:
        data = {"collectives": [asdict(one) for one in found], "how": how}
        Path(arguments[0]).write_text(json.dumps(data))


if __name__ == "__main__":
    main(sys.argv[1:])
