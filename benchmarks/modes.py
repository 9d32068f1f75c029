"""All search modes on annotated programs: seconds of a step under the evaluator, gap to `optimal`, planning time.

    python benchmarks/modes.py [--modes factor bfs ...] [--targets mlp "jax gpt step, 1 layer" ...] [--json]

Targets are those of `benchmarks/targets.py`; a name stands for all that contain it. Each plan is made in a process of
its own that has imported everything and planned nothing, so that nothing is remembered from one to the next; reading
and tracing are not counted. The gap is to the lower bound that `optimal` proves, else to the cheapest plan. The last
lines say whether sharding_propagation was ever worse than the better of factor and bfs, on how many it was better than
both, and what it takes compared with factor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

DEFAULT, PURE, BEST = "sharding_propagation", ("factor", "bfs"), "optimal"
MODES = ("factor", "bfs", "batch", DEFAULT, "dynamic_programming", BEST)
SAME = 1e-9
"""Seconds that differ by less than this share are equal."""


def measure(name: str, modes: list[str], hardware: str, limit: float) -> dict[str, Any]:
    """Plan one target with each mode: seconds of the plan, and of planning; or why a mode does not plan it.

    Args:
        limit: seconds that `optimal` may take.
    """
    from autoshard.search import search_modes

    problem = problem_of(name, hardware)
    limited = replace(problem, options={**problem.options, "time_limit": limit})
    known = [mode for mode in modes if mode in search_modes()]
    found = {mode: _forked(mode, limited if mode == BEST else problem) for mode in known}
    nodes = len(problem.graph.nodes)
    return {"target": name, "operators": nodes, "mesh": str(problem.mesh), "modes": found}


def problem_of(name: str, hardware: str) -> Any:
    """The problem that `autoshard.plan` gives to a mode."""
    import autoshard
    from autoshard.frontends import from_stablehlo
    from autoshard.search import registry
    from autoshard.search.problem import Problem
    from benchmarks.targets import TARGETS

    taken: list[Problem] = []

    def take(problem: Problem) -> Any:
        taken.append(problem)
        return registry.find_mode("batch")(problem)

    target = TARGETS[name]
    built = target.build()
    registry.search_mode("take", regions=True)(take)
    autoshard.plan(
        from_stablehlo(built) if isinstance(built, str) else built, mesh=target.mesh, search="take", hardware=hardware
    )
    return taken[0]


def _forked(mode: str, problem: Any) -> dict[str, Any]:
    """The figures of one mode, from a process that ends with it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_plan, args=(mode, problem, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return {"refused": "its process ended without an answer"}
    finally:
        process.join()


def _plan(mode: str, problem: Any, answer: Connection) -> None:
    import gc

    from autoshard.search import find_mode
    from autoshard.search.program_price import price_of
    from autoshard.util.errors import AutoshardError

    forget()
    gc.collect()
    started = time.perf_counter()
    try:
        plan = find_mode(mode)(problem)
    except AutoshardError as error:
        answer.send({"refused": str(error)})
        return
    planning = time.perf_counter() - started
    seconds, bound = price_of(problem, plan), plan.search_stats.get("bound")
    answer.send({"seconds": seconds, "planning": planning, "bound": bound})


def forget() -> None:
    """Drop what reading and taking the problem left in memos."""
    import gc

    for one in gc.get_objects():
        clear = getattr(type(one), "cache_clear", None)
        if clear is not None and getattr(one, "__module__", "").startswith("autoshard."):
            one.cache_clear()


# -- what it says -----------------------------------------------------------------------------------------------


def least(row: dict[str, Any]) -> float:
    """The lower bound that is proven for a target, else the cheapest plan found."""
    found = [one for one in row["modes"].values() if "seconds" in one]
    bounds = [one["bound"] for one in found if one["bound"] is not None]
    return max(bounds) if bounds else min(one["seconds"] for one in found)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The default mode against factor and bfs, the optimum, and factor's time."""
    full = [row for row in rows if all("seconds" in row["modes"].get(mode, {}) for mode in (DEFAULT, *PURE))]
    ours = {row["target"]: row["modes"][DEFAULT] for row in full}
    pure = {row["target"]: min(row["modes"][mode]["seconds"] for mode in PURE) for row in full}
    gaps = [ours[row["target"]]["seconds"] / least(row) - 1 for row in full]
    ratios = [ours[row["target"]]["planning"] / row["modes"]["factor"]["planning"] for row in full]
    return {
        "targets": len(full),
        "worse": [name for name, one in ours.items() if one["seconds"] > pure[name] * (1 + SAME)],
        "better": [name for name, one in ours.items() if one["seconds"] < pure[name] * (1 - SAME)],
        "median_gap": statistics.median(gaps) if gaps else None,
        "largest_gap": max(gaps, default=None),
        "median_time_ratio": statistics.median(ratios) if ratios else None,
        "largest_time_ratio": max(ratios, default=None),
    }


def print_rows(rows: list[dict[str, Any]], modes: list[str], console: Console) -> None:
    from costmodel import format_seconds

    table = Table(title="a step's seconds by mode: gap to the least, and planning time")
    table.add_column("target")
    table.add_column("operators", justify="right")
    table.add_column("mesh")
    for mode in modes:
        table.add_column(mode, justify="right")
    for row in rows:
        cells = []
        for mode in modes:
            one = row["modes"].get(mode, {})
            if "seconds" not in one:
                cells.append("-")
                continue
            gap = one["seconds"] / least(row) - 1
            cells.append(f"{format_seconds(one['seconds'])} +{100 * gap:.1f} %\n{format_seconds(one['planning'])}")
        table.add_row(row["target"], str(row["operators"]), row["mesh"], *cells)
    console.print(table)
    for row in rows:
        for mode, one in row["modes"].items():
            if "refused" in one:
                console.print(f"{row['target']}, {mode}: {one['refused']}", soft_wrap=True, highlight=False)


def print_summary(found: dict[str, Any], console: Console) -> None:
    worse = ", ".join(found["worse"]) or "none"
    lines = [f"{found['targets']} targets; {DEFAULT} costs more than the better of factor and bfs on: {worse}"]
    if found["targets"]:
        lines += [
            f"it is better than both on {len(found['better'])}",
            f"gap to the least: {100 * found['median_gap']:.2f} % in the median, "
            f"{100 * found['largest_gap']:.1f} % at most",
            f"planning takes {found['median_time_ratio']:.1f} times as long as factor in the median, "
            f"{found['largest_time_ratio']:.1f} times at most",
        ]
    console.print("\n".join(lines), highlight=False)


def _chosen(wanted: list[str]) -> Iterator[str]:
    from benchmarks.targets import TARGETS

    for name in TARGETS:
        if not wanted or any(word == name or word in name for word in wanted):
            yield name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--targets", nargs="+", default=[])
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds that optimal may take for a target")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = list(_chosen(options.targets))
    quiet = Console(stderr=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        tasks = track(names, "planning", console=quiet, transient=True)
        arguments = (options.modes, options.hardware, options.time_limit)
        rows = [pool.submit(measure, name, *arguments).result() for name in tasks]
    if options.json:
        print(json.dumps({"rows": rows, "summary": summary(rows)}, indent=2))
        return
    console = Console()
    print_rows(rows, options.modes, console)
    print_summary(summary(rows), console)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
