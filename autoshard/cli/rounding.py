"""What of an updated tensor rounding decides: how far the unsplit run moves it when it is rounded otherwise.

Some gradients are zero but for rounding, such as that of the bias of attention's keys, and Adam divides them by their
own size: no two correct programs agree on such elements. They are found by running the program several times, its
inputs and the terms of its sums moved by their last digit, as sums in another order are (Monte Carlo arithmetic, Parker
1997); elements that are well determined stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np

from autoshard.core.rule import REDUCTION
from autoshard.ir.graph import Graph, Node
from autoshard.ir.run import Held
from autoshard.trace.evaluate import Replicated, evaluate
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
        rounded = [_rounded_otherwise(one, rng) for one in inputs]
        found = evaluate(traced.graph, rounded, partial(_SumsRoundedOtherwise, rng=rng))
        for name, out in wanted.items():
            far = np.abs(np.asarray(found[out], np.float64) - np.asarray(first[out], np.float64))
            np.maximum(moved[name], far, out=moved[name])
    return moved


class _SumsRoundedOtherwise(Replicated):
    """Runs nodes with the terms of their sums rounded otherwise; what nodes that add nothing up see stays as it is."""

    def __init__(self, functions: Mapping[str, Graph], rng: np.random.Generator) -> None:
        super().__init__(functions)
        self.rng = rng

    def node(self, node: Node, held: Held) -> tuple:
        if not _adds_up(node):
            return super().node(node, held)
        return super().node(node, {value: _rounded_otherwise(held[value], self.rng) for value in node.operands})


def _adds_up(node: Node) -> bool:
    if node.op.takes_regions or not node.op.has_rule:
        return False
    return node.rule.reduction == "sum" and any(factor.kind == REDUCTION for factor in node.rule.factors)


def _rounded_otherwise(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of 4 bytes or more moved by about their last digit; whole and all other ones as they are."""
    if array.dtype not in (np.float32, np.float64):
        return array
    moved = array * (1 + _LAST_DIGIT * rng.uniform(-1, 1, array.shape))
    return np.where(array == np.rint(array), array, moved).astype(array.dtype)
