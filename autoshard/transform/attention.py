"""Attention that people write by hand as the one operator: `joined_attention(graph)`, of a graph without gradients.

    softmax(mask(q k^T * scale)) v    ->    Attention(q, k, v)

The mask is none, or lets each query see the keys up to its own place; scores may be scaled before it. Keys and values
that are copied to all heads of a group are taken as they were before. What else is done with scores (dropout, caps,
other masks, a second reader) leaves the operators as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from autoshard.ir.graph import Graph, Node, Value
from autoshard.ops.registry import lookup
from autoshard.transform.simplify import live_nodes, with_nodes

HIDDEN = -1e4
"""Scores that are this or less count as hidden: exp of it is 0 beside any score that can be seen."""
_PRODUCTS = ("MatMul", "BatchMatMul")


def joined_attention(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph with one operator for each attention; itself if there is none to join.

    The new operators make the same values, under the names and source lines of the last ones. Nodes in `keep` stay:
    annotated ones.
    """
    nodes = _AttentionJoiner(graph, keep).run()
    return graph if nodes == graph.nodes else with_nodes(graph, nodes)


@dataclass(frozen=True)
class _Scores:
    """What scores are before their softmax."""

    query: Value
    key: Value
    scale: float
    causal: bool


class _AttentionJoiner:
    def __init__(self, graph: Graph, keep: Collection[Node]) -> None:
        self.graph, self.keep = graph, keep
        self.uses = Counter(value for node in graph.nodes for value in node.uses)
        self.uses.update(graph.outputs)
        self.names = {value.name for value in graph.values}

    def run(self) -> tuple[Node, ...]:
        made = tuple(one for node in self.graph.nodes for one in self.joined(node))
        return self.graph.nodes if made == self.graph.nodes else live_nodes(made, self.graph.outputs)

    def joined(self, node: Node) -> Iterable[Node]:
        """The nodes that stand for a node."""
        if node in self.keep:
            return (node,)
        if node.op.name == "Attention" and node.given_rule is None:
            return self.grouped(node, *node.operands)
        found = self.by_hand(node) if node.op.name in _PRODUCTS and not any(node.attrs.values()) else None
        if found is None:
            return (node,)
        value = node.operands[1]
        attrs = {"scale": found.scale, "causal": found.causal}
        return self.grouped(self.attention(node, (found.query, found.key, value), attrs), found.query, found.key, value)

    @staticmethod
    def attention(node: Node, operands: tuple[Value, ...], attrs: dict) -> Node:
        op = lookup("Attention")
        return Node(op, operands, op.check_attributes(attrs), node.results, node.name, node.source)

    # -- scores by hand

    def by_hand(self, node: Node) -> _Scores | None:
        """The scores of a product of weights and values; None if it is none."""
        weights = self.maker(node.operands[0], "Cast", "Identity")
        if weights is None or weights.op.name != "Softmax" or len(node.operands) != 2:
            return None
        rank = weights.operands[0].type.rank
        if weights.attrs["axis"] not in (-1, rank - 1) or rank < 3:
            return None
        return self.scores(weights.operands[0], node)

    def scores(self, value: Value, last: Node) -> _Scores | None:
        """What was done with products of queries and keys, the last first: a mask, then scales."""
        scale, causal, masked = 1.0, False, False
        while (made := self.maker(value, "Cast", "Identity")) is not None and made.op.name not in _PRODUCTS:
            if (mask := self.mask(made)) is not None:
                if masked or scale != 1.0:
                    return None
                masked, causal = True, mask == "causal"
            elif (factor := self.factor(made)) is not None:
                scale *= factor
            else:
                return None
            value = made.operands[0]
        return None if made is None else self.product(made, last, scale, causal)

    def maker(self, value: Value, *passed: str) -> Node | None:
        """The node that makes a value, behind those that pass it on; None if something else reads one of these."""
        while value in self.graph.producers and self.uses[value] == 1:
            node, _ = self.graph.producers[value]
            if node in self.keep:
                return None
            if node.op.name not in passed:
                return node
            value = node.operands[0]
        return None

    def mask(self, node: Node) -> str | None:
        """ "causal" or "none" of what hides scores, None of anything else."""
        if node.op.name == "MaskedFill" and node.attrs["value"] <= HIDDEN:
            hidden = self.constant(node.operands[1])
        elif node.op.name == "Add":
            added = self.constant(node.operands[1])
            if added is None or not np.all((added == 0) | (added <= HIDDEN)):
                return None
            hidden = added <= HIDDEN
        else:
            return None
        return None if hidden is None else _kind_of(hidden, *node.results[0].type.shape[-2:])

    def factor(self, node: Node) -> float | None:
        """The number that a node multiplies by."""
        if node.op.name == "ScalarMul":
            return float(node.attrs["factor"])
        if node.op.name not in ("Mul", "Div", "RealDiv"):
            return None
        number = self.constant(node.operands[1])
        if number is None or number.size != 1 or not np.all(number):
            return None
        return float(number.item()) if node.op.name == "Mul" else 1 / float(number.item())

    def constant(self, value: Value) -> np.ndarray | None:
        """The numbers of a value, if they do not depend on anything."""
        if value not in self.graph.producers:
            return None
        node, _ = self.graph.producers[value]
        if node.op.name == "Constant" and not any(node.attrs["start"]) and node.attrs["shape"] is None:
            return node.attrs["value"].array
        return np.asarray(node.attrs["value"]) if node.op.name == "Fill" and not node.operands else None

    def product(self, node: Node, last: Node, scale: float, causal: bool) -> _Scores | None:
        """The scores, if their dims are those of attention."""
        query, key = node.operands
        if node.attrs.get("transpose_a") or not scale:
            return None
        if not node.attrs.get("transpose_b"):
            turned = self.graph.producers.get(key, (None, 0))[0]
            rank = key.type.rank
            if turned is None or turned.op.name != "Transpose":
                return None
            if tuple(turned.attrs["perm"]) != (*range(rank - 2), rank - 1, rank - 2):
                return None
            key = turned.operands[0]
        value, result = last.operands[1].type, last.results[0].type
        lead = query.type.shape[:-2]
        fits = lead == key.type.shape[:-2] == value.shape[:-2] and len(lead) > 0
        fits = fits and query.type.shape[-1] == key.type.shape[-1] and key.type.shape[-2] == value.shape[-2]
        return _Scores(query, key, scale, causal) if fits and value.dtype == result.dtype else None

    # -- keys and values that heads share

    def grouped(self, node: Node, query: Value, key: Value, value: Value) -> Iterator[Node]:
        """The attention, on keys and values before they were copied to all heads of a group."""
        known = [self.before_copies(one) for one in (key, value)]
        if None in known or len({one.type.shape[:-2] for one in known if one is not None}) != 1:
            yield node
            return
        keys, values = known
        assert keys is not None and values is not None
        *lead, groups, _, _, _ = keys.type.shape
        heads, length, width = query.type.shape[-3:]
        apart = self.reshape(query, (*lead, groups, heads // groups, length, width), node)
        yield apart
        op = lookup("Attention")
        operands = (apart.results[0], keys, values)
        (of,) = op.result_types(tuple(one.type for one in operands), node.attrs)
        found = Value(of, self.name(f"{node.results[0].name}.groups"))
        yield Node(op, operands, node.attrs, (found,), node.name, node.source)
        joined = self.reshape(found, node.results[0].type.shape, node)
        yield Node(joined.op, joined.operands, joined.attrs, node.results, "", node.source)

    def before_copies(self, value: Value) -> Value | None:
        """[..., groups, 1, rows, width] that are copied to [..., groups, n, rows, width] and joined to heads."""
        joined = self.graph.producers.get(value, (None, 0))[0]
        if joined is None or joined.op.name != "Reshape":
            return None
        copied = self.graph.producers.get(joined.operands[0], (None, 0))[0]
        if copied is None or copied.op.name != "BroadcastTo" or copied.operands[0].type.rank < 4:
            return None
        before, after = copied.operands[0].type.shape, copied.results[0].type.shape
        shared = len(before) == len(after) and before[-3] == 1 and (*before[:-3], *before[-2:]) == (
            *after[:-3], *after[-2:])  # fmt: skip
        whole = (*after[:-4], after[-4] * after[-3], *after[-2:]) == tuple(value.type.shape)
        return copied.operands[0] if shared and whole else None

    def reshape(self, value: Value, shape: tuple[int, ...], near: Node) -> Node:
        op = lookup("Reshape")
        result = Value(value.type.with_shape(shape), self.name(f"{near.results[0].name}.heads"))
        return Node(op, (value,), op.check_attributes({"shape": shape}), (result,), "", near.source)

    def name(self, stem: str) -> str:
        """A name that nothing has."""
        found = next(name for name in _names(stem) if name not in self.names)
        self.names.add(found)
        return found


def _kind_of(hidden: np.ndarray, queries: int, keys: int) -> str | None:
    """ "causal" or "none" of where a mask hides scores, None of anything else."""
    if not hidden.any():
        return "none"
    if hidden.ndim < 2 or hidden.shape[-2:] != (queries, keys):
        return None
    later = ~np.tri(queries, keys, dtype=bool)
    causal = all(np.array_equal(one, later) for one in hidden.reshape(-1, queries, keys))
    return "causal" if causal else None


def _names(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}_{i}" for i in count(1))
