"""Keys and values that are copied to all heads of a group, as they were before: `before_copies(value)`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from autoshard.ir.graph import Graph, Node, Value
from autoshard.ops.registry import lookup
from autoshard.transform.simplify import with_nodes


class CopiedKeys(NamedTuple):
    """A value as the reshaped and turned source that it is a copy of: dim `lead` of the value becomes two, of which the
    second has size 1 where it had `copies`."""

    source: Value
    shape: tuple[int, ...]
    perm: tuple[int, ...]
    lead: int
    copies: int

    @property
    def places(self) -> tuple[int, int]:
        return self.lead, self.copies


class SharedKeys(NamedTuple):
    """Keys and values, and which lead of queries is groups of so many heads that share them; None: no lead is."""

    keys: Value
    values: Value
    lead: int | None
    copies: int


def before_copies(value: Value, maker: Callable[[Value], Node | None]) -> CopiedKeys | None:
    """Of [..., groups * n, rows, width] that is n copies of each group, turned or not, what is copied."""
    turned, base = maker(value), value
    perm = tuple(range(value.type.rank))
    if turned is not None and turned.op.name == "Transpose":
        perm, base = tuple(turned.attrs["perm"]), turned.operands[0]
    joined = maker(base)
    if joined is None or joined.op.name != "Reshape":
        return None
    copied = maker(joined.operands[0])
    if copied is None or copied.op.name not in ("BroadcastTo", "BroadcastInDim"):
        return None
    whole, after = tuple(base.type.shape), tuple(copied.results[0].type.shape)
    for at in range(len(whole)):
        if len(after) == len(whole) + 1 and whole == (*after[:at], after[at] * after[at + 1], *after[at + 2 :]):
            shape = (*after[: at + 1], 1, *after[at + 2 :])
            if after[at + 1] > 1 and _copies(copied, shape, at + 1) and at in perm[:-2]:
                order = [j for i in perm for j in ((i, i + 1) if i == at else (i + (i > at),))]
                return CopiedKeys(copied.operands[0], shape, tuple(order), perm.index(at), after[at + 1])
    return None


def with_copies(graph: Graph, keep: Collection[Node] = ()) -> tuple[Graph, dict[Value, Value]]:
    """The graph in which products copy an operand that has one head for all of the other's first, and of each copy what
    it was before; nodes in `keep` stay as they are."""
    nodes: list[Node] = []
    before: dict[Value, Value] = {}

    def add(near: Node, op: str, operand: Value, shape: tuple[int, ...]) -> Value:
        operator = lookup(op)
        attrs = operator.check_attributes({"shape": shape})
        (of,) = operator.result_types((operand.type,), attrs)
        result = Value(of, f"{near.results[0].name}.copied.{len(nodes)}")
        nodes.append(Node(operator, (operand,), attrs, (result,), "", near.source))
        return result

    for node in graph.nodes:
        if node.op.name == "BatchMatMul" and node not in keep and node.given_rule is None:
            first, second = (one.type.shape[:-2] for one in node.operands)
            apart = [i for i, sizes in enumerate(zip(first, second, strict=False)) if len({*sizes}) > 1]
            if len(first) == len(second) and len(apart) == 1 and 1 in (first[apart[0]], second[apart[0]]):
                (at,), i = apart, int(second[apart[0]] == 1)
                narrow, copies = node.operands[i], (first, second)[1 - i][at]
                shape = narrow.type.shape
                lead, rest = shape[: at + 1], shape[at + 1 :]
                spread = add(
                    node, "BroadcastTo", add(node, "Reshape", narrow, (*lead, 1, *rest)), (*lead, copies, *rest)
                )
                whole = add(node, "Reshape", spread, (*shape[:at], copies, *rest))
                before[whole] = narrow
                node = replace(node, operands=(whole, node.operands[1]) if i == 0 else (node.operands[0], whole))
        nodes.append(node)
    return (with_nodes(graph, tuple(nodes)), before) if before else (graph, before)


def _copies(node: Node, shape: tuple[int, ...], new: int) -> bool:
    """Whether a node repeats its operand along dim `new` alone."""
    before, rank = node.operands[0].type.shape, len(shape)
    dims = node.attrs.get("dims", tuple(range(rank - len(before), rank)))
    sizes = [1] * rank
    for i, dim in enumerate(dims):
        sizes[dim] = before[i]
    return list(dims) == sorted(dims) and tuple(sizes) == shape and sizes[new] == 1
