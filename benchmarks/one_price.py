"""One price: what `plan`, `compare` and `optimal` say of the same plan, on the sample models.

    python benchmarks/one_price.py [NAME ...] [--mesh dp=2,tp=4] [--json]

For every torch sample and five JAX ones, each mode's seconds by `plan --json` and by `compare --json`, beside what
`optimal` found, its bound and its gap. The exit code is 1 if the two differ for a mode, if a mode's seconds are below
`optimal`'s bound, or below its seconds where its gap is 0, or if the default mode is above another.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autoshard.api import plan
from autoshard.cli.target import load_target
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.compare import compare
from autoshard.util.errors import AutoshardError

FOLDER = Path(__file__).resolve().parents[1] / "sample_code"
JAX = ("lm", "vit_training", "gpt_training", "moe", "lm_training_annotated")
DEFAULT, BEST = "sharding_propagation", "optimal"
MODES = (DEFAULT, BEST, "zero3", "megatron", "factor", "bfs")
SAME = 1e-9


def targets() -> dict[str, str]:
    """Short names, and what the command line calls them."""
    torch, jax = FOLDER / "07_torch_models" / "samples.py", FOLDER / "08_jax_models" / "samples.py"
    names = (line.split("(")[0][4:] for line in torch.read_text(encoding="utf-8").splitlines() if line[:4] == "def ")
    models = {name: f"{torch}:{name}" for name in names if name[0] != "_"}
    return models | {f"jax.{name}": f"{jax}:{name}" for name in JAX}


def measure(target: str, mesh: Mesh) -> dict[str, Any]:
    """Per mode what is said of it, or why it does not plan the target; and what `optimal` proves."""
    made, inputs = load_target(target)
    rows = {row.mode: row for row in compare(made, inputs, [mesh], MODES)}
    modes, proof = {}, {}
    for mode, row in rows.items():
        begun = time.process_time()
        try:
            planned = plan(made, inputs, mesh, search=mode)
        except AutoshardError as error:
            modes[mode] = {"refused": str(error).splitlines()[0]}
            continue
        modes[mode] = {
            "plan": planned.to_json()["cost"]["seconds"],
            "compare": row.to_json()["seconds"],
            "cpu_seconds": time.process_time() - begun,
            "ignored": list(planned.ignored),
        }
        if mode == BEST:
            proof = {name: planned.plan.search_stats[name] for name in ("seconds", "bound", "gap", "proven")}
    return {"operators": len(planned.graph.nodes), "modes": modes, "optimal": proof}


def faults(name: str, row: dict[str, Any]) -> Iterator[str]:
    """What contradicts something else."""
    found, proof = {mode: one for mode, one in row["modes"].items() if "plan" in one}, row["optimal"]
    for mode, one in found.items():
        if one["plan"] != one["compare"]:
            yield f"{name}: mode {mode} takes {one['plan']} s by plan and {one['compare']} s by compare"
        if proof and one["plan"] < proof["bound"] * (1 - SAME):
            yield f"{name}: mode {mode} takes {one['plan']} s, below the bound {proof['bound']} s of {BEST}"
        if proof and not proof["gap"] and one["plan"] < proof["seconds"] * (1 - SAME):
            yield f"{name}: mode {mode} takes {one['plan']} s, below {proof['seconds']} s, which {BEST} proves"
        if mode != BEST and not one["ignored"] and found[DEFAULT]["plan"] > one["plan"] * (1 + SAME):
            yield f"{name}: the default takes {found[DEFAULT]['plan']} s, above {one['plan']} s of mode {mode}"
    if proof and proof["seconds"] != found[BEST]["plan"]:
        yield f"{name}: {BEST} says {proof['seconds']} s of a plan that takes {found[BEST]['plan']} s"


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """Microseconds of every mode, and the gap."""
    made = Table("target", "operators", *MODES, "bound", "gap", "CPU s of default", "of optimal")
    for name, row in rows.items():
        found, proof = row["modes"], row["optimal"]
        cells = (f"{found[mode]['plan'] * 1e6:,.1f}" if "plan" in found[mode] else "-" for mode in MODES)
        proved = (f"{proof['bound'] * 1e6:,.1f}", f"{proof['gap']:.2%}") if proof else ("-", "-")
        times = (f"{found[mode]['cpu_seconds']:.1f}" if "plan" in found[mode] else "-" for mode in (DEFAULT, BEST))
        made.add_row(name, str(row["operators"]), *cells, *proved, *times)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="targets; a name stands for all that contain it")
    parser.add_argument("--mesh", default="dp=2,tp=4")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    known, rows, wrong = targets(), {}, []
    chosen = [one for one in known if not asked.names or any(name in one for name in asked.names)]
    for name in chosen:
        rows[name] = measure(known[name], Mesh.parse(asked.mesh.replace(",", " ")))
        wrong += faults(name, rows[name])
        print(f"{len(rows)} of {len(chosen)}: {name}", file=sys.stderr, flush=True)
    if asked.json:
        print(json.dumps(rows, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table(rows))
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
