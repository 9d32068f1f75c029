"""The application that the commands belong to, and the options that several of them share."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from autoshard.cli.command import Commands
from autoshard.cli.settings import use_settings
from autoshard.layout.mesh import Mesh
from autoshard.util.errors import MeshError

CODES = (
    "Exit codes: 0 done; 1 no (a check fails, a limit is not kept, a script raises); 2 wrong use, said in a line; "
    "130 interrupted; `run` ends with the code of the rank that failed."
)
app = Commands(
    name="autoshard",
    help="Finds how a model should be split over devices, says why, and runs it so on MPI ranks.",
    epilog=CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@dataclass(frozen=True)
class DeviceOptions:
    """The devices that a command is for."""

    devices: Annotated[
        int | None,
        typer.Option("-n", "--devices", metavar="N", help="Number of devices: a mesh of one axis. Or give --mesh."),
    ] = None
    mesh: Annotated[
        str | None,
        typer.Option("--mesh", metavar="AXES", help="Mesh axes, major first: 'dp=2,tp=4', or '2x4'. Or give -n."),
    ] = None

    @property
    def are_given(self) -> bool:
        return self.devices is not None or self.mesh is not None


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from autoshard import __version__

        typer.echo(f"autoshard {__version__}")
        raise typer.Exit
    use_settings(context)


def read_mesh(on: DeviceOptions) -> Mesh:
    """The mesh that -n or --mesh names.

    Raises:
        MeshError: neither or both were given, or the mesh cannot exist.
    """
    if (on.devices is None) == (on.mesh is None):
        given = "neither is" if on.mesh is None else "both are"
        raise MeshError(f"the devices are named by -n N or by --mesh dp=2,tp=4; {given} given, give one")
    return Mesh.parse(on.mesh) if on.mesh is not None else Mesh.flat(on.devices or 0)


def console() -> Console:
    """Where tables go: coloured in a terminal; elsewhere plain, as wide as need be or COLUMNS allows."""
    from autoshard.report.plan import UNLIMITED

    found = Console(highlight=False, markup=False)
    if found.is_terminal:
        return found
    columns = shutil.get_terminal_size(fallback=(UNLIMITED, 24)).columns
    return Console(width=columns, color_system=None, highlight=False, markup=False)
