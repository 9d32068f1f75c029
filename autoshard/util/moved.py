"""Modules and names that lie elsewhere now: the old ones still import, with a warning that names the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Old name -> new name, both below autoshard.search.
_SEARCH = {
    "algorithm": "algo_parameters",
    "asked": "rules.spread_constraints",
    "asking": "constraints",
    "auto": "modes.auto",
    "batch": "modes.batch",
    "bfs": "greedy.bfs",
    "bounds": "exact.srmp",
    "byte_prices": "local.byte_prices",
    "candidates": "greedy.candidates",
    "choose": "greedy.choose",
    "combined": "modes.default",
    "communication": "modes.communication",
    "draft": "assignment",
    "dynamic_programming": "modes.dynamic_programming",
    "eliminate": "modes.dynamic_programming",
    "exact.dual": "exact.memory.lagrangian",
    "exact.highs": "exact.memory.integer_program",
    "exact.listing": "exact.consistency",
    "exact.sparse": "exact.sparse_elimination",
    "factor": "modes.factor",
    "finish": "causes",
    "folded": "exact.reduce",
    "follow": "rules.strategy_from_shardings",
    "followed": "unmet_constraints",
    "improve": "local.icm",
    "instead": "alternatives",
    "joint": "local.joint_moves",
    "least_sum": "exact.over_mesh_cuts",
    "device_memory": "memory_limit",
    "limit": "memory_limit",
    "memory_model": "memory_limit",
    "limited": "exact.memory.within_limit",
    "nearby": "exact.enumerate_gap",
    "optimal": "modes.optimal",
    "recomputing": "recompute",
    "recursive": "modes.recursive",
    "refining": "greedy.candidates",
    "rings": "ring_attention",
    "room": "memory_limit",
    "rows": "exact.memory.rows",
    "rows_copies": "exact.memory.copies",
    "rows_priced": "exact.memory.lagrangian_subproblem",
    "rows_program": "exact.memory.columns",
    "rows_search": "exact.memory.lagrangian",
    "rows_spanned": "exact.memory.copies",
    "seat": "local.local_cost",
    "settle": "exact.search",
    "shared_messages": "exact.min_marginals",
    "sharing": "multi_layout",
    "strategies": "domains",
    "tables": "factor_graph",
    "transfers": "redistribution_tables",
    "turns": "exact.message_schedule",
    "ways": "mesh_cuts",
    "within": "local.memory_multiplier",
}
_OPTIMIZE = ("chains", "combine", "overlap", "pipeline", "share")
_REWRITES = {"block": "rewrite", "move": "relayout", "moved": "relayout_strategies"}
# Old name -> new name, both below autoshard. To be dropped with release 0.2.
MOVED = {
    "callbacks": "mindspore.callbacks",
    "checkpoint": "mindspore.checkpoint",
    "checks": "util.checks",
    "communication": "mindspore.communication",
    "api.compare": "pipeline.compare",
    "compare": "pipeline.compare",
    "context": "mindspore.context",
    "dataset": "mindspore.dataset",
    "errors": "util.errors",
    "explain_propagation": "report.explain_propagation",
    "feed": "mindspore.feed",
    "model": "mindspore.model",
    "plan_diff": "plan.diff",
    "propagate.collector": "util.gc_paused",
    "propagation": "api.propagate",
    "report_folding": "report.folding",
    "report_propagation": "report.propagation",
    "report_totals": "report.totals",
    "report_whole": "report.whole",
    "partition.passes": "optimize",
    **{f"partition.passes.{name}": f"optimize.{name}" for name in _OPTIMIZE},
    **{
        f"{room}.{old}": f"optimize.{new}"
        for room in ("optimize", "partition.passes")
        for old, new in _REWRITES.items()
    },
    "partition.passes.costs": "cost.instructions",
    "partition.passes.timeline": "cost.timeline",
    "propagate.api": "api.propagate",
    "propagate.propagated": "frontends.propagated",
    "report.compare": "pipeline.compare",
    "report.difference": "cli.differing",
    "resume": "mindspore.resume",
    "rule": "core.rule",
    "rule_sdy": "core.rule_sdy",
    **{f"search.{old}": f"search.{new}" for old, new in _SEARCH.items()},
    "search.evaluate": "cost.evaluate",
    "search.memory": "cost.memory",
    "search.prices": "cost.prices",
    "runtime.calibrate": "calibrate",
    "runtime.session": "engines.session",
    "session": "engines.session",
    "source": "util.source",
    "stored": "runtime.stored",
    "strategy": "core.strategy",
    "summary": "report.summary",
    "tensortype": "core.tensortype",
    "trace.attention": "mindspore.nn.blocks",
    "trace.layers": "mindspore.nn.layers",
    "trace.losses": "mindspore.nn.loss",
    "trace.nn": "nn",
    "redistribute.direct": "redistribute.normal_form",
    "redistribute.exchange": "redistribute.normal_form",
    "redistribute.sums": "redistribute.normal_form",
    "redistribute.ways": "redistribute.candidates",
    "redistribute.detour": "redistribute.candidates",
    "redistribute.canonical": "redistribute.planner",
    "redistribute.orders": "redistribute.planner",
    "redistribute.keep": "redistribute.replicate_to_partial",
    "redistribute.digits": "redistribute.positions",
    "propagate.work": "propagate.mutable_ir",
    "propagate.infos": "propagate.op_classes",
    "propagate.project": "propagate.projection",
    "propagate.words": "propagate.descriptions",
    "propagate.passes.places": "propagate.passes.block_positions",
    "ops.laid": "ops.index_map",
    "ops.best": "ops.top_k",
    "ops.whole": "ops.integer_arithmetic",
    "ops.joint": "ops.concatenation",
    "partition.together": "partition.manual_step",
    "transform.moves": "transform.merge_movements",
    "ir.asked": "ir.annotations",
}

_MINDSPORE = (
    "Callback", "CheckpointConfig", "GRAPH_MODE", "History", "LossMonitor", "Model", "ModelCheckpoint",
    "PYNATIVE_MODE", "ParallelMode", "Tensor", "TimeMonitor", "bool_", "communication", "context", "dataset",
    "float16", "float32", "float64", "get_auto_parallel_context", "get_context", "int16", "int32", "int64", "int8",
    "load_checkpoint", "load_param_into_net", "reset_auto_parallel_context", "save_checkpoint",
    "set_auto_parallel_context", "set_context", "set_seed", "uint16", "uint32", "uint64", "uint8",
)  # fmt: skip
# Package -> names that were exported there -> the module that has them now, with ":" and the new name if that is
# another one. To be dropped with release 0.2.
FORMER = {
    "autoshard": {
        **dict.fromkeys(_MINDSPORE, "autoshard.mindspore"),
        **dict.fromkeys(("Progress", "ShardedCheckpoint"), "autoshard.mindspore.callbacks"),
        **dict.fromkeys(("Cell", "CellList", "SequentialCell"), "autoshard.nn"),
        "initializer": "autoshard.trace.initializer",
        "reset_context": "autoshard.mindspore.context",
    },
    "autoshard.core.strategy": {"whole": "autoshard.core.strategy:replicated_strategy"},
    "autoshard.pipeline.schedules": {"Timeline": "autoshard.pipeline.schedules.simulate:ScheduleTimeline"},
    "autoshard.pipeline.stages": {
        "Piece": "autoshard.pipeline.stages.cut:StagePiece",
        "run_stages": "autoshard.pipeline.virtual",
    },
    "autoshard.pipeline.transfers": {
        "Group": "autoshard.pipeline.transfers.group:RankGroup",
        "Held": "autoshard.pipeline.transfers.deal:GroupLayout",
    },
    "autoshard.runtime.checkpoint": {"Held": "autoshard.runtime.checkpoint.placed:LocalBlocks"},
    "autoshard.search.assignment": {"Draft": "autoshard.search.assignment:Assignment"},
    "autoshard.search.exact": {
        "Listing": "autoshard.search.exact.consistency:SparseTables",
        "Nearest": "autoshard.search.exact.sparse_elimination:BestWithinGap",
        "least_sum": "autoshard.search.exact.sparse_elimination",
    },
    "autoshard.trace": {
        "Annotation": "autoshard.trace.function:NodeAnnotation",
        "Tensor": "autoshard.trace.tensor:TracedTensor",
    },
}


def former(package: str, name: str) -> Any:
    """What a package exported under a name once, with a warning that names its new home.

    Raises:
        AttributeError: it never did.
    """
    entry = FORMER.get(package, {}).get(name)
    if entry is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home, _, new = entry.partition(":")
    new = new or name
    warnings.warn(f"{package}.{name} is {home}.{new} now; it goes here with release 0.2", DeprecationWarning, 3)
    return getattr(import_module(home), new)


class _Finder(MetaPathFinder, Loader):
    """Finds a module under its old name: the very module of the new one, so that classes and settings are the same."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == "autoshard" and name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"autoshard.{MOVED[old.removeprefix('autoshard.')]}"
        warnings.warn(f"{old} is {new} now; the old name goes with release 0.2", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)


def install() -> None:
    """Makes the old names importable; doing it again changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # In front: the path of a package that moved would find its modules under their old names, as copies.
        sys.meta_path.insert(0, _Finder())
