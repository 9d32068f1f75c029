"""Where the sequences of attention come from, and attention by heads between operators that have sequences in parts.

Context parallelism splits the sequence of what goes in. What works on single tokens then needs nothing; attention takes
the keys and values of all ranks, gathered or as blocks that go round (Liu et al. 2023, "Ring Attention with Blockwise
Transformers"), or its heads in parts instead, with all-to-alls before and behind (Jacobs et al. 2023, "DeepSpeed
Ulysses", section 3).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.core.strategy import Strategy
from autoshard.ir.graph import DATA, Graph, Node, Value
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import merge_refs
from autoshard.ops.attention_blocks import KEY, QUERY
from autoshard.search.named.completion import split
from autoshard.search.named.streams import blocks, factor_at
from autoshard.search.named.structure import Structure

WITHOUT_SEQUENCE = ("AttentionMaskGrad",)
"""Gradients whose dims are those of scores, which stay by heads."""


def is_attention(node: Node) -> bool:
    """Whether a node is attention or a gradient of it."""
    return node.op.name in QUERY


def sequence_dims(graph: Graph, structure: Structure) -> dict[Value, int]:
    """The dim of data inputs that becomes the sequence of queries or keys, or its major part (rows of an image); of
    inputs that begin with the same sizes, such as labels, the same dim. Empty where there is no attention, or the
    sequence is no dim behind the batch: a part of one (windows of an image) cannot be in contiguous parts."""
    found: dict[Value, int] = {}
    for value, dim, outer in _becoming(graph, structure):
        if graph.role_of.get(value) == DATA and outer == 1 and dim > 0:
            found[value] = dim
    sizes = {value.type.shape[: dim + 1]: dim for value, dim in found.items()}
    for value in graph.inputs:
        if graph.role_of[value] == DATA and value not in found:
            same = [dim for shape, dim in sizes.items() if value.type.shape[: dim + 1] == shape]
            found.update([(value, max(same))] if same else [])
    return found


def misfit(structure: Structure, dims: Mapping[Value, int], parts: int) -> str | None:
    """Why sequences, which are in these dims of inputs, cannot be in so many parts; None if they can."""
    attentions = [node for node in structure.forward if node.op.name == "Attention"]
    if not attentions:
        return "it has no operator Attention, between whose queries and keys a sequence could be split"
    if not dims:
        return (
            "no data input has a dim behind the batch whose contiguous parts become those of the sequence of an "
            "attention"
        )
    if all(value.type.shape[dim] % parts for value, dim in dims.items()):
        shown = ", ".join(f"{value.name} {value.type}" for value in dims)
        return f"{parts} parts divide the sequence of none of {shown}"
    if all(node.operands[0].type.shape[-2] % parts for node in attentions):
        shown = ", ".join(str(one) for one in sorted({node.operands[0].type.shape[-2] for node in attentions}))
        return f"{parts} parts divide the sequence of no attention; these have {shown} queries"
    return None


def words_looked_up(graph: Graph, structure: Structure) -> dict[Node, int]:
    """Look-ups of words that become a sequence, and the factor of their dim that does: words that are made of others,
    as labels are shifted, lie whole, and are in parts from there on."""
    dims: dict[Value, set[tuple[int, int]]] = {}
    for value, dim, outer in _becoming(graph, structure):
        dims.setdefault(value, set()).add((dim, outer))
    found = {}
    for node, _ in structure.lookups:
        places = dims.get(node.results[0], ()) if node.operands[1] in structure.fed else ()
        factors = {factor_at(node.rule, node.rule.results[0][dim], outer) for dim, outer in places}
        if len(factors) == 1 and None not in factors:
            found[node] = factors.pop()
    return found


def _becoming(graph: Graph, structure: Structure) -> list[tuple[Value, int, int]]:
    """All dims of values of which a part becomes the sequence of queries or keys, theirs first: the value, the dim, and
    how many blocks it has of that part (1 where the sequence is its major part)."""
    ahead = [
        (node.operands[i], node.operands[i].type.rank - 2, 1)
        for node in structure.forward
        if node.op.name == "Attention"
        for i in (0, 1)
    ]
    seen = set(ahead)
    for value, dim, outer in ahead:
        if value not in graph.role_of:
            more = [one for one in _behind(graph, value, dim, outer) if one[0] in structure.fed and one not in seen]
            seen.update(more)
            ahead += more
    return ahead


def _behind(graph: Graph, value: Value, dim: int, outer: int) -> list[tuple[Value, int, int]]:
    """The dims of a node's operands that a part of a dim of its result is made of."""
    node, i = graph.producers[value]
    factor = factor_at(node.rule, node.rule.results[i][dim], outer) if node.op.has_rule else None
    if factor is None:
        return []
    sides = zip(node.operands, node.rule.operands, strict=True)
    return [
        (one, place, blocks(node.rule, of[: of.index(factor)]))
        for one, dims in sides
        for place, of in enumerate(dims)
        if factor in of
    ]


def by_heads(node: Node, strategy: Strategy, over: Refs) -> Strategy | None:
    """Attention with its heads split over axes that nothing else in it is split by; None if no heads divide.

    Heads that keys have, too, come first; of queries that share keys the number in a group may divide instead.
    """
    queries, keys = (node.rule.operands[of[node.op.name]][1:-2] for of in (QUERY, KEY))
    shared = {i for dim in keys for i in dim}
    for factor in sorted((dim[0] for dim in queries if len(dim) == 1), key=lambda i: i not in shared):
        made = split(node, {factor: over}, strategy)
        if made is not None and node.rule.factors[factor].size % made.parts[factor] == 0:
            return made
    return None


def by_queries(node: Node, strategy: Strategy, over: Refs) -> Strategy | None:
    """The gradient of keys and values as terms, of the queries that each rank has; None if these do not divide.

    Where the terms are fewer bytes than what else would come from all ranks, queries and their slopes.
    """
    terms = sum(value.type.nbytes for value in node.results)
    if sum(value.type.nbytes for i, value in enumerate(node.operands) if i not in _keys(node)) <= terms:
        return None
    (factor,) = node.rule.operands[QUERY[node.op.name]][-2]
    return split(node, {factor: over}, strategy)


def keys_of(node: Node) -> tuple[Value, ...]:
    """The keys and the values of an attention, or of a gradient of it."""
    return tuple(node.operands[i] for i in _keys(node))


def _keys(node: Node) -> tuple[int, int]:
    first = KEY[node.op.name]
    return first, first + 1


def by_sequence(layout: Layout, over: Refs) -> Layout:
    """The layout of an attention's result with the sequence, its last dim but one, in parts instead of the heads."""
    names = {ref.name for ref in over}
    dims = [tuple(ref for ref in refs if ref.name not in names) for refs in layout.dims]
    dims[-2] = merge_refs((*dims[-2], *over))
    return layout.with_dims(dims)
