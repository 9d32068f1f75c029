"""`autoshard export`: plan a model and write the plan in the form that another framework takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli.app import Devices, MeshText
from autoshard.cli.output import check_file
from autoshard.cli.planned import (
    DATASET,
    HARDWARE,
    DatasetStrategy,
    HardwareName,
    Memory,
    ModeOptions,
    Search,
    Target,
    planned_target,
)


def export(
    target: Target,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="json (the whole plan), dtensor, jax, sdy (a StableHLO module), mindspore (its strategy checkpoint) "
            "or shard (its shard(...) lines).",
        ),
    ] = "json",
    devices: Devices = None,
    mesh: MeshText = None,
    search: Search = None,
    hardware: HardwareName = HARDWARE,
    dataset_strategy: DatasetStrategy = DATASET,
    memory: Memory = None,
    option: ModeOptions = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it; default: print it.")
    ] = None,
) -> None:
    """Plan a model and write the plan for another framework: DTensor, JAX, Shardy or MindSpore; or as JSON."""
    from autoshard.exporters.export import check_form

    check_form(to)
    check_file(output)
    text = planned_target(
        target, devices, mesh, option,
        search=search, hardware=hardware, dataset_strategy=dataset_strategy, memory=memory,
    ).export(to, output)  # fmt: skip
    if output is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(str(output))
