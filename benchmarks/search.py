"""Proven optima in seconds: mode "optimal" on training graphs of a decoder-only transformer.

    python benchmarks/search.py [--quick | --sizes 12:8x8 ...] [--milp] [--limit 120] [--json]

Forward, gradient and Adam update; d=1024, 16 heads, vocabulary 32000, sequence 1024, batch twice the devices, explicit
attention. Per size: processor seconds to trace, to make the tables and to solve them (one thread), how large the
problem is, value and bound. Where neighbouring axes are used as one ("restricted"), all ways to do so count
that were searched; `--limit` is for all of them together.
Each runs in a fresh process. `milp` columns: the same tables as one integer program (scipy's HiGHS), where it is small
enough: about 10 s for 1 layer on 2x4.

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
MILP_COLUMNS = 120_000


def measure(layers: int, mesh_text: str, milp: bool, limit: float) -> dict:
    """One size: what it took and what came out."""
    from autoshard.layout.mesh import Mesh
    from autoshard.search.exact.over_mesh_cuts import plan_of_assignment, solve_over_mesh_cuts
    from autoshard.search.problem import Problem
    from benchmarks.models import transformer_step
    from costmodel import preset

    mesh, hardware = Mesh.parse(mesh_text), preset("h100")
    started = time.process_time()
    graph = transformer_step(layers, 1, 1, batch=2 * mesh.devices).graph
    traced = time.process_time()
    problem = Problem(graph, mesh, hardware)
    took, last = {"tables": 0.0, "solved": 0.0}, [time.process_time()]

    def on_progress(what: str) -> None:
        took[what] += time.process_time() - last[0]
        last[0] = time.process_time()

    factor_graph, solution = solve_over_mesh_cuts(problem, limit, on_progress)
    plan_of_assignment(factor_graph, solution)
    row = {
        "layers": layers,
        "mesh": mesh_text,
        "devices": mesh.devices,
        "operators": len(graph.nodes),
        "variables": len(factor_graph.variables),
        "strategies": int(sum(factor_graph.sizes)),
        "most": int(max(factor_graph.sizes)),
        "restricted": bool(factor_graph.units.bundled),
        "ways": int(solution.stats["ways"]),
        "searched": int(solution.stats["searched"]),
        "trace_s": traced - started,
        "tables_s": took["tables"],
        "solve_s": took["solved"],
        "listed": int(solution.stats.get("listed", 0)),
        "value": solution.value,
        "bound": float(solution.bound),
        "gap": float((solution.value - solution.bound) / solution.value),
        "proven": solution.proven,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    return row | (whole_program(factor_graph, limit) if milp else {})


def whole_program(factor_graph, limit: float) -> dict:
    """All tables as one integer program, scipy's HiGHS; {} where it has too many columns.

    A column per choice; per price and user the pairs of (how it is left, how it is wanted), whose sums over either side
    are the choices'; and where several use a value, a copy per pair that is there as far as one of them needs it.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    started = time.perf_counter()
    program = Program(factor_graph)
    if program.columns > MILP_COLUMNS:
        return {}
    scale = 1e6
    matrix = coo_array(
        (np.concatenate(program.values), (np.concatenate(program.rows), np.concatenate(program.places))),
        shape=(len(program.low), program.columns),
    ).tocsr()
    cost = np.concatenate(program.costs)
    possible = np.isfinite(cost)
    whole = np.zeros(program.columns)
    whole[: program.choices] = 1
    found = milp(
        scale * np.where(possible, cost, 0.0),
        constraints=LinearConstraint(matrix, np.array(program.low), np.array(program.high)),  # pyright: ignore[reportArgumentType]
        integrality=whole,
        bounds=Bounds(0, possible.astype(float)),  # pyright: ignore[reportArgumentType]
        options={"time_limit": limit, "mip_rel_gap": 1e-9},
    )
    value = None if found.fun is None else found.fun / scale
    return {
        "milp_columns": program.columns,
        "milp_rows": len(program.low),
        "milp_s": time.perf_counter() - started,
        "milp_value": value,
        "milp_proven": found.status == 0,
    }


