"""`autoshard hardware` lists what there is, `autoshard hardware show NAME` draws how the devices of one are linked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from autoshard.cli.command import Commands, with_common
from autoshard.cli.output import check_file, print_json
from autoshard.cli.records import HardwareShownRecord, LinkedRecord
from autoshard.cli.showing import show_all_hardware, show_hardware
from costmodel.json_door import convert
from costmodel.store import HardwareRecord, hardware_data

hardware = Commands(
    name="hardware",
    help="List the hardware presets and what `autoshard calibrate` saved; or draw one, or a cluster of your own.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


def _all(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON and nothing else.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        show_all_hardware(as_json)


hardware.callback()(with_common(_all))


@hardware.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset, `calibrated`, a FILE.json or a FILE.toml.")],
    devices: Annotated[
        int | None, typer.Option("-n", "--devices", metavar="N", help="How many; default: all that the links join.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.svg",
            help="Draw the links as a picture, too; FILE.graphml: write the graph.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures and links as JSON and nothing else.")] = False,
) -> None:
    """Figures of one kind of hardware, and a drawing of its links; of a cluster's FILE.toml all that it says."""
    import networkx

    from autoshard.api import known_hardware
    from autoshard.cli.target import TargetError
    from autoshard.report.cluster import drawn, link_graph, plain
    from autoshard.report.cluster_picture import cluster_svg
    from autoshard.util.files import write_atomically

    found = known_hardware(name)
    graph = link_graph(found, devices)
    if output is not None and output.suffix not in (".graphml", ".svg"):
        raise TargetError(
            f"cannot write {output}: links are drawn to FILE.svg, and their graph is written to FILE.graphml"
        )
    check_file(output)
    if as_json:
        print_json(HardwareShownRecord(convert(hardware_data(found), HardwareRecord), tuple(_links(plain(graph)))))
    else:
        show_hardware(found)
        typer.echo(drawn(graph))
    if output is not None and output.suffix == ".svg":
        write_atomically(output, cluster_svg(found, devices), TargetError)
    elif output is not None:
        networkx.write_graphml(plain(graph), output)


def _links(graph: Any) -> Iterator[LinkedRecord]:
    for node, of in graph.nodes(data=True):
        yield LinkedRecord(id=node, inside=tuple(graph.successors(node)), **of)
