"""Propagation time against Shardy's C++ pipeline on GPT training steps, in the same run; their answers are compared.

    python benchmarks/propagation.py [--layers 4 16 64] [--mesh 2x4] [--repeat 5] [--json]

Import: from text to a graph. Ours: everything after that, from the graph to final shardings. Shardy: the pass
`sdy-propagation-pipeline` in jaxlib on the parsed module, verifier off. Of several runs the median is shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from rich.console import Console
from rich.table import Table


def measure(layers: int, mesh: tuple[int, int], repeat: int) -> dict[str, Any]:
    """Medians of one size, in this process."""
    from autoshard.api.propagate import propagate
    from autoshard.frontends import from_stablehlo
    from benchmarks.gpt_module import module

    text = module(layers, *mesh)
    rows: list[tuple[float, float, float]] = []
    equal = True
    for _ in range(repeat):
        begin = time.perf_counter()
        imported = from_stablehlo(text)
        read = time.perf_counter()
        spread = propagate(imported)
        done = time.perf_counter()
        seconds, answer = shardy(text)
        equal = equal and spread.to_mlir() == answer
        rows.append((read - begin, done - read, seconds))
    middle = [statistics.median(column) for column in zip(*rows, strict=True)]
    first = rows[0][1]
    names = ("import", "ours", "shardy")
    figures = dict(zip(names, middle, strict=True))
    return {
        "layers": layers,
        "operators": sum(1 for _ in imported.operations),
        **figures,
        "first": first,
        "ratio": figures["ours"] / figures["shardy"],
        "equal": equal,
    }


def shardy(text: str) -> tuple[float, str]:
    """Seconds of Shardy's pipeline on the module, and the module that it leaves."""
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    with jax_mlir.make_ir_context():
        parsed = ir.Module.parse(text)
        passes = PassManager.parse("builtin.module(sdy-propagation-pipeline)")
        passes.enable_verifier(False)
        begin = time.perf_counter()
        passes.run(parsed.operation)
        return time.perf_counter() - begin, str(parsed)


def show(rows: list[dict], mesh: str) -> None:
    """A row per number of layers."""
    table = Table(title=f"propagation of a GPT training step, mesh {mesh}")
    for name in ("layers", "operators", "import s", "ours, first s", "ours s", "Shardy s", "ratio", "same answer"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [row["import"], row["first"], row["ours"], row["shardy"], row["ratio"]]
        shown = [f"{cell:.3f}" for cell in cells]
        table.add_row(str(row["layers"]), str(row["operators"]), *shown, "yes" if row["equal"] else "NO")
    Console().print(table)


def main() -> None:
    from benchmarks.fresh import measured, tell

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--mesh", default="2x4", help="sizes of the axes data and model")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data, model = map(int, options.mesh.split("x"))
    tasks = [(layers, (data, model), options.repeat) for layers in options.layers]
    rows = measured(measure, tasks, "propagating")
    tell(rows, options.json, lambda rows: show(rows, options.mesh))


if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
