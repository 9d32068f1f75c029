"""`PLAN_FORMS`: the forms of a plan that frameworks and viewers take, by name.

FORMS are plain data or text, FILES forms that are several files, or bytes. A plan in stages has forms of its own, in
`pipeline.exports`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoshard.exporters.chakra import save_chakra
from autoshard.exporters.forms import ExportForms
from autoshard.exporters.memory_viz import memory_snapshot
from autoshard.exporters.mindspore import shard_lines, to_checkpoint
from autoshard.exporters.model_explorer import model_explorer, node_data
from autoshard.exporters.placements import module_plan, modules_around, to_data
from autoshard.exporters.plan_file import plan_data
from autoshard.exporters.plan_networkx import dot, graphml
from autoshard.exporters.plan_records import plan_schema as plan_schema
from autoshard.search.planned import PlannedData
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically


def _json(planned: PlannedData) -> dict[str, Any]:
    return plan_data(planned.plan)


def _dtensor(planned: PlannedData) -> dict[str, Any]:
    paths = dict.fromkeys(path for node in planned.graph.nodes for path in modules_around(node))
    return to_data(module_plan(planned.plan, tuple(paths)))


def _jax(planned: PlannedData) -> dict[str, Any]:
    from autoshard.engines.extras import need

    need("jax", "exporting a plan as PartitionSpecs")
    from autoshard.exporters.jax_sharding import jax_shardings

    return jax_shardings(planned.plan).to_data()


def _sdy(planned: PlannedData) -> str:
    from autoshard.engines.extras import need

    need("jax", "exporting a plan as a StableHLO module")
    from autoshard.exporters.plan_sdy import is_of_module, plan_module
    from autoshard.exporters.traced_sdy import traced_module

    return str(plan_module(planned) if is_of_module(planned) else traced_module(planned))


def _mindspore(planned: PlannedData) -> dict[str, Any]:
    return to_checkpoint(planned.plan)


def _lines(planned: PlannedData) -> str:
    return shard_lines(planned.plan)


def _torch_code(planned: PlannedData) -> str:
    from autoshard.engines.code import code

    return code(planned.program, "torch")


def _jax_code(planned: PlannedData) -> str:
    from autoshard.engines.code import code

    return code(planned.program, "jax")


def _stablehlo(planned: PlannedData) -> str:
    from autoshard.engines.extras import need

    need("jax", "exporting the program of a rank as StableHLO")
    from autoshard.engines.xla_whole import stablehlo

    return stablehlo(planned.program)


FORMS: Mapping[str, tuple[str, Callable[[PlannedData], Any]]] = {
    "json": ("the whole plan, which `plan --mode FILE.json` takes up again", _json),
    "dtensor": ("placements of PyTorch's DTensor by qualified names, as JSON", _dtensor),
    "jax": ("PartitionSpecs of inputs, outputs and values, as JSON", _jax),
    "sdy": ("a StableHLO module of whole values with the plan as sdy shardings", _sdy),
    "mindspore": ("MindSpore's strategy checkpoint, as JSON", _mindspore),
    "shard": ("MindSpore's shard(...) lines", _lines),
    "model_explorer": ("the graph for Model Explorer, collectives as overlays, as JSON", model_explorer),
    "node_data": ("times of operators, by which Model Explorer colors that graph, as JSON", node_data),
    "graphml": ("the graph as GraphML: networkx, yEd, Gephi", graphml),
    "dot": ("the graph in Graphviz's DOT", dot),
    "torch-code": ("what a rank runs, as a Python module that needs torch alone", _torch_code),
    "jax-code": ("what a rank runs, as a Python module that needs JAX alone", _jax_code),
    "stablehlo": ("what a rank runs, as a StableHLO module with the plan's collectives", _stablehlo),
}
"""What each form is, and what makes it: text, or data for JSON."""


def _memory_viz(planned: PlannedData, path: str | Path) -> list[Path]:
    return [write_atomically(path, memory_snapshot(planned), PlanError)]


FILES: Mapping[str, tuple[str, Callable[[PlannedData, str | Path], list[Path]]]] = {
    "memory_viz": ("a memory snapshot of PyTorch, in its pickle", _memory_viz),
    "chakra": (
        "MLCommons Chakra traces, FILE.0.et and so on for each rank, and FILE.json with the groups",
        save_chakra,
    ),
}
"""What each form is that is no text, and what writes it."""

PLAN_FORMS: ExportForms[PlannedData] = ExportForms(
    "a plan",
    FORMS,
    FILES,
    elsewhere=("schedule", "jax-stages", "mpmd", "torch-stages", "torch-pipelining"),
    hint=", which is of a training step in stages (--pipeline AXIS; in Python plan_pipeline)",
)
"""The forms of a plan in one piece: the door of `Planned.export`, of the command, and of views."""
