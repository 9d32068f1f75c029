"""Sizes of a model that the formulas of papers on named plans need, from its graph alone: no plan goes in.

Which products are split by columns and which by rows, and what goes into the first and comes out of the second, is as
in Shoeybi et al. 2019 (arXiv 1909.08053), section 3: before a product by columns their f sums the gradient of its data,
and behind one by rows their g sums its result. What their model lacks is read in the same way:

- Blocks beside each other (a feed-forward net beside attention) share f where they share data, and g where their
  results are added to each other before anything else.
- Columns that are normalised and then multiplied again, such as a latent of keys (DeepSeek-AI 2024, arXiv 2405.04434,
  section 2.1), lie whole, and f is behind them; so it is where columns are shared by all heads (their rotated keys).
- Results of experts are summed where they have come back to their tokens.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from autoshard.core.rule import REDUCTION, REPLICATE
from autoshard.ir.graph import Graph, Node, Value
from autoshard.search.named.pairs import COLUMNS, ROWS, Pairs, kept_dims, major, passing
from autoshard.search.named.streams import token_dims
from autoshard.search.named.structure import Structure, WeightUse
from benchmarks.paper_scope import takes_windows

Spot = tuple[Value, int]


class Sizes:
    """Sizes of a training step.

    Args:
        parts: into how many parts weights are split.
    """

    def __init__(self, graph: Graph, parts: int) -> None:
        self.graph, self.parts = graph, parts
        self.structure = Structure(graph)
        self.forward = set(self.structure.forward)
        self.uses = {use.node: use for use in self.structure.weight_uses}
        self.trained = [one.parameter for one in self.structure.updates if one.parameter is not None]
        self.states = sum(one.nbytes for update in self.structure.updates for one in _types(update.states))

    # -- parameters

    @property
    def parameters(self) -> int:
        """Bytes of all parameters."""
        return sum(one.type.nbytes for one in self.trained)

    @property
    def used_back(self) -> int:
        """Bytes of the parameters that the backward pass needs: not of tables that rows are looked up in, of biases, of
        what multiplies data that no gradient is taken of."""
        return sum(one.type.nbytes for one in self.trained if self.is_used_back(one))

    def is_used_back(self, value: Value) -> bool:
        """Whether the backward pass needs a parameter, or another form of it."""
        for user, _ in self.graph.users[value]:
            is_form = len(user.operands) == 1 and user in self.forward
            if is_form and any(map(self.is_used_back, user.results)):
                return True
            if user not in self.forward and not any(one in self.graph.tied for one in user.results):
                return True
        return False

    @property
    def of_experts(self) -> tuple[int, int]:
        """Bytes of the weights that there is one of for each expert, and of their states."""
        own = self._weights_of_experts
        states = [one for update in self.structure.updates if update.owner in own for one in update.states]
        return sum(one.type.nbytes for one in self.trained if one in own), sum(one.type.nbytes for one in states)

    @property
    def used_back_by_experts(self) -> tuple[int, int]:
        """Bytes of the other parameters that the backward pass needs, and of the weights of experts that it needs."""
        used = [one for one in self.trained if self.is_used_back(one)]
        experts = sum(one.type.nbytes for one in used if one in self._weights_of_experts)
        return sum(one.type.nbytes for one in used) - experts, experts

    @cached_property
    def _weights_of_experts(self) -> set[Value]:
        own = {one for use in self.uses.values() if use.batch for one in self._sources(use.node.operands[use.weight])}
        return own | {one for use in self.uses.values() if use.batch for one in self._added_to(use)}

    def _added_to(self, use: WeightUse) -> set[Value]:
        """The parameters that are added to what a product of experts makes: its biases."""
        sums = [user for user in self._users(use.node.results[0]) if user.op.name == "Add"]
        added = (one for user in sums for one in user.operands if one not in self.structure.fed)
        return {source for one in added for source in self._sources(one)}

    @property
    def gradients(self) -> int:
        """Bytes of the gradients of all parameters that are not zero whatever the data."""
        return sum(map(self.gradient, self.trained))

    def gradient(self, parameter: Value) -> int:
        """Bytes of a parameter's gradient; of a table of positions alone the rows that some position looks up."""
        rows = [
            node.results[0].type.nbytes
            for node, _ in self.structure.lookups
            if node.operands[0] is parameter and node.operands[1] not in self.structure.fed
        ]
        lies = len(rows) == len(self._users(parameter))
        return min(parameter.type.nbytes, sum(rows)) if lies else parameter.type.nbytes

    def in_parts(self, parameter: Value) -> bool:
        """Whether a parameter is in parts: the weight of a product by columns or rows, the bias of its columns, a table
        of words whose rows divide."""
        if any(parameter in self._sources(use.node.operands[use.weight]) for use in self._split):
            return True
        if any(parameter in self._sources(node.operands[0]) for node in self._split_lookups):
            return True
        return any(parameter in self._sources(other) for other in self._added_to_columns)

    def by_tokens(self, parameter: Value) -> bool:
        """Whether a parameter has a row for each place of a sequence, to which it is added where it is summed: with
        split sequences it lies in parts as that does."""
        shape = parameter.type.shape
        divides = any(shape[dim] > 1 and shape[dim] % self.parts == 0 for dim in self._tokens.get(parameter, ()))
        return divides and parameter in self._added_to_sums

    @cached_property
    def _added_to_sums(self) -> set[Value]:
        """What of parameters alone is added to results of products by rows and of look-ups in parts."""
        sums = [node for node in self.structure.forward if node.op.name == "Add"]
        pairs = [pair for node in sums for pair in itertools.permutations(node.operands, 2)]
        added = (one for one, other in pairs if one not in self.structure.fed and self._is_open(other))
        return {source for one in added for source in self._sources(one)}

    @cached_property
    def _split(self) -> list[WeightUse]:
        """The products that the paper splits."""
        return [use for node, use in self.uses.items() if node in self._kinds or node in self._joined]

    @cached_property
    def pairs(self) -> Pairs:
        """Which products are split, and where their columns are."""
        return Pairs(self.structure, self._divides)

    @property
    def _kinds(self) -> dict[Node, str]:
        return self.pairs.kinds

    def _divides(self, use: WeightUse) -> bool:
        return any(use.node.rule.factors[i].even % self.parts == 0 for i in use.kept)

    @cached_property
    def _joined(self) -> set[Node]:
        """Products one of which contracts the other's columns, with nothing between that needs all of them at once, and
        whose own are added to something: whoever splits weights at all splits these."""
        found: set[Node] = set()
        for use in self.uses.values():
            reached, _, whole = self._followed(use)
            ends = [node for node in reached if self._is_added(node.results[0])]
            if ends and not whole and self._divides(use):
                found.update((use.node, *ends))
        return found

    def _is_added(self, value: Value) -> bool:
        """Whether a result is added to other data at once, but for what is made of parameters, and its forms."""
        while len(users := self._users(value)) == 1 and value in self.structure.fed:
            others = [one for one in users[0].operands if one is not value and one in self.structure.fed]
            if others:
                return users[0].op.name == "Add"
            value = users[0].results[0]
        return False

    @cached_property
    def _split_lookups(self) -> list[Node]:
        """Look-ups in tables that are in parts: those whose rows divide."""
        found = [one for one in self.structure.lookups if one[0].results[0].type.dtype.is_float]
        return [node for node, i in found if node.rule.factors[i].even % self.parts == 0]

    @cached_property
    def _added_to_columns(self) -> set[Value]:
        """What of parameters alone is combined with columns that are in parts: biases, scales."""
        found: set[Value] = set()
        for node, kind in self._kinds.items():
            if kind == COLUMNS:
                found |= self._followed(self.uses[node])[1]
        return found

    def _followed(self, use: WeightUse) -> tuple[set[Node], set[Value], bool]:
        """What happens to a product's columns up to the next products: those that contract them, what is made of
        parameters alone and meets them, and whether something between needs all of them at once."""
        ahead, reached, met, whole = list(kept_dims(use)), set(), set(), False
        seen = set(ahead)
        for value, dim in ahead:
            for node, operand in self.graph.users[value]:
                if node not in self.forward or not node.op.has_rule:
                    continue
                factors, other = passing(node, operand, dim), self.uses.get(node)
                first = major(node, node.rule.operands[operand][dim])
                if other is not None and (first is None or first in (*other.contracted, *other.kept)):
                    reached |= {node} if first in other.contracted else set()
                    continue
                inside = node.op.name == "Attention"
                whole |= not inside and any(node.rule.factors[i].kind in (REDUCTION, REPLICATE) for i in factors)
                others = zip(node.operands, node.rule.operands, strict=True)
                met |= {one for one, dims in others if one not in self.structure.fed and _in(dims, factors)}
                spots = [spot for spot in _dims_of(node, factors) if spot not in seen]
                seen.update(spots)
                ahead += spots
        return reached, met, whole

    def _sources(self, value: Value) -> set[Value]:
        """The inputs that a value which no data goes into is made of."""
        found, ahead = set(), [value]
        for one in ahead:
            made = self.graph.producers.get(one)
            if made is None:
                found.add(one)
            elif one not in self.structure.fed:
                ahead += made[0].operands
        return found

    def _users(self, value: Value) -> list[Node]:
        return [user for user, _ in self.graph.users[value] if user in self.forward]

    # -- sums over the ranks that split weights

    @cached_property
    def entering(self) -> int:
        """Bytes of what goes into products by columns, once for each value: f."""
        taken = {
            self._origin(use.node.operands[use.data])
            for node, use in self.uses.items()
            if self._kinds.get(node) == COLUMNS
        }
        return sum(one.type.nbytes for one in (*taken, *self._shared) if self._needs_gradient(one))

    def sequence_that_is_whole(self, value: Value) -> int:
        """Bytes of a value whose sequence no parts divide, which lies whole on all ranks."""
        dims = [dim for dim in self._tokens.get(value, ()) if dim]
        whole = bool(dims) and all(value.type.shape[dim] % self.parts for dim in dims)
        return value.type.nbytes if whole else 0

    @cached_property
    def _tokens(self) -> dict[Value, tuple[int, ...]]:
        return token_dims(self.graph, self.pairs)

    @cached_property
    def leaving(self) -> int:
        """Bytes of what comes out of products by rows and of tables in parts, where it is summed: g."""
        made = [node for node, kind in self._kinds.items() if kind == ROWS] + self._split_lookups
        return sum(one.type.nbytes for one in {self._summed(node.results[0]) for node in made})

    @cached_property
    def returning(self) -> int:
        """Bytes of the gradients that come back to these sums; one for results that are added to a stream one after
        another."""
        made = [node for node, kind in self._kinds.items() if kind == ROWS] + self._split_lookups
        return sum(one.type.nbytes for one in {self._joins(self._summed(node.results[0])) for node in made})

    def _joins(self, value: Value) -> Value:
        """The last of sums that a value goes through with nothing else on the way."""
        while len(users := self._users(value)) == 1 and users[0].op.name == "Add":
            value = users[0].results[0]
        return value

    @cached_property
    def sums(self) -> list[Node]:
        """The products by rows, and the look-ups of data in tables that are in parts."""
        found = {node for node, kind in self._kinds.items() if kind == ROWS} | set(self._split_lookups)
        return [node for node in found if any(one in self.structure.fed for one in node.operands)]

    @cached_property
    def _begun(self) -> set[Value]:
        """Streams that begin with no sum: taken apart by tokens with nothing to send."""
        made = {value for node in self.sums for value in node.results}
        return {one for one in self.pairs.streams if made.isdisjoint(self._ancestors({one}))}

    @property
    def beginnings(self) -> set[Value]:
        """Those of them that windows of tokens which overlap go into: gathered for the gradient of what they are made
        of."""
        return {one for one in self._begun if any(takes_windows(self.graph.producers[of][0]) for of in self._made(one))}

    def _made(self, value: Value) -> set[Value]:
        return {one for one in self._ancestors({value}) if one in self.graph.producers}

    def _ancestors(self, values: set[Value]) -> set[Value]:
        """The values, and all that they are made of."""
        found, ahead = set(values), list(values)
        for one in ahead:
            made = self.graph.producers.get(one)
            more = [value for value in made[0].operands if value not in found] if made is not None else []
            found.update(more)
            ahead += more
        return found

    @cached_property
    def _shared(self) -> set[Value]:
        """What is spread over all heads: columns of a product that lies whole, which go into attention; what products
        by rows make for all columns (inputs of a state space)."""
        found: set[Value] = set()
        for node in self.structure.forward:
            if node.op.name == "BroadcastTo" and node.results[0].type.elements > node.operands[0].type.elements:
                found |= {node.operands[0]} if self._is_of_whole(node.operands[0]) else set()
        return found | {node.results[0] for node in self._kinds if node.results[0] in self.pairs.latents}

    def _is_of_whole(self, value: Value) -> bool:
        """Whether a value comes, with no other product between, from one that lies whole, and from no other."""
        found = self._made_by(value)
        return bool(found) and not any(node in self._kinds for node in found)

    def _made_by(self, value: Value) -> list[Node]:
        """The products and look-ups that a value comes from, with no other between."""
        ends = {*self.uses, *(node for node, _ in self.structure.lookups)}
        ahead, seen, found = [value], {value}, []
        for one in ahead:
            node = self.graph.producers.get(one, (None, 0))[0]
            if node is None or one not in self.structure.fed:
                continue
            if node in ends:
                found.append(node)
                continue
            more = [operand for operand in node.operands if operand not in seen]
            seen.update(more)
            ahead += more
        return found

    def _origin(self, value: Value) -> Value:
        """What a value is another form of (cast, turned), or the tokens that go to experts."""
        while (made := self.graph.producers.get(value)) is not None:
            is_other = made[0].op.name == "DispatchTokens" or len(made[0].operands) == 1 and is_form(made[0])
            tokens = made[0].operands[0] if is_other else self._dispatched_by(made[0])
            if tokens is None:
                return value
            value = tokens
        return value

    def _dispatched_by(self, node: Node) -> Value | None:
        """The tokens of which a product with data makes rows for experts, which are more: what has a gradient, or else
        is the smaller; None of another node."""
        fed = [one for one in node.operands if one in self.structure.fed]
        if len(fed) < 2 or not node.is_product or node in self.uses:
            return None
        tokens = min(fed, key=lambda one: (not self._needs_gradient(one), one.type.elements))
        return tokens if tokens.type.elements < node.results[0].type.elements else None

    def _needs_gradient(self, value: Value) -> bool:
        return value in self._differentiated

    @cached_property
    def _differentiated(self) -> set[Value]:
        return set(self.graph.cotangents.values())

    def _summed(self, value: Value) -> Value:
        """Where a result is summed: behind biases, other forms, the way back from experts, and the sum with the result
        of another product."""
        while True:
            users = self._users(value)
            if len(users) != 1:
                return value
            others = [one for one in users[0].operands if one is not value]
            passes = is_form(users[0]) and not others or users[0].op.name == "CombineTokens"
            passes = passes or self._is_combined(users[0], value)
            if users[0].op.name == "Add":
                passes = all(one not in self.structure.fed or self._is_open(one) for one in others)
            if not passes:
                return value
            value = users[0].results[0]

    def _is_combined(self, node: Node, value: Value) -> bool:
        """Whether a product with data sums rows of experts up for their tokens, which are fewer."""
        fewer = node.is_product and node.results[0].type.elements < value.type.elements
        made = self.graph.producers[value][0]
        return fewer and node not in self.uses and made in self.uses and bool(self.uses[made].batch)

    def _is_open(self, value: Value) -> bool:
        """Whether a value is the result of a product by rows or of a look-up in parts, but for biases and its form."""
        while (made := self.graph.producers.get(value)) is not None:
            node = made[0]
            if self._kinds.get(node) == ROWS or node in self._split_lookups:
                return True
            fed = [one for one in node.operands if one in self.structure.fed]
            fed = fed[:1] if node.op.name == "CombineTokens" else fed
            if len(fed) != 1 or node.op.name not in ("Add", "CombineTokens") and not is_form(node):
                return node.op.name == "Add" and len(fed) == 2 and all(map(self._is_open, fed))
            (value,) = fed
        return False

    @property
    def scores(self) -> int:
        """Bytes of three numbers for each row of what the last product by columns makes: a loss over a vocabulary in
        parts needs their largest, their sum and the one that is asked for."""
        last = [
            node for node, kind in self._kinds.items() if kind == COLUMNS and not self._followed(self.uses[node])[0]
        ]
        return sum(3 * node.results[0].type.nbytes // node.results[0].type.shape[-1] for node in last)

    @property
    def misplaced(self) -> float:
        """Bytes of columns of fused products (queries, keys and values beside each other in one weight) that ranks
        lack of their own, forward and backward: they have as many columns of all, but not their part of each."""
        return sum(_lacking(pieces, self.parts) * value.type.nbytes for value, pieces in self._fused)

    @cached_property
    def _fused(self) -> list[tuple[Value, list[int]]]:
        """Results of products by columns that are cut into pieces one behind the other, and the pieces."""
        found: list[tuple[Value, list[int]]] = []
        for node, kind in self._kinds.items():
            ahead = list(kept_dims(self.uses[node])) if kind == COLUMNS else []
            for value, dim in ahead:
                users = self._users(value)
                if pieces := self._pieces(value, dim):
                    found.append((value, pieces))
                elif len(users) == 1 and users[0].op.has_rule and users[0] not in self.uses:
                    factor = users[0].rule.operands[users[0].operands.index(value)][dim]
                    dims = zip(users[0].results, users[0].rule.results, strict=True)
                    ahead += [(made, i) for made, own in dims for i, of in enumerate(own) if factor and of == factor]
        return found

    def _pieces(self, value: Value, dim: int) -> list[int]:
        """The sizes of the pieces along a dim that a value is cut into; none if it is not."""
        sizes = []
        for node in self._users(value):
            if node.op.name not in ("Split", "StridedSlice") or node.attrs.get("strides", (1,) * (dim + 1))[dim] != 1:
                return []
            if any(one.type.shape[:dim] != value.type.shape[:dim] for one in node.results):
                return []
            sizes += [one.type.shape[dim] for one in node.results]
        return sizes if sum(sizes) == value.type.shape[dim] and max(Counter(sizes)) < sum(sizes) else []

    @property
    def statistics(self) -> float:
        """Bytes of what is taken over the batch inside of the model (means, variances), summed over ranks; their
        gradients are, too."""
        return self._statistics(1)

    @property
    def statistics_in_parts(self) -> float:
        """The same, where those of columns are in parts."""
        return self._statistics(self.parts)

    def _statistics(self, parts: int) -> float:
        found = 0.0
        for node in self.structure.forward:
            reduces = node.op.has_rule and len(node.operands) == 1 and node.operands[0].type.rank > 1
            if reduces and node.results[0].type.elements > 1 and node.operands[0] in self.structure.fed:
                batch = set(node.rule.operands[0][0])
                inside = any((node.operands[0], i) in self.pairs.columns for i in range(node.operands[0].type.rank))
                bytes_ = node.results[0].type.nbytes if batch and batch <= set(node.rule.summed) else 0
                found += bytes_ / parts if inside else bytes_
        return found


def _types(values: tuple[Value, ...]) -> Iterator:
    return (value.type for value in values)


def _in(dims: tuple[tuple[int, ...], ...], factors: set[int]) -> bool:
    return any(factors & set(dim) for dim in dims)


def _dims_of(node: Node, factors: set[int]) -> Iterator[Spot]:
    for value, dims in zip(node.results, node.rule.results, strict=True):
        yield from ((value, i) for i, dim in enumerate(dims) if factors & set(dim))


def is_form(node: Node) -> bool:
    """Whether a node makes another form of what it takes: of as many elements, and linear in it."""
    same = len(node.results) == 1 and node.results[0].type.elements == node.operands[0].type.elements
    return same and any(not of or of == (0,) for of in node.op.linear)


def _lacking(pieces: list[int], parts: int) -> float:
    """Of columns in contiguous parts, the share of all that a rank has to get to have its part of each piece (of each
    the rank that lacks most), and then to have its part of all again (the rank that lacks most of that)."""
    total, start, forward, backward = sum(pieces), 0, 0.0, [0.0] * parts
    for size in pieces:
        mine = [(start + rank * size / parts, start + (rank + 1) * size / parts) for rank in range(parts)]
        own = [(rank * total / parts, (rank + 1) * total / parts) for rank in range(parts)]
        has = [_overlap(one, other) for one, other in zip(mine, own, strict=True)]
        forward += max(size / parts - one for one in has)
        for rank in range(parts):
            backward[rank] += _overlap((start, start + size), own[rank]) - has[rank]
        start += size
    return (forward + max(backward)) / total


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(min(one[1], other[1]) - max(one[0], other[0]), 0.0)
