"""`autoshard calibrate`: measure this machine, so that plans can be made for it."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.app import console
from autoshard.cli.output import check_file, print_json
from autoshard.cli.progress import note
from autoshard.cli.records import CalibrateRecord, FittedRecord

if TYPE_CHECKING:
    from autoshard.calibrate import Calibration
    from costmodel.fit import CurveErrors

# A median error of a group of measurements beyond which a busy machine is suspected.
_DOUBTFUL = 0.4


def calibrate(
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            metavar="N",
            help="The most ranks that jobs will have. With --device it may be left out: as many as CUDA devices, or 1.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Measure by torch instead, as the engine torch computes and sends: cuda, cpu, or auto.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="A .json file. Default: the one that 'calibrated' stands for."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: done in seconds, and rougher.")] = False,
    threads: Annotated[
        int, typer.Option(metavar="T", min=1, help="BLAS threads per rank, as of the jobs; not with --device.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was fitted as JSON and nothing else.")] = False,
) -> None:
    """Measure this machine's MPI and operators on 2, 4, ... N ranks, fit a cost model, and save it.

    With --device what torch computes on is measured: products by shape, bandwidth, attention, what starts cost, and
    collectives among N ranks.

    Plans are then made for it with --hardware calibrated, or --hardware FILE.json. Measure while nothing else runs.
    """
    from autoshard.calibrate import calibrate as measure
    from autoshard.cli.target import TargetError
    from costmodel import calibrated_path, save

    path = calibrated_path() if output is None else output
    check_file(path, making=True)
    if path.suffix != ".json":
        raise TargetError(f"cannot save to {path}: hardware is known by the ending .json of its file")
    if device is not None:
        found = _of_device(device, ranks, quick, threads)
    elif ranks is None:
        raise TargetError("-n is missing: the most ranks that jobs will have; or measure what torch has, by --device")
    else:
        found = measure(ranks, quick=quick, threads=threads, tell=note)
    try:
        save(found.hardware, path)  # before anything is printed: whoever reads it may stop in the middle
    except OSError as error:
        raise TargetError(f"cannot save to {path}: {error}") from error
    if not as_json:
        for title, comparisons in found.comparisons:
            _show(title, comparisons)
    worst = max((_middle(comparisons) for _, comparisons in found.comparisons), default=0.0)
    if worst > _DOUBTFUL:
        note(
            f"what was measured is far from any model, by {worst:.0%} in the median: was something else "
            "running? Measure again when the machine is idle"
        )
    name = "calibrated" if output is None else str(path)
    if as_json:
        print_json(_record(path, name, found, doubtful=worst > _DOUBTFUL))
    else:
        typer.echo(f"saved to {path}; plan with --hardware {name}")


def _of_device(device: str, ranks: int | None, quick: bool, threads: int) -> Calibration:
    from autoshard.cli.target import TargetError
    from autoshard.engines.extras import need
    from autoshard.engines.placement import check_device

    check_device(device)
    need("torch", "calibrate --device")
    if threads != 1:
        raise TargetError("--threads is for BLAS of MPI ranks; leave it out with --device")
    from autoshard.calibrate.by_torch import calibrate_device

    return calibrate_device(device, ranks, quick=quick, tell=note)


def _record(path: Path, name: str, found: Calibration, doubtful: bool) -> CalibrateRecord:
    rows = {title: tuple(FittedRecord(**asdict(one)) for one in some) for title, some in found.comparisons}
    return CalibrateRecord(str(path), name, rows, doubtful)


def _middle(comparisons: tuple[CurveErrors, ...]) -> float:
    """The median of the median errors."""
    return statistics.median(one.median_error for one in comparisons)


def _show(title: str, comparisons: tuple[CurveErrors, ...]) -> None:
    """Print how far what was measured is from the model."""
    from rich import box
    from rich.table import Table

    from costmodel import format_seconds

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("measured")
    for name in ("samples", "median error", "worst", "largest", "fitted"):
        table.add_column(name, justify="right")
    for one in comparisons:
        errors = f"{one.median_error:.0%}", f"{one.worst_error:.0%}"
        times = format_seconds(one.measured), format_seconds(one.fitted)
        table.add_row(one.what, str(one.samples), *errors, *times)
    console().print(table)
    typer.echo(f"median of the median errors: {_middle(comparisons):.0%}\n")
