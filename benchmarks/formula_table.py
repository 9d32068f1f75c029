"""The rows of `plan_formulas.py` as Markdown: a table of all models and plans, and lists of what is not in it.

A cell is the ratio of figure to formula that is furthest from 1; a dash, where the plan does not fit; a dot behind it,
where some of its figures have no formula.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from costmodel import format_bytes

Row = dict[str, Any]
_NAMES = re.compile(r"\b[\w.]*\d[\w.]*\b|\b\w+(\.\w+)+\b")
"""Names of nodes and counts, by which reasons of one kind differ."""


def ratio(row: Row) -> float:
    """Figure to formula; 1 where both are nothing."""
    return row["figure"] / row["formula"] if row["formula"] else float(row["figure"] == 0)


def markdown(rows: list[Row], off: float) -> Iterator[str]:
    """Lines of the table, of the figures further apart than `off`, of operators without formulas, and of refusals."""
    models, plans = list(dict.fromkeys(row["model"] for row in rows)), list(dict.fromkeys(row["plan"] for row in rows))
    yield f"| model | {' | '.join(f'`{plan}`' for plan in plans)} |"
    yield f"| --- |{' ---: |' * len(plans)}"
    for model in models:
        own = [row for row in rows if row["model"] == model]
        yield f"| {model} | {' | '.join(_cell([row for row in own if row['plan'] == plan]) for plan in plans)} |"
    apart = [row for row in rows if "formula" in row and abs(ratio(row) - 1) > off]
    if apart:
        yield from (
            "",
            "| apart | plan | figure of | formula | figure | ratio |",
            "| --- | --- | --- | ---: | ---: | ---: |",
        )
    for row in apart:
        sizes = f"{format_bytes(row['formula'])} | {format_bytes(row['figure'])}"
        yield f"| {row['model']} | `{row['plan']}` | {row['what']} | {sizes} | {ratio(row):.3f} |"
    yield from ("", "No formula:", "", *_grouped([row for row in rows if "none" in row], "none"))
    yield from ("", "Does not fit:", "", *_grouped([row for row in rows if "refused" in row], "refused"))


def _cell(rows: list[Row]) -> str:
    known = [ratio(row) for row in rows if "formula" in row]
    if not known:
        return "-" if any("refused" in row for row in rows) else "."
    some = "." if any("none" in row for row in rows) else ""
    return f"{max(known, key=lambda one: abs(one - 1)):.3f}{some}"


def _grouped(rows: list[Row], key: str) -> Iterator[str]:
    """A line for each kind of reason, with the models and plans that it is given for, and the first's words."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(_NAMES.sub("", _reason(row[key]))[:60], []).append(row)
    for same in kinds.values():
        models: dict[str, list[str]] = {}
        for row in same:
            models.setdefault(row["model"], []).append(row["plan"])
        plans = sorted({plan for own in models.values() for plan in own})
        yield f"- {_reason(same[0][key])} ({', '.join(models)}; {', '.join(f'`{plan}`' for plan in plans)})"


def _reason(text: str) -> str:
    """Why a plan does not fit, without the plan's and the model's names."""
    return re.sub(r"^the named plan '\w+' does not fit '[^']*': ", "", text)
