"""`autoshard plan` and `autoshard dump`: plan a model from a script, and report it or write it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.app import Devices, MeshText, console, read_mesh
from autoshard.cli.target import TargetError, is_module, load_target

if TYPE_CHECKING:
    from autoshard.api import Planned

Target = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT.py:FUNCTION|MODULE.mlir",
        help="A script and a function in it that returns (model, example inputs), or something traced; or a StableHLO "
        "module, which mostly names its mesh itself.",
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="How strategies are found; `autoshard modes` lists the modes. Or the FILE.json of a saved plan. "
        "Default: sharding_propagation; for a module factor.",
    ),
]
HardwareName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Whose times to reckon with: `autoshard hardware` lists them; or `calibrated`, or a FILE.json.",
    ),
]
DatasetStrategy = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="Data inputs: 'full_batch' (whole on every rank) or 'data_parallel' (dim 0 split over all).",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="What a device has, like '80 GiB': a plan that needs more is refused."),
]
_HARDWARE, _DATASET = "cpu", "full_batch"


def plan(
    target: Target,
    devices: Devices = None,
    mesh: MeshText = None,
    search: Search = None,
    hardware: HardwareName = _HARDWARE,
    dataset_strategy: DatasetStrategy = _DATASET,
    memory: Memory = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the plan to a file, for --search FILE.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
    alternatives: Annotated[
        bool,
        typer.Option("--alternatives", help="Also list the runners-up of every decision."),
    ] = False,
) -> None:
    """Plan a model or a module and report the strategies, their causes and what they cost.

    The example inputs give shapes and element types. Outputs keep the layout they come in. Times are
    predicted, for one step of one device; bytes are those that one device sends.
    """
    from autoshard.exporters.plan_json import to_json
    from autoshard.report import print_report, report

    planned = _plan(target, devices, mesh, search, hardware, dataset_strategy, memory)
    if save is not None:
        planned.save(save)
    if as_json:
        typer.echo(json.dumps(to_json(planned, alternatives=alternatives), indent=2))
        return
    out = console()
    if out.is_terminal:
        print_report(planned, out, alternatives=alternatives)
    else:
        typer.echo(report(planned, width=out.width, alternatives=alternatives), nl=False)


def dump(
    target: Target,
    devices: Devices = None,
    mesh: MeshText = None,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="Folder of the rank_<r> folders."),
    ] = Path("."),
    ranks: Annotated[str, typer.Option(metavar="RANKS", help="Ranks: 'all', or numbers like '0,3'.")] = "all",
    search: Search = None,
    hardware: HardwareName = _HARDWARE,
    dataset_strategy: DatasetStrategy = _DATASET,
) -> None:
    """Plan a model and write its IR dumps: as decided, after partitioning, and as every rank runs it."""
    planned = _plan(target, devices, mesh, search, hardware, dataset_strategy)
    for path in planned.dump(output, ranks=_read_ranks(ranks, planned.plan.mesh.devices)):
        typer.echo(str(path))


def _plan(
    target: str,
    devices: int | None,
    mesh: str | None,
    search: str | None,
    hardware: str,
    dataset_strategy: str,
    memory: str | None = None,
) -> Planned:
    from autoshard.api import plan as make_plan
    from autoshard.context import set_auto_parallel_context

    if is_module(target):
        over = None if devices is None and mesh is None else read_mesh(devices, mesh)
        options = {"search": search, "hardware": hardware, "dataset_strategy": dataset_strategy, "memory": memory}
        return make_plan(Path(target), mesh=over if mesh else None, devices=devices, **options)
    over = read_mesh(devices, mesh)
    # A script may ask how many devices there are while it is loaded.
    set_auto_parallel_context(device_num=over.devices)
    model, inputs = load_target(target)
    settings = {"search": search, "hardware": hardware, "dataset_strategy": dataset_strategy, "memory": memory}
    return make_plan(model, inputs, over, **settings)


def _read_ranks(text: str, world: int) -> list[int] | None:
    if text == "all":
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < world for word in words):
        raise TargetError(f"cannot read the ranks {text!r}; write 'all' or numbers from 0 to {world - 1}, like '0,1'")
    return [int(word) for word in words]
