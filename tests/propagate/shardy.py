"""Ours and Shardy's own passes on the same module text, both giving text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autoshard.api.propagate import PASSES
from autoshard.frontends.stablehlo.released import ShardyFailed, pipeline, shardy, shardy_each
from autoshard.util.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.frontends.stablehlo.imported import Imported

__all__ = ["PASSES", "PIPELINES", "ShardyFailed", "ours_each", "pipeline", "shardy", "shardy_each"]

PIPELINES = {which: pipeline(which) for which in PASSES}


def ours_each(text: str, pipelines: Sequence[dict[str, Any]]) -> list[str | AutoshardError]:
    """Our own result for several pipelines, each given as the arguments of `pipeline`, or the error that they end with.

    Errors of other kinds are raised.
    """
    from autoshard.frontends.stablehlo.reader import parse_module, read_module

    imported = read_module(parse_module(text), dynamic=True)
    found: list[str | AutoshardError] = []
    for options in pipelines:
        try:
            found.append(_ours(imported, **options))
        except AutoshardError as error:
            found.append(error)
    return found


def _ours(
    imported: Imported, which: str, edges: bool = True, keep_rules: bool = False, conservative: bool = False
) -> str:
    from autoshard.exporters.sdy import to_module
    from autoshard.propagate.edges import add_edges, sink_edges
    from autoshard.propagate.mutable_ir import from_graph
    from autoshard.propagate.pipeline import run_pipeline
    from autoshard.propagate.run import run_aggressive, run_basic, run_op_priority, run_user_priority
    from autoshard.propagate.values import store

    runs = {
        "basic": run_basic,
        "aggressive": run_aggressive,
        "op-priority": run_op_priority,
        "user-priority": run_user_priority,
    }
    module = from_graph(imported.graph, imported.asked, imported.order)
    for function in module.functions:
        function.attrs["public"] = function.attrs["name"] in imported.public
    if which == "full":
        run_pipeline(module)
    else:
        if edges:
            add_edges(module)
        runs[which](module, keep_rules=keep_rules, conservative=conservative)
        sink_edges(module)
        store(module)
    return str(to_module(module, imported, rules=keep_rules, full=which == "full"))
