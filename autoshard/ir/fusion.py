"""Which operators a compiler makes one kernel of: `fused(graph)`, for devices whose programs are compiled.

Products, look-ups and attention are kernels of their own. All else is light: element-wise operators, reductions, norms,
updates of parameters. Light operators that hand values on to each other, without a product between them, are a group:
it reads each value from memory once, writes what others need, and is started once. Views cost nothing. So XLA fuses
(loop, input and multi-output fusion) and torch's inductor, which besides fuses groups that read the same (horizontal
fusion), and sums over rows in kernels of their own where others read what is summed. Each node is told its share of
what its group moves (`KernelTraffic`), so that prices stay sums over nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property

from autoshard.ir.graph import DATA, Graph, KernelTraffic, Node, Region, Value

STATISTIC = 64
"""A tensor that is so many times smaller than another is a statistic of it, or what is spread over it."""
_Moved = tuple[tuple[bool, ...], tuple[bool, ...], bool]
"""Which operands and results of a node go through memory, and whether it stands for its kernel's start."""
_PRODUCT = 4.0
"""From how many index combinations on for an element of the largest tensor an operator is a product or a look-up."""


def fused(graph: Graph, how: str = "xla") -> tuple[Graph, dict[Node, Node]]:
    """The graph whose nodes know their traffic, and what each node has become.

    Args:
        how: `Device.fusion`: "xla" and "inductor" fuse all of that, "kernels" what people write kernels for:
            element-wise chains, and a softmax of scores in 16 bits with what leads to it (Narayanan et al. 2021,
            section 4.2); "eager" runs each operator by itself, where views cost nothing.
    """
    became: dict[Node, Node] = {}
    return replace(graph, nodes=_told(graph, how, became)), became


def _told(graph: Graph, how: str, became: dict[Node, Node]) -> tuple[Node, ...]:
    """The nodes of a graph, which know their traffic, those of its loops and branches too; kernels end at borders."""
    traffic = kernel_traffic(graph, how)
    for node in graph.nodes:
        of = traffic.get(node)
        became[node] = (
            node.with_regions(lambda region: _region_told(region, how, became))
            if of is None
            else replace(node, traffic=of)
        )
    return tuple(became[node] for node in graph.nodes)


def _region_told(region: Region, how: str, became: dict[Node, Node]) -> Region:
    inputs = (*region.args, *region.captured)
    inside = Graph("", inputs, region.nodes, region.outputs, (DATA,) * len(inputs))
    return region.with_nodes(_told(inside, how, became))


def kernel_traffic(graph: Graph, how: str) -> dict[Node, KernelTraffic]:
    """What each node moves that has no regions; `how` as in `fused`."""
    if how == "eager":
        found = {node: _alone(node) for node in graph.nodes if not node.regions}
    else:
        groups = _Groups(graph, _is_written if how == "kernels" else _is_any, how == "inductor")
        found = {node: groups.traffic(node) for node in graph.nodes if not node.regions}
    return {node: KernelTraffic(*of, how) for node, of in found.items()}


def _is_any(made: Node, node: Node) -> bool:
    return True


def _is_written(made: Node, node: Node) -> bool:
    """Whether people write kernels that do one after the other; those of attention take scores of 2 bytes alone."""
    if any(of.rank == 4 and of.shape[-1] == of.shape[-2] and of.dtype.itemsize > 2 for of in made.result_types):
        return False
    first, second = (one.op.spread == "pointwise" or one.op.name in _WRITTEN for one in (made, node))
    return first and second and not (made.op.name == "Softmax" or node.op.name == "SoftmaxGrad")


_WRITTEN = ("Softmax", "SoftmaxGrad", "Dropout")


def _alone(node: Node) -> _Moved:
    """What a node moves that is a kernel by itself; a table of which few rows are looked up is not read whole."""
    if node.op.view and node.operands or _is_counter(node):
        return _nothing(node)
    looked_up = node.op.name in _LOOKUPS
    reads = tuple(not (looked_up and place == 0) for place in range(len(node.operands)))
    return reads, (bool(node.operands),) * len(node.results), bool(node.operands)


