"""`autoshard run`: a script, a model in a script, or a StableHLO module, on MPI ranks."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from autoshard.cli.target import TargetError, in_script, is_module
from autoshard.runtime.launch import launch


class RunCommand(TyperCommand):
    """Options that follow a script are the script's own; a model or module has none, so what follows it is for us."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        target = next((one for one in args if one.endswith(".py") or in_script(one) or is_module(one)), "")
        ctx.allow_interspersed_args = in_script(target) or is_module(target)
        return super().parse_args(ctx, args)


def run(
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT.py|SCRIPT.py:NAME|MODULE.mlir",
            help="The Python script that every rank runs; or a name in a script that stands for a model with example "
            "inputs, or a function that returns one; or a StableHLO module.",
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
            "--check",
            help="Of a model or module: also run it unsplit (a PyTorch model in PyTorch); the exit code is 1 if the "
            "outputs differ, else 0.",
        ),
    ] = False,
    mesh: Annotated[
        str | None,
        typer.Option("--mesh", metavar="AXES", help="Of a model: the mesh, 'dp=2,tp=4'. Default: one axis of N ranks."),
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="MODE", help="Of a model: how strategies are found; see `autoshard modes`.")
    ] = None,
) -> None:
    """Run a Python script, a model on its example inputs, or a StableHLO module on random inputs, on N MPI ranks.

    If a rank fails, or on Ctrl-C, all ranks end, and the exit code is that of the rank that failed. Options
    stand before SCRIPT.py; all that follows it is passed on to the script. Models and modules are planned as by
    `autoshard plan`.
    """
    options = {"hosts": hosts, "rank_table": rank_table, "threads": threads, "timeout": timeout}
    given = [str(script), *(arguments or [])]
    if in_script(script):
        raise typer.Exit(_run_model(given, ranks, check, mesh, search, options))
    if mesh is not None or search is not None:
        raise TargetError(f"--mesh and --search go with a model (SCRIPT.py:NAME), not with {script}")
    if is_module(script):
        given = _module_program(script, ranks, arguments, check)
    elif check:
        raise TargetError(
            f"--check goes with a model (SCRIPT.py:NAME) or a module (.mlir), not with {script}; a script checks itself"
        )
    raise typer.Exit(launch(given, ranks, **options))


def _module_program(module: Path, ranks: int, arguments: list[str] | None, check: bool) -> list[str]:
    """The script, with its arguments, by which each rank runs the module, which has been found to fit."""
    from autoshard.cli import module_run
    from autoshard.frontends.planning import planning
    from autoshard.trace.evaluate import check_known

    if arguments:
        raise TargetError(f"{module} is a module and takes no arguments, but got {' '.join(arguments)}")
    check_known(planning(module, devices=ranks).traced.graph)
    return [module_run.__file__, str(module), *["--check"] * check]


def _run_model(
    given: list[str], ranks: int, check: bool, mesh: str | None, search: str | None, options: dict[str, Any]
) -> int:
    """Prepare a model and run it on all ranks; the exit code."""
    from autoshard.cli import model_run
    from autoshard.layout.mesh import Mesh

    target, *arguments = given
    if arguments:
        raise TargetError(f"{target} is a model and takes no arguments, but got {' '.join(arguments)}")
    chosen = Mesh.flat(ranks) if mesh is None else Mesh.parse(mesh)
    if chosen.devices != ranks:
        raise TargetError(f"mesh '{chosen}' has {chosen.devices} devices, but -n starts {ranks} ranks")
    # Other hosts have to see the folder; they see that of the script.
    remote = options["hosts"] is not None or options["rank_table"] is not None
    near = Path(target.rpartition(":")[0]).resolve().parent if remote else None
    with TemporaryDirectory(prefix="autoshard_", dir=near) as folder:
        path = model_run.prepare(target, chosen, search, check, Path(folder))
        return launch([model_run.__file__, str(path)], ranks, **options)
