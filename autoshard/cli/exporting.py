"""`autoshard export`: plan a model and write the plan in the form that another framework takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.app import Devices, MeshText
from autoshard.cli.output import check_file, print_json
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
from autoshard.cli.records import ExportRecord
from autoshard.util.doing import doing
from autoshard.util.errors import ContextError
from autoshard.util.files import write_atomically

if TYPE_CHECKING:
    from autoshard.api import Planned


def export(
    target: Target,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="json (the whole plan), dtensor, jax, sdy (a StableHLO module), mindspore (its strategy checkpoint), "
            "shard (its shard(...) lines), model_explorer and node_data, graphml, dot, memory_viz (a memory snapshot "
            "of PyTorch), chakra (traces for network simulators); or what a rank runs: torch-code, jax-code (Python "
            "modules), stablehlo.",
        ),
    ] = "json",
    devices: Devices = None,
    mesh: MeshText = None,
    search: Search = None,
    hardware: HardwareName = HARDWARE,
    dataset_strategy: DatasetStrategy = DATASET,
    memory: Memory = None,
    option: ModeOptions = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MODE|FILE", help="Of model_explorer: beside it the plan of another mode."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it; default: print it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the files, or the text of the form, in JSON and nothing else.")
    ] = False,
) -> None:
    """Plan a model and write the plan for another framework (DTensor, JAX, Shardy, MindSpore), a viewer, or as JSON.

    With --against, which goes with model_explorer, a second plan is shown beside the first.
    """
    from autoshard.exporters.export import check_form, export, save
    from autoshard.exporters.json_text import json_text
    from autoshard.exporters.model_explorer import model_explorer

    check_form(to, is_file=output is not None)
    check_file(output)
    if against is not None and to != "model_explorer":
        raise ContextError(f"--against goes with --to model_explorer, not with {to}")

    def planned(mode: str | None) -> Planned:
        return planned_target(
            target, devices, mesh, option,
            search=mode, hardware=hardware, dataset_strategy=dataset_strategy, memory=memory,
        )  # fmt: skip

    found = planned(search)
    both = None if against is None else json_text(model_explorer(found, planned(against)))
    with doing(f"writing it as {to}"):
        if output is None:
            files, text = (), both if both is not None else export(found, to)
        elif both is not None:
            files, text = (write_atomically(output, both, ContextError),), None
        else:
            files, text = save(found, to, output), None
    record = ExportRecord(to, tuple(map(str, files)), text)
    if as_json:
        print_json(record)
    elif record.text is not None:
        typer.echo(record.text, nl=False)
    else:
        typer.echo("\n".join(record.files))
