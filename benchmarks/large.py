"""A program for 16,384 devices: a GPT training step of 96 layers, planned, partitioned and priced.

    python benchmarks/large.py [--layers 96] [--mesh "dp=128 tp=16 sp=8"] [--modes megatron_sp,..] [--quick] [--json]

Forward, gradient and Adam update; 12288 wide, 96 heads, 51200 words, sequence 2048, two sequences per part of the
batch. Batch, sequence and columns of weights are split by annotations of each layer over the axes dp, sp and tp, in
that order of a mesh's first three axes; named plans go by the axes alone. Each mode runs in a process of its own, which
makes no weights. Printed are the seconds of each part, the most memory that the process took, and what is predicted.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

AIM_SECONDS, AIM_BYTES = 30.0, 2 * 2**30
MODES = ("sharding_propagation", "megatron_sp")
PARTS = ("traced", "planned", "partitioned", "priced")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; argparse's error for those that no run can have."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--mesh", default="dp=128 tp=16 sp=8", help="batch, columns, sequence")
    parser.add_argument("--modes", default=",".join(MODES), help="search modes or named plans")
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--quick", action="store_true", help="two layers")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of a table")
    options = parser.parse_args(arguments)
    options.layers = 2 if options.quick else options.layers
    if options.layers < 1:
        parser.error(f"--layers {options.layers} is at least 1")
    return options


def step_on(layers: int, mesh: Any) -> Any:
    """The training step, its layers annotated for the mesh's axes: batch, columns, sequence."""
    from autoshard import nn
    from autoshard.core.tensortype import TensorType
    from autoshard.transform.train import train_step
    from benchmarks.models import Transformer

    batch, columns, sequence = ([size for _, size in mesh.axes] + [1, 1, 1])[:3]
    network = Transformer(layers, 12288, 96, 51200, 1, 1)
    blocks: Any = network.blocks
    for block in blocks:
        for product in (block.attention.query.matmul, block.feed_forward.mapping.matmul):
            product.shard(((batch, sequence, 1), (columns, 1)))
    tokens = TensorType.of((2 * batch, 2048), "i32")
    return train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), tokens, tokens, name="gpt")


def measure(layers: int, mesh_text: str, mode: str, hardware: str) -> dict[str, Any]:
    """What each part took for one mode, and what came out."""
    from autoshard.api import plan
    from autoshard.layout.mesh import Mesh

    mesh, times = Mesh.parse(mesh_text), [time.perf_counter()]
    step = step_on(layers, mesh)
    times.append(time.perf_counter())
    planned = plan(step, mesh=mesh, search=mode, hardware=hardware)
    times.append(time.perf_counter())
    program = planned.program
    times.append(time.perf_counter())
    cost = planned.cost
    times.append(time.perf_counter())
    return {
        "mode": mode,
        "layers": layers,
        "mesh": mesh_text,
        "devices": mesh.devices,
        "operators": len(step.graph.nodes),
        "collectives": len(program.collectives),
        **{name: after - before for name, before, after in zip(PARTS, times, times[1:], strict=False)},
        "all": times[-1] - times[1],
        "cpu": time.process_time(),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "predicted_seconds": cost.seconds,
        "predicted_axes": {one.axes: one.seconds for one in cost.axes},
        "predicted_bytes": cost.peak_memory_bytes,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """The figures as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    from costmodel import format_bytes, format_seconds

    console = Console(force_terminal=False, width=130, highlight=False, markup=False)
    first = rows[0]
    title = f"GPT, {first['layers']} layers, {first['operators']} operators, {first['devices']} devices"
    table = Table(title=f"{title} ({first['mesh']})\nseconds; 'all' is from the traced step on")
    for name in ("mode", *PARTS, "all", "CPU", "memory", "collectives", "predicted step", "predicted bytes"):
        table.add_column(name, justify="left" if name == "mode" else "right")
    for row in rows:
        parts = [f"{row[name]:.1f}" for name in (*PARTS, "all", "cpu")]
        predicted = format_seconds(row["predicted_seconds"]), format_bytes(row["predicted_bytes"])
        table.add_row(row["mode"], *parts, format_bytes(row["peak_bytes"]), str(row["collectives"]), *predicted)
    console.print(table)
    met = all(row["all"] <= AIM_SECONDS and row["peak_bytes"] <= AIM_BYTES for row in rows)
    console.print(f"aims: {AIM_SECONDS:.0f} s and {format_bytes(AIM_BYTES)}: {'met' if met else 'missed'}")


def main(arguments: list[str]) -> int:
    """Measure each mode in a process of its own, and report. The exit code."""
    from benchmarks.fresh import measured, tell

    options = parse(arguments)
    tasks = [(options.layers, options.mesh, mode, options.hardware) for mode in options.modes.split(",")]
    tell(measured(measure, tasks, "plans"), options.json, show)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(sys.argv[1:]))
