"""Bytes that programs send, against XLA's partitioner on the same annotated JAX programs, for 8 devices.

    python benchmarks/against_xla.py [NAME ...] [--mode communication] [--hardware cpu] [--json FILE]

Both start from the same StableHLO module with the same shardings. Bytes are those that one device sends under
bandwidth-optimal algorithms; a collective in a loop counts once, as it stands in the program. The column "credited"
counts all-reduces of XLA of which only slices are used as the reduce-scatters that XLA makes of them elsewhere;
"executed" is the ratio when collectives in loops count as often as they run. "work" tells what fewer bytes cost: the
operations of one device of ours, as a multiple of an even share.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autoshard.api import plan
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import walk
from autoshard.partition.traffic import bytes_moved, traffic_of
from autoshard.plan.plan import Plan
from benchmarks.jax_programs import PROGRAMS

DEVICES = 8
LEAST = 1.0
"""Bytes by which programs that send nothing at all are counted in means."""


RATIOS = {
    "ratio": "XLA",
    "ratio_credited": "XLA with scatters credited",
    "ratio_executed": "XLA, collectives in loops counted as often as they run",
}


def measure(names: Sequence[str], mode: str = "communication", hardware: str = "cpu") -> list[dict[str, Any]]:
    """A row per program: bytes of XLA, of XLA with scatters credited and of ours, and both ratios.

    Raises:
        RuntimeError: XLA could not compile a module.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name in names:
            paths.append(Path(folder) / f"{name}.mlir")
            paths[-1].write_text(PROGRAMS[name].module())
        theirs = xla(paths)
        return [row(path, theirs[path.stem], mode, hardware) for path in paths]


def xla(modules: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The collectives that XLA leaves in each module, by the module's name."""
    command = [sys.executable, str(Path(__file__).with_name("xla_collectives.py")), str(DEVICES)]
    done = subprocess.run([*command, *map(str, modules)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"XLA could not compile the modules:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def row(module: Path, theirs: list[dict[str, Any]], mode: str, hardware: str) -> dict[str, Any]:
    begin = time.perf_counter()
    planned = plan(module, search=mode, hardware=hardware)
    ours = traffic_of(planned.program)
    seconds = time.perf_counter() - begin
    sent, moved = bytes_moved(ours), sum(one["bytes_moved"] for one in theirs)
    credited = sum(one["credited"] for one in theirs)
    executed = sum(one["bytes_moved"] * one["executions"] for one in theirs)
    return {
        "program": module.stem,
        "mesh": "x".join(map(str, PROGRAMS[module.stem].axes.values())),
        "xla": moved,
        "credited": credited,
        "ours": sent,
        "ratio": _ratio(sent, moved),
        "ratio_credited": _ratio(sent, credited),
        "xla_executed": executed,
        "ours_executed": bytes_moved(ours, executed=True),
        "ratio_executed": _ratio(bytes_moved(ours, executed=True), executed),
        "work": work(planned.plan),
        "seconds": seconds,
        "xla_collectives": counted([one["kind"] for one in theirs]),
        "collectives": counted([one.kind for one in ours]),
    }


def work(plan: Plan) -> float:
    """Operations of one device, as a multiple of an even share: 1 where every operator is split over all of them."""
    nodes = [node for node in walk(plan.graph.nodes) if not is_nest(node)]
    all_of_them = [plan.runs.get(node, 1) * node.op.flops(node.operand_types, node.attrs) for node in nodes]
    own = sum(flops / plan.strategy(node).work_ratio for node, flops in zip(nodes, all_of_them, strict=True))
    return plan.mesh.devices * own / max(sum(all_of_them), 1)


def _ratio(ours: float, theirs: float) -> float:
    return max(ours, LEAST) / max(theirs, LEAST)


def counted(kinds: Sequence[str]) -> dict[str, int]:
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means, the worst ratios, and the programs on which ours sends more than XLA."""
    found: dict[str, Any] = {}
    for key in RATIOS:
        ratios = [one[key] for one in rows]
        found[f"mean_{key}"] = math.exp(sum(map(math.log, ratios)) / len(ratios))
        found[f"worst_{key}"] = max(ratios)
        found[f"more_{key}"] = [one["program"] for one in rows if one[key] > 1 + 1e-9]
    return found


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(title=f"bytes that one of {DEVICES} devices sends, in kB")
    for name in ("program", "mesh"):
        table.add_column(name)
    for name in ("XLA", "credited", "ours", "ours / XLA", "ours / credited", "executed", "work", "planned in s"):
        table.add_column(name, justify="right")
    for one in rows:
        kilobytes = [f"{one[key] / 1e3:,.1f}" for key in ("xla", "credited", "ours")]
        ratios = [f"{one[key]:.3f}" for key in ("ratio", "ratio_credited", "ratio_executed", "work")]
        table.add_row(one["program"], one["mesh"], *kilobytes, *ratios, f"{one['seconds']:.1f}")
    console.print(table)
    told = summary(rows)
    for key, word in RATIOS.items():
        more = told[f"more_{key}"]
        console.print(
            f"against {word}: geometric mean {told[f'mean_{key}']:.3f}, worst {told[f'worst_{key}']:.3f}, "
            f"more on {len(more)} of {len(rows)}{': ' + ', '.join(more) if more else ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}; default all")
    parser.add_argument("--mode", default="communication", help="the search mode")
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows and the summary here, too")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    rows = measure(options.names or list(PROGRAMS), options.mode, options.hardware)
    show(rows, Console())
    if options.json is not None:
        options.json.write_text(json.dumps({"programs": rows, **summary(rows)}, indent=2))


if __name__ == "__main__":
    main()
