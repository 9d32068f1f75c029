"""All commands, and `main`, which runs the one that is asked for.

An error that autoshard raises on purpose is one message and exit code 2. One that a script raises is printed with the
script's lines, and exit code 1. AUTOSHARD_DEBUG=1 shows the whole traceback of both.
"""

from __future__ import annotations

from autoshard.cli.app import app
from autoshard.cli.calibrating import calibrate
from autoshard.cli.checkpointing import checkpoint
from autoshard.cli.comparing import compare
from autoshard.cli.ending import end_on_error
from autoshard.cli.exporting import export
from autoshard.cli.hardware import hardware
from autoshard.cli.partitioning import partition
from autoshard.cli.planning import dump, plan
from autoshard.cli.propagating import explain, propagate
from autoshard.cli.redistributing import redistribute
from autoshard.cli.running import RunCommand, run
from autoshard.cli.scheduling import schedule
from autoshard.cli.schemas import print_schema
from autoshard.cli.showing import layout, modes, operators
from autoshard.cli.tracing import trace
from autoshard.cli.truthful import truth
from autoshard.cli.viewing import diff, view

__all__ = ["app", "main"]

app.command()(plan)
app.command()(dump)
app.command()(partition)
app.command()(compare)
app.command()(diff)
app.command()(view)
app.command()(trace)
app.command()(export)
app.command()(propagate)
app.command()(explain)
app.command(cls=RunCommand)(run)
app.command()(layout)
app.command()(redistribute)
app.command()(schedule)
app.command()(operators)
app.command()(modes)
app.add_typer(hardware)
app.command()(calibrate)
app.command()(truth)
app.command("schema")(print_schema)
app.add_typer(checkpoint)


def main() -> None:
    """Run the command line in `sys.argv` and end the process with its exit code."""
    end_on_error(app)
