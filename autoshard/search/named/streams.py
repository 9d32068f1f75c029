"""Streams between products by columns and by rows, in parts along tokens (Korthikanti et al. 2022, section 4.2).

What stands between the products, norms say, then needs no other part. Batch normalization takes statistics over tokens:
there streams are in parts along features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from autoshard.core.rule import Rule
from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import size_of
from autoshard.search.named.pairs import COLUMNS, Pairs
from autoshard.search.named.structure import Structure


class Streams:
    """The streams of a graph, and how they lie in parts."""

    def __init__(self, graph: Graph, structure: Structure, pairs: Pairs) -> None:
        self.graph, self.structure, self.pairs = graph, structure, pairs

    def is_stream(self, value: Value) -> bool:
        """Whether a sum over the ranks that split weights is completed in parts: not numbers that columns are scaled
        by, nor latents, which all columns need whole."""
        is_latent = self.graph.cotangents.get(value, value) in self.pairs.latents
        return value.type.elements > self.pairs.tokens and not is_latent

    def spread(self, value: Value, layout: Layout, over: Refs) -> Layout:
        """A layout with tokens in parts over further axes, where these divide them; complete, if it was a sum."""
        shape = value.type.shape if over else ()
        for dim in self._dims(value) if len(shape) > 1 else ():
            if shape[dim] % (layout.parts[dim] * size_of(over)) == 0:
                return layout.final().with_dim(dim, (*layout.dims[dim], *over))
        return layout.final()

    def gathered_rows(self, node: Node, strategy: Strategy, over: Refs) -> Strategy | None:
        """The gradient of a table of which few rows are looked up (positions), made of all their gradients rather than
        of terms of the whole table; None for others, or where no axis of `over` splits these."""
        tables = {look.operands[0] for look, _ in self.structure.lookups}
        if self.graph.cotangents.get(node.results[0]) not in tables or not over:
            return None
        rows = [one for one in node.operands if one in self.structure.fed and one.type.dtype.is_float]
        if len(rows) != 1 or 2 * rows[0].type.elements > node.results[0].type.elements:
            return None
        names = {ref.name for ref in over}
        axes = [
            tuple(ref for ref in refs if ref.name not in names) if i in node.rule.summed else refs
            for i, refs in enumerate(strategy.axes)
        ]
        return None if tuple(axes) == strategy.axes else replace(strategy, axes=tuple(axes))

    def _dims(self, value: Value) -> Sequence[int]:
        """The dims along which a value's tokens can be split, the first choice first; where statistics are over all
        tokens (batch normalization), features before them: what lies between products is to need no others."""
        found = self._tokens.get(self.graph.cotangents.get(value, value), self._tokens.get(value))
        if found is None:  # nothing that products by columns or rows have to do with
            return ((0, 1) if self._batch_first else (1, 0)) if value.type.rank > 2 else (0,)
        if self.statistics:
            return [*(dim for dim in range(value.type.rank) if dim not in found), *found]
        return sorted(found, key=lambda dim: (dim == 0) is not self._batch_first)

    @cached_property
    def _tokens(self) -> Mapping[Value, tuple[int, ...]]:
        return token_dims(self.graph, self.pairs)

    @cached_property
    def statistics(self) -> tuple[Node, ...]:
        """The forward nodes that take means, or sums, of features over all tokens, which are then spread over these
        again: not those of a loss."""
        taken = filter(self._is_over_tokens, self.structure.forward)
        return tuple(node for node in taken if self.structure.is_spread(node.results[0]))

    def _is_over_tokens(self, node: Node) -> bool:
        if len(node.operands) != 1 or not node.op.has_rule or node.operands[0] not in self._tokens:
            return False
        (dims,) = node.rule.operands
        reduced = {dim for dim, factors in enumerate(dims) if factors and {*factors} <= {*node.rule.summed}}
        return reduced.issuperset(self._tokens[node.operands[0]]) and len(reduced) < len(dims)

    @cached_property
    def _batch_first(self) -> bool:
        """Whether the batch is cut further, not the sequence: where some products have both in one dim, of which only
        the batch can be."""
        ranks = {use.node.results[0].type.rank for use in self.structure.weight_uses if not use.batch}
        words = [node for node, _ in self.structure.lookups if node.operands[1] in self.structure.fed]
        looked_up = [node.results[0].type for node in words]
        ranks |= {one.rank for one in looked_up if one.dtype.is_float}
        return {2, 3} <= ranks


# Which dims of values are tokens: samples, the places of a sequence, rows and columns of an image.
#
# Between products by columns and by rows a stream can be in parts along these (Korthikanti et al. 2022, arXiv
# 2205.05198, section 4.2). They are what a product by columns does not contract and one by rows does not make, and all
# dims of the graph that are the same by the operators' rules.


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
    values = (*node.operands, *node.results)
    for side, own in enumerate(values if node.op.has_rule else ()):
        if own is value:
            yield from ((values[i], place, blocks) for i, place, blocks in _along(node.rule, side, dim, outer))


@lru_cache(maxsize=1 << 12)
def _along(rule: Rule, side: int, dim: int, outer: int) -> tuple[tuple[int, int, int], ...]:
    """The parts that are one factor with a part of a dim: which operand or result, counted through, as in `Part`."""
    sides = (*rule.operands, *rule.results)
    factor = factor_at(rule, sides[side][dim], outer)
    return tuple(
        (i, place, blocks(rule, of[: of.index(factor)]))
        for i, dims in enumerate(sides)
        for place, of in enumerate(dims)
        if factor in of
    )


def factor_at(rule: Rule, factors: tuple[int, ...], outer: int) -> int | None:
    """The one of a dim's factors that the dim has `outer` blocks of, and more than one part; None if none begins
    there."""
    for i, factor in enumerate(factors):
        if rule.factors[factor].size > 1 and blocks(rule, factors[:i]) == outer:
            return factor
    return None


def blocks(rule: Rule, factors: tuple[int, ...]) -> int:
    """How many parts some factors of a rule make together."""
    return math.prod(rule.factors[i].size for i in factors)
