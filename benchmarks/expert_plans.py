"""Mixtures of experts of full size: plans with split experts beside plans that gather all experts.

    python -m benchmarks.expert_plans [--models qwen3-30b-a3b ...] [--devices 64 512] [--plans auto ...] [--json]

A step of training (forward, gradient, Adam; mixed precision, layers made again for the backward pass) of models of
`full_models.py` on torch's meta device, a sequence of 4,096 words for each device of a cluster of H100s. Printed are
the predicted step, what a device holds and sends, how much of that are tokens to experts and back and how much weights
that are gathered, and the CPU seconds of importing, tracing, planning, partitioning and pricing together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3")
MESHES = {64: "dp=8 ep=8", 512: "dp=8 ep=64"}
PLANS = ("fsdp_ep", "zero1_ep", "zero3", "sharding_propagation")
AUTO = "auto"
"""The mode that chooses the mesh, too."""
DATA_ALONE = ("data_parallel", "zero1", "zero2", "zero3", "zero3_keep")
"""Plans that split over one axis, here with all devices."""
Row = dict[str, Any]


def measure(name: str, devices: int, searches: list[str], layers: int | None = None) -> Iterator[Row]:
    """Plans of a model, traced once; `layers` cuts it short, for a try."""
    import autoshard as ash
    from autoshard import optim
    from benchmarks.full_models import MODELS as KNOWN
    from benchmarks.full_models import training_graph

    started = time.process_time()
    model = KNOWN[name]
    module, inputs = model.build(round(model.samples * devices))
    if layers is not None:
        del module.model.layers[layers:]
    imported = ash.from_torch(module, (), inputs, loss="loss", optimizer=lambda params: optim.Adam(params, 1e-4))
    step = training_graph(model, imported)
    traced = time.process_time() - started
    row = {"model": name, "devices": devices, "operators": len(step.graph.nodes), "traced": traced}
    for search in searches:
        mesh = f"dp={devices}" if search in DATA_ALONE else MESHES[devices]
        cluster = {"devices": devices} if search == AUTO else {"mesh": mesh}
        yield {**row, "mesh": mesh, "plan": search, **_planned(step, cluster, search, traced)}


def _planned(step: Any, cluster: dict[str, Any], search: str, traced: float) -> Row:
    import autoshard as ash
    from autoshard.util.errors import AutoshardError

    started = time.process_time()
    try:
        planned = ash.plan(step, **cluster, search=search, hardware="h100")
        kinds: Counter[str] = Counter()
        for one in planned.program.collectives:
            kinds[one.step.kind] += one.nbytes_moved
        cost = planned.cost
    except AutoshardError as error:
        return {"refused": str(error)}
    return {
        "mesh": str(planned.program.mesh), "seconds": cost.seconds, "memory": cost.peak_memory_bytes,
        "sent": sum(kinds.values()), "tokens": kinds["all_to_all"], "gathered": kinds["all_gather"],
        "experts": _experts(planned),
        "cpu": traced + time.process_time() - started, "started_from": planned.plan.started_from,
    }  # fmt: skip


def _experts(planned: Any) -> str:
    """How the experts' weights lie."""
    from autoshard.ir.graph import PARAMETER

    graph, layouts = planned.graph, planned.plan.layouts
    names = (value for value in graph.inputs if graph.role_of[value] == PARAMETER and "down_proj" in value.name)
    found = {str(layouts[value]) for value in names if value.type.rank == 3}
    return ", ".join(sorted(f"[{one}]" for one in found))


def show(rows: list[Row]) -> None:
    """The rows as lines."""
    from costmodel import format_bytes, format_seconds

    for row in rows:
        head = f"{row['model']:<14} {row['devices']:>4} ({row['mesh']}) {row['plan']:<20}"
        if "refused" in row:
            print(f"{head} {row['refused'][:120]}")
            continue
        print(
            f"{head} step {format_seconds(row['seconds']):>9}, memory {format_bytes(row['memory']):>10}, sends "
            f"{format_bytes(row['sent']):>10} (tokens {format_bytes(row['tokens']):>10}, gathered "
            f"{format_bytes(row['gathered']):>10}), experts {row['experts']}, {row['operators']} operators, "
            f"{row['cpu']:.0f} CPU s ({row['traced']:.0f} to trace)"
        )


def main(arguments: list[str]) -> int:
    """Measure each model on each cluster. The exit code."""
    from benchmarks.fresh import tell

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--devices", nargs="+", type=int, choices=list(MESHES), default=list(MESHES))
    parser.add_argument("--plans", nargs="+", default=list(PLANS), help="modes or compositions of named plans")
    parser.add_argument("--layers", type=int, help="only so many layers, for a try")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of lines")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.models:
        for devices in options.devices:
            for row in measure(name, devices, options.plans, options.layers):
                rows.append(row)
                if not options.json:
                    show([row])
                    sys.stdout.flush()
    if options.json:
        tell(rows, True, show)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
