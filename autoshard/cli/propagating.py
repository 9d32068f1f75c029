"""`autoshard propagate` and `autoshard explain`: spread asked shardings by rules, and tell where one came from."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from autoshard.cli.app import DeviceOptions, console, read_mesh
from autoshard.cli.output import check_file, print_json
from autoshard.cli.planned import AUTO, AskedInStages, is_whole
from autoshard.cli.progress import is_quiet
from autoshard.cli.records import AgainstRecord, ExplainRecord
from autoshard.cli.target import TargetError, load_target, prints_apart
from autoshard.cli.words import as_options
from autoshard.util.doing import doing
from autoshard.util.errors import AutoshardError, ContextError, MeshError, UnknownNameError
from costmodel.json_door import plain

if TYPE_CHECKING:
    from autoshard.api import Planned
    from autoshard.api.propagate import Propagated
    from autoshard.report.explained_records import ExplainedRecord

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
_MODULES = (".mlir", ".mlirbc", ".bc")


def propagate(
    target: Target,
    on: DeviceOptions,
    which: Pass = "full",
    keep_rules: Annotated[
        bool, typer.Option("--keep-rules", help="Write the sharding rule of each operation, too.")
    ] = False,
    conservative: Conservative = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the module with its shardings here.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PEER",
            help="Hold the module against what another's pass of that name makes of it: shardy, as jaxlib has it. "
            "Exit code 1 if they differ.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print shardings, conflicts and rules as JSON.")] = False,
) -> None:
    """Spread the shardings that a program asks for over all of it, by rules alone.

    A module is written with the shardings as sdy attributes. With -o it goes to FILE, and a report to the standard
    output: the sharding of each value and why, conflicts, operators without a rule. Without, it goes to the standard
    output, and conflicts and such to the standard error output. Of a script's model (which needs --mesh or -n) the
    report is printed.
    """
    _check(target, on, which)
    _check_peer(target, against)
    if not _is_module(target):
        _check_script(out, keep_rules)
    elif out is not None:
        check_file(out)
    elif keep_rules and as_json:
        raise ContextError("--keep-rules is for the module that is written, but --json without -o FILE writes none")
    with doing("spreading shardings by rules"):
        spread = _run(target, on, which, conservative)
    if out is not None:
        spread.save(out, keep_rules=keep_rules)
    found = None
    if against is not None:
        with doing("running the passes of Shardy"):
            found = _held_against(spread, against)
    _print(spread, out, keep_rules, as_json, found)
    if found is not None and not found.agrees:
        raise typer.Exit(1)


def _print(
    spread: Propagated, out: Path | None, keep_rules: bool, as_json: bool, against: AgainstRecord | None
) -> None:
    from autoshard.report.propagation import print_notes, print_report, to_json

    if as_json:
        record = to_json(spread) | ({"against": plain(against)} if against is not None else {})
        typer.echo(json.dumps(record, indent=2))
    elif against is not None:
        _print_against(against)
    elif out is not None or spread.imported is None:
        print_report(spread, console())
    else:
        typer.echo(spread.to_mlir(keep_rules=keep_rules), nl=False)
        if not is_quiet():
            print_notes(spread, Console(stderr=True, width=console().width, highlight=False, markup=False))


def _print_against(found: AgainstRecord) -> None:
    """Whether the two modules are the same, or the lines that only one of them has."""
    if found.agrees:
        console().print(f"the module is the one that {found.peer} leaves, to the last character")
        return
    console().print(f"{found.peer} leaves another module; '-' is ours, '+' is its own:")
    for line in found.differences:
        console().print(line, style={"-": "red", "+": "green"}.get(line[:1]), soft_wrap=True, markup=False)


def _held_against(spread: Propagated, peer: str) -> AgainstRecord:
    from importlib.metadata import version

    from autoshard.frontends.stablehlo.released import differing

    lines = differing(spread, spread.to_mlir())
    return AgainstRecord(f"{peer} of jaxlib {version('jaxlib')}", not lines, tuple(lines))


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
    which: Annotated[
        str | None,
        typer.Option("--pass", metavar="PASS", help="Tell what this pass of rules does alone, and of no plan."),
    ] = None,
    conservative: Conservative = False,
    *,
    asked: AskedInStages,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON and nothing else.")] = False,
) -> None:
    """Tell how a value lies in the plan, and step by step where the sharding that rules give it came from.

    First the plan, which is that of `autoshard plan`: the layout, what makes and reads it, why it is so, and what it
    could be instead for how much more. Then what rules alone say: for each axis of each dim what somebody asked for,
    and a line for each step, with the operator that it went through, and what stood against it at each conflict. Of a
    plan in stages (--pipeline) each stage that has it, and where it is sent.
    """
    if asked.stages is None:
        _check(target, asked, which or "full")
    known = None
    if asked.stages is not None or (asked.search == AUTO and which is None):
        found = asked.found(target, {"--pass": which, "--conservative": conservative or None})
        if not is_whole(found):
            _print_explained(ExplainRecord(value, stages=found.explained(value)), as_json)
            return
        known = found
    with doing("spreading shardings by rules"):
        spread = _run(target, asked, which or "full", conservative)
    if which is not None:
        record = ExplainRecord(value, rules=tuple(spread.explain(value).splitlines()))
    else:
        record = _explained(target, spread, value, asked, known)
    _print_explained(record, as_json)


def _print_explained(found: ExplainRecord, as_json: bool) -> None:
    from autoshard.report.explain_plan import wrapped

    if as_json:
        print_json(found)
    else:
        typer.echo(wrapped(_text(found), console().width), nl=False)


def _text(found: ExplainRecord) -> str:
    from autoshard.pipeline.planned.explained import stages_text
    from autoshard.report.explain_plan import explained_text

    if found.stages:
        return stages_text(found.stages)
    plan = explained_text(found.plan) if found.plan is not None else f"no plan: {found.no_plan}\n" * bool(found.no_plan)
    rules = "\n".join(found.rules)
    if not plan or not rules:
        return plan or f"{rules}\n"
    return f"{plan}\nby rules alone, before any search:\n{textwrap.indent(rules, '  ')}\n"


def _explained(
    target: str, spread: Propagated, name: str, asked: AskedInStages, known: Planned | None
) -> ExplainRecord:
    """How a value lies in the plan, and what rules say of it; of a module that cannot be planned, why."""
    try:
        rules, unknown = tuple(spread.explain(name).splitlines()), None
    except UnknownNameError as error:  # it may be of the plan alone: an activation that is made again, say
        rules, unknown = (), error
    try:
        planned = known or asked.planned(target)
    except AutoshardError as error:
        if asked.search is not None or not _is_module(target):
            raise
        if unknown is not None:
            raise unknown from None
        return ExplainRecord(name, no_plan=as_options(str(error)), rules=rules)
    with doing("pricing what else it could be"):
        return ExplainRecord(name, explained_in(planned, spread, name, unknown), rules=rules)


def explained_in(
    planned: Planned, spread: Propagated, name: str, unknown: UnknownNameError | None = None
) -> ExplainedRecord:
    """What a plan says of a name that rules know, or that `unknown` says they do not.

    Raises:
        UnknownNameError: the plan does not know it, either.
    """
    from autoshard.report.explain_plan import location_explained
    from autoshard.report.explain_propagation import find
    from autoshard.report.explained import explainer

    known = explainer(planned)
    if unknown is None:
        return location_explained(planned, name, find(spread, name).at)
    if name not in known.names:
        raise unknown
    return known.of(name)


# -- checks that need no work


def _is_module(target: str) -> bool:
    """Whether a target is a StableHLO module; a script is named with a function: SCRIPT.py:FUNCTION."""
    return not target.rpartition(":")[0].endswith(".py")


def _check(target: str, on: DeviceOptions, which: str) -> None:
    from autoshard.api.propagate import options_of

    options_of(which)
    if not _is_module(target):
        read_mesh(on)
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
    if on.are_given:
        given = "-n" if on.devices is not None else "--mesh"
        raise MeshError(
            f"{path} is a module, which is spread over the meshes that it names itself (sdy.mesh); leave {given} out"
        )


def _check_peer(target: str, against: str | None) -> None:
    if against is None:
        return
    if against != "shardy":
        raise ContextError(f"--against {against}: the one peer that is known is shardy")
    if not _is_module(target):
        raise ContextError("--against shardy is for StableHLO modules; Shardy takes no script's model")


def _check_script(out: Path | None, keep_rules: bool) -> None:
    for option, given in (("-o", out is not None), ("--keep-rules", keep_rules)):
        if given:
            raise ContextError(f"{option} is for StableHLO modules; the model of a script cannot be written as one")


def _run(target: str, on: DeviceOptions, which: str, conservative: bool) -> Propagated:
    from autoshard.api.propagate import propagate as spread

    if _is_module(target):
        return spread(Path(target), which=which, conservative=conservative)
    model, inputs = load_target(target)
    mesh = read_mesh(on)
    with prints_apart():
        return spread(model, inputs, mesh, which=which, conservative=conservative)
