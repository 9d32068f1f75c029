"""The nodes that stand for an attention written by hand, with operands and result turned as the operator takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from autoshard.ir.graph import Node, Value
from autoshard.ops.registry import lookup
from autoshard.transform.attention_masks import Known, Part, SpreadMask, parts_of, range_of, together
from autoshard.transform.attention_scores import ADDED, ScoreMask, ScoreProduct, ScoreSteps
from autoshard.transform.dim_atoms import Dim, DimAtom, Dims, leaves_of, product_letters, size_of
from autoshard.transform.elements import ConstantElements
from autoshard.transform.shared_keys import SharedKeys, before_copies


@dataclass
class Joining:
    """What is known of a graph whose attentions are joined; `names` are taken."""

    elements: ConstantElements
    names: set[str]
    ranges: Known = field(default_factory=dict)

    def name(self, stem: str) -> str:
        """A name that nothing has."""
        found = next(name for name in _names(stem) if name not in self.names)
        self.names.add(found)
        return found


class AttentionWriter:
    """Nodes that take a node's place, one after another."""

    def __init__(self, joining: Joining, node: Node) -> None:
        self.joining, self.near = joining, node
        self.nodes: list[Node] = []
        self.producers: dict[Value, Node] = {}

    def add(self, op: str, operands: Sequence[Value], attrs: Mapping[str, Any], name: str = "") -> Value:
        operator = lookup(op)
        full = operator.check_attributes(dict(attrs))
        (of,) = operator.result_types(tuple(one.type for one in operands), full)
        result = Value(of, self.joining.name(f"{self.near.results[0].name}.{op.lower()}"))
        node = Node(operator, tuple(operands), full, (result,), name or result.name, self.near.source)
        self.nodes.append(node)
        self.producers[result] = node
        return result

    def taken(self, nodes: Iterable[Node], result: Value) -> Value:
        """What some nodes make, which are added to these."""
        for node in nodes:
            self.nodes.append(node)
            self.producers.update(dict.fromkeys(node.results, node))
        return result

    def ending(self, result: Value) -> Iterator[Node]:
        """The nodes, of which the last that makes `result` makes the replaced node's result."""
        for node in self.nodes:
            yield replace(node, results=self.near.results) if node.results == (result,) else node

    def maker(self, value: Value) -> Node | None:
        return self.producers.get(value) or self.joining.elements.producers.get(value, (None, 0))[0]

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The value in another shape, by one reshape for several."""
        maker = self.maker(value)
        if value.type.shape != tuple(shape) and maker is not None and maker.op.name == "Reshape":
            value = maker.operands[0]
        return value if value.type.shape == tuple(shape) else self.add("Reshape", (value,), {"shape": tuple(shape)})

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """The value with its dims in another order, by one transpose for several."""
        maker = self.maker(value)
        if maker is not None and maker.op.name == "Transpose":
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

    def fits(self, value: Value, dims: Dims, order: Sequence[DimAtom]) -> bool:
        """Whether a value has these dims, and no others than those of `order`."""
        sizes = all(size_of(dim) == size for dim, size in zip(dims, value.type.shape, strict=True))
        return sizes and all(leaf in order for dim in dims for leaf in leaves_of(dim) if leaf.size > 1)

    # -- masks

    def masks(self, scores: ScoreSteps, order: Sequence[DimAtom]) -> tuple[dict[str, Any], list[Value]] | None:
        """Attributes and operands that hide what masks hide; None if one has dims of another kind."""
        parts = self.parts(scores, order[-1])
        if parts is None:
            return None
        extras, attributes = [], self.attributes(parts, order)
        if attributes is None:
            extras += [self.extra(*part, order) for part in parts]
        if isinstance(scores.sink, ScoreMask):
            extras += [self.extra(*part, order) for part in parts_of(scores.sink, self.joining.elements)]
        elif scores.sink is not None:
            shape = (1,) * len(order)
            extras.append(self.add("Fill", (), {"shape": shape, "value": scores.sink, "dtype": "f32"}))
        if any(one is None for one in extras):
            return None
        if scores.sink is not None and extras[-1].type.shape[-2:] != (1, 1):
            return None
        return attributes or {}, extras

    def parts(self, scores: ScoreSteps, key: DimAtom) -> list[Part] | None:
        """What is added to scores, or hides them. What is made of the scores themselves and the same for all keys of a
        query, as their largest, changes no weights but beside a sink; None if it is not the same."""
        found: list[Part] = []
        for i, mask in enumerate(scores.masks):
            own = [*parts_of(mask, self.joining.elements)]
            is_behind = scores.sink is not None and i >= scores.sunk  # it is added to the sink, too
            if mask.is_own and (i < scores.sunk or any(_is_along(*one, key) for one in own)):
                return None
            if is_behind and not mask.is_own:
                return None
            found += () if mask.is_own else own
        return found

    def attributes(self, parts: Sequence[Part], order: Sequence[DimAtom]) -> dict[str, Any] | None:
        """What hides what all these hide, as attributes of Attention; None if these cannot say it."""
        *_, query, key = order
        elements, known = self.joining.elements, self.joining.ranges
        found = together(range_of(*part, query, key, elements, known) for part in parts)
        return None if found is None else found.attributes

    def extra(self, mask: ScoreMask, spread: SpreadMask, order: Sequence[DimAtom]) -> Value | None:
        """A mask in the dims of scores, of size 1 where it has one value."""
        own = _own_dims(mask, spread)
        if not self.fits(spread.value, own, order):
            return None
        value = self.turned(spread.value, own, order)
        if mask.kind in ADDED and mask.factor != 1.0:
            value = self.add("ScalarMul", (value,), {"factor": mask.factor})
        turned = {"hidden": "LogicalNot", "less": "Neg"}.get(mask.kind)
        return value if turned is None else self.add(turned, (value,), {})

    def seeing(self, scores: ScoreSteps, order: Sequence[DimAtom]) -> tuple[Value | None] | None:
        """For which queries weights are not made zero, all of them; (None,) if that is no query. Weights that masks of
        scores hide are zero without that, but for queries that see no key. None if others are made zero, too."""
        parts = self.parts(scores, order[-1])
        zeroed = [part for one in scores.zeroed if one.kind != "nan" for part in parts_of(one, self.joining.elements)]
        if not scores.zeroed:
            return (None,)
        if parts is None:
            return None
        rows = [part for part in zeroed if not _is_along(*part, order[-1])]
        if len(rows) < len(zeroed):
            # What is added may hide keys, too, beside which those that are made zero have weights.
            if scores.sink is not None or not self.are_same(parts, zeroed, rows):
                return None
            zeroed = rows if self.see_some(parts, order) else zeroed
        endless = [part for part in parts if part[0].kind in ADDED or part[0].endless]
        if len(zeroed) == len(rows) and "nan" in (one.kind for one in scores.zeroed) and scores.sink is None:
            zeroed += () if self.see_some(endless, order) else endless
        return self.seen_by_all(zeroed, order)

    def see_some(self, parts: Sequence[Part], order: Sequence[DimAtom]) -> bool:
        """Whether what these hide is told by places alone, and each query sees a key."""
        *_, query, key = order
        return query.size <= key.size and self.attributes(parts, order) is not None

    def seen_by_all(self, parts: Sequence[Part], order: Sequence[DimAtom]) -> tuple[Value | None] | None:
        """Which queries see a key that none of these hides."""
        seen: Value | None = None
        for mask, spread in parts:
            more = self.extra(mask, spread, order)
            if more is not None and mask.kind in ADDED:
                least = self.add("Fill", (), {"shape": (), "value": -math.inf, "dtype": more.type.dtype.name})
                more = self.add("Greater", (more, least), {})
            if more is None:
                return None
            seen = more if seen is None else self.add("LogicalAnd", (seen, more), {})
        if seen is None or seen.type.shape[-1] == 1:
            return (seen,)
        return (self.add("ReduceAny", (seen,), {"axis": (len(order) - 1,), "keep_dims": True}),)

    def of_seeing(self, result: Value, seeing: Value | None) -> Value:
        """A result that is 0 for queries that see no key."""
        if seeing is None:
            return result
        return self.add("Mul", (result, self.add("Cast", (seeing,), {"dtype": result.type.dtype.name})), {})

    def are_same(self, hides: Sequence[Part], zeroed: Sequence[Part], rows: Sequence[Part]) -> bool:
        """Whether each of these hides what one of the others does; `rows` may make zero what none hides."""
        both = ((hides, zeroed), ([part for part in zeroed if part not in rows], hides))
        return all(any(self.is_same(part, one) for one in more) for few, more in both for part in few)

    def is_same(self, one: Part, other: Part) -> bool:
        (mask, spread), (like, alike) = one, other
        dims = [[leaves_of(dim) for dim in _own_dims(*part)] for part in (one, other)]
        return mask.kind == like.kind and dims[0] == dims[1] and self.makes_same(spread.value, alike.value)

    def makes_same(self, one: Value, other: Value, deepest: int = 12) -> bool:
        """Whether two values are made in the same way of the same ones."""
        if one is other:
            return True
        nodes = [self.joining.elements.producers.get(value, (None, 0)) for value in (one, other)]
        (left, i), (right, k) = nodes
        if left is None or right is None or not deepest or i != k or left.regions or right.regions:
            return False
        if left.op is not right.op or left.op.has_effects(left.attrs) or len(left.operands) != len(right.operands):
            return False
        pairs = zip(left.operands, right.operands, strict=True)
        return left.attrs == right.attrs and all(self.makes_same(*pair, deepest - 1) for pair in pairs)

    # -- dropped weights

    def as_dropped(self, lead: Sequence[DimAtom], scores: ScoreSteps) -> Sequence[DimAtom]:
        """The leading dims in the order in which weights that are dropped have them."""
        if scores.dropped is None:
            return lead
        places = {leaf: i for i, leaf in enumerate(leaf for dim in scores.dropped.dims for leaf in leaves_of(dim))}
        return sorted(lead, key=lambda leaf: places.get(leaf, -1))

    def dropping(self, scores: ScoreSteps, order: Sequence[DimAtom]) -> tuple[dict[str, Any], list[Value]] | None:
        """Attributes and operands that drop what a node drops; None if its weights lie in another order."""
        if scores.dropped is None:
            return {}, []
        node, dims = scores.dropped.node, scores.dropped.dims
        own = [leaf for dim in dims for leaf in leaves_of(dim) if leaf.size > 1]
        if own != [leaf for leaf in order if leaf.size > 1]:
            return None
        return {"dropout": node.attrs["rate"], "seed": node.attrs["seed"]}, [node.operands[1]]

    # -- queries and keys

    def scaled(
        self, asking: Value, keys: Value, times: Sequence[ScoreMask], order: Sequence[DimAtom]
    ) -> tuple[Value, Value] | None:
        """Queries and keys times what their products are multiplied by, which is the same for all keys, or queries."""
        *lead, query, key = order
        for mask in times:
            for part in parts_of(mask, self.joining.elements):
                value = self.extra(*part, order)
                op = "Mul" if mask.kind == "times" else "Div"
                is_of_keys = _is_along(*part, key)
                of = keys if is_of_keys else asking
                if value is None or value.type.dtype != of.type.dtype or (is_of_keys and _is_along(*part, query)):
                    return None
                if is_of_keys:
                    value = self.transpose(value, [*range(len(lead)), len(lead) + 1, len(lead)])
                if any(more not in (1, size) for more, size in zip(value.type.shape, of.type.shape, strict=True)):
                    return None
                made = self.add(op, (of, value), {})
                asking, keys = (asking, made) if is_of_keys else (made, keys)
        return asking, keys

    def widened(
        self, asking: Value, keys: Value, scores: ScoreSteps, order: Sequence[DimAtom]
    ) -> tuple[Value, Value] | None:
        """Queries and keys with the features behind their own of other products that are added."""
        for product in scores.products:
            found = self.sides(product, order)
            if found is None:
                return None
            both = tuple(map(self.beside, (asking, keys), found))
            if both[0] is None or both[1] is None:
                return None
            more = both[0][1]
            if product.scale != scores.scale:
                more = self.add("ScalarMul", (more,), {"factor": product.scale / scores.scale})
            axis = {"axis": len(order) - 1}
            asking, keys = self.add("Concat", (both[0][0], more), axis), self.add("Concat", both[1], axis)
        return asking, keys

    def sides(self, product: ScoreProduct, order: Sequence[DimAtom]) -> tuple[Value, Value] | None:
        """Queries and keys of a product, with a dim for each lead, rows, and features."""
        *lead, query, key = order
        letters = product_letters(product.node)
        assert letters is not None
        known: dict[int, Dim] = dict(zip(letters[2], product.dims, strict=True))
        summed = {one for one in (*letters[0], *letters[1]) if one not in known}
        if len(summed) != 1 or not summed.issubset(letters[0]) or not summed.issubset(letters[1]):
            return None
        (one,) = summed
        feature = DimAtom(product.node.operands[0].type.shape[letters[0].index(one)])
        known[one] = (feature,)
        pairs = zip(product.node.operands, letters[:2], strict=True)
        both = [(value, tuple(known[one] for one in word)) for value, word in pairs]
        has = [[row in (leaf for dim in dims for leaf in leaves_of(dim)) for row in (query, key)] for _, dims in both]
        if sorted(has) != [[False, True], [True, False]]:
            return None
        if has[0][1]:
            both.reverse()
        orders = ([*lead, query, feature], [*lead, key, feature])
        if not all(self.fits(*one, of) for one, of in zip(both, orders, strict=True)):
            return None
        of_queries, of_keys = (self.turned(*one, of) for one, of in zip(both, orders, strict=True))
        return of_queries, of_keys

    def beside(self, value: Value, more: Value) -> tuple[Value, Value] | None:
        """Two values of different features, spread over the leads of both."""
        if value.type.dtype != more.type.dtype:
            return None
        shape = np.broadcast_shapes(value.type.shape[:-1], more.type.shape[:-1])
        found = [self.spread(one, (*shape, one.type.shape[-1])) for one in (value, more)]
        return found[0], found[1]

    def spread(self, value: Value, shape: Sequence[int]) -> Value:
        return value if value.type.shape == tuple(shape) else self.add("BroadcastTo", (value,), {"shape": tuple(shape)})

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
            query = self.heads_in_groups(query, shared)
            extras = [self.heads_in_groups(one, shared) if one.type.rank else one for one in extras]
        result = self.add("Attention", (query, shared.keys, shared.values, *extras), attrs, self.near.name)
        return self.reshape(result, shape)

    def heads_in_groups(self, value: Value, shared: SharedKeys) -> Value:
        """A value with its heads as groups and those of a group."""
        i, shape = shared.lead, value.type.shape
        assert i is not None
        parts = (shape[i] // shared.copies, shared.copies) if shape[i] > 1 else (1, 1)
        return self.reshape(value, (*shape[:i], *parts, *shape[i + 1 :]))


def _own_dims(mask: ScoreMask, spread: SpreadMask) -> Dims:
    """The dims of a tensor that is spread over those of scores."""
    own: list[Dim] = [()] * spread.value.type.rank
    for i, dim in enumerate(spread.dims):
        if dim is not None:
            own[dim] = leaves_of(mask.dims[i])
    return tuple(own)


def _is_along(mask: ScoreMask, spread: SpreadMask, atom: DimAtom) -> bool:
    """Whether a mask differs along a dim of scores."""
    return any(atom in dim for dim in _own_dims(mask, spread))


def _names(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}_{i}" for i in count(1))
