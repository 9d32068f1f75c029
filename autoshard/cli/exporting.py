"""`autoshard export`: plan a model and write the plan in the form that another framework takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli.app import Devices, MeshText
from autoshard.cli.planning import _DATASET, _HARDWARE, DatasetStrategy, HardwareName, Memory, Search, Target, _plan


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
    hardware: HardwareName = _HARDWARE,
    dataset_strategy: DatasetStrategy = _DATASET,
    memory: Memory = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it; default: print it.")
    ] = None,
) -> None:
    """Plan a model and write the plan for another framework: DTensor, JAX, Shardy or MindSpore; or as JSON."""
    from autoshard.exporters.export import check_form

    check_form(to)
    text = _plan(target, devices, mesh, search, hardware, dataset_strategy, memory).export(to, output)
    if output is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(str(output))
