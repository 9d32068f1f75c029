"""Models of full size on clusters: imported, planned within a device's memory, partitioned, priced and exported.

    python benchmarks/full_size.py [--models llama-3-8b ...] [--devices 64 1024] [--memory "80 GB"] [--json] [--quick]

Llama-3-8B and 70B, Mixtral 8x7B and ViT-H as in `full_models.py`: a step of training (forward, gradient, Adam) on
torch's meta device, so that no weights are made. Each pair of model and cluster runs in a process of its own. Printed
are the seconds of each part, what the default mode's plan is predicted to take (time, share of communication by axes,
memory), beside it hand-written plans priced alike, each on the mesh that it is for, with words (images) a second on
each device and model FLOPs utilization: what products and attention do but for what is made again, to what the devices
could do; causal attention counts once. Plain arithmetic says the least: parameters and optimizer states in parts on
all devices, and the time of the products alone.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

AIM_SECONDS = 60.0
MESHES = {64: "dp=8 tp=8", 1024: "dp=128 tp=8"}
DEFAULT = "sharding_propagation"
PARTS = ("imported", "graph", "planned", "partitioned", "priced", "exported")
HAND = ("zero1", "zero2", "zero3", "megatron", "megatron_sp")
"""Named plans; those of data alone run on one axis with all devices."""


def measure(name: str, mesh_text: str, mode: str, hardware: str, memory: str) -> dict[str, Any]:
    """What each part took for one model and mesh, and what came out."""
    import autoshard as ash
    from autoshard import optim
    from autoshard.layout.mesh import Mesh
    from autoshard.search.memory_limit import read_limit
    from autoshard.util.errors import AutoshardError
    from benchmarks.full_models import MODELS, training_graph

    model, mesh, times = MODELS[name], Mesh.parse(mesh_text), {}
    module, inputs = model.build(round(model.samples * mesh.devices))
    clock = _Clock(times)
    imported = ash.from_torch(module, (), inputs, loss="loss", optimizer=lambda params: optim.Adam(params, 1e-4))
    clock.lap("imported")
    step = training_graph(model, imported)
    clock.lap("graph")
    row = {"model": name, "mesh": mesh_text, "devices": mesh.devices, "operators": len(step.graph.nodes)}
    try:
        planned = ash.plan(step, mesh=mesh, search=mode, hardware=hardware, memory=memory)
    except AutoshardError as error:
        return {**row, "parts": times, "refused": str(error)}
    clock.lap("planned")
    program = planned.program
    clock.lap("partitioned")
    cost = planned.cost
    clock.lap("priced")
    exports = {form: len(planned.export(form)) for form in ("json", "dtensor")}
    clock.lap("exported")
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        **row,
        "parts": times,
        "all": sum(one["wall"] for one in times.values()),
        "cpu": sum(one["cpu"] for one in times.values()),
        "peak_bytes": peak,
        "collectives": len(program.collectives),
        "exports": exports,
        "plans": [_plan_row(mode, mesh_text, cost), *_by_hand(step, mesh, hardware)],
        "program_seconds": cost.seconds,
        "limit": read_limit(memory),
        **arithmetic(step.graph, mesh.devices, hardware),
    }


class _Clock:
    def __init__(self, times: dict[str, Any]) -> None:
        self.times, self.wall, self.cpu = times, time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.times[name] = {"wall": wall - self.wall, "cpu": cpu - self.cpu}
        self.wall, self.cpu = wall, cpu


def _plan_row(name: str, mesh: str, cost: Any) -> dict[str, Any]:
    return {
        "plan": name,
        "mesh": mesh,
        "seconds": cost.seconds,
        "communication": cost.communication_seconds / cost.seconds,
        "axes": {one.axes: one.seconds for one in cost.axes},
        "bytes": cost.peak_memory_bytes,
    }


def _by_hand(step: Any, mesh: Any, hardware: str) -> Iterator[dict[str, Any]]:
    """The named plans, priced in the same way (programs included)."""
    import autoshard as ash
    from autoshard.search.named import RECIPES
    from autoshard.util.errors import AutoshardError

    for name in HAND:
        over = str(mesh) if RECIPES[name].tensor else f"dp={mesh.devices}"
        try:
            yield _plan_row(name, over, ash.plan(step, mesh=over, search=name, hardware=hardware).cost)
        except AutoshardError as error:
            yield {"plan": name, "mesh": over, "refused": str(error)}


def arithmetic(graph: Any, devices: int, hardware: str) -> dict[str, float]:
    """What needs no plan: the bytes of parameters and states in equal parts, the seconds of all products of tensors at
    the device's efficiency, those of useful ones at its peak; words or images a device."""
    from autoshard.ir.graph import DATA
    from autoshard.transform.recompute import AGAIN
    from costmodel import preset

    device = preset(hardware).device
    held = sum(value.type.nbytes for value in graph.inputs if graph.role_of[value] != DATA)
    seconds = useful = 0.0
    for node in graph.nodes:
        if node.op.has_rule and node.rule.contracted:
            peak, flops = device.peak(node.result_types[0].dtype.name), node.op.flops(node.operand_types, node.attrs)
            seconds += flops / (peak * device.efficiency(node.op.name))
            useful += 0.0 if any(AGAIN in value.name for value in node.results) else flops / peak
    data = next(value.type for value in graph.inputs if graph.role_of[value] == DATA)
    return {
        "bytes_in_parts": held / devices,
        "product_seconds": seconds / devices,
        "useful_seconds": useful / devices,
        "samples": (data.shape[0] if data.dtype.is_float else data.elements) / devices,
    }


