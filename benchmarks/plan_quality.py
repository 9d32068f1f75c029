"""The default mode's plans beside those of every other mode, on models that it has not seen and that nobody annotated.

    python -m benchmarks.plan_quality [--models opt vit ...] [--meshes 8 2x4 ...] [--hardware h100 ...] [--every]
                                      [--modes factor bfs ...] [--limit 120] [--found FILE.jsonl] [--table FILE.md]

Without `--every` each model of `model_zoo.py` is planned on one mesh for one hardware, in turn; with it on all for all.
A row is the seconds of the default's plan (the price of its program), their ratio to those of `optimal` and to its
bound, to the best of all other modes and which that is, and seconds of processor time for planning beside `factor`'s.
Each plan is made in a process of its own that has traced the model and planned nothing, and is ended at the limit. Rows
are added to `--found` as they come, and what is there is not planned again; `--table` writes the table of all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEFAULT, BEST = "sharding_propagation", "optimal"
MESHES = ("8", "2x4", "4x4x4", "64")
HARDWARE = ("cpu", "a100", "h100", "tpu_v5p")
AIM = 1.05
Row = dict[str, Any]


def tasks(names: list[str], meshes: list[str], hardware: list[str], every: bool) -> Iterator[tuple[str, str, str]]:
    """Model, mesh and hardware of each row."""
    if every:
        yield from itertools.product(names, meshes, hardware)
        return
    pairs = list(itertools.product(hardware, meshes))
    step = len(meshes) + 1  # so that both change from one model to the next
    for i, name in enumerate(names):
        kind, mesh = pairs[i * step % len(pairs)]
        yield name, mesh, kind


def measure(name: str, mesh: str, hardware: str, modes: list[str], limit: float) -> Row:
    """The figures of one row, by mode."""
    from benchmarks.model_zoo import ZOO

    # A process that has run JAX cannot be forked: each of its models is traced anew.
    traced = None if name.endswith("(jax sample)") else _traced(ZOO[name]())
    make = (lambda: _traced(ZOO[name]())) if traced is None else (lambda: traced)
    found = {mode: _forked(make, mesh, hardware, mode, limit) for mode in modes}
    return {"model": name, "mesh": mesh, "hardware": hardware, "modes": found}


def _traced(made: Any) -> Any:
    """What a maker of models made, traced: once for all modes."""
    import autoshard
    from autoshard.trace import trace

    if not isinstance(made, tuple):
        return made
    model, inputs = made
    return autoshard.from_torch(model, (), inputs) if isinstance(inputs, dict) else trace(model, *inputs)


def _forked(make: Callable[[], Any], mesh: str, hardware: str, mode: str, limit: float) -> Row:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_plan, args=(make, mesh, hardware, mode, limit, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return {"refused": f"more than {limit:g} s"}
    finally:
        process.join()


def _plan(make: Callable[[], Any], mesh: str, hardware: str, mode: str, limit: float, answer: Connection) -> None:
    import autoshard
    from autoshard.util.errors import AutoshardError

    traced = make()
    started = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(started + limit), resource.RLIM_INFINITY))
    options = {"time_limit": limit / 3} if mode == BEST else {}
    try:
        planned = autoshard.plan(traced, mesh=mesh, search=mode, hardware=hardware, options=options)
    except AutoshardError as error:
        answer.send({"refused": str(error)})
        return
    planning, cost, stats = time.process_time() - started, planned.cost, planned.plan.search_stats
    told = {name: stats[name] for name in ("bound", "proven", "restricted") if name in stats}
    answer.send(
        {"seconds": cost.seconds, "planning": planning, "bytes": cost.bytes_per_device,
         "memory": cost.peak_memory_bytes, **told}
    )  # fmt: skip


def judged(row: Row) -> Row:
    """What a row says of the default: its ratio to `optimal` and to the best other mode; nothing where it has none."""
    modes = row["modes"]
    default, best = modes.get(DEFAULT, {}), modes.get(BEST, {})
    others = {mode: one["seconds"] for mode, one in modes.items() if mode not in (DEFAULT, BEST) and "seconds" in one}
    found: Row = {}
    if "seconds" not in default:
        return found
    if "seconds" in best:
        found["optimal"] = default["seconds"] / (best["seconds"] or 1.0)
        found["proven"] = bool(best.get("proven")) and not best.get("restricted")
        found |= {"bound": default["seconds"] / best["bound"]} if best.get("bound") else {}
    if others:
        least = min(others, key=others.__getitem__)
        found |= {"other": default["seconds"] / (others[least] or 1.0), "best other": least}
    if "planning" in modes.get("factor", {}):
        found["times"] = default["planning"] / max(modes["factor"]["planning"], 1e-3)
    return found


def table(rows: list[Row]) -> str:
    """The table as Markdown, with a summary above."""
    from costmodel import format_seconds

    lines = [*_summary(rows), ""]
    lines += [
        "| model | mesh | hardware | default | / optimal | / its bound | / best other mode | planning s | of factor |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for row in sorted(rows, key=lambda row: (row["model"], row["mesh"], row["hardware"])):
        default, known = row["modes"].get(DEFAULT, {}), judged(row)
        if "seconds" not in default:
            lines.append(f"| {row['model']} | {row['mesh']} | {row['hardware']} | {default.get('refused', '-')[:60]} |")
            continue
        cells = [
            row["model"], row["mesh"], row["hardware"], format_seconds(default["seconds"]),
            f"{known['optimal']:.3f}{' proven' * known['proven']}" if "optimal" in known else "-",
            f"{known['bound']:.3f}" if "bound" in known else "-",
            f"{known['other']:.3f} {known['best other']}" if "other" in known else "-",
            f"{default['planning']:.1f}", f"{known['times']:.0f} x" if "times" in known else "-",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _summary(rows: list[Row]) -> Iterator[str]:
    known = [judged(row) for row in rows]
    proven = [one["optimal"] for one in known if one.get("proven")]
    bounds = [one["bound"] for one in known if "bound" in one]
    others, times = [one["other"] for one in known if "other" in one], [one["times"] for one in known if "times" in one]
    yield f"{len(rows)} plans of {len({row['model'] for row in rows})} models."
    if proven:
        above = sum(one > AIM for one in proven)
        yield (
            f"Default / optimal where `optimal` proves ({len(proven)}): median {statistics.median(proven):.3f}, "
            f"worst {max(proven):.3f}, above {AIM}: {above}."
        )
    best = [one["optimal"] for one in known if "optimal" in one]
    if best:
        yield f"Default / optimal of all ({len(best)}): median {statistics.median(best):.3f}, worst {max(best):.3f}."
    if bounds:
        yield f"Default / the bound of `optimal`: median {statistics.median(bounds):.3f}, worst {max(bounds):.3f}."
    if others:
        dearer = sum(one > 1 + 1e-9 for one in others)
        yield f"Default / best other mode: worst {max(others):.3f}; dearer than one: {dearer}."
    if times:
        yield f"Planning time of the default / factor's: median {statistics.median(times):.0f}, worst {max(times):.0f}."


def _read(path: Path | None) -> list[Row]:
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _key(row: Row) -> tuple[str, str, str]:
    return row["model"], row["mesh"], row["hardware"]


def main() -> None:
    from autoshard.search import search_modes
    from benchmarks.model_zoo import ZOO

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=list(ZOO), metavar="MODEL")
    parser.add_argument("--meshes", nargs="+", default=list(MESHES))
    parser.add_argument("--hardware", nargs="+", default=list(HARDWARE))
    parser.add_argument("--every", action="store_true", help="all models on all meshes for all hardware")
    parser.add_argument("--modes", nargs="+", default=[mode for mode in search_modes() if mode != "auto"])
    parser.add_argument("--limit", type=float, default=120.0, help="processor seconds after which a plan is ended")
    parser.add_argument("--found", type=Path, help="the file of rows to go on with")
    parser.add_argument("--table", type=Path, help="where to write the table")
    options = parser.parse_args()
    rows = _read(options.found)
    known = {_key(row) for row in rows}
    every = options.every or len(options.meshes) * len(options.hardware) == 1
    warnings.simplefilter("ignore")
    for task in tasks(options.models, options.meshes, options.hardware, every):
        if task in known:
            continue
        row = measure(*task, options.modes, options.limit)
        rows.append(row)
        print(*task, {name: round(one, 3) if isinstance(one, float) else one for name, one in judged(row).items()},
              file=sys.stderr, flush=True)  # fmt: skip
        if options.found is not None:
            with options.found.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    text = table(rows)
    if options.table is not None:
        options.table.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
