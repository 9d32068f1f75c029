"""Where a program picks among equal values: which of them is not said, and frameworks pick others than autoshard.

So do routers of experts whose weights are zero at the start: all experts score alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from autoshard.ir.graph import Graph, Node
from autoshard.ir.run import Held
from autoshard.trace.evaluate import Replicated, evaluate
from autoshard.trace.function import Traced
from autoshard.util.errors import at
from costmodel import format_count


def picked_among_equal(traced: Traced, inputs: Sequence[np.ndarray]) -> Iterator[str]:
    """In words, each top-k of the unsplit run that takes some of several equal values and leaves others.

    Args:
        inputs: an array per input of the graph, as it was before the step.
    """
    watched = _WatchesTopK(traced.graph.functions)
    evaluate(traced.graph, inputs, lambda functions: watched)
    for node, (tied, rows) in watched.ties.items():
        yield f"{node.name} (TopK){at(node.source)} picks among equal values in {tied} of {format_count(rows, 'row')}"


class _WatchesTopK(Replicated):
    """Counts rows whose k-th and next largest elements are equal, and all rows."""

    def __init__(self, functions: Mapping[str, Graph]) -> None:
        super().__init__(functions)
        self.ties: dict[Node, tuple[int, int]] = {}

    def node(self, node: Node, held: Held) -> tuple:
        if node.op.name == "TopK":
            self._watch(node, np.asarray(held[node.operands[0]]))
        return super().node(node, held)

    def _watch(self, node: Node, x: np.ndarray) -> None:
        k, size = node.attrs["k"], x.shape[-1]
        if k == size:
            return
        best = np.sort(x, axis=-1)
        tied = int(np.sum(best[..., size - k] == best[..., size - k - 1]))
        if tied:
            self.ties[node] = tied, x.size // size
