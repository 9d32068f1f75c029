"""Which dims of values are tokens: samples, the places of a sequence, rows and columns of an image.

Between products by columns and by rows a stream can be in parts along these (Korthikanti et al. 2022, arXiv 2205.05198,
section 4.2). They are what a product by columns does not contract and one by rows does not make, and all dims of the
graph that are the same by the operators' rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoshard.ir.graph import Graph, Node, Value
from autoshard.search.named.pairs import COLUMNS, Pairs

Part = tuple[Value, int, int]
"""A factor of a dim: the value, the dim, and how many blocks of the factor the dim has (1: the factor is major)."""


def token_dims(graph: Graph, pairs: Pairs) -> dict[Value, tuple[int, ...]]:
    """The dims of values that tokens are in, as their major part, by value; of those that have some."""
    ahead = list(dict.fromkeys(_first(pairs)))
    seen = set(ahead)
    for value, dim, outer in ahead:
        nodes = [user for user, _ in graph.users[value]]
        nodes += [graph.producers[value][0]] if value in graph.producers else []
        for node in dict.fromkeys(nodes):
            more = [one for one in _same(node, value, dim, outer) if one not in seen]
            seen.update(more)
            ahead += more
    found: dict[Value, set[int]] = {}
    for value, dim, outer in seen:
        if outer == 1:
            found.setdefault(value, set()).add(dim)
    return {value: tuple(sorted(dims)) for value, dims in found.items()}


def _first(pairs: Pairs) -> Iterator[Part]:
    """The tokens that products by columns take and products by rows give."""
    for node, kind in pairs.kinds.items():
        use = pairs.uses[node]
        if kind == COLUMNS:
            value, dims, but = node.operands[use.data], node.rule.operands[use.data], {*use.contracted, *use.batch}
        else:
            value, dims, but = node.results[0], node.rule.results[0], {*use.kept, *use.batch}
        for i, dim in enumerate(dims):
            if dim and not but & set(dim):
                yield value, i, 1


def _same(node: Node, value: Value, dim: int, outer: int) -> Iterator[Part]:
    """The parts of a node's operands and results that are one factor with a part of one of them."""
    if not node.op.has_rule:
        return
    sides = [*zip(node.operands, node.rule.operands, strict=True), *zip(node.results, node.rule.results, strict=True)]
    factors = {factor_at(node, dims[dim], outer) for one, dims in sides if one is value} - {None}
    for one, dims in sides:
        for i, of in enumerate(dims):
            yield from ((one, i, blocks(node, of[: of.index(factor)])) for factor in factors if factor in of)


def factor_at(node: Node, factors: tuple[int, ...], outer: int) -> int | None:
    """The one of a dim's factors that the dim has `outer` blocks of, and more than one part; None if none begins
    there."""
    for i, factor in enumerate(factors):
        if node.rule.factors[factor].size > 1 and blocks(node, factors[:i]) == outer:
            return factor
    return None


def blocks(node: Node, factors: tuple[int, ...]) -> int:
    """How many parts some factors of a node's rule make together."""
    return math.prod(node.rule.factors[i].size for i in factors)
