"""The page of a plan, or of two side by side: one HTML file with all that it needs, whatever names a model has.

What it shows is the JSON that `autoshard plan --json --all` prints, packed; `static/` has the scripts that draw it and,
unchanged, the three libraries that they use, with their licences.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from autoshard.exporters.difference import difference
from autoshard.exporters.export import PLAN_FORMS
from autoshard.exporters.plan_records import PlanRecord
from autoshard.search.planned import PlannedData
from autoshard.util.errors import AutoshardError, PlanError
from autoshard.util.files import write_atomically
from autoshard.view.packed import packed, plan_in_columns
from costmodel import format_bytes, format_seconds
from costmodel.json_door import convert, plain

MOST_EXPORTED = 400_000
"""Characters of a form of the plan that the page offers to copy."""
LIBRARIES = ("vendor/uPlot.iife.min.js", "vendor/dagre.min.js", "vendor/cytoscape.min.js")
_SCRIPTS = (
    "base.js",
    "table.js",
    "summary.js",
    "step.js",
    "panel.js",
    "graph.js",
    "pipeline.js",
    "difference.js",
    "main.js",
)
_HEAD = ("graph", "mesh", "search", "hardware")
"""What is told of a plan before it is opened."""
_STYLES = ("vendor/uPlot.min.css", "view.css")


@dataclass(frozen=True)
class View:
    """A plan, two, or one in stages, to look at: `save` writes the page, and notebooks show it in place.

    Attributes:
        data: what the page shows: "plans" (of stages one each), "difference", "exports", and "pipeline" of stages.
        title: of the page.
        label: the plan in a sentence.

    >>> planned.view().save("plan.html")  # doctest: +SKIP
    """

    data: dict[str, Any]
    title: str
    label: str

    @property
    def html(self) -> str:
        """The page."""
        return page(self.data, self.title)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all; the path.

        Raises:
            PlanError: the file cannot be written.
        """
        return write_atomically(path, self.html, PlanError)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither disturbs the other; a summary where no script may run."""
        inside = html.escape(self.html)
        return (
            f'<p>{html.escape(self.label)}</p><iframe sandbox="allow-scripts" srcdoc="{inside}" title="The plan" '
            'style="width: 100%; height: 760px; border: 1px solid #8888"></iframe>'
        )


def view_of(plans: Sequence[dict[str, Any]], exports: Sequence[Mapping[str, str]] = ()) -> View:
    """The view of one plan, or of two, which are compared.

    Args:
        plans: each as `to_json(planned, everything=True)` tells it.
        exports: for each what to take away, by the name of the form; see `exported`.

    Raises:
        PlanError: none or more than two; a plan without the figures that are shown, or with figures of operators,
            redistributions or moments that it has not.
    """
    if not 1 <= len(plans) <= 2:
        raise PlanError(f"a view shows one plan, or two side by side; {len(plans)} are given")
    for one in plans:
        missing = [name for name in ("timeline", "modules", "redistributions", "cost") if one.get(name) is None]
        missing += ["memory"] * (((one.get("cost") or {}).get("memory") or {}).get("everything") is None)
        if missing:
            raise PlanError(
                f"the plan of {one.get('graph', '?')} has no {', '.join(missing)} to show; "
                "`autoshard plan TARGET --json --all > FILE.json` writes a plan with all"
            )
        _check_numbers(one)
    records = [convert(one, PlanRecord) for one in plans] if len(plans) == 2 else []
    differing = plain(difference(*records)) if records else None
    data = {"plans": list(plans), "difference": differing, "exports": list(map(dict, exports))}
    first = plans[0]
    return View(data, f"{first['graph']} on {first['mesh']}", "; ".join(map(_plan_label, plans)))


def _check_numbers(plan: Mapping[str, Any]) -> None:
    """That what a plan's figures say by number is there: a file may have been cut or changed by hand.

    Raises:
        PlanError: the first number that stands for nothing.
    """
    memory = plan["cost"]["memory"]
    moments, operators = len(memory["timeline"]), [*_module_operators(plan["modules"])]
    operators += [one["operator"] for one in plan["timeline"] if one.get("operator") is not None]
    moved = [number for one in plan["timeline"] for number in one.get("redistributions", ())]
    for what, numbers, count in (
        ("operator", operators, len(plan["operators"])),
        ("redistribution", moved, len(plan["redistributions"])),
        ("moment of memory", [memory["peak_moment"]], moments),
    ):
        if numbers and max(numbers) >= count:
            raise PlanError(
                f"the plan of {plan['graph']} has figures of {what} {max(numbers)}, counted from 0, and {count} of "
                "these: the file was cut or changed; write it anew, by `autoshard plan TARGET --json --all`"
            )


def _module_operators(module: Mapping[str, Any]) -> Iterator[int]:
    """The numbers of the operators of a module and of those in it."""
    yield from module["operators"]
    for one in module["modules"]:
        yield from _module_operators(one)


def exported(planned: PlannedData) -> dict[str, str]:
    """The plan in the forms of others that can say it and are not too long to read."""
    found: dict[str, str] = {}
    for form in ("shard", "dtensor", "jax"):
        # A form that cannot say this plan, or needs what is not installed, is left out.
        with contextlib.suppress(AutoshardError):
            found[form] = PLAN_FORMS.text(planned, form)
    return {form: text for form, text in found.items() if 0 < len(text) <= MOST_EXPORTED}


def page(data: dict[str, Any], title: str) -> str:
    """The HTML of the data of a View."""
    # Each plan for itself: what is not looked at is not read.
    heads = [{name: one[name] for name in _HEAD} for one in data["plans"]]
    parts = {"data": {**data, "plans": heads}}
    parts |= {f"plan-{i}": plan_in_columns(one) for i, one in enumerate(data["plans"])}
    shown = (f'<script type="application/octet-stream" id="{id}">{packed(one)}</script>' for id, one in parts.items())
    scripts = "\n".join(f"<script>{_static(name)}</script>" for name in (*LIBRARIES, *_SCRIPTS))
    style = "\n".join(map(_static, _STYLES))
    return Template(_static("page.html")).substitute(
        title=html.escape(title), style=style, data="\n".join(shown), scripts=scripts
    )


@lru_cache
def _static(name: str) -> str:
    return files("autoshard.view").joinpath("static", name).read_text(encoding="utf-8")


def _plan_label(plan: dict[str, Any]) -> str:
    cost = plan["cost"]
    return (
        f"{plan['graph']} on mesh {plan['mesh']} by {plan['search']}: a step takes {format_seconds(cost['seconds'])}, "
        f"a device needs {format_bytes(cost['peak_memory_bytes'])}"
    )
