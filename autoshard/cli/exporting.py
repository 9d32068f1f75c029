"""`autoshard export`: plan a model and write the plan in the form that another framework takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoshard.cli.output import check_file, check_folder, print_json
from autoshard.cli.planned import AUTO, AskedInStages, Target, is_whole
from autoshard.cli.records import ExportRecord
from autoshard.util.doing import doing
from autoshard.util.errors import ContextError
from autoshard.util.files import write_atomically

if TYPE_CHECKING:
    from autoshard.api import Planned
    from autoshard.exporters.forms import ExportForms
    from autoshard.pipeline import PlannedPipeline


def export(
    target: Target,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="json (the whole plan), dtensor, jax, sdy (a StableHLO module), mindspore (its strategy checkpoint), "
            "shard (its shard(...) lines), model_explorer and node_data, graphml, dot, memory_viz (a memory snapshot "
            "of PyTorch), chakra (traces for network simulators); or what a rank runs: torch-code, jax-code (Python "
            "modules), stablehlo. Of a plan in stages (--pipeline): json, shard, schedule (the CSV that torch's "
            "pipelining reads), jax-stages (a Python module of functions of JAX), mpmd (Shardy's MPMD dialect); with "
            "-o DIR mindspore, torch-stages (a Python module for each stage, which runs alone) and torch-pipelining "
            "(one that torch.distributed.pipelining runs).",
        ),
    ] = "json",
    *,
    asked: AskedInStages,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MODE|FILE", help="Of model_explorer: beside it the plan of another mode."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE|DIR", help="Where to write it; default: print it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the files, or the text of the form, in JSON and nothing else.")
    ] = False,
) -> None:
    """Plan a model and write the plan for another framework (DTensor, JAX, Shardy, MindSpore), a viewer, or as JSON.

    With --against, which goes with model_explorer, a second plan is shown beside the first. A training step in stages
    (--pipeline) has forms of its own.
    """
    if against is not None and to != "model_explorer":
        raise ContextError(f"--against goes with --to model_explorer, not with {to}")
    if asked.stages is not None:
        record = _stages_exported(to, output, lambda: asked.planned_stages(target, {"--against": against}))
    elif asked.search == AUTO and against is None:
        record = _exported_in_any_form(to, output, partial(asked.found, target))
    else:
        record = _exported(to, output, partial(asked.planned, target), against)
    _show(record, as_json)


def _exported(to: str, output: Path | None, planned: Callable[..., Planned], against: str | None) -> ExportRecord:
    """A plan in one piece in a form, beside that of another mode if one is given."""
    from autoshard.exporters.export import PLAN_FORMS
    from autoshard.exporters.json_text import json_text
    from autoshard.exporters.model_explorer import model_explorer

    _check(PLAN_FORMS, to, output)
    found = planned()
    if against is None:
        return _written(PLAN_FORMS, found, to, output)
    both = json_text(model_explorer(found, planned(against)))
    files = () if output is None else (str(write_atomically(output, both, ContextError)),)
    return ExportRecord(to, files, both if output is None else None)


def _stages_exported(to: str, output: Path | None, planned: Callable[[], PlannedPipeline]) -> ExportRecord:
    """A plan in stages in a form."""
    from autoshard.pipeline.exports.forms import STAGE_FORMS

    _check(STAGE_FORMS, to, output)
    return _written(STAGE_FORMS, planned(), to, output)


def _exported_in_any_form(to: str, output: Path | None, found: Callable[[], Planned | PlannedPipeline]) -> ExportRecord:
    """A plan in the form that it has, in one piece or in stages."""
    from autoshard.exporters.export import PLAN_FORMS
    from autoshard.pipeline.exports.forms import STAGE_FORMS

    _check(PLAN_FORMS if to in PLAN_FORMS.names else STAGE_FORMS, to, output)
    planned = found()
    forms: ExportForms[Any] = PLAN_FORMS if is_whole(planned) else STAGE_FORMS
    _check(forms, to, output)
    return _written(forms, planned, to, output)


def _check(forms: ExportForms[Any], to: str, output: Path | None) -> None:
    """That there is such a form, and that it can be written, before anything is planned."""
    forms.check(to, is_file=output is not None)
    if output is not None and to in forms.folders:
        check_folder(output)
    else:
        check_file(output)


def _written(forms: ExportForms[Any], planned: Any, to: str, output: Path | None) -> ExportRecord:
    with doing(f"writing it as {to}"):
        if output is None:
            return ExportRecord(to, (), forms.text(planned, to))
        return ExportRecord(to, tuple(map(str, forms.save(planned, to, output))), None)


def _show(record: ExportRecord, as_json: bool) -> None:
    if as_json:
        print_json(record)
    elif record.text is not None:
        typer.echo(record.text, nl=False)
    else:
        typer.echo("\n".join(record.files))
