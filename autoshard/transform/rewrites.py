"""What is made of a model's graph before it is differentiated: `plainly_written(graph, annotated nodes)` of an imported
one; one operator for each attention of cells and functions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from autoshard.ir.graph import Graph, Node
from autoshard.trace.function import Traced
from autoshard.transform.along_batches import along_batches
from autoshard.transform.attention import joined_attention
from autoshard.transform.split_columns import split_columns
from autoshard.transform.unmerge import unmerged

Rewrite = Callable[[Graph, Collection[Node]], Graph]
"""What is made of a graph, in which the given nodes stay."""


def rewritten_trace(traced: Traced, rewrite: Rewrite = joined_attention) -> Traced:
    """The trace of a model that is not differentiated, with its graph rewritten; annotated nodes stay."""
    return replace(traced, graph=rewrite(traced.graph, traced.annotations))


def plainly_written(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph with one operator for each attention, rows of several dims where people flattened them, samples that
    are looked up in themselves, and columns cut before they are reshaped; nodes in `keep` stay."""
    return joined_attention(split_columns(unmerged(along_batches(graph, keep), keep), keep), keep)
