"""Plan models of `samples.py`, run them on MPI ranks, compare with PyTorch, and print a table.

    python check_all.py [NAME ...] [-n 8] [--mesh dp=2,tp=4]

PyTorch is imported by this process alone; the ranks, started once for all models, get plans and numbers. Each model is
done as `autoshard run samples.py:NAME -n 8 --mesh dp=2,tp=4 --check` does it. The exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from autoshard.cli import model_run
from autoshard.layout.mesh import Mesh
from autoshard.runtime.launch import launch

SAMPLES = Path(__file__).with_name("samples.py")
MODELS = ("gpt2", "llama", "qwen2", "bert", "vit", "resnet", "mixtral", "t5")
TRAINED = tuple(f"{name}_training" for name in ("gpt2", "llama", "mixtral", "resnet"))
NAMES = (*MODELS, "mixtral_batched", *TRAINED, *(f"{name}_annotated" for name in (*MODELS, *TRAINED)))


def check(names: Sequence[str], mesh: Mesh, timeout: float | None = None) -> dict[str, dict[str, Any]]:
    """What `model_run.outcome` tells of each model that ran, with the seconds that importing and planning took."""
    found: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="autoshard_") as folder:
        paths = {}
        for name in names:
            begun = perf_counter()
            paths[name] = model_run.prepare(f"{SAMPLES}:{name}", mesh, None, True, Path(folder))
            found[name] = {"prepared": perf_counter() - begun}
        launch([model_run.__file__, *map(str, paths.values())], mesh.devices, timeout=timeout)
        for name, path in paths.items():
            told = path.with_suffix(".json")
            found[name] |= json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {}
    return found


def table(found: dict[str, dict[str, Any]]) -> Table:
    """A row per model."""
    made = Table("model", "annotated", "split", "collectives", "difference", "of a step", "plan s", "run s")
    for name, row in found.items():
        made.add_row(*_cells(name, row))
    return made


def _cells(name: str, row: dict[str, Any]) -> Iterator[str]:
    model = name.removesuffix("_annotated")
    yield model
    yield "" if model == name else "yes"
    if "wrong" not in row:
        yield from ("did not run", *[""] * 5)
        return
    yield f"{row['split']} of {row['operators']}"
    yield str(row["collectives"])
    yield f"{row['difference']:.1e}{' differs' if row['wrong'] else ''}"
    yield f"{row['step_difference']:.1e}" if row["updates"] else ""
    yield f"{row['prepared']:.1f}"
    yield f"{row['seconds']:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Plan models, run them on MPI ranks, compare with PyTorch.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("-n", "--ranks", type=int, default=8)
    parser.add_argument("--mesh", default="dp=2,tp=4")
    given = parser.parse_args()
    mesh = Mesh.parse(given.mesh)
    if mesh.devices != given.ranks:
        parser.error(f"mesh '{mesh}' has {mesh.devices} devices, but -n is {given.ranks}")
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no model {', '.join(unknown)}; known are {', '.join(NAMES)}")
    found = check(given.names or NAMES, mesh)
    Console(width=120).print(table(found))
    return int(any(row.get("wrong", True) for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