# -- what it says


def judged(row: dict[str, Any]) -> dict[str, bool]:
    """Whether the default's plan fits, is not slower than any hand plan that fits, and all was done in time."""
    found, *hand = row["plans"]
    fitting = [one["seconds"] for one in hand if "seconds" in one and one["bytes"] <= row["limit"]]
    return {
        "fits": found["bytes"] <= row["limit"],
        "fastest": all(found["seconds"] <= seconds * (1 + 1e-9) for seconds in fitting),
        "in time": row["cpu"] <= AIM_SECONDS,
    }


def in_short(row: dict[str, Any]) -> str:
    """A line for one pair: the CPU seconds of its parts as far as it came, and the step."""
    parts = ", ".join(f"{name} {one['cpu']:.1f}" for name, one in row["parts"].items())
    found = row["plans"][0] if "plans" in row else {}
    ends = f"step {1000 * found['seconds']:.0f} ms, {found['bytes'] / 1e9:.1f} GB" if found else row["refused"]
    return f"{row['model']} on {row['mesh']}: {parts} CPU s; {ends}"


def show(rows: list[dict[str, Any]]) -> None:
    """The figures as tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    from costmodel import format_bytes, format_seconds

    console = Console(force_terminal=False, width=150, highlight=False, markup=False)
    table = Table(title="CPU seconds of each part; memory of the process")
    for name in ("model", "mesh", "operators", *PARTS, "all", "wall", "memory"):
        table.add_column(name, justify="left" if name in ("model", "mesh") else "right")
    for row in rows:
        parts = [f"{row['parts'][one]['cpu']:.1f}" if one in row["parts"] else "" for one in PARTS]
        ends = [f"{row['cpu']:.1f}", f"{row['all']:.1f}", format_bytes(row["peak_bytes"])] if "cpu" in row else [""] * 3
        table.add_row(row["model"], row["mesh"], str(row["operators"]), *parts, *ends)
    console.print(table)
    for row in rows:
        if "refused" in row:
            console.print(f"{row['model']} on {row['mesh']}: {row['refused']}")
            continue
        least = format_bytes(row["bytes_in_parts"])
        table = Table(
            title=f"{row['model']}, {row['devices']} devices: parameters and states in parts {least}, "
            f"products {format_seconds(row['product_seconds'])}"
        )
        for name in ("plan", "mesh", "step", "a second", "MFU", "communication", "over axes", "memory", "fits"):
            table.add_column(name, justify="left" if name in ("plan", "mesh") else "right")
        for one in row["plans"]:
            if "refused" in one:
                table.add_row(one["plan"], one["mesh"], one["refused"][:60], *[""] * 6)
                continue
            axes = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in one["axes"].items())
            fits = "yes" if one["bytes"] <= row["limit"] else "no"
            share = f"{100 * one['communication']:.1f} %"
            rates = f"{row['samples'] / one['seconds']:.0f}", f"{100 * row['useful_seconds'] / one['seconds']:.1f} %"
            table.add_row(
                one["plan"], one["mesh"], format_seconds(one["seconds"]), *rates, share, axes,
                format_bytes(one["bytes"]), fits,
            )  # fmt: skip
        console.print(table)
        console.print(", ".join(f"{name}: {'yes' if met else 'NO'}" for name, met in judged(row).items()))


def main(arguments: list[str]) -> int:
    """Measure each model on each cluster in a process of its own, and report. The exit code."""
    from benchmarks.fresh import measured, tell
    from benchmarks.full_models import MODELS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--devices", nargs="+", type=int, choices=list(MESHES), default=list(MESHES))
    parser.add_argument("--mesh", nargs="+", help="these meshes instead, such as 'dp=16 sp=8 tp=8'")
    parser.add_argument("--mode", default=DEFAULT)
    parser.add_argument("--memory", default="80 GB")
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--quick", action="store_true", help="ViT-H on 64 devices")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of tables")
    options = parser.parse_args(arguments)
    meshes = options.mesh or [MESHES[count] for count in options.devices]
    pairs = [("vit-h", MESHES[64])] if options.quick else [(name, one) for name in options.models for one in meshes]
    rows = []
    for name, mesh in pairs:
        asked = (name, mesh, options.mode, options.hardware, options.memory)
        rows += measured(measure, [asked], f"{name} on {mesh}")
        print(in_short(rows[-1]), file=sys.stderr, flush=True)
    tell(rows, options.json, show)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(sys.argv[1:]))
