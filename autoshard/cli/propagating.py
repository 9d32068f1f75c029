"""`autoshard propagate` and `autoshard explain`: spread asked shardings by rules, and tell where one came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from autoshard.cli.app import Devices, MeshText, console, read_mesh
from autoshard.cli.output import check_file
from autoshard.cli.planned import ModeOptions, Search, planned_target
from autoshard.cli.target import TargetError, load_target
from autoshard.cli.words import as_options
from autoshard.util.errors import AutoshardError, ContextError, MeshError, UnknownNameError

if TYPE_CHECKING:
    from autoshard.api.propagate import Propagated

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE.mlir|SCRIPT.py:FUNCTION",
        help="A StableHLO module (text or bytecode), or a script and a function in it that returns "
        "(model, example inputs) or something traced.",
    ),
]
Pass = Annotated[
    str,
    typer.Option("--pass", metavar="PASS", help="basic, aggressive, op-priority, user-priority, or full (pipeline)."),
]
Conservative = Annotated[bool, typer.Option("--conservative", help="Never split unevenly or by parts of axes.")]
Driver = Annotated[
    str, typer.Option(metavar="WHICH", help="Order of steps: 'shardy', or 'worklist' (only what changed).")
]
_MODULES = (".mlir", ".mlirbc", ".bc")


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

    A module is written with the shardings as sdy attributes. With -o it goes to FILE, and a report to the standard
    output: the sharding of each value and why, conflicts, operators without a rule. Without, it goes to the standard
    output, and conflicts and such to the standard error output. Of a script's model (which needs --mesh or -n) the
    report is printed.
    """
    _check(target, devices, mesh, which, driver)
    if not _is_module(target):
        _check_script(out, keep_rules)
    elif out is not None:
        check_file(out)
    elif keep_rules and as_json:
        raise ContextError("--keep-rules is for the module that is written, but --json without -o FILE writes none")
    spread = _run(target, devices, mesh, which, conservative, driver)
    if out is not None:
        spread.save(out, keep_rules=keep_rules)
    _print(spread, out, keep_rules, as_json)


def _print(spread: Propagated, out: Path | None, keep_rules: bool, as_json: bool) -> None:
    from autoshard.report.propagation import print_notes, print_report, to_json

    if as_json:
        typer.echo(json.dumps(to_json(spread), indent=2))
    elif out is not None or spread.imported is None:
        print_report(spread, console())
    else:
        typer.echo(spread.to_mlir(keep_rules=keep_rules), nl=False)
        print_notes(spread, Console(stderr=True, width=console().width, highlight=False, markup=False))


def explain(
    target: Target,
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE",
            help="The name of a value, an argument or an operator instance; MLIR's %3 or %arg0; f/%3 inside the "
            "function f; or 'output 0'.",
        ),
    ],
    devices: Devices = None,
    mesh: MeshText = None,
    search: Search = None,
    option: ModeOptions = None,
    which: Annotated[
        str | None,
        typer.Option("--pass", metavar="PASS", help="Tell what this pass of rules does alone, and of no plan."),
    ] = None,
    conservative: Conservative = False,
    driver: Driver = "shardy",
) -> None:
    """Tell how a value lies in the plan, and step by step where the sharding that rules give it came from.

    Each axis of each dim has its story: first what somebody asked for, then a line for each step, with the operator
    that it went through and its source line, and what stood against it at each conflict. The plan is that of
    `autoshard plan`.
    """
    _check(target, devices, mesh, which or "full", driver)
    spread = _run(target, devices, mesh, which or "full", conservative, driver)
    if which is not None:
        typer.echo(spread.explain(value), nl=False)
        return
    try:
        story, unknown = spread.explain(value), None
    except UnknownNameError as error:  # it may be of the plan alone: an activation that is made again, say
        story, unknown = "", error
    typer.echo(story + _in_plan(target, spread, value, devices, mesh, search, option, unknown), nl=False)


def _in_plan(
    target: str,
    spread: Propagated,
    name: str,
    devices: int | None,
    mesh: str | None,
    search: str | None,
    option: list[str] | None,
    unknown: UnknownNameError | None,
) -> str:
    """How a value lies in the plan; of a module that cannot be planned, why.

    Args:
        unknown: why the value has no story of rules; then it is one of the plan alone.
    """
    from autoshard.report.explain_plan import explain_name, explain_planned, plan_names
    from autoshard.report.explain_propagation import find

    try:
        planned = planned_target(target, devices, mesh, option, search=search)
    except AutoshardError as error:
        if search is not None or not _is_module(target):
            raise
        if unknown is not None:
            raise unknown from None
        return f"\nno plan: {as_options(str(error))}\n"
    if unknown is not None and name not in plan_names(planned):
        raise unknown
    if unknown is not None:
        return explain_name(planned, name)
    return "\n" + "\n".join(explain_planned(planned, find(spread, name).at)) + "\n"


# -- checks that need no work


def _is_module(target: str) -> bool:
    """Whether a target is a StableHLO module; a script is named with a function: SCRIPT.py:FUNCTION."""
    return not target.rpartition(":")[0].endswith(".py")


def _check(target: str, devices: int | None, mesh: str | None, which: str, driver: str) -> None:
    from autoshard.api.propagate import options_of

    options_of(which, driver=driver)
    if not _is_module(target):
        read_mesh(devices, mesh)
        return
    path = Path(target)
    if path.is_dir():
        raise TargetError(f"cannot read {path}: it is a directory; a StableHLO module is a file")
    if path.suffix == ".py":
        raise TargetError(f"{path} is a script; name the function in it that returns the model: {path}:FUNCTION")
    if not path.is_file():
        raise TargetError(f"cannot read {path}: there is no such file")
    if path.suffix not in _MODULES:
        raise TargetError(f"cannot read {path}: the name of a StableHLO module ends in {', '.join(_MODULES)}")
    if devices is not None or mesh is not None:
        given = "-n" if devices is not None else "--mesh"
        raise MeshError(f"{path} names its own meshes (sdy.mesh); leave {given} out")


def _check_script(out: Path | None, keep_rules: bool) -> None:
    for option, given in (("-o", out is not None), ("--keep-rules", keep_rules)):
        if given:
            raise ContextError(f"{option} is for StableHLO modules; the model of a script cannot be written as one")


def _run(target: str, devices: int | None, mesh: str | None, which: str, conservative: bool, driver: str) -> Propagated:
    from autoshard.api.propagate import propagate as spread

    if _is_module(target):
        return spread(Path(target), which=which, conservative=conservative, driver=driver)
    model, inputs = load_target(target)
    over = read_mesh(devices, mesh)
    return spread(model, inputs, over, which=which, conservative=conservative, driver=driver)
