"""Proven optima in seconds: mode "optimal" on training graphs of a decoder-only transformer.

    python benchmarks/search.py [--quick | --sizes 12:8x8 ...] [--milp] [--limit 120] [--json]

Forward, gradient and Adam update; d=1024, 16 heads, vocabulary 32000, sequence 1024, batch twice the devices, explicit
attention. Per size: seconds to trace, to make the tables and to solve them, how large the problem is, value and bound.
Each runs in a fresh process. `milp` columns: the same tables as one integer program (local polytope, scipy's HiGHS),
where it is small enough to be written out.

For reference, measured on two cores: AutoParallel (meta-pytorch, PuLP with CBC) on a like model and mesh 8x8, 12
layers, repeated blocks tied: 76 s to build and 30 s to solve; one MLP block on 2x2x2 was not finished in 400 s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

SIZES = [(layers, mesh) for mesh in ("8", "x=8", "2x4", "8x8", "32x8") for layers in (1, 4, 12, 48)]
SIZES += [(layers, "2x2x2") for layers in (1, 4, 12)]
SIZES += [(12, "5x5x5x4x2"), (12, "8x8x8x8x4")]
QUICK = [(1, "x=8"), (1, "2x4"), (1, "8x8"), (12, "8x8")]
REFERENCE = "AutoParallel, 12 layers on 8x8: 76 s build + 30 s solve; 2x2x2: one MLP block not finished in 400 s"
MILP_CELLS = 400_000


def measure(layers: int, mesh_text: str, milp: bool, limit: float) -> dict:
    """One size: what it took and what came out."""
    from autoshard.layout.mesh import Mesh
    from autoshard.search.evaluate import prices_for
    from autoshard.search.optimal import atoms_for, plan_of_choice
    from autoshard.search.problem import Problem
    from autoshard.search.settle import settle
    from autoshard.search.tables import Tables
    from benchmarks.models import transformer_step
    from costmodel import preset

    mesh, hardware = Mesh.parse(mesh_text), preset("h100")
    started = time.perf_counter()
    graph = transformer_step(layers, 1, 1, batch=2 * mesh.devices).graph
    traced = time.perf_counter()
    problem = Problem(graph, mesh, hardware)
    made = solved = 0.0
    best = None
    ways = list(atoms_for(problem))
    for atoms in ways:
        begun = time.perf_counter()
        tables = Tables(problem, prices_for(hardware), atoms)
        ready = time.perf_counter()
        settled = settle(tables, limit)
        made, solved = made + ready - begun, solved + time.perf_counter() - ready
        if best is None or settled.value < best[1].value:
            best = tables, settled
    assert best is not None
    tables, settled = best
    plan_of_choice(tables, settled)
    row = {
        "layers": layers,
        "mesh": mesh_text,
        "devices": mesh.devices,
        "operators": len(graph.nodes),
        "variables": len(tables.variables),
        "strategies": int(sum(tables.sizes)),
        "most": int(max(tables.sizes)),
        "restricted": bool(tables.atoms.bundled),
        "ways": len(ways),
        "trace_s": traced - started,
        "tables_s": made,
        "solve_s": solved,
        "listed": int(settled.stats.get("listed", 0)),
        "value": settled.value,
        "bound": float(settled.bound),
        "gap": float((settled.value - settled.bound) / settled.value),
        "proven": settled.proven,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    return row | (whole_program(tables, limit) if milp else {})


def whole_program(tables, limit: float) -> dict:
    """All tables as one integer program over their local polytope; {} where they are too large to write out."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    if any(price.shared.cells > MILP_CELLS for price in tables.prices):
        return {}
    started = time.perf_counter()
    first = np.concatenate([[0], np.cumsum(tables.sizes)])
    cost = np.zeros(first[-1])
    for variable, unary in enumerate(tables.unary):
        if len(unary):
            cost[first[variable] : first[variable + 1]] += unary
    costs, at, rows, columns, values, right = [cost], int(first[-1]), [], [], [], []
    for variable in range(len(tables.sizes)):
        width = tables.sizes[variable]
        rows += [len(right)] * width
        columns += range(first[variable], first[variable] + width)
        values += [1.0] * width
        right.append(1.0)
    for price in tables.prices:
        dense = price.shared.dense
        if len(price.scope) == 1:
            cost[first[price.scope[0]] : first[price.scope[0] + 1]] += dense
            continue
        costs.append(dense.reshape(-1))
        place = np.indices(dense.shape).reshape(dense.ndim, -1)
        for dim, variable in enumerate(price.scope):
            rows += (len(right) + place[dim]).tolist() + list(range(len(right), len(right) + dense.shape[dim]))
            columns += list(range(at, at + dense.size))
            columns += list(range(first[variable], first[variable] + dense.shape[dim]))
            values += [1.0] * dense.size + [-1.0] * dense.shape[dim]
            right += [0.0] * dense.shape[dim]
        at += dense.size
    matrix = coo_array((values, (rows, columns)), shape=(len(right), at)).tocsr()
    whole = np.zeros(at)
    whole[: first[-1]] = 1
    scale = 1e6
    found = milp(
        scale * np.concatenate(costs),
        constraints=LinearConstraint(matrix, np.array(right), np.array(right)),  # pyright: ignore[reportArgumentType]
        integrality=whole,
        bounds=Bounds(0, 1),
        options={"time_limit": limit, "mip_rel_gap": 1e-9},
    )
    value = None if found.fun is None else found.fun / scale
    return {"milp_columns": at, "milp_rows": len(right), "milp_s": time.perf_counter() - started, "milp_value": value}


def show(rows: list[dict]) -> None:
    table = Table(title="optimal plans of a transformer's training step", caption=REFERENCE)
    names = ("layers", "mesh", "variables", "strategies", "listed", "tables s", "solve s", "step ms", "gap")
    for name in (*names, "proven", "MB", "one MILP: s", "columns", "same value"):
        table.add_column(name, justify="right")
    for row in rows:
        value = row.get("milp_value")
        same = (
            "" if value is None else "yes" if abs(value - row["value"]) <= 1e-6 * row["value"] else f"{1e3 * value:.4f}"
        )
        note = f" (restricted, {row['ways']} ways)" if row["restricted"] else ""
        table.add_row(
            str(row["layers"]), row["mesh"] + note, str(row["variables"]), str(row["strategies"]), str(row["listed"]),
            f"{row['tables_s']:.2f}", f"{row['solve_s']:.2f}", f"{1e3 * row['value']:.4f}", f"{100 * row['gap']:.4f} %",
            "yes" if row["proven"] else "no", f"{row['peak_mb']:.0f}",
            f"{row['milp_s']:.1f}" if "milp_s" in row else "", str(row.get("milp_columns", "")), same,
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few small sizes")
    parser.add_argument("--sizes", nargs="*", metavar="LAYERS:MESH", help="these sizes only")
    parser.add_argument("--milp", action="store_true", help="also as one integer program, where it can be written out")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each search")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = QUICK if options.quick else SIZES
    if options.sizes:
        sizes = [(int(size.split(":")[0]), size.split(":")[1]) for size in options.sizes]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [
            pool.apply(measure, (layers, mesh, options.milp and layers == 1, options.limit))
            for layers, mesh in track(sizes, "searching", console=Console(stderr=True), transient=True)
        ]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
