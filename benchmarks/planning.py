"""Planning time: transformer training graphs of 2 to 48 layers on 1,024 devices, in microseconds per operator.

    python benchmarks/planning.py [--devices 1024] [--layers 2 6 12 24 48] [--repeat 3] [--json]

Each run has a fresh process, so nothing is remembered from one to the next; of several runs the quickest is shown.
Plan: strategies, layouts and priced edges of the whole graph; trace: from model code to forward + gradient + update;
lower: the program and its cost.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table


def measure(layers: int, devices: int) -> dict[str, float]:
    """Seconds per stage for one graph."""
    from autoshard.api import plan
    from benchmarks.models import transformer_step

    tensor = max(parts for parts in (16, 8, 4, 2, 1) if devices % parts == 0)
    started = time.perf_counter()
    step = transformer_step(layers, min(64, devices // tensor), tensor)
    traced = time.perf_counter()
    planned = plan(step, devices=devices, hardware="h100")
    decided = time.perf_counter()
    cost = planned.cost
    lowered = time.perf_counter()
    return {
        "layers": layers,
        "operators": len(planned.graph.nodes),
        "trace": traced - started,
        "plan": decided - traced,
        "lower": lowered - decided,
        "step_ms": 1e3 * cost.seconds,
    }


def total(row: dict[str, float]) -> float:
    """Seconds from model code to a priced program."""
    return row["trace"] + row["plan"] + row["lower"]


def growth(rows: list[dict[str, float]]) -> tuple[float, float, float]:
    """Least squares of planning time over operators: fixed seconds, seconds per operator, share explained (R^2)."""
    count = np.array([row["operators"] for row in rows])
    times = np.array(list(map(total, rows)))
    slope, fixed = np.polyfit(count, times, 1)
    rest = times - (fixed + slope * count)
    return float(fixed), float(slope), float(1 - rest.var() / times.var())


def show(rows: list[dict[str, float]], devices: int) -> None:
    """A row per number of layers, and how time grows with operators."""
    table = Table(title=f"planning a transformer's training step on {devices} devices")
    for name in ("layers", "operators", "trace s", "plan s", "lower s", "total s", "us per operator"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [row["trace"], row["plan"], row["lower"], total(row)]
        per = f"{1e6 * total(row) / row['operators']:.0f}"
        table.add_row(str(row["layers"]), str(row["operators"]), *(f"{cell:.2f}" for cell in cells), per)
    console = Console()
    console.print(table)
    if len(rows) > 2:
        fixed, slope, explained = growth(rows)
        console.print(
            f"total time = {fixed:.2f} s + {1e6 * slope:.0f} us per operator; a straight line explains "
            f"{100 * explained:.1f} % of it"
        )


def main() -> None:
    from benchmarks.fresh import measured, tell

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=1024)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 6, 12, 24, 48])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = measured(
        measure, [(layers, options.devices) for layers in options.layers for _ in range(options.repeat)], "planning"
    )
    rows = [min(runs[i : i + options.repeat], key=total) for i in range(0, len(runs), options.repeat)]
    tell(rows, options.json, lambda rows: show(rows, options.devices))


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
