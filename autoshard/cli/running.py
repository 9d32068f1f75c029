"""`autoshard run`: a script on MPI ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoshard.runtime.launch import launch


def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python script that every rank runs.")],
    ranks: Annotated[int, typer.Option("-n", "--ranks", metavar="N", help="Number of ranks to start.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The script's own arguments and options.")
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Host file with lines like 'host' or 'host:4'. Default: this machine."),
    ] = None,
    rank_table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="MindSpore rank table (JSON, version 1.0) instead of a host file."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(metavar="T", min=1, help="BLAS threads per rank, unless the environment sets them."),
    ] = 1,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.0, help="Seconds after which all ranks are ended. Default: never."),
    ] = None,
) -> None:
    """Run a Python script on N MPI ranks.

    If a rank fails, or on Ctrl-C, all ranks end, and the exit code is that of the rank that failed. Options
    stand before SCRIPT; all that follows it is passed on to the script.
    """
    code = launch(
        [str(script), *(arguments or [])],
        ranks,
        hosts=hosts,
        rank_table=rank_table,
        threads=threads,
        timeout=timeout,
    )
    raise typer.Exit(code)
