"""What is made of a model's graph before it is differentiated: `plainly_written(graph, annotated nodes)`."""

from __future__ import annotations

from collections.abc import Collection

from autoshard.ir.graph import Graph, Node
from autoshard.transform.along_batches import along_batches
from autoshard.transform.attention import joined_attention
from autoshard.transform.split_columns import split_columns
from autoshard.transform.unmerge import unmerged


def plainly_written(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph with one operator for each attention, rows of several dims where people flattened them, samples that
    are looked up in themselves, and columns cut before they are reshaped; nodes in `keep` stay."""
    return joined_attention(split_columns(unmerged(along_batches(graph, keep), keep), keep), keep)
