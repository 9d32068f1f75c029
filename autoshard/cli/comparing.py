"""`autoshard compare`: the plans of several modes, named plans and files side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from autoshard.cli.app import console
from autoshard.cli.planned import (
    BATCH,
    DATASET,
    HARDWARE,
    DatasetStrategy,
    HardwareName,
    LossPieces,
    Memory,
    MicroBatches,
    Statistics,
    Target,
)
from autoshard.cli.target import is_module, load_target, prints_apart
from autoshard.cli.words import as_options
from autoshard.layout.mesh import Mesh
from autoshard.util.errors import MeshError
from costmodel import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.pipeline.compare import Contender


WIDE = 100
"""Columns from which on computing and each axis have columns of their own."""


def compare(
    target: Target,
    devices: Annotated[int | None, typer.Option("-n", "--devices", metavar="N", help="A mesh of one axis.")] = None,
    mesh: Annotated[
        list[str] | None,
        typer.Option("--mesh", metavar="AXES", help="A mesh, like 'dp=2,tp=4'; given again, another one."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode", "--search", metavar="MODE", help="A search mode; may be given again. Default: all of them."
        ),
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="NAME|FILE", help="A named plan, or a file of `plan --save`; may be repeated."),
    ] = None,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(
            "--pipeline",
            metavar="AXIS|MESHES|auto",
            help="A plan in stages, as of `autoshard plan`, by the schedule that takes least; may be given again.",
        ),
    ] = None,
    memory: Memory = None,
    hardware: HardwareName = HARDWARE,
    dataset_strategy: DatasetStrategy = DATASET,
    micro_batches: MicroBatches = 1,
    statistics: Statistics = BATCH,
    loss_pieces: LossPieces = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and nothing else.")] = False,
) -> None:
    """Plan a model in several ways and compare what they cost: time, bytes and memory of one step on one device.

    Without --mode, --plan and --pipeline these are all search modes, all named plans (data parallel, ZeRO, Megatron,
    ...) and, of a training step, what a search for stages finds. The fastest that keeps the memory limit comes first;
    the exit code is 1 if none does.
    """
    from autoshard.exporters.plan_file import read_plan
    from autoshard.mindspore.context import set_auto_parallel_context
    from autoshard.pipeline.compare import compare as contenders_of
    from autoshard.pipeline.compare import ranked
    from autoshard.report.plan import names_of
    from autoshard.search import find_mode

    for one in (*(mode or ()), *(plan or ())):
        if one.endswith(".json"):
            read_plan(one)
        else:
            find_mode(one)
    meshes = _meshes(target, devices, mesh or [])
    settings = {"hardware": hardware, "memory": memory, "dataset_strategy": dataset_strategy}
    settings |= {"micro_batches": micro_batches, "statistics": statistics, "loss_pieces": loss_pieces}
    if is_module(target):
        model, inputs = Path(target), ()
    else:
        set_auto_parallel_context(device_num=meshes[0].devices if meshes[0] else None)
        model, inputs = load_target(target)
    settings["pipelines"] = pipeline or None
    with prints_apart():
        found = tuple(ranked(contenders_of(model, inputs, meshes, (*(mode or ()), *(plan or ())), **settings)))
    if as_json:
        typer.echo(json.dumps({"plans": [one.to_json() for one in found]}, indent=2))
        _check_some(found, memory)
        return
    out = console()
    out.print(_table(found, limited=memory is not None, wide=out.width >= WIDE))
    for one in found:
        if one.cost is None:
            typer.echo(f"{one.mode}: {as_options(one.why)}")
        elif one.ignored:
            typer.echo(f"{one.mode}: does not follow what was asked of {names_of(one.ignored)}")
    _check_some(found, memory)


def _check_some(found: tuple[Contender, ...], memory: str | None) -> None:
    """End with exit code 1 where there is no plan, or none that keeps the memory limit."""
    if not any(one.cost for one in found):
        raise typer.Exit(1)
    if not any(one.fits for one in found):
        typer.echo(f"no plan keeps the memory limit of {memory}", err=True)
        raise typer.Exit(1)


def _meshes(target: str, devices: int | None, texts: list[str]) -> list[Mesh | None]:
    found: list[Mesh | None] = [Mesh.flat(devices)] if devices is not None else []
    found += [Mesh.parse(text) for text in texts]
    if not found and not is_module(target):
        raise MeshError("the devices are named by -n N or by --mesh dp=2,tp=4; neither is given")
    return found or [None]


def _table(found: tuple[Contender, ...], limited: bool, wide: bool) -> Table:
    axes = list(dict.fromkeys(cost.axes for one in found if one.cost for cost in one.cost.axes)) if wide else []
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("plan", "mesh"):
        table.add_column(name, overflow="ellipsis", no_wrap=not wide)
    waits = ["waits"] if wide and _is_staged(found) else []
    parts = [*(["compute"] if wide else []), *waits, *(f"over {name}" for name in axes)]
    for name in ("step", *parts, "bytes", "peak memory"):
        table.add_column(name, justify="right", no_wrap=not wide)
    if limited:
        table.add_column("fits")
    table.add_column("planned in", justify="right")
    for one in found:
        if one.cost is not None:
            table.add_row(*_row(one, axes, limited, wide, bool(waits)))
    return table


def _is_staged(found: tuple[Contender, ...]) -> bool:
    """Whether there are plans in stages, whose devices wait for each other."""
    from autoshard.pipeline.compare import STAGED

    return any(one.cost is not None and one.mode.startswith(STAGED) for one in found)


def _row(one: Contender, axes: list[str], limited: bool, wide: bool, waits: bool) -> list[str]:
    cost = one.cost
    assert cost is not None, "a row needs a cost"
    talk = {each.axes: each.seconds for each in cost.axes}
    cells = [one.mode, one.mesh, format_seconds(cost.seconds)]
    cells += [format_seconds(cost.compute_seconds)] if wide else []
    cells += [format_seconds(cost.waiting_seconds)] if waits else []
    cells += [format_seconds(talk[name]) if name in talk else "" for name in axes]
    cells += [format_bytes(cost.bytes_per_device), format_bytes(cost.peak_memory_bytes)]
    cells += [("yes" if one.fits else "no")] if limited else []
    return [*cells, format_seconds(one.planning_seconds)]
