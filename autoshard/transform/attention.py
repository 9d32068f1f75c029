"""Attention that people write by hand as the one operator: `joined_attention(graph)`, of a graph without gradients.

    softmax(mask(cap(q k^T * scale))) v    ->    Attention(q, k, v, masks)

Products may be of any form and order of dims, in torch's operators or those of StableHLO. Masks that hide by place
(causal ones, windows) become attributes, others operands; keys and values that are copied to all heads of a group are
taken as they were before. What else is done with scores (dropout, a second reader) leaves the operators as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from autoshard.ir.graph import Graph, Node, Value, renamed
from autoshard.ops.registry import lookup
from autoshard.transform.attention_masks import Known, SpreadMask, parts_of, range_of, together
from autoshard.transform.attention_scores import ScoreChains, ScoreMask, ScoreSteps
from autoshard.transform.dim_atoms import Dim, DimAtom, Dims, Letters, leaves_of, product_letters, size_of
from autoshard.transform.elements import ConstantElements
from autoshard.transform.shared_keys import SharedKeys, before_copies, with_copies
from autoshard.transform.simplify import live_nodes, with_nodes

_PRODUCTS = ("MatMul", "BatchMatMul", "DotGeneral", "Einsum")


def joined_attention(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph with one operator for each attention; itself if there is none to join.

    The new operators make the same values, under the names and source lines of the last ones. Nodes in `keep` stay:
    annotated ones.
    """
    graph = with_nodes(graph, live_nodes(graph.nodes, graph.outputs))
    copied, before = with_copies(graph, keep)
    nodes = _AttentionJoiner(copied, keep).run()
    if nodes == copied.nodes:
        return graph
    if before:
        ends = (
            replace(node, operands=renamed(node.operands, before)) if node.op.name in _PRODUCTS else node
            for node in nodes
        )
        nodes = live_nodes(tuple(ends), graph.outputs)
    return with_nodes(graph, nodes)


class _AttentionJoiner:
    def __init__(self, graph: Graph, keep: Collection[Node]) -> None:
        self.graph, self.keep = graph, keep
        self.elements = ConstantElements(graph)
        self.chains = ScoreChains(graph, keep, self.elements)
        self.ranges: Known = {}
        self.names = {value.name for value in graph.values}

    def run(self) -> tuple[Node, ...]:
        made = tuple(one for node in self.graph.nodes for one in self.joined(node))
        return self.graph.nodes if made == self.graph.nodes else live_nodes(made, self.graph.outputs)

    def joined(self, node: Node) -> Iterable[Node]:
        """The nodes that stand for a node."""
        if node in self.keep or node.given_rule is not None:
            return (node,)
        if node.op.name == "Attention":
            return self.grouped(node)
        found = self.by_hand(node) if node.op.name in _PRODUCTS else None
        return (node,) if found is None else found

    def grouped(self, node: Node) -> Iterable[Node]:
        """An attention, on keys and values before they were copied to all heads of a group."""
        made = _AttentionWriter(self, node)
        query, key, value, *extras = node.operands
        shared = made.shared(key, value)
        if shared is None:
            return (node,)
        result = made.attend(query, shared, extras, node.attrs, node.results[0].type.shape)
        return made.ending(result)

    def by_hand(self, node: Node) -> Iterable[Node] | None:
        """The attention whose last product a node is; None if it is none."""
        letters = product_letters(node)
        if letters is None:
            return None
        for i in (0, 1):
            chain = self.chains.of(node.operands[i])
            if chain is not None:
                first = product_letters(chain.product)
                assert first is not None
                found = _FoundAttention(self, node, i, letters, chain.product, first)
                return found.read(chain)
        return None

    def name(self, stem: str) -> str:
        """A name that nothing has."""
        found = next(name for name in _names(stem) if name not in self.names)
        self.names.add(found)
        return found


