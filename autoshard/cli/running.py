"""`autoshard run`: a script, or a StableHLO module, on MPI ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from autoshard.cli.target import TargetError, is_module
from autoshard.runtime.launch import launch


class RunCommand(TyperCommand):
    """Options that follow a script are the script's own; a module has none, so what follows it is for us."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        target = next((one for one in args if one.endswith(".py") or is_module(one)), "")
        ctx.allow_interspersed_args = is_module(target)
        return super().parse_args(ctx, args)


def run(
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT.py|MODULE.mlir", help="The Python script that every rank runs, or a StableHLO module."
        ),
    ],
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
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Of a module: also run it unsplit; the exit code is 1 if the outputs differ, else 0."
        ),
    ] = False,
) -> None:
    """Run a Python script, or a StableHLO module on seeded random inputs, on N MPI ranks.

    If a rank fails, or on Ctrl-C, all ranks end, and the exit code is that of the rank that failed. Options
    stand before SCRIPT.py; all that follows it is passed on to the script. A module is planned as its shardings
    ask (search mode factor).
    """
    given = [str(script), *(arguments or [])]
    if is_module(script):
        given = _module_program(script, ranks, arguments, check)
    elif check:
        raise TargetError(f"--check goes with a module (.mlir), not with {script}; a script checks itself")
    code = launch(given, ranks, hosts=hosts, rank_table=rank_table, threads=threads, timeout=timeout)
    raise typer.Exit(code)


def _module_program(module: Path, ranks: int, arguments: list[str] | None, check: bool) -> list[str]:
    """The script, with its arguments, by which each rank runs the module, which has been found to fit."""
    from autoshard.cli import module_run
    from autoshard.frontends.planning import planning
    from autoshard.trace.evaluate import check_known

    if arguments:
        raise TargetError(f"{module} is a module and takes no arguments, but got {' '.join(arguments)}")
    check_known(planning(module, devices=ranks).traced.graph)
    return [module_run.__file__, str(module), *["--check"] * check]
