"""`export`: a plan in the form that a framework takes, as plain data or text, by the form's name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoshard.exporters.json_text import json_text
from autoshard.exporters.mindspore import shard_lines, to_checkpoint
from autoshard.exporters.placements import module_plan, modules_around, to_data
from autoshard.exporters.plan_file import plan_data
from autoshard.exporters.plan_records import plan_schema as plan_schema
from autoshard.search.planned import PlannedData
from autoshard.util.errors import PlanError
from autoshard.util.files import write_whole
from autoshard.util.gc_paused import gc_paused


@gc_paused()
def export(planned: PlannedData, to: str) -> str:
    """The text of a plan in one of the FORMS.

    Raises:
        PlanError: an unknown form, or one that cannot say this plan.
    """
    check_form(to)
    found = FORMS[to][1](planned)
    return found if isinstance(found, str) else json_text(found)


def check_form(to: str) -> None:
    """Raise PlanError unless `to` is one of the FORMS."""
    if to not in FORMS:
        near = difflib.get_close_matches(str(to), FORMS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PlanError(f"cannot export a plan to {to!r}{hint}; the forms are {', '.join(FORMS)}")


def save(planned: PlannedData, to: str, path: str | Path) -> Path:
    """Write what `export` gives to a file, whole or not at all; the path.

    Raises:
        PlanError: as for `export`, or the file cannot be written.
    """
    return write_whole(path, export(planned, to), PlanError)


def _json(planned: PlannedData) -> dict[str, Any]:
    return plan_data(planned.plan)


def _dtensor(planned: PlannedData) -> dict[str, Any]:
    paths = dict.fromkeys(path for node in planned.graph.nodes for path in modules_around(node))
    return to_data(module_plan(planned.plan, tuple(paths)))


def _jax(planned: PlannedData) -> dict[str, Any]:
    from autoshard.frontends.extra import need_jax

    need_jax("exporting a plan as PartitionSpecs")
    from autoshard.exporters.jax_sharding import jax_shardings

    return jax_shardings(planned.plan).to_data()


def _sdy(planned: PlannedData) -> str:
    from autoshard.frontends.extra import need_jax

    need_jax("exporting a plan as a StableHLO module")
    from autoshard.exporters.plan_sdy import plan_module

    return str(plan_module(planned))


def _mindspore(planned: PlannedData) -> dict[str, Any]:
    return to_checkpoint(planned.plan)


def _lines(planned: PlannedData) -> str:
    return shard_lines(planned.plan)


FORMS: Mapping[str, tuple[str, Callable[[PlannedData], Any]]] = {
    "json": ("the whole plan, which `plan --mode FILE.json` takes up again", _json),
    "dtensor": ("placements of PyTorch's DTensor by qualified names, as JSON", _dtensor),
    "jax": ("PartitionSpecs of inputs, outputs and values, as JSON", _jax),
    "sdy": ("the StableHLO module with the plan as sdy shardings", _sdy),
    "mindspore": ("MindSpore's strategy checkpoint, as JSON", _mindspore),
    "shard": ("MindSpore's shard(...) lines", _lines),
}
"""What each form is, and what makes it: text, or data for JSON."""