class _FoundAttention:
    """Two products with a chain between them, whose dims are matched."""

    def __init__(
        self,
        joining: _AttentionJoiner,
        node: Node,
        weights: int,
        letters: tuple[Letters, Letters, Letters],
        product: Node,
        first: tuple[Letters, Letters, Letters],
    ) -> None:
        self.joining, self.node, self.weights, self.letters = joining, node, weights, letters
        self.product, self.first = product, first
        sizes = [zip(word, value.type.shape, strict=True) for word, value in zip(first, product.operands, strict=False)]
        self.atoms = {letter: DimAtom(size) for pairs in sizes for letter, size in pairs}

    def read(self, chain: Any) -> Iterable[Node] | None:
        """The nodes that stand for both products and what is between."""
        found = self.joining.chains.read(chain, tuple((self.atoms[letter],) for letter in self.first[2]))
        if found is None:
            return None
        scores, weights = found
        sides = self.sides(scores)
        if sides is None or scores.key is None:
            return None
        own, other = sides
        query = self.query(scores, chain.softmax_axis, own, other)
        values = self.values(weights, scores.key)
        if query is None or values is None:
            return None
        value_dims, width, result_dims = values
        shared = _leaves(self.atoms[letter] for letter in self.first[own] if letter in self.first[other])
        feature = [self.atoms[one] for one in self.first[own] if one not in self.first[2]]
        batch = [leaf for leaf in shared if leaf not in _leaves(feature)]
        held = {leaf for dim in value_dims for leaf in leaves_of(dim)} - {scores.key, width}
        if not batch or len(feature) != 1 or _large(batch) != _large(held):
            return None
        asking = [leaf for dim in scores.dims for leaf in leaves_of(dim)]
        alone = [leaf for leaf in asking if leaf not in (*batch, query, scores.key) and leaf.size > 1]
        return self.written(scores, own, [*batch, *alone], query, feature[0], value_dims, width, result_dims)

    def sides(self, scores: ScoreSteps) -> tuple[int, int] | None:
        """Which operand of the first product has queries, and which keys."""
        for other in (0, 1):
            keys = [one for one in self.first[other] if one not in self.first[1 - other]]
            if len(keys) == 1 and self.atoms[keys[0]].leaves() == (scores.key,):
                return 1 - other, other
        return None

    def query(self, scores: ScoreSteps, axis: int, own: int, other: int) -> DimAtom | None:
        """The dim of queries: the last one before the keys that only queries have."""
        alone = {self.atoms[one] for one in self.first[own] if one not in self.first[other]}
        free = {leaf for atom in alone for leaf in atom.leaves()}
        dims = (leaves_of(scores.dims[i]) for i in reversed(range(len(scores.dims))) if i != axis)
        found = [leaves[0] for leaves in dims if len(leaves) == 1 and leaves[0] in free]
        # Of a single query, as of one that pools, the dim has size 1.
        return next((leaf for leaf in found if leaf.size > 1), found[0] if found else None)

    def values(self, weights: Dims, key: DimAtom) -> tuple[Dims, DimAtom, Dims] | None:
        """The dims of values, their width, and the dims of the result of the second product."""
        mine, theirs = self.letters[self.weights], self.letters[1 - self.weights]
        known: dict[int, Dim] = dict(zip(mine, weights, strict=True))
        summed = [one for one in mine if one not in self.letters[2]]
        free = [one for one in theirs if one not in known]
        if len(summed) != 1 or leaves_of(known[summed[0]]) != (key,) or len(free) != 1 or summed[0] not in theirs:
            return None
        value = self.node.operands[1 - self.weights]
        width = DimAtom(value.type.shape[theirs.index(free[0])])
        known[free[0]] = (width,)
        if value.type.dtype != self.node.results[0].type.dtype:
            return None
        return tuple(known[one] for one in theirs), width, tuple(known[one] for one in self.letters[2])

    def written(
        self,
        scores: ScoreSteps,
        own: int,
        lead: Sequence[DimAtom],
        query: DimAtom,
        feature: DimAtom,
        value_dims: Dims,
        width: DimAtom,
        result_dims: Dims,
    ) -> Iterable[Node] | None:
        """The nodes of the one operator, with operands and result turned as it takes them."""
        key, made = scores.key, _AttentionWriter(self.joining, self.node)
        assert key is not None
        places = made.masks(scores, lead, query, key)
        if places is None or not scores.scale:
            return None
        attributes, extras = places
        queries, keys = (tuple((self.atoms[one],) for one in self.first[i]) for i in (own, 1 - own))
        of_keys = made.turned(self.product.operands[1 - own], keys, [*lead, key, feature])
        of_values = made.turned(self.node.operands[1 - self.weights], value_dims, [*lead, key, width])
        asking = made.turned(self.product.operands[own], queries, [*lead, query, feature])
        attrs = {"scale": scores.scale, "softcap": scores.softcap, "sinks": scores.sink is not None, **attributes}
        attrs = lookup("Attention").check_attributes(attrs)
        shared = made.shared(of_keys, of_values) or SharedKeys(of_keys, of_values, None, 1)
        shape = tuple(one.size for one in (*lead, query, width))
        result = made.attend(asking, shared, extras, attrs, shape)
        return made.ending(made.turned_back(result, [*lead, query, width], result_dims))


