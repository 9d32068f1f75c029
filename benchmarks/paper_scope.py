"""Operators of a model that the papers on named plans have no formula for, from its graph alone.

ZeRO splits the batch, of which each rank works on samples of its own (Rajbhandari et al. 2019, arXiv 1910.02054,
section 5); between products by columns and by rows there is nothing that does not work on each token by itself
(Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.1: layer norms, dropouts, sums). Where an operator does more,
what it sends is in no formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autoshard.core.rule import PERMUTATION, REPLICATE
from autoshard.ir.graph import DATA, Graph, Node, Value
from autoshard.search.named.pairs import Pairs
from autoshard.search.named.streams import blocks, factor_at, token_dims
from autoshard.search.named.structure import Structure

EXCHANGES = ("DispatchTokens", "CombineTokens")
"""Operators that send tokens to experts, which have formulas of their own."""


def across_samples(graph: Graph, structure: Structure) -> list[Node]:
    """Forward nodes that work on samples of other ranks: that look rows of other samples up, sort all, or multiply
    samples with each other. Not sums over the batch alone: losses, and statistics, which are counted."""
    ahead = [(value, 0, 1) for value in graph.inputs if graph.role_of[value] == DATA and value.type.rank]
    samples: dict[Value, set[tuple[int, int]]] = {}
    for value, dim, outer in ahead:
        samples.setdefault(value, set()).add((dim, outer))
    found = []
    for node in structure.forward:
        if not node.op.has_rule:
            continue
        mine = {i: _factors(node, dims, samples.get(value, ())) for i, (value, dims) in _operands(node)}
        factors = set().union(*mine.values())
        if node.op.name not in EXCHANGES and _mixes(node, structure, mine):
            found.append(node)
        for value, dims in zip(node.results, node.rule.results, strict=True):
            spots = _places(node, dims, factors)
            samples.setdefault(value, set()).update(spots)
    return found


def _operands(node: Node) -> Iterator[tuple[int, tuple[Value, tuple]]]:
    return enumerate(zip(node.operands, node.rule.operands, strict=True))


def _factors(node: Node, dims: tuple, spots: Iterable[tuple[int, int]]) -> set[int]:
    found = (factor_at(node, dims[dim], outer) for dim, outer in spots)
    return {factor for factor in found if factor is not None}


def _places(node: Node, dims: tuple, factors: set[int]) -> set[tuple[int, int]]:
    return {
        (i, blocks(node, of[: of.index(factor)])) for i, of in enumerate(dims) for factor in factors if factor in of
    }


def _mixes(node: Node, structure: Structure, mine: dict[int, set[int]]) -> bool:
    fed = [i for i, value in enumerate(node.operands) if value in structure.fed and mine[i]]
    needs_all = any(_is_whole(node, factor) for i in fed for factor in mine[i])
    if len(fed) < 2 or needs_all:
        return needs_all
    apart = not set.intersection(*(mine[i] for i in fed))
    made = max(value.type.elements for value in node.results)
    return apart or made > 1 and any(factor in node.rule.summed for i in fed for factor in mine[i])


def _is_whole(node: Node, factor: int) -> bool:
    """Whether a node needs all of a dim, and does more than to move it."""
    of = node.rule.factors[factor]
    return of.kind == REPLICATE and not of.exchange


def across_tokens(graph: Graph, structure: Structure, pairs: Pairs) -> list[Node]:
    """Forward nodes that work on a stream, outside of what products by columns and by rows enclose, and not on each
    token by itself: that take windows of tokens, or all of them."""
    tokens = token_dims(graph, pairs)
    begun = {value for node in pairs.kinds for value in node.operands} | set(pairs.streams)
    first = min((pairs.number[graph.producers[one][0]] for one in begun if one in graph.producers), default=0)
    found = []
    for node in structure.forward:
        if not node.op.has_rule or pairs.number[node] <= first or node.op.name in EXCHANGES:
            continue
        spots = [(value, dim) for value in node.operands for dim in range(value.type.rank)]
        if any(spot in pairs.columns for spot in spots):
            continue
        along: set[int] = set()
        for value, dims in zip(node.operands, node.rule.operands, strict=True):
            spots = [(dim, 1) for dim in tokens.get(value, ()) if value in structure.fed]
            along |= _factors(node, dims, spots)
        if any(_is_whole(node, one) for one in along) or takes_windows(node):
            found.append(node)
    return found


def takes_windows(node: Node) -> bool:
    """Whether a node works on windows that overlap: a convolution by more than single elements, or blocks of them."""
    if not node.op.has_rule:
        return False
    if not node.is_product:
        return node.op.name == "ReduceWindow" and any(one.kind == PERMUTATION for one in node.rule.factors)
    weight = zip(node.operands[-1].type.shape, node.rule.operands[-1], strict=True)
    return node.op.name == "Convolution" and any(size > blocks(node, dim) for size, dim in weight)


def named(nodes: list[Node], most: int = 3) -> str:
    """The nodes for people, and of how many kinds more there are."""
    one_each = list({node.op.name: node for node in reversed(nodes)}.values())[::-1]
    shown = ", ".join(f"{node.label} ({node.op.name})" for node in one_each[:most])
    return shown + (f" and {len(nodes) - len(one_each[:most])} more" if len(nodes) > most else "")
