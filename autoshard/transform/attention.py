"""Attention that people write by hand as the one operator: `joined_attention(graph)`, of a graph without gradients.

    softmax(mask(cap(q k^T * scale))) v    ->    Attention(q, k, v, masks)

Products may be of any form and order of dims, in torch's operators or those of StableHLO. Masks that hide by place
(causal ones, windows) become attributes, others operands; keys and values that are copied to all heads of a group are
taken as they were before. What else is done with scores (dropout, a second reader) leaves the operators as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from autoshard.ir.flow import is_nest
from autoshard.ir.graph import DATA, Graph, Node, Region, inner_values, renamed
from autoshard.ops.registry import lookup
from autoshard.transform.attention_scores import PRODUCTS, ScoreChain, ScoreChains, ScoreSteps
from autoshard.transform.attention_softmax import DIVISIONS, SoftmaxForms
from autoshard.transform.attention_terms import TermsApart
from autoshard.transform.attention_writer import AttentionWriter, Joining
from autoshard.transform.dim_atoms import Dim, DimAtom, Dims, Letters, leaves_of, product_letters
from autoshard.transform.elements import ConstantElements
from autoshard.transform.shared_keys import SharedKeys, with_copies
from autoshard.transform.simplify import live_nodes, with_nodes


def joined_attention(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph with one operator for each attention; itself if there is none to join.

    The new operators make the same values, under the names and source lines of the last ones. Nodes in `keep` stay, and
    so does attention that they are part of: annotated ones.
    """
    names = {value.name for value in (*graph.values, *inner_values(graph))}
    return _joined(graph, keep, names)


def _joined(graph: Graph, keep: Collection[Node], names: set[str]) -> Graph:
    graph = with_nodes(graph, live_nodes(graph.nodes, graph.outputs))
    copied, before = with_copies(graph, keep)
    nodes = _AttentionJoiner(copied, keep, names).run()
    if nodes != copied.nodes:
        ends = (
            replace(node, operands=renamed(node.operands, before)) if node.op.name in PRODUCTS else node
            for node in nodes
        )
        graph = with_nodes(graph, live_nodes(tuple(ends), graph.outputs) if before else nodes)
    nodes = tuple(_with_regions(node, keep, names) for node in graph.nodes)
    return graph if nodes == graph.nodes else with_nodes(graph, nodes)


def _with_regions(node: Node, keep: Collection[Node], names: set[str]) -> Node:
    """The node with attention as one operator in the bodies of loops and branches."""
    if not is_nest(node) or node.op.name == "ManualComputation":
        return node

    def joined(region: Region) -> Region:
        inputs = (*region.args, *region.captured)
        inside = Graph("", inputs, region.nodes, region.outputs, tuple(DATA for _ in inputs))
        return region.with_nodes(_joined(inside, keep, names).nodes)

    return node.with_regions(joined)


class _AttentionJoiner:
    def __init__(self, graph: Graph, keep: Collection[Node], names: set[str]) -> None:
        elements = ConstantElements(graph, keep)
        self.joining = Joining(elements, names)
        self.graph, self.keep = graph, keep
        self.chains = ScoreChains(SoftmaxForms(graph, elements), elements)

    def run(self) -> tuple[Node, ...]:
        made = tuple(one for node in self.graph.nodes for one in self.joined(node))
        return self.graph.nodes if made == self.graph.nodes else live_nodes(made, self.graph.outputs)

    def joined(self, node: Node) -> Iterable[Node]:
        """The nodes that stand for a node."""
        if node in self.keep or node.given_rule is not None:
            return (node,)
        if node.op.name == "Attention":
            return self.grouped(node)
        found = None
        if node.op.name in PRODUCTS:
            found = self.by_hand(node, node) or self.of_terms(node)
        elif node.op.name in DIVISIONS:
            found = self.divided(node)
        return (node,) if found is None else found

    def grouped(self, node: Node) -> Iterable[Node]:
        """An attention, on keys and values before they were copied to all heads of a group."""
        made = AttentionWriter(self.joining, node)
        query, key, value, *extras = node.operands
        shared = made.shared(key, value)
        if shared is None:
            return (node,)
        result = made.attend(query, shared, extras, node.attrs, node.results[0].type.shape)
        return made.ending(result)

    def by_hand(self, node: Node, reader: Node) -> Iterable[Node] | None:
        """The attention whose last product a node is, of weights that `reader` reads; None if it is none."""
        for i in (0, 1):
            found = self.behind(node, i, self.chains.of(node.operands[i], reader))
            if found is not None:
                return found
        return None

    def of_terms(self, node: Node) -> Iterable[Node] | None:
        """The attentions of a product whose weights are a sum of softmaxes."""
        if product_letters(node) is None:
            return None
        for i in (0, 1):
            made = AttentionWriter(self.joining, node)
            found = TermsApart(self.chains.forms, self.by_hand, made, node, i).run()
            if found is not None:
                return found
        return None

    def divided(self, node: Node) -> Iterable[Node] | None:
        """The attention of exponentials that are divided by their sum behind the product with values."""
        product, moves = self.product(node)
        letters = None if product is None else product_letters(product)
        if product is None or letters is None:
            return None
        for i in (0, 1):
            found = self.chains.forms.over_sum(product.operands[i], product, node.operands[1])
            shape = product.operands[i].type.shape
            if found is not None and _lie_alike(found[1], letters[i], shape, letters[2], moves, found[0].axis):
                return self.behind(product, i, self.chains.behind(found[0]), node, moves)
        return None

    def product(self, node: Node) -> tuple[Node | None, tuple[Node, ...]]:
        """The product that a node divides, and how that is turned before."""
        moves: list[Node] = []
        made = self.chains.forms.made(node.operands[0], (node,))
        while made is not None and made.op.name == "Transpose":
            moves.insert(0, made)
            made = self.chains.forms.made(made.operands[0], (made,))
        return made, tuple(moves)

    def behind(
        self,
        node: Node,
        weights: int,
        chains: Iterable[ScoreChain],
        end: Node | None = None,
        moves: Sequence[Node] = (),
    ) -> Iterable[Node] | None:
        """The attention whose weights, operand `weights` of a product, end one of the chains; it makes what `end` does,
        which is the product itself or comes behind `moves` of it."""
        letters = product_letters(node)
        if letters is None:
            return None
        for chain in chains:
            for whole in (True, False):
                found = _FoundAttention(self.joining, node, weights, letters, chain, end or node, moves)
                made = found.read(self.chains, whole)
                if made is not None:
                    return made
        return None


