"""`autoshard propagate` and `autoshard explain`: spread asked shardings by rules, and tell where one came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.app import Devices, MeshText, console, read_mesh
from autoshard.cli.target import load_target

if TYPE_CHECKING:
    from autoshard.propagation import Propagated

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE.mlir|SCRIPT.py:FUNCTION",
        help="A StableHLO module, or a script and a function in it that returns (model, example inputs).",
    ),
]
Pass = Annotated[
    str,
    typer.Option("--pass", metavar="PASS", help="basic, aggressive, op-priority, user-priority, or full (pipeline)."),
]
Conservative = Annotated[
    bool, typer.Option("--conservative", help="Never split unevenly or by parts of axes.")
]
Driver = Annotated[
    str, typer.Option(metavar="WHICH", help="Order of steps: 'shardy', or 'worklist' (only what changed).")
]


def propagate(
    target: Target,
    devices: Devices = None,
    mesh: MeshText = None,
    which: Pass = "full",
    keep_rules: Annotated[
        bool, typer.Option("--keep-rules", help="Write the sharding rule of each operation, too.")
    ] = False,
    conservative: Conservative = False,
    driver: Driver = "shardy",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the module with its shardings here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print shardings, conflicts and rules as JSON.")] = False,
) -> None:
    """Spread the shardings that a program asks for over all of it, by rules alone.

    A module is written with the shardings as sdy attributes, to FILE or to the standard output; of a script's
    model (which needs --mesh or -n) a table is printed.
    """
    spread = run(target, devices, mesh, which, conservative, driver, keep_rules)
    if out is not None:
        spread.save(out, keep_rules=keep_rules)
    if as_json:
        from autoshard.report_propagation import to_json

        typer.echo(json.dumps(to_json(spread), indent=2))
    elif out is not None or spread.imported is None:
        from autoshard.report_propagation import print_report

        print_report(spread, console())
    else:
        typer.echo(spread.to_mlir(keep_rules=keep_rules), nl=False)


def explain(
    target: Target,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A value, by its name or that of its operator.")],
    devices: Devices = None,
    mesh: MeshText = None,
    which: Pass = "full",
    conservative: Conservative = False,
    driver: Driver = "shardy",
) -> None:
    """Tell step by step where the sharding of a value came from, and what else was asked for at each conflict."""
    from autoshard.report_propagation import print_explanation

    spread = run(target, devices, mesh, which, conservative, driver, False)
    print_explanation(spread, value, console())


def run(
    target: str,
    devices: int | None,
    mesh: str | None,
    which: str,
    conservative: bool,
    driver: str,
    keep_rules: bool,
) -> Propagated:
    """Load the target and propagate."""
    from autoshard.propagation import propagate as spread

    options = {"which": which, "conservative": conservative, "driver": driver, "keep_rules": keep_rules}
    if target.rpartition(":")[0].endswith(".py"):
        model, inputs = load_target(target)
        return spread(model, inputs, read_mesh(devices, mesh), **options)
    return spread(Path(target), mesh=mesh or (None if devices is None else f"d={devices}"), **options)
