"""Which products of data by weights come in pairs: one by columns, whose columns the next one takes as its rows.

A block of a network leaves its stream by products that are split by columns and comes back to it by one that is split
by rows, whose terms are summed once (Shoeybi et al. 2019, section 3). What comes back is told by the sum with the
stream; products between them, such as those to a latent space, and the router of experts, stay whole. A network without
a stream takes turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from autoshard.core.rule import REPLICATE
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import size_of
from autoshard.search.named.structure import Structure, WeightUse

COLUMNS, ROWS = "columns", "rows"
_MOST_DIMS = 400
"""So many dims of values are followed behind a product before it counts as one that feeds the stream itself."""

_SHOWN = 6
"""So many products are named where no pair of them was found."""

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

    @property
    def kinds(self) -> dict[Node, str]:
        """COLUMNS or ROWS of each product that is split."""
        return self._found[0]

    @property
    def columns(self) -> frozenset[Spot]:
        """The dims of values that columns of products by columns are in, up to the products that contract them."""
        return self._found[1]

    @property
    def latents(self) -> frozenset[Value]:
        """What products by rows make, and what is made of it, that all columns are combined with: it is needed on all
        ranks (what a state space takes in and puts out). Products that take it make columns."""
        return self._found[2]

    @cached_property
    def _found(self) -> tuple[dict[Node, str], frozenset[Spot], frozenset[Value]]:
        kinds, columns = self._go(frozenset())
        latents = self._latents(kinds, columns)
        taking = [use for use in self.uses.values() if use.node not in kinds and use.node.operands[use.data] in latents]
        if any(map(self.divides, taking)):
            kinds, columns = self._go(frozenset(use.node for use in taking if self.divides(use)))
        return kinds, columns, latents

    def _go(self, taking: frozenset[Node]) -> tuple[dict[Node, str], frozenset[Spot]]:
        """The kinds of products, and where columns are, if some products take latents."""
        kinds: dict[Node, str] = {}
        columns: set[Spot] = set()
        for node in self.structure.forward:
            use, onward = self.uses.get(node), _onward(node, columns)
            if use is not None and self._rows(use, columns):
                kinds[node] = ROWS
            elif use is not None and not onward and (node in taking or self._begins(use)):
                kinds[node] = COLUMNS
                columns.update(kept_dims(use))
            else:  # columns go on, through groups of channels, too
                columns.update(onward)
        return kinds, frozenset(columns)

    @property
    def described(self) -> str:
        """Where a pair of products was looked for, and how each of the first products is split."""
        found = [f"{node.label} ({self.kinds.get(node, 'whole')})" for node in self.uses]
        if not found:
            return "no product of data by a weight was found at all"
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return f"the products found are {', '.join(found[:_SHOWN])}{more}"

    @cached_property
    def misfit(self) -> str | None:
        """Which product by rows makes what is combined with columns, one by one, so that its sum is not what comes back
        to a stream: that of a recurrent network. None if none does."""
        made: dict[Spot, Node] = {}
        for node in self.structure.forward:
            use = self.uses.get(node)
            if use is not None:
                made.update((spot, node) for spot in kept_dims(use) if self.kinds.get(node) == ROWS)
                continue
            spots = {factor: spot for spot, factor in _factors_of(node) if spot in made}
            met = {factor for spot, factor in _factors_of(node) if spot in self.columns and spot not in made}
            for factor, spot in spots.items():
                if factor in met:
                    return (
                        f"{made[spot].label} takes rows, and {node.label} ({node.op.name}) combines what it makes with "
                        "columns that are in parts, where its sum over all ranks should come back to a stream that "
                        "lies whole"
                    )
                made.update((one, made[spot]) for one in _dims_of(node, {factor}))
        return None

    def _latents(self, kinds: Mapping[Node, str], columns: Collection[Spot]) -> frozenset[Value]:
        needed: set[Value] = set()
        meeting: set[Value] = set()  # columns that are combined with others
        for node in reversed(self.structure.forward):
            fed = [one for one in node.operands if one in self.structure.fed]
            if node in kinds:
                gates = kinds[node] == COLUMNS and self._returning and meeting.intersection(node.results)
                needed.update(fed if gates else ())
                continue
            if node.op.name == "Add" and len(fed) > 1:
                continue
            plain = [one for one in fed if not any((one, dim) in columns for dim in range(one.type.rank))]
            others = [one for one in fed if one not in plain]
            met = node not in self.uses and bool(others)
            needed.update(plain if met or any(value in needed for value in node.results) else ())
            meeting.update(others if len(others) > 1 or meeting.intersection(node.results) else ())
        found: set[Value] = set()
        ahead = [node.results[0] for node, kind in kinds.items() if kind == ROWS]
        for value in ahead:
            if value in needed and value not in found:
                found.add(value)
                ahead += [made for user, _ in self.graph.users[value] for made in user.results]
        return frozenset(found)

    @cached_property
    def tokens(self) -> int:
        """Of how many tokens products by rows make something."""
        rows = (use.node.results[0].type for node, use in self.uses.items() if self.kinds.get(node) == ROWS)
        return max((of.elements // of.shape[-1] for of in rows), default=0)

    @staticmethod
    def _rows(use: WeightUse, columns: Collection[Spot]) -> bool:
        value, dims = use.node.operands[use.data], use.node.rule.operands[use.data]
        return any((value, i) in columns for i, dim in enumerate(dims) if major(use.node, dim) in use.contracted)

    def _begins(self, use: WeightUse) -> bool:
        """Whether a product is one by columns."""
        if not self.divides(use):
            return False
        if use.node not in self._feeding:
            return True
        if not self._returning:
            return bool(self._reached[use.node][0])
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
                factor = major(node, node.rule.operands[operand][dim]) if node.op.has_rule else None
                if other is not None and factor in other.contracted:
                    reached.append(node)
                elif factor is not None and (other is None or factor not in other.kept):
                    more = [one for one in _dims_of(node, passing(node, operand, dim)) if one not in seen]
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


def major(node: Node, dim: tuple[int, ...]) -> int | None:
    """The factor of a dim that contiguous parts of it split first; None if it has one element."""
    return next((i for i in dim if node.rule.factors[i].size > 1), None)


def passing(node: Node, operand: int, dim: int) -> set[int]:
    """The factors into which columns in a dim of an operand go that a node makes its results of, part by part. Not
    where they are put behind others, of which ranks would have other parts, nor inside of a head of attention."""
    factors = node.rule.operands[operand][dim]
    whole = node.op.name == "Attention" and dim == node.operands[operand].type.rank - 1
    behind = node.op.name == "Concat" and any(node.rule.factors[i].kind == REPLICATE for i in factors)
    return set() if whole or behind else set(factors)


def _onward(node: Node, columns: Collection[Spot]) -> list[Spot]:
    """The dims of a node's results into which columns go."""
    if not node.op.has_rule:
        return []
    spots = [(i, dim) for i, value in enumerate(node.operands) for dim in range(value.type.rank)]
    factors = {one for i, dim in spots if (node.operands[i], dim) in columns for one in passing(node, i, dim)}
    return list(_dims_of(node, factors)) if factors else []


