"""Which products of data by weights come in pairs: one by columns, whose columns the next one takes as its rows.

A block of a network leaves its stream by products that are split by columns and comes back to it by one that is split
by rows, whose terms are summed once (Shoeybi et al. 2019, section 3). What comes back is told by the sum with the
stream; products between them, such as those to a latent space, and the router of experts, stay whole. A network without
a stream takes turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from autoshard.ir.graph import Node, Value
from autoshard.search.named.structure import Structure, WeightUse

COLUMNS, ROWS = "columns", "rows"
_MOST_DIMS = 400
"""So many dims of values are followed behind a product before it counts as one that feeds the stream itself."""

Spot = tuple[Value, int]
"""A dim of a value."""


class Pairs:
    """The products of a graph by what a tensor axis splits.

    Args:
        divides: whether the axis can split the columns of a product.
    """

    def __init__(self, structure: Structure, divides: Callable[[WeightUse], bool]) -> None:
        self.structure, self.graph, self.divides = structure, structure.graph, divides
        self.uses = {use.node: use for use in structure.weight_uses}
        self.number = {node: i for i, node in enumerate(self.graph.nodes)}
        self.last_forward = len(structure.forward)

    @cached_property
    def kinds(self) -> dict[Node, str]:
        """COLUMNS or ROWS of each product that is split."""
        found: dict[Node, str] = {}
        columns: set[Spot] = set()
        for node in self.structure.forward:
            use = self.uses.get(node)
            if use is not None and self._rows(use, columns):
                found[node] = ROWS
            elif use is not None and self._begins(use):
                found[node] = COLUMNS
                columns.update(kept_dims(use))
            elif use is None:
                columns.update(_onward(node, columns))
        return found

    @cached_property
    def tokens(self) -> int:
        """Of how many tokens products by rows make something."""
        rows = (use.node.results[0].type for node, use in self.uses.items() if self.kinds.get(node) == ROWS)
        return max((of.elements // of.shape[-1] for of in rows), default=0)

    @staticmethod
    def _rows(use: WeightUse, columns: set[Spot]) -> bool:
        value, dims = use.node.operands[use.data], use.node.rule.operands[use.data]
        return any((value, i) in columns for i, dim in enumerate(dims) if set(dim) & set(use.contracted))

    def _begins(self, use: WeightUse) -> bool:
        """Whether a product is one by columns."""
        if not self.divides(use):
            return False
        if not self._returning or use.node not in self._feeding:
            return True
        return any(other in self._returning for other in self._reached[use.node][0])

    @cached_property
    def _returning(self) -> frozenset[Node]:
        """Products whose columns are added to what they depend on."""
        return frozenset(node for node, (_, stream) in self._reached.items() if stream is not None)

    @cached_property
    def streams(self) -> frozenset[Value]:
        """Values that columns of products are added to which depend on them."""
        return frozenset(stream for _, stream in self._reached.values() if stream is not None)

    @cached_property
    def _reached(self) -> dict[Node, tuple[tuple[Node, ...], Value | None]]:
        """For each product those that contract its columns; or the value that these are added to, if it depends on
        that."""
        return {node: self._follow(use) for node, use in self.uses.items()}

    def _follow(self, use: WeightUse) -> tuple[tuple[Node, ...], Value | None]:
        ahead, reached = list(kept_dims(use)), []
        seen = set(ahead)
        for value, dim in ahead:
            if len(seen) > _MOST_DIMS:
                break
            for node, operand in self.graph.users[value]:
                if self.number[node] >= self.last_forward:
                    continue
                if self._is_sum_with_stream(node, operand, use.node):
                    return (), node.operands[1 - operand]
                other = self.uses.get(node)
                if other is not None:
                    reached += [node] if set(node.rule.operands[operand][dim]) & set(other.contracted) else []
                elif node.op.has_rule:
                    more = [one for one in _dims_of(node, set(node.rule.operands[operand][dim])) if one not in seen]
                    seen.update(more)
                    ahead += more
        return tuple(reached), None

    def _is_sum_with_stream(self, node: Node, operand: int, product: Node) -> bool:
        if node.op.name != "Add" or len(set(node.operands)) < 2:
            return False
        return any(self._depends(product, term) for term in self._terms(node.operands[1 - operand]))

    def _terms(self, value: Value) -> Iterator[Value]:
        """A value and what it is a sum of, as far as it comes from data: a stream may have got the columns of another
        block before that are made of it just as these are (attention beside a feed-forward net)."""
        ahead = [value]
        for one in ahead:
            made = self.graph.producers.get(one)
            if one in self.structure.fed:
                yield one
                ahead += made[0].operands if made is not None and made[0].op.name == "Add" else ()

    def _depends(self, node: Node, value: Value) -> bool:
        """Whether a node depends on a value."""
        made = self.graph.producers.get(value)
        first = self.number[made[0]] if made is not None else -1
        ahead, seen = [node], {node}
        while ahead:
            for operand in ahead.pop().operands:
                if operand is value:
                    return True
                maker = self.graph.producers.get(operand, (None, 0))[0]
                if maker is not None and maker not in seen and self.number[maker] > first:
                    seen.add(maker)
                    ahead.append(maker)
        return False

    @cached_property
    def _feeding(self) -> frozenset[Node]:
        """Products on which other products' data depend."""
        needed: set[Value] = set()
        found = set()
        for node in reversed(self.structure.forward):
            needs = any(value in needed for value in node.results)
            if node in self.uses:
                found.update([node] if needs else [])
                needed.add(node.operands[self.uses[node].data])
            if needs:
                needed.update(node.operands)
        return frozenset(found)


def kept_dims(use: WeightUse) -> Iterator[Spot]:
    """The dims of a product's result that are columns of its weight."""
    return _dims_of(use.node, set(use.kept))


def _onward(node: Node, columns: set[Spot]) -> list[Spot]:
    """The dims of a node's results into which columns go."""
    if not node.op.has_rule:
        return []
    dims = zip(node.operands, node.rule.operands, strict=True)
    factors = {i for value, of in dims for place, dim in enumerate(of) if (value, place) in columns for i in dim}
    return list(_dims_of(node, factors)) if factors else []


def _dims_of(node: Node, factors: set[int]) -> Iterator[Spot]:
    for value, dims in zip(node.results, node.rule.results, strict=True):
        yield from ((value, i) for i, dim in enumerate(dims) if factors & set(dim))