class _AttentionWriter:
    """Nodes that take a node's place, one after another."""

    def __init__(self, joining: _AttentionJoiner, node: Node) -> None:
        self.joining, self.near = joining, node
        self.nodes: list[Node] = []
        self.producers: dict[Value, Node] = {}

    def add(self, op: str, operands: Sequence[Value], attrs: Mapping[str, Any], name: str = "") -> Value:
        operator = lookup(op)
        full = operator.check_attributes(dict(attrs))
        (of,) = operator.result_types(tuple(one.type for one in operands), full)
        result = Value(of, self.joining.name(f"{self.near.results[0].name}.{op.lower()}"))
        node = Node(operator, tuple(operands), full, (result,), name, self.near.source)
        self.nodes.append(node)
        self.producers[result] = node
        return result

    def ending(self, result: Value) -> Iterator[Node]:
        """The nodes, of which the last that makes `result` makes the replaced node's result."""
        for node in self.nodes:
            yield replace(node, results=self.near.results) if node.results == (result,) else node

    def maker(self, value: Value) -> Node | None:
        return self.producers.get(value) or self.joining.graph.producers.get(value, (None, 0))[0]

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The value in another shape, by one reshape for several."""
        maker = self.maker(value)
        if value.type.shape != tuple(shape) and maker is not None and maker.op.name == "Reshape":
            value = maker.operands[0]
        return value if value.type.shape == tuple(shape) else self.add("Reshape", (value,), {"shape": tuple(shape)})

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """The value with its dims in another order, by one transpose for several."""
        maker = self.maker(value)
        if maker is not None and maker.op.name == "Transpose" and maker not in self.joining.keep:
            perm, value = [maker.attrs["perm"][i] for i in perm], maker.operands[0]
        return value if list(perm) == [*range(len(perm))] else self.add("Transpose", (value,), {"perm": tuple(perm)})

    def turned(self, value: Value, dims: Dims, order: Sequence[DimAtom]) -> Value:
        """A value of these dims with one for each atom of `order`, of size 1 where it does not have it."""
        maker = self.maker(value)
        if maker is not None and maker.op.name == "Transpose":
            perm, value = maker.attrs["perm"], maker.operands[0]
            dims = tuple(dims[perm.index(i)] for i in range(len(perm)))
        leaves = [leaf for dim in dims for leaf in leaves_of(dim) if leaf.size > 1 or leaf in order]
        value = self.reshape(value, [leaf.size for leaf in leaves])
        kept = [leaf for leaf in order if leaf in leaves]
        value = self.transpose(value, [leaves.index(leaf) for leaf in kept])
        return self.reshape(value, [leaf.size if leaf in leaves else 1 for leaf in order])

    def turned_back(self, value: Value, order: Sequence[DimAtom], dims: Dims) -> Value:
        """The other way: a value with a dim for each atom, as one of these dims."""
        leaves = [leaf for dim in dims for leaf in leaves_of(dim) if leaf in order]
        rest = [leaf for leaf in order if leaf not in leaves]
        if any(leaf.size > 1 for leaf in rest):
            raise AssertionError("a dim of the result is lost")
        value = self.transpose(value, [list(order).index(leaf) for leaf in (*rest, *leaves)])
        return self.reshape(value, [size_of(leaves_of(dim)) for dim in dims])

    # -- masks

    def masks(
        self, scores: ScoreSteps, lead: Sequence[DimAtom], query: DimAtom, key: DimAtom
    ) -> tuple[dict[str, Any], list[Value]] | None:
        """Attributes and operands that hide what masks hide; None if one has dims of another kind."""
        graph, elements = self.joining.graph, self.joining.elements
        parts = [part for mask in scores.masks for part in parts_of(mask, graph)]
        ranges = [range_of(*part, query, key, elements, self.joining.ranges) for part in parts]
        found = together(ranges)
        order, extras, attributes = [*lead, query, key], [], None if found is None else found.attributes
        if attributes is None:
            extras += [self.extra(*part, order) for part in parts]
        if scores.sink is not None:
            extras += [self.extra(*part, order) for part in parts_of(scores.sink, graph)]
        if any(one is None for one in extras):
            return None
        return attributes or {}, extras

    def extra(self, mask: ScoreMask, spread: SpreadMask, order: Sequence[DimAtom]) -> Value | None:
        """A mask in the dims of scores, of size 1 where it has one value."""
        own: list[Dim] = [()] * spread.value.type.rank
        for i, dim in enumerate(spread.dims):
            if dim is not None:
                own[dim] = leaves_of(mask.dims[i])
        if any(size_of(dim) != size for dim, size in zip(own, spread.value.type.shape, strict=True)):
            return None
        if any(leaf not in order for dim in own for leaf in dim):
            return None
        value = self.turned(spread.value, tuple(own), order)
        if mask.kind in ("add", "less") and mask.factor != 1.0:
            value = self.add("ScalarMul", (value,), {"factor": mask.factor})
        turned = {"hidden": "LogicalNot", "less": "Neg"}.get(mask.kind)
        return value if turned is None else self.add(turned, (value,), {})

    # -- the operator

    def shared(self, key: Value, value: Value) -> SharedKeys | None:
        """Keys and values before they were copied to all heads of a group."""
        found = [before_copies(one, self.maker) for one in (key, value)]
        if found[0] is None or found[1] is None or found[0].places != found[1].places:
            return None
        of_keys, of_values = (self.unspread(one) for one in found)
        return SharedKeys(of_keys, of_values, found[0].lead, found[0].copies)

    def unspread(self, copied: Any) -> Value:
        value = self.reshape(copied.source, copied.shape)
        return self.transpose(value, copied.perm)

    def attend(
        self, query: Value, shared: SharedKeys, extras: Sequence[Value], attrs: Mapping[str, Any], shape: Sequence[int]
    ) -> Value:
        """Attention of queries with a dim for each group of heads, and its result without."""
        if shared.lead is not None:
            query, extras = self.heads_in_groups(query, shared), [self.heads_in_groups(one, shared) for one in extras]
        result = self.add("Attention", (query, shared.keys, shared.values, *extras), attrs, self.near.name)
        return self.reshape(result, shape)

    def heads_in_groups(self, value: Value, shared: SharedKeys) -> Value:
        """A value with its heads as groups and those of a group."""
        i, shape = shared.lead, value.type.shape
        assert i is not None
        parts = (shape[i] // shared.copies, shared.copies) if shape[i] > 1 else (1, 1)
        return self.reshape(value, (*shape[:i], *parts, *shape[i + 1 :]))


def _large(atoms: Iterable[DimAtom]) -> set[DimAtom]:
    return {one for one in atoms if one.size > 1}


def _leaves(atoms: Iterable[DimAtom]) -> tuple[DimAtom, ...]:
    return tuple(leaf for atom in atoms for leaf in atom.leaves())


def _names(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}_{i}" for i in count(1))
