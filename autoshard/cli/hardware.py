"""`autoshard hardware` lists what there is, `autoshard hardware show NAME` draws how the devices of one are linked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli.showing import show_all_hardware, show_hardware

hardware = typer.Typer(
    name="hardware",
    help="List the hardware presets and what `autoshard calibrate` saved; or draw one, or a cluster of your own.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@hardware.callback()
def _all(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show_all_hardware()


@hardware.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset, `calibrated`, a FILE.json or a FILE.toml.")],
    devices: Annotated[
        int | None, typer.Option("-n", "--devices", metavar="N", help="How many; default: all that the links join.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.graphml", help="Write the graph to a file, too.")
    ] = None,
) -> None:
    """Figures of one kind of hardware, and a drawing of its links; of a cluster's FILE.toml all that it says."""
    import networkx

    from autoshard.api import known_hardware
    from autoshard.cli.target import TargetError
    from autoshard.report.cluster import drawn, link_graph, plain

    found = known_hardware(name)
    graph = link_graph(found, devices)
    if output is not None and output.suffix != ".graphml":
        raise TargetError(f"cannot write {output}: graphs are written as GraphML, to FILE.graphml")
    show_hardware(found)
    typer.echo(drawn(graph))
    if output is not None:
        networkx.write_graphml(plain(graph), output)
