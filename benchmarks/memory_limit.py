"""Plans under a memory limit: mode "optimal" on training graphs of a decoder-only transformer.

    python benchmarks/memory_limit.py [--quick | --sizes 4:8x8 ...] [--parts 1 0.75 0.5] [--time 120] [--json]

Forward, gradient and Adam update as in `benchmarks/search.py`. Per size: the peak of the plan without a limit, the
least that any plan needs (with its bound), then for limits between the two (the least is 0, the free peak 1): seconds
of search, the plan's time, its bound and gap, and its peak, which is checked. Fresh processes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

SIZES = [(layers, mesh) for mesh in ("8", "2x4", "8x8") for layers in (1, 4, 12)]
QUICK = [(1, "2x4")]


def measure(layers: int, mesh_text: str, parts: list[float], seconds: float) -> list[dict]:
    """One size: a row without limit, one for the least, and one per part."""
    from autoshard.cost.memory import peak_memory
    from autoshard.cost.prices import prices_for
    from autoshard.layout.mesh import Mesh
    from autoshard.search.exact.memory.lagrangian import LagrangianSearch
    from autoshard.search.exact.memory.rows import MemoryRows
    from autoshard.search.exact.memory.within_limit import solve_within_limit
    from autoshard.search.exact.over_mesh_cuts import plan_of_assignment
    from autoshard.search.exact.search import solve
    from autoshard.search.factor_graph import FactorGraph
    from autoshard.search.mesh_cuts import MeshCuts
    from autoshard.search.problem import Problem
    from autoshard.util.clock import now
    from autoshard.util.errors import PlanError
    from benchmarks.models import transformer_step
    from costmodel import preset

    mesh, hardware = Mesh.parse(mesh_text), preset("h100")
    problem = Problem(transformer_step(layers, 1, 1, batch=2 * mesh.devices).graph, mesh, hardware)
    factor_graph = FactorGraph(problem, prices_for(hardware), next(iter(MeshCuts(problem))))
    size = {"layers": layers, "mesh": mesh_text, "strategies": int(sum(factor_graph.sizes))}

    def row(what: str, begun: float, cpu: float, **more) -> dict:
        return size | {"limit": what, "wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu} | more

    begun, cpu = time.perf_counter(), time.process_time()
    free = solve(factor_graph, seconds)
    most = peak_memory(plan_of_assignment(factor_graph, free))
    rows = [row("none", begun, cpu, value=free.value, bound=free.bound, peak=most)]
    begun, cpu = time.perf_counter(), time.process_time()
    search = LagrangianSearch(MemoryRows(factor_graph), most, now() + seconds, work=False)
    search.know(free.choice)
    search.run()
    assert search.best is not None
    least, bound = search.value * most, search.bound * most
    rows.append(row("least", begun, cpu, peak=round(least), peak_bound=round(bound)))
    for part in parts:
        limit = round(least + part * (most - least))
        begun, cpu = time.perf_counter(), time.process_time()
        try:
            found = solve_within_limit(factor_graph, limit, seconds, free.bound)
        except PlanError as error:
            rows.append(row(f"{100 * part:g} %", begun, cpu, limit_bytes=limit, told=str(error)))
            continue
        peak = peak_memory(plan_of_assignment(factor_graph, found))
        assert peak <= limit, (peak, limit)
        rows.append(
            row(f"{100 * part:g} %", begun, cpu, value=found.value, bound=found.bound, peak=peak, limit_bytes=limit)
        )
    return rows


def show(rows: list[dict]) -> None:
    table = Table(title="optimal plans within a memory limit")
    for name in ("layers", "mesh", "limit", "bytes", "wall s", "CPU s", "step ms", "bound ms", "gap", "peak GB"):
        table.add_column(name, justify="right")
    for row in rows:
        value, bound = row.get("value"), row.get("bound")
        told = f"{1e3 * value:.4f}" if value else row.get("told", "")[-40:]
        gap = f"{100 * (value - bound) / value:.3f} %" if value and bound is not None else ""
        if "peak_bound" in row:
            gap = f"{100 * (row['peak'] - row['peak_bound']) / row['peak']:.3f} %"
        table.add_row(
            str(row["layers"]), row["mesh"], row["limit"], str(row.get("limit_bytes", "")), f"{row['wall_s']:.1f}",
            f"{row['cpu_s']:.1f}", told, f"{1e3 * bound:.4f}" if bound is not None else "", gap,
            f"{row['peak'] / 1e9:.4f}" if "peak" in row else "",
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    from benchmarks.fresh import layers_on_mesh, measured, tell

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size")
    parser.add_argument("--sizes", nargs="*", type=layers_on_mesh, metavar="LAYERS:MESH", help="these sizes only")
    parser.add_argument("--parts", nargs="*", type=float, default=[1.0, 0.75, 0.5], help="where limits lie")
    parser.add_argument("--time", type=float, default=120.0, help="seconds for each search")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = options.sizes or (QUICK if options.quick else SIZES)
    found = measured(measure, [(*size, options.parts, options.time) for size in sizes], "searching")
    tell([row for one in found for row in one], options.json, show)


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
