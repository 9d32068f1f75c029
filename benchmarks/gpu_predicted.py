"""What a plan on one device is predicted to take, by part, beside what `benchmarks.gpu_truth` measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import autoshard as ash
from autoshard.cost.instructions import Costs
from autoshard.partition.program import Compute
from autoshard.truth.work import Work
from benchmarks.gpu_truth import ATTENTION, MODELS, PARTS, PRODUCTS, REST, UPDATE, step_of
from costmodel import Hardware, Link, Topology, load, preset
from costmodel.fit_roofline import RooflineSamples, fit_roofline
from costmodel.measure import OperatorSample
from costmodel.presets import made_by

SAMPLES, STEPS = (Path(__file__).with_name(f"h100_{name}.json") for name in ("samples", "steps"))
"""What `autoshard calibrate --device cuda` timed on an H100 SXM of 80 GB by torch 2.11 (CUDA 13.0) on 27 November 2026,
and what `benchmarks.gpu_truth measure` did on the same GPU."""
FUSION = {"eager": "eager", "compiled": "xla"}


def calibrated(path: Path = SAMPLES) -> Hardware:
    """The hardware of one device that was fitted to these samples."""
    told = json.loads(path.read_text())
    samples = {name: tuple(OperatorSample(**one) for one in told[name]) for name in ("products", "moves", "attention")}
    times = {name: told[name] for name in ("launch_seconds", "host_seconds", "host_collective_seconds")}
    device = fit_roofline(
        told["of"], RooflineSamples(**samples, **times), told["memory_bytes"], "eager", str(path.name)
    )
    return Hardware("calibrated", device, Topology(((None, Link("none", 0.0, 1e9, source="one device")),)))


def predicted(step: Any, hardware: Any, way: str) -> dict[str, Any]:
    """Seconds of the step, of its parts, and bytes at its peak."""
    planned = ash.plan(step, mesh="d=1", hardware=made_by(hardware, FUSION[way]))
    work, costs = Work(planned.program, planned.graph, planned.plan.mesh), Costs(planned.hardware)
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for one in planned.program.instructions:
        if isinstance(one, Compute):
            parts[UPDATE if one in work.updates else _part(one)] += costs.of(one).seconds
    return {"seconds": planned.cost.seconds, "parts": dict(parts), "peak_bytes": planned.cost.peak_memory_bytes}


_PRODUCTS = ("MatMul", "BatchMatMul", "Einsum", "Conv", "GroupedMatMul")


def _part(one: Compute) -> str:
    node = one.composite or one.node
    if node.op.name.startswith("Attention"):
        return ATTENTION
    return PRODUCTS if node.op.name.startswith(_PRODUCTS) else REST


def compare(path: str, name: str) -> int:
    """Print a table of all rows that were measured."""
    hardware = calibrated() if name == "calibrated" else load(name) if name.endswith(".json") else preset(name)
    rows = [one for one in json.loads(Path(path).read_text())["rows"] if "failed" not in one]
    steps = {one["model"]: step_of(MODELS[one["model"]]) for one in rows}
    print(f"| model | way | by | ms | {' | '.join(PARTS)} | GiB |\n| --- | --- | --- |{' ---: |' * (len(PARTS) + 2)}")
    ratios: dict[str, list[float]] = {}
    for row in rows:
        own = predicted(steps[row["model"]], hardware, row["way"])
        _line(row, "measured", row["seconds"], row["busy"]["parts"], row["peak_bytes"])
        _line(row, "predicted", own["seconds"], own["parts"], own["peak_bytes"])
        ratios.setdefault(row["way"], []).append(own["seconds"] / row["seconds"])
    for way, some in ratios.items():
        errors = [abs(one - 1) for one in some]
        told = f"median error {median(errors):.1%}, worst {max(errors):.1%}, ratios {min(some):.2f} to {max(some):.2f}"
        print(f"{way}: {told}")
    return 0


def _line(row: dict[str, Any], by: str, seconds: float, parts: dict[str, float], peak: int) -> None:
    figures = " | ".join(f"{1e3 * parts.get(one, 0.0):.1f}" for one in PARTS)
    print(
        f"| {row['model']} | {row['way']} | {by} | {1e3 * seconds:.1f} | {figures} | {peak / 2**30:.1f} |", flush=True
    )
