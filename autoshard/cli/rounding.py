"""What of an updated tensor rounding decides: how far the unsplit run moves it when it is rounded otherwise.

Some gradients are zero but for rounding, such as that of the bias of attention's keys, and Adam divides them by their
own size: no two correct programs agree on such elements. They are found by running the program several times, its
inputs and the terms of its sums moved by their last digit, as sums in another order are (Monte Carlo arithmetic, Parker
1997); elements that are well determined stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from autoshard.cli.agreement import distances
from autoshard.core.rule import REDUCTION
from autoshard.core.tensortype import dtype
from autoshard.ir.graph import Graph, Node
from autoshard.ir.run import Held
from autoshard.trace.evaluate import Replicated, evaluate
from autoshard.trace.function import Traced

_RUNS, _SEED = 16, 0
_DIGITS = 2.0
"""By how many units in the last place, of its own type, a number moves at most."""


def moved_by_rounding(
    traced: Traced, inputs: Sequence[np.ndarray], names: Collection[str]
) -> Iterator[dict[str, np.ndarray]]:
    """For updated tensors of these names, element by element the largest distance from the first run, after each run.

    Args:
        inputs: an array per input of the graph, as it was before the step.
    """
    updates = {traced.graph.inputs[into].name: out for out, into in traced.graph.updates.items()}
    wanted = {name: updates[name] for name in names if name in updates}
    rng = np.random.default_rng(_SEED)
    first = evaluate(traced.graph, inputs)
    moved = {name: np.zeros(np.shape(first[out])) for name, out in wanted.items()}
    for _ in range(_RUNS):
        # Narrow parameters stay: moved by a digit, each would move by more than its step.
        rounded = [one if one.dtype.itemsize < 4 else _rounded_otherwise(one, rng) for one in inputs]
        found = evaluate(traced.graph, rounded, partial(_SumsRoundedOtherwise, rng=rng))
        for name, out in wanted.items():
            moved[name] = np.maximum(moved[name], distances(found[out], first[out]))
        yield dict(moved)


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
    """Real numbers moved by about their last digit; whole and all other ones as they are."""
    if not dtype(array.dtype).is_float:
        return array
    wide = array.astype(np.float64)
    digit = float(np.spacing(np.ones((), array.dtype)))
    moved = wide * (1 + _DIGITS * digit * rng.uniform(-1, 1, array.shape))
    return np.where(wide == np.rint(wide), wide, moved).astype(array.dtype)