def _factors_of(node: Node) -> Iterator[tuple[Spot, int]]:
    """The dims of a node's operands, with the factor that contiguous parts of them split."""
    if node.op.has_rule:
        for value, dims in zip(node.operands, node.rule.operands, strict=True):
            found = ((i, major(node, dim)) for i, dim in enumerate(dims))
            yield from (((value, i), factor) for i, factor in found if factor is not None)


def _dims_of(node: Node, factors: set[int]) -> Iterator[Spot]:
    for value, dims in zip(node.results, node.rule.results, strict=True):
        yield from ((value, i) for i, dim in enumerate(dims) if factors & set(dim))


# Into how many heads the columns of a product are taken apart behind it.
#
# A tensor axis splits columns only between heads: ranks would else hold parts of one, and every operator on heads would
# have to move them.


_MOST_NODES = 32
"""So far behind a product its columns are followed: a bias, casts, a norm lie between it and the heads."""


def heads_of(structure: Structure, node: Node, factor: int) -> int | None:
    """The number of heads into which the forward pass takes a factor of a node's result apart; None if it does not.

    Where several operators behind it take it apart (keys and values of one product), the largest number.
    """
    dims = zip(node.results, node.rule.results, strict=True)
    ahead = [(value, i) for value, of in dims for i, factors in enumerate(of) if factors == (factor,)]
    seen, found = set(ahead), []
    for value, dim in ahead:
        if len(seen) > _MOST_NODES:
            break
        for user, operand in structure.graph.users[value]:
            if user not in structure.forward_nodes:
                continue
            heads = _heads(user, operand, dim)
            if heads is not None:
                found.append(heads)
                continue
            more = [one for one in _same_dim(user, operand, dim) if one not in seen]
            seen.update(more)
            ahead += more
    return max(found, default=None)


def _heads(node: Node, operand: int, dim: int) -> int | None:
    """How many blocks a reshape makes of a dim of its operand."""
    if node.op.name != "Reshape":
        return None
    taken, made = node.operands[operand].type.shape, node.results[0].type.shape
    if made == (*taken[:dim], 1, *taken[dim:]):
        return 1
    factors = [node.rule.factors[i].size for i in node.rule.operands[operand][dim]]
    return next((size for size in factors if size > 1), None) if len(factors) > 1 else None


def _same_dim(node: Node, operand: int, dim: int) -> Iterator[tuple[Value, int]]:
    """The dims of a node's results that are a dim of its operand."""
    factors = node.rule.operands[operand][dim]
    for value, dims in zip(node.results, node.rule.results, strict=True):
        yield from ((value, i) for i, of in enumerate(dims) if of == factors and len(factors) == 1)


def whole_heads(structure: Structure, node: Node, factor: int, axes: Refs) -> Refs:
    """The major part of the axes over which whole heads of a product's columns (`factor`) can lie.

    Keys and values of grouped queries may have fewer heads than there are tensor ranks: each is then on several.
    Columns of which no heads can be made are split as they are, and redistributed behind.
    """
    heads = heads_of(structure, node, factor)
    over: Refs = ()
    if heads is None or heads > 1 and math.gcd(heads, size_of(axes)) == 1:
        return axes
    for ref in axes:
        common = math.gcd(heads // size_of(over), ref.size)
        over += (ref,) if common == ref.size else ref.split(common)[:1] if common > 1 else ()
        if common < ref.size:
            break
    return over
