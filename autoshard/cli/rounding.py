"""What of an updated tensor rounding decides: how far the unsplit run moves it when its inputs are rounded otherwise.

Some gradients are zero but for rounding, such as that of the bias of attention's keys, and Adam divides them by their
own size: no two correct programs agree on such elements. They are found by running the program several times, its
inputs moved by their last digit; elements that are well determined stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import Traced

_RUNS, _LAST_DIGIT, _SEED = 4, 2.0**-22, 0


def moved_by_rounding(traced: Traced, inputs: Sequence[np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
    """For updated tensors of these names, element by element the largest distance of several runs from the first.

    Args:
        inputs: an array per input of the graph, as it was before the step.
    """
    updates = {traced.graph.inputs[into].name: out for out, into in traced.graph.updates.items()}
    wanted = {name: updates[name] for name in names if name in updates}
    rng = np.random.default_rng(_SEED)
    first = evaluate(traced.graph, inputs)
    moved = {name: np.zeros(np.shape(first[out])) for name, out in wanted.items()}
    for _ in range(_RUNS):
        found = evaluate(traced.graph, [_rounded_otherwise(one, rng) for one in inputs])
        for name, out in wanted.items():
            far = np.abs(np.asarray(found[out], np.float64) - np.asarray(first[out], np.float64))
            np.maximum(moved[name], far, out=moved[name])
    return moved


def _rounded_otherwise(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of 4 bytes or more moved by about their last digit; all others as they are."""
    if array.dtype not in (np.float32, np.float64):
        return array
    return (array * (1 + _LAST_DIGIT * rng.uniform(-1, 1, array.shape))).astype(array.dtype)
