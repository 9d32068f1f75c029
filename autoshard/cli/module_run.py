"""`autoshard run MODULE.mlir`: the launching process reads and plans the module and writes the plan down; each rank
runs it on random inputs, and compares if asked to.

So the module is read once, and ranks need no JAX.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from autoshard.api import Planned, plan
from autoshard.core.tensortype import TOKEN, TensorType
from autoshard.ir.graph import Graph, walk
from autoshard.ir.run import TOKEN_VALUE
from autoshard.mindspore.communication import get_rank
from autoshard.pipeline.planning import PlannedPipeline
from autoshard.trace.evaluate import check_known, evaluate
from costmodel import format_count

SEED = 0
UNSPLIT = "the unsplit run"
_TOLERANCE, _NARROW_TOLERANCE = 1e-4, 2e-2
# Whole numbers may be indices: most of these lie inside.
_SMALL = 4


def prepare(
    module: Path, ranks: int, folder: Path, engine: str = "numpy", device: str = "auto", **settings: Any
) -> Path:
    """Plan a module for so many ranks and write it to a file in `folder`; the file.

    Args:
        settings: what else `autoshard.plan` takes by name.

    Raises:
        AutoshardError: what reading or planning it finds wrong.
    """
    # Ranks need the plan alone: what JAX has read stays here.
    planned = replace(plan(module, devices=ranks, **settings), module=None)
    check_known(planned.traced.graph)
    planned.check_engine(engine, device)
    path = folder / f"{module.stem}.pickle"
    path.write_bytes(pickle.dumps(planned))
    return path


def run_planned(
    planned: Planned, check: bool, engine: str = "numpy", into: Path | None = None, device: str = "auto"
) -> int:
    """Run it on the ranks that are there; the exit code: 1 if `check` finds outputs that differ, else 0.

    Args:
        into: a file to which rank 0 writes what came out, as JSON; then nothing is printed.
    """
    inputs, begun = random_inputs(planned.graph, SEED), perf_counter()
    outputs = planned.run(*inputs, engine=engine, device=device)
    seconds = perf_counter() - begun
    if get_rank():
        return 0
    if into is None:
        print(run_summary(planned, outputs))
    graph, different = planned.traced.graph, []
    if check:
        different = differences(outputs, evaluate(graph, inputs), is_narrow(graph))
    if into is not None:
        agreed = {"wrong": different, "whose": UNSPLIT} if check else {}
        found = {**counted(planned), "seconds": seconds, "shapes": shown_types(outputs), **agreed}
        into.write_text(json.dumps(found), encoding="utf-8")
        return 1 if different else 0
    for line in different:
        print(f"differs from {UNSPLIT}: {line}", file=sys.stderr)
    if check and not different:
        print(f"equal to {UNSPLIT}")
    return 1 if different else 0


def random_inputs(graph: Graph, seed: int) -> list[np.ndarray]:
    """An array for each input of a graph, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [_random(value.type, rng) for value in graph.inputs]


def _random(of: TensorType, rng: np.random.Generator) -> np.ndarray:
    if of.dtype is TOKEN:
        return np.zeros((), bool)  # it has no contents
    kind = np.dtype(of.dtype.numpy).kind
    if kind == "b":
        return rng.random(of.shape) < 0.5
    if kind == "c":
        return np.asarray(rng.normal(size=of.shape) + 1j * rng.normal(size=of.shape), of.dtype.numpy)
    if of.dtype.is_float:
        return np.asarray(rng.normal(size=of.shape)).astype(of.dtype.numpy)
    least = 0 if of.dtype.bits > 2 else -1
    return np.asarray(rng.integers(least, min(_SMALL, 2 ** (of.dtype.bits - 1)), of.shape)).astype(of.dtype.numpy)


def is_narrow(graph: Graph) -> bool:
    """Whether numbers of two bytes or less, such as bfloat16, take part: results are then exact to their digits."""
    results = (value for node in walk(graph.nodes) for value in node.results)
    return any(value.type.dtype.is_float and value.type.dtype.bits <= 16 for value in (*graph.inputs, *results))


def differences(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], narrow: bool = False) -> list[str]:
    """For each output that differs, in words how: floats by more than a small share of the largest, others at all.

    Args:
        narrow: allow what numbers of two bytes on the way lead to, see `is_narrow`.
    """
    lines = []
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if other is TOKEN_VALUE:
            continue
        far, most = _distance(one, other, narrow)
        if far > most:
            lines.append(f"output {i}, {one.dtype}{list(one.shape)}, by up to {far:.3g}; up to {most:.3g} is rounding")
    return lines


def _distance(one: np.ndarray, other: np.ndarray, narrow: bool) -> tuple[float, float]:
    """The largest difference, and the largest that rounding explains."""
    if other.dtype.kind in "biu":
        return float(np.any(one != other)), 0.0
    wide = np.complex128 if other.dtype.kind == "c" else np.float64
    a, b = one.astype(wide), other.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.all(same | finite):
        return float("inf"), 0.0
    tolerance = _NARROW_TOLERANCE if narrow or other.dtype.itemsize <= 2 else _TOLERANCE
    far = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    return float(np.max(far, initial=0.0)), tolerance * float(np.max(np.abs(np.where(finite, b, 0)), initial=0.0))


def run_summary(planned: Planned | PlannedPipeline, outputs: Sequence[np.ndarray]) -> str:
    """What ran, in one line."""
    found = counted(planned)
    return (
        f"{planned.graph.name} ran on {planned.described_devices}: {found['split']} of {found['operators']} operators "
        f"split, {format_count(planned.collectives, 'collective')}; outputs {', '.join(shown_types(outputs))}"
    )


def counted(planned: Planned | PlannedPipeline) -> dict[str, int]:
    """How many operators a plan has, how many of them are split, and its collectives."""
    split = sum(one.work_split > 1 for one in planned.strategies)
    return {"operators": len(planned.strategies), "split": split, "collectives": planned.collectives}


def shown_types(arrays: Sequence[np.ndarray]) -> list[str]:
    """Element types and shapes, like `float32[4, 6]`."""
    return [f"{array.dtype}{list(array.shape)}" for array in arrays]


if __name__ == "__main__":
    prepared, (engine, device), options = Path(sys.argv[1]), sys.argv[2:4], sys.argv[4:]
    into = prepared.with_suffix(".json") if "--json" in options else None
    sys.exit(run_planned(pickle.loads(prepared.read_bytes()), "--check" in options, engine, into, device))