class Program:
    """The columns and rows of the integer program: `costs` per column, and entries `values` at (`rows`, `places`)."""

    def __init__(self, factor_graph) -> None:
        self.first = np.concatenate([[0], np.cumsum(factor_graph.sizes)])
        self.choices = self.columns = int(self.first[-1])
        own = np.zeros(self.choices)
        self.costs, self.rows, self.places, self.values = [own], [], [], []
        self.low: list[float] = []
        self.high: list[float] = []
        for variable, unary in enumerate(factor_graph.unary):
            start, size = int(self.first[variable]), factor_graph.sizes[variable]
            own[start : start + size] += unary if len(unary) else 0.0
            self._enter(self._new_rows(1, 1.0, 1.0)[np.zeros(size, int)], np.arange(start, start + size), 1.0)
        for price in factor_graph.factors:
            self._price(own, price)

    def _price(self, own: np.ndarray, price) -> None:
        multi_layout = price.multi_layout
        start = int(self.first[price.scope[0]])
        own[start : start + len(multi_layout.maker)] += multi_layout.base[multi_layout.maker]
        users = zip(price.scope[1:], multi_layout.users, multi_layout.kinds, strict=True)
        uses = [(user, rows[kinds, use]) for user, rows, kinds in users for use in range(rows.shape[1])]
        if not uses:
            return
        alone = len(uses) == 1
        copies = None if alone else self._new_columns(multi_layout.seconds)
        for user, wanted in uses:
            pairs = self._new_columns(
                multi_layout.seconds if alone else np.where(np.isinf(multi_layout.seconds), np.inf, 0.0)
            )
            self._sums(pairs, int(self.first[price.scope[0]]), multi_layout.maker)
            self._sums(pairs.T, int(self.first[user]), wanted)
            if copies is not None:
                paid = multi_layout.seconds > 0
                rows = self._new_rows(int(paid.sum()), 0.0, np.inf)
                self._enter(rows, copies[paid], 1.0)
                self._enter(rows, pairs[paid], -1.0)

    def _sums(self, pairs: np.ndarray, start: int, kinds: np.ndarray) -> None:
        """Of each row of pairs, as much as of the choices that mean it."""
        rows = self._new_rows(len(pairs), 0.0, 0.0)
        self._enter(np.repeat(rows, pairs.shape[1]), pairs.reshape(-1), 1.0)
        self._enter(rows[kinds], start + np.arange(len(kinds)), -1.0)

    def _new_columns(self, costs: np.ndarray) -> np.ndarray:
        found = self.columns + np.arange(costs.size).reshape(costs.shape)
        self.columns += costs.size
        self.costs.append(costs.reshape(-1))
        return found

    def _new_rows(self, count: int, low: float, high: float) -> np.ndarray:
        found = len(self.low) + np.arange(count)
        self.low += [low] * count
        self.high += [high] * count
        return found

    def _enter(self, rows: np.ndarray, columns: np.ndarray, value: float) -> None:
        self.rows.append(rows)
        self.places.append(columns)
        self.values.append(np.full(len(rows), value))


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
        note = f" (restricted, {row['searched']} of {row['ways']} ways)" if row["restricted"] else ""
        table.add_row(
            str(row["layers"]), row["mesh"] + note, str(row["variables"]), str(row["strategies"]), str(row["listed"]),
            f"{row['tables_s']:.2f}", f"{row['solve_s']:.2f}", f"{1e3 * row['value']:.4f}", f"{100 * row['gap']:.4f} %",
            "yes" if row["proven"] else "no", f"{row['peak_mb']:.0f}",
            f"{row['milp_s']:.1f}" if "milp_s" in row else "", str(row.get("milp_columns", "")), same,
        )  # fmt: skip
    Console(width=150).print(table)


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
        rows, on_progress = [], Console(stderr=True, width=150)
        for layers, mesh in track(sizes, "searching", console=on_progress, transient=True):
            rows.append(pool.apply(measure, (layers, mesh, options.milp, options.limit)))
            took = rows[-1]["tables_s"] + rows[-1]["solve_s"]
            on_progress.print(f"{layers} layers on {mesh}: {took:.2f} s, gap {100 * rows[-1]['gap']:.4f} %")
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