def _is_counter(node: Node) -> bool:
    """Whether it counts, as of random numbers: hosts do that where they start kernels."""
    return all(of.rank == 0 and not of.dtype.is_float for of in (*node.operand_types, *node.result_types))


def _nothing(node: Node) -> _Moved:
    return (False,) * len(node.operands), (False,) * len(node.results), False


class _Groups:
    """Groups of light operators.

    Args:
        may: whether two operators may be in one, of which the first hands a value to the second.
        beside: whether groups that read the same values, all of them, are one; sums over rows are then apart from what
            others read.
    """

    def __init__(self, graph: Graph, may: Callable[[Node, Node], bool], beside: bool = False) -> None:
        self.graph, self.may, self.beside = graph, may, beside
        self.parents: dict[Node, Node] = {}
        self.levels: dict[Value, int] = {}
        self.columns: set[Node] = set()
        for node in graph.nodes:
            self._place(node)
        if beside:
            self._join_beside()

    def find(self, node: Node) -> Node:
        """The node that stands for a group."""
        while (above := self.parents.get(node, node)) is not node:
            node = above
        return node

    def _place(self, node: Node) -> None:
        """Join a node to the groups that its operands are from."""
        ahead = [(value, self._maker(value)) for value in node.operands]
        level = max((self._after(value, made) for value, made in ahead), default=0)
        if _is_light(node) and not node.op.view:
            if _sums_columns(node):
                self.columns.add(node)
            for value, made in ahead:
                if made is not None and _is_light(made) and self._joins(made, node, value, level):
                    self.parents[self.find(made)] = self.find(node)
        self.levels.update(dict.fromkeys(node.results, level))

    def _after(self, value: Value, made: Node | None) -> int:
        """The level of what reads a value: one more where it is of a kernel that ends there; a constant ends none."""
        ends = made is not None and bool(made.operands) and (not _is_light(made) or made in self.columns)
        return self.levels.get(value, 0) + ends

    def _joins(self, made: Node, node: Node, value: Value, level: int) -> bool:
        if made in self.columns or self.levels[made.results[0]] != level or not self.may(made, node):
            return False
        alone = made.op.spread == "pointwise" and len(self.graph.users[made.results[0]]) == 1
        if self.beside and node in self.columns and (not alone or made.results[0] in self.graph.outputs):
            return False
        few, many = sorted((_largest(made), _largest(node)))
        return alone or few == many or few * STATISTIC <= many

    def _join_beside(self) -> None:
        """Join groups that read a value as large as what they loop over, and neither of which leads to the other."""
        import networkx as nx

        after = nx.DiGraph()
        after.add_nodes_from(self.find(node) for node in self.graph.nodes)
        for node in self.graph.nodes:
            ahead = (self.graph.producers.get(value, (None, 0))[0] for value in node.operands)
            edges = ((self.find(made), self.find(node)) for made in ahead if made is not None)
            after.add_edges_from(edge for edge in edges if edge[0] is not edge[1])
        order = nx.condensation(after)
        ranks = {
            node: rank
            for rank, parts in enumerate(nx.topological_generations(order))
            for part in parts
            for node in order.nodes[part]["members"]
        }
        readers: dict[tuple[int, Value], Node] = {}
        loops = self._loops()
        for node in self.graph.nodes:
            group = self.find(node)
            if group not in loops:
                continue
            for value in node.operands:
                if value.type.elements == loops[group]:
                    first = readers.setdefault((ranks[group], self._base(value)), group)
                    if self.find(first) is not self.find(group) and loops[first] == loops[group]:
                        self.parents[self.find(group)] = self.find(first)

    def _loops(self) -> dict[Node, int]:
        """How many elements the light groups go over, but for sums over rows."""
        found: dict[Node, int] = {}
        for node in self.graph.nodes:
            if _is_light(node) and not node.op.view and node.operands:
                group = self.find(node)
                found[group] = max(found.get(group, 0), _largest(node))
        for node in self.columns:
            found.pop(self.find(node), None)
        return found

    def _maker(self, value: Value) -> Node | None:
        """The node that makes a value's elements, behind views."""
        node, _ = self.graph.producers.get(value, (None, 0))
        while node is not None and node.op.view and node.operands:
            node, _ = self.graph.producers.get(node.operands[0], (None, 0))
        return node

    def _base(self, value: Value) -> Value:
        """The value in whose memory a value lies."""
        node, _ = self.graph.producers.get(value, (None, 0))
        while node is not None and node.op.view and node.operands:
            value = node.operands[0]
            node, _ = self.graph.producers.get(value, (None, 0))
        return value

    @cached_property
    def stored(self) -> set[Value]:
        """Values that lie in memory: inputs, outputs, what products make, and what another group reads."""
        found = {*self.graph.inputs, *(self._base(value) for value in self.graph.outputs)}
        for node in self.graph.nodes:
            if node.op.view and node.operands:
                continue
            for value in node.uses:
                base, made = self._base(value), self._maker(value)
                if made is None or not _is_light(made) or not _is_light(node) or self.find(made) is not self.find(node):
                    found.add(base)
        return found

    @cached_property
    def _first_reads(self) -> dict[Node, tuple[bool, ...]]:
        """Per node which operands it is the first of its group to read from memory."""
        seen: set[tuple[Node, Value]] = set()
        found: dict[Node, tuple[bool, ...]] = {}
        for node in self.graph.nodes:
            reads = []
            for value in node.operands:
                key = self.find(node), self._base(value)
                made = self._maker(value)
                own = made is not None and _is_light(made) and self.find(made) is self.find(node)
                reads.append(key not in seen and not own and key[1] in self.stored and not self._is_free(value, node))
                seen.add(key)
            found[node] = tuple(reads)
        return found

    def _is_free(self, value: Value, node: Node) -> bool:
        """Whether nothing of the size of a value is read: it is filled with a number, is spread from a smaller one
        where it is read, or is a table of which few rows are looked up."""
        made, _ = self.graph.producers.get(value, (None, 0))
        if made is not None and not made.operands and made.op.name != "Constant":
            return True
        spread = value.type.elements > self._base(value).type.elements
        lookup = node.op.name in _LOOKUPS and value is node.operands[0]
        return lookup or spread and _is_light(node)

    def traffic(self, node: Node) -> _Moved:
        """What of a node's operands and results goes through memory, and whether it stands for its group's start."""
        if node.op.view and node.operands or _is_counter(node):
            return _nothing(node)
        writes = (
            tuple(value in self.stored for value in node.results) if node.operands else (False,) * len(node.results)
        )
        return self._first_reads[node], writes, bool(node.operands) and self.find(node) is node


_LOOKUPS = ("Gather", "GatherSlices", "GatherD")


def _is_light(node: Node) -> bool:
    if node.regions or not node.op.has_rule or node.op.name.startswith("Attention"):
        return False
    return node.rule.work <= _PRODUCT * _largest(node)


def _largest(node: Node) -> int:
    """Elements of the largest operand or result."""
    return max((of.elements for of in (*node.operand_types, *node.result_types)), default=0)


def _sums_columns(node: Node) -> bool:
    """Whether it sums over dims before others that stay: of gradients of biases and of scales of norms."""
    summed = {*node.rule.summed}
    return any(_ends_kept(dims, summed) for dims in node.rule.operands)


def _ends_kept(dims: Iterable[tuple[int, ...]], summed: set[int]) -> bool:
    flat = [factor for dim in dims for factor in dim]
    return any(factor in summed for factor in flat) and bool(flat) and flat[-1] not in summed
