"""`autoshard truth`: training steps that others measured, beside what their plans are predicted to take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from autoshard.cli.app import console
from autoshard.util.doing import doing
from autoshard.util.errors import ContextError
from costmodel import format_count, format_seconds

if TYPE_CHECKING:
    from autoshard.truth.predict import Prediction
    from autoshard.truth.score import Ranking, Score

_WORST = 5


def truth(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE.json|FILE.csv]...", help="Tables of measured steps. Default: those shipped."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="WORD", help="Rows with this in their name; may be repeated.")
    ] = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            "--hardware", metavar="NAME=FILE.json", help="Other hardware for rows of that name: h100=my.json."
        ),
    ] = None,
    explain: Annotated[
        int, typer.Option("--explain", metavar="N", min=0, help="So many of the worst rows, by part.")
    ] = _WORST,
    limit: Annotated[
        float | None, typer.Option("--limit", metavar="PERCENT", help="Exit code 1 if the median error is larger.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and nothing else.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of a file of rows, and stop.")
    ] = False,
) -> None:
    """Hold predictions against training steps that others measured: error by source, ranks of plans, the worst rows.

    A row tells model, devices, mesh, plan, batches, and what was measured; tables are JSON (--schema) or the CSV of a
    known source. What no plan expresses yet is counted and named.
    """
    from autoshard.truth.predict import Predictor
    from autoshard.truth.rows import rows_schema
    from autoshard.truth.tables import load, shipped

    if schema:
        typer.echo(json.dumps(rows_schema(), indent=2))
        return
    if limit is not None and not limit >= 0:
        raise ContextError(f"--limit is {limit:g}; it is a number of percent from 0 on")
    known = [load(path) for path in tables or shipped()]
    rows = [(one.source.name, row) for one in known for row in one.rows if _wanted(row.id, only)]
    if not rows and only:
        raise ContextError(f"no measured step has {' or '.join(map(repr, only))} in its name")
    if not rows:
        raise ContextError(f"there is no measured step in {' and '.join(map(str, tables or ()))}")
    predictor = Predictor(_hardware(hardware or []))
    found = []
    for i, (source, row) in enumerate(rows, 1):
        with doing(f"predicting row {i} of {len(rows)}: {row.id}"):
            found.append((source, predictor(row)))
    if as_json:
        typer.echo(json.dumps({"rows": [_plain(source, one) for source, one in found]}, indent=2))
    else:
        _show(found, explain)
    _check(found, limit)


def _wanted(name: str, only: Sequence[str] | None) -> bool:
    return not only or any(word in name for word in only)


def _hardware(given: Sequence[str]) -> Any:
    """What a row's name of hardware stands for, with the named ones replaced."""
    from autoshard.api import known_hardware

    other = {}
    for one in given:
        name, separator, of = one.partition("=")
        if not separator or not name or not of:
            raise ContextError(f"cannot read --hardware {one!r}; write NAME=FILE.json, such as h100=my.json")
        other[name] = known_hardware(of)
    return lambda name: other[name] if name in other else known_hardware(name)


def _plain(source: str, one: Prediction) -> dict[str, Any]:
    row = one.row
    plain = {
        "source": source, "id": row.id, "table": row.table, "devices": row.axes.devices, "plan": row.plan,
        "measured_seconds": row.measured.seconds, "measured_gib": row.measured.peak_gib,
    }  # fmt: skip
    if one.refused:
        return {**plain, "refused": one.refused}
    return {
        **plain, "predicted_seconds": one.seconds, "ratio": one.ratio, "predicted_gib": one.peak_bytes / 2**30,
        "parts": dict(one.parts),
    }  # fmt: skip


def _check(found: Sequence[tuple[str, Prediction]], limit: float | None) -> None:
    """End with exit code 1 where the median error is above the limit, or nothing could be predicted."""
    from autoshard.truth.score import score

    whole = score("all", [one for _, one in found])
    if limit is not None and (whole is None or 100 * whole.median_error > limit):
        shown = "no row was predicted" if whole is None else f"the median error is {100 * whole.median_error:.1f} %"
        typer.echo(f"{shown}; the limit is {limit:g} %", err=True)
        raise typer.Exit(1)


# -- tables


def _show(found: Sequence[tuple[str, Prediction]], explain: int) -> None:
    from autoshard.truth.score import fit_told, rankings, ranks_told, refusals, score, scores

    sources = {id(one): source for source, one in found}
    each = [one for _, one in found]
    out = console()
    if by_source := scores(each, lambda one: sources[id(one)]):
        out.print(_rows(each))
        alone = score("all without stages", [one for one in each if one.row.axes.pp == 1])
        out.print(_scores((*by_source[:-1], *((alone,) if alone else ()), *by_source[-1:])))
        typer.echo(fit_told(each))
    if ranked := rankings(each):
        out.print(_rankings(ranked))
        typer.echo(ranks_told(ranked))
    worst = sorted((one for one in each if not one.refused), key=lambda one: -abs(one.ratio - 1))[:explain]
    if worst:
        out.print(_parts(worst))
    if skipped := refusals(each):
        shown = "; ".join(f"{count} with {why}" for why, count in skipped.most_common())
        typer.echo(f"not predicted: {format_count(sum(skipped.values()), 'row')}: {shown}")


def _new(*columns: tuple[str, bool], title: str = "") -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title or None, title_justify="left")
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table


def _rows(found: Sequence[Prediction]) -> Table:
    numbers = ("devices", "measured", "predicted", "ratio", "GiB measured", "predicted")
    table = _new(("row", False), ("plan", False), *((name, True) for name in numbers))
    for one in found:
        if not one.refused:
            peak = one.row.measured.peak_gib
            memory = (f"{peak:.1f}", f"{one.peak_bytes / 2**30:.1f}") if peak is not None else ("", "")
            table.add_row(
                one.row.id, one.row.plan, str(one.row.axes.devices), format_seconds(one.row.measured.seconds),
                format_seconds(one.seconds), f"{one.ratio:.3f}", *memory,
            )  # fmt: skip
    return table


def _scores(found: Sequence[Score]) -> Table:
    numbers = ("rows", "median error", "9 of 10", "worst", "median ratio", "memory rows", "memory error")
    table = _new(("source", False), *((name, True) for name in numbers), title="errors by source")
    for one in found:
        memory = (str(one.memory_count), _percent(one.memory_error)) if one.memory_count else ("", "")
        errors = (_percent(one.median_error), _percent(one.nine_of_ten), _percent(one.worst))
        table.add_row(one.name, str(one.count), *errors, f"{one.bias:.3f}", *memory)
    return table


def _rankings(found: Sequence[Ranking]) -> Table:
    table = _new(("table", False), ("rows", True), ("Spearman", True), ("regret", True), title="plans of one table")
    for one in found:
        table.add_row(one.table, str(one.count), f"{one.correlation:.3f}", _percent(one.regret))
    return table


def _parts(found: Sequence[Prediction]) -> Table:
    names = list(dict.fromkeys(name for one in found for name in one.parts))
    table = _new(("worst rows", False), ("ratio", True), ("measured", True), *((name, True) for name in names))
    for one in found:
        cells = (format_seconds(one.parts[name]) if one.parts.get(name) else "" for name in names)
        table.add_row(one.row.id, f"{one.ratio:.3f}", format_seconds(one.row.measured.seconds), *cells)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