def _lie_alike(
    places: Sequence[int | None],
    weights: Letters,
    shape: Sequence[int],
    result: Letters,
    moves: Sequence[Node],
    axis: int,
) -> bool:
    """Whether a sum of weights of this shape lies along the dims of their product, turned by `moves`, as they do."""
    for move in moves:
        result = tuple(result[i] for i in move.attrs["perm"])
    if len(places) != len(result) or weights[axis] in result:
        return False
    along = all(place is None or weights[place] == letter for place, letter in zip(places, result, strict=True))
    return along and all(i == axis or i in places or shape[i] == 1 for i in range(len(weights)))


class _FoundAttention:
    """Two products with a chain between them, whose dims are matched."""

    def __init__(
        self,
        joining: Joining,
        node: Node,
        weights: int,
        letters: tuple[Letters, Letters, Letters],
        chain: ScoreChain,
        end: Node,
        moves: Sequence[Node],
    ) -> None:
        self.joining, self.node, self.weights, self.letters = joining, node, weights, letters
        self.chain, self.product, self.end, self.moves = chain, chain.product, end, moves
        first = product_letters(chain.product)
        assert first is not None
        self.first = first
        pairs = zip(first, self.product.operands, strict=False)
        sizes = [zip(word, value.type.shape, strict=True) for word, value in pairs]
        self.atoms = {letter: DimAtom(size) for pairs in sizes for letter, size in pairs}

    def read(self, chains: ScoreChains, whole: bool) -> Iterable[Node] | None:
        """The nodes that stand for both products and what is between."""
        found = chains.read(self.chain, tuple((self.atoms[letter],) for letter in self.first[2]), whole)
        if found is None:
            return None
        scores, weights = found
        sides = self.sides(scores)
        if sides is None or scores.key is None:
            return None
        own, other = sides
        query = self.query(scores, self.chain.softmax.axis, own, other)
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
        key, made = scores.key, AttentionWriter(self.joining, self.end)
        assert key is not None
        lead = made.as_dropped(lead, scores)
        order = [*lead, query, key]
        places, seeing = made.masks(scores, order), made.seeing(scores, order)
        dropping = made.dropping(scores, order)
        if places is None or seeing is None or dropping is None or not scores.scale:
            return None
        attributes, extras = {**places[0], **dropping[0]}, [*places[1], *dropping[1]]
        queries, keys = (tuple((self.atoms[one],) for one in self.first[i]) for i in (own, 1 - own))
        of_keys = made.turned(self.product.operands[1 - own], keys, [*lead, key, feature])
        of_values = made.turned(self.node.operands[1 - self.weights], value_dims, [*lead, key, width])
        asking = made.turned(self.product.operands[own], queries, [*lead, query, feature])
        both = made.scaled(asking, of_keys, scores.times, order)
        both = None if both is None else made.widened(*both, scores, order)
        if both is None or both[1].type.shape[:-1] != of_values.type.shape[:-1]:
            return None
        asking, of_keys = both
        attrs = {"scale": scores.scale, "softcap": scores.softcap, "sinks": scores.sink is not None, **attributes}
        attrs = lookup("Attention").check_attributes(attrs)
        shared = made.shared(of_keys, of_values) or SharedKeys(of_keys, of_values, None, 1)
        shape = tuple(one.size for one in (*lead, query, width))
        result = made.attend(asking, shared, extras, attrs, shape)
        result = made.of_seeing(result, seeing[0])
        for move in self.moves:
            result_dims = tuple(result_dims[i] for i in move.attrs["perm"])
        return made.ending(made.turned_back(result, [*lead, query, width], result_dims))


def _large(atoms: Iterable[DimAtom]) -> set[DimAtom]:
    return {one for one in atoms if one.size > 1}


def _leaves(atoms: Iterable[DimAtom]) -> tuple[DimAtom, ...]:
    return tuple(leaf for atom in atoms for leaf in atom.leaves())
