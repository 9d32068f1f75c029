"""The graph: static single assignment, typed values, nodes that know their instance name and source line.

Graphs are immutable and know nothing of layouts; a plan lies beside them. Passes make new graphs, which may share
nodes with old ones (a training graph holds the very nodes of its forward graph).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from autoshard.core.rule import Rule
from autoshard.core.tensortype import TensorType
from autoshard.ops.control import unsplit_rule
from autoshard.ops.registry import Operator
from autoshard.util.errors import GraphError
from autoshard.util.notebook import table
from autoshard.util.source import Source

if TYPE_CHECKING:
    import networkx as nx

DATA, PARAMETER, STATE = "data", "parameter", "state"
ROLES = (DATA, PARAMETER, STATE)


@dataclass(eq=False, slots=True)
class Value:
    """One tensor of a graph; compared by identity. `name` is unique within a graph."""

    type: TensorType
    name: str

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type}>"


@dataclass(frozen=True, eq=False)
class Region:
    """A body inside a node (of a loop, a branch, a manual computation): its arguments, nodes and what it yields."""

    args: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    @property
    def values(self) -> Iterator[Value]:
        """Its arguments and the results of its own nodes."""
        yield from self.args
        for node in self.nodes:
            yield from node.results

    @cached_property
    def captured(self) -> tuple[Value, ...]:
        """The values from outside that it needs, at any depth, in the order of first use."""
        own = {*self.args, *(value for node in self.nodes for value in node.results)}
        used = dict.fromkeys(value for node in self.nodes for value in node.uses)
        used.update(dict.fromkeys(self.outputs))
        return tuple(value for value in used if value not in own)

    def with_nodes(self, nodes: tuple[Node, ...]) -> Region:
        """The region with other nodes that make its outputs; itself if these are its own."""
        return self if nodes == self.nodes else replace(self, nodes=nodes)


class Function:
    """Stands for all nodes that compute the same function of equal types; compared by identity, so that a memo that is
    keyed by it does not go through types and attributes at each look."""

    __slots__ = ("__weakref__",)


_FUNCTIONS: WeakValueDictionary[tuple, Function] = WeakValueDictionary()


def _interned(key: tuple) -> Function:
    known = _FUNCTIONS.get(key)
    return known if known is not None else _FUNCTIONS.setdefault(key, Function())


@dataclass(frozen=True)
class KernelTraffic:
    """What a node moves through memory where several nodes are one kernel: which of its operands and results, and
    whether it stands for the kernel's start; and what makes kernels (`autoshard.ir.fusion`), for a node that runs as
    several."""

    operands: tuple[bool, ...]
    results: tuple[bool, ...]
    launches: bool
    how: str


@dataclass(eq=False)
class Node:
    """One operator applied to values. `name` is the instance name (`dense1.matmul`), '' where the user gave none.

    Nodes inside `regions` may also use values from outside. `given_rule` is a rule that the user gave this very node,
    which holds instead of the operator's; `is_custom` says that it stays the user's to the end: no pass reshards the
    node by it. `traffic` is what it moves as part of a kernel; None: all its operands and results, by itself.
    """

    op: Operator
    operands: tuple[Value, ...]
    attrs: Mapping[str, Any]
    results: tuple[Value, ...]
    name: str = ""
    source: Source | None = None
    regions: tuple[Region, ...] = ()
    given_rule: Rule | None = None
    is_custom: bool = True
    traffic: KernelTraffic | None = None

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.label}>"

    @property
    def label(self) -> str:
        """How people find the node: its instance name, else its first result's name."""
        return self.name or (self.results[0].name if self.results else self.op.name.lower())

    @property
    def uses(self) -> tuple[Value, ...]:
        """All values that must exist before it runs: its operands, and what its regions use from outside."""
        if not self.regions:
            return self.operands
        return self.operands + tuple(value for region in self.regions for value in region.captured)

    def with_regions(self, change: Callable[[Region], Region]) -> Node:
        """The node with each region changed; itself if none changes."""
        regions = tuple(map(change, self.regions))
        return self if regions == self.regions else replace(self, regions=regions)

    @cached_property
    def operand_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.operands)

    @cached_property
    def result_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.results)

    @cached_property
    def key(self) -> Function:
        """The same for nodes that compute the same function of equal types, but for the numbers that they hold, add,
        multiply by or draw: what tables and memos of strategies and prices are keyed by."""
        numbers = self.op.options.numbers
        attrs = tuple([item for item in self.attrs.items() if item[0] not in numbers])
        types = self.operand_types, self.result_types
        return _interned((self.op.name, types, attrs, self.given_rule, self.traffic))

    @cached_property
    def rule(self) -> Rule:
        """How dims belong together; those of a node with regions do not, as far as the node itself goes."""
        if self.regions and self.given_rule is None and not self.op.has_rule:
            return unsplit_rule(self.operand_types, self.result_types)
        return self.given_rule or self.op.rule(self.operand_types, self.attrs)

    @cached_property
    def is_product(self) -> bool:
        """Whether it multiplies tensors and sums up: several operands have a factor that no result has."""
        return bool(self.op.has_rule and self.rule.multiplied)


def given(rule: Rule) -> Rule:
    """A rule that a user gives a node. It says how shardings spread, not that the operator can run on blocks: no factor
    is split."""
    return replace(rule, factors=tuple(replace(factor, whole=True) for factor in rule.factors))


def renamed(values: Iterable[Value], known: Mapping[Value, Value]) -> tuple[Value, ...]:
    """What stands for values: themselves, where `known` says nothing of them."""
    return tuple(known.get(value, value) for value in values)


def walk(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes with all nodes inside them, each before what it holds."""
    for node in nodes:
        yield node
        for region in node.regions:
            yield from walk(region.nodes)


def region_values(regions: Iterable[Region]) -> Iterator[Value]:
    """The values of regions, and of the regions in them at any depth."""
    for region in regions:
        yield from region.values
        yield from region_values(inner for node in region.nodes for inner in node.regions)


def inner_values(graph: Graph) -> Iterator[Value]:
    """The values of all regions of a graph, at any depth."""
    return region_values(region for node in graph.nodes for region in node.regions)


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs, nodes in an order of execution, outputs.

    `roles` tells what each input is: data, parameter, or state (of an optimizer, a counter). `updates` maps the
    position of an output to the position of the input that it replaces for the next step (a parameter's new value).
    `cotangents` maps gradients inside the graph to the values that they are gradients of. `functions` holds the
    graphs that Call nodes name, at any depth; they may call each other, but not themselves.
    """

    name: str
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    roles: tuple[str, ...]
    updates: Mapping[int, int] = field(default_factory=dict)
    cotangents: Mapping[Value, Value] = field(default_factory=dict)
    functions: Mapping[str, Graph] = field(default_factory=dict)

    @cached_property
    def producers(self) -> dict[Value, tuple[Node, int]]:
        """Value -> (node, which result); inputs are absent."""
        return {value: (node, i) for node in self.nodes for i, value in enumerate(node.results)}

    @cached_property
    def users(self) -> dict[Value, list[tuple[Node, int]]]:
        """Value -> [(node, which operand)] in order of execution."""
        users: dict[Value, list[tuple[Node, int]]] = {value: [] for value in self.values}
        for node in self.nodes:
            for i, value in enumerate(node.operands):
                users[value].append((node, i))
        return users

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values: inputs, then results in order."""
        return self.inputs + tuple(value for node in self.nodes for value in node.results)

    @cached_property
    def role_of(self) -> dict[Value, str]:
        return dict(zip(self.inputs, self.roles, strict=True))

    @cached_property
    def tied(self) -> dict[Value, Value]:
        """Updated output value -> the input it replaces."""
        return {self.outputs[out]: self.inputs[into] for out, into in self.updates.items()}

    def renamed(self, nodes: tuple[Node, ...], known: Mapping[Value, Value]) -> Graph:
        """The graph of other nodes, in which `known` says what stands for its outputs, gradients and what these are
        of."""
        pairs = ((known.get(grad, grad), known.get(of, of)) for grad, of in self.cotangents.items())
        return replace(self, nodes=nodes, outputs=renamed(self.outputs, known), cotangents=dict(pairs))

    def node(self, name: str) -> Node:
        """The node with that instance name (or result name)."""
        for node in self.nodes:
            if name in (node.name, *(value.name for value in node.results)):
                return node
        raise GraphError(f"graph {self.name!r} has no node named {name!r}")

    def _repr_html_(self) -> str:
        """In notebooks: the inputs, and the operators with what they make and the line that asked for them."""
        made = [[value.name, role, str(value.type), ""] for value, role in zip(self.inputs, self.roles, strict=True)]
        for node in self.nodes:
            types = ", ".join(map(str, node.result_types))
            where = "" if node.source is None else str(node.source)
            made.append([node.label, f"{node.op.name}({', '.join(one.name for one in node.operands)})", types, where])
        title = f"graph {self.name}: {len(self.inputs)} inputs, {len(self.nodes)} operators"
        return table(title, ["name", "is", "type", "line"], made)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Returns the graph as networkx has graphs: for its algorithms, and for GraphML, DOT and the like.

        A node stands for an input (keyed by its value's name), an operator (by its first result's name, or `node:7`
        where it has no results and is the eighth) or an output (`output:0`, `output:1`, ...); an edge for one use of a
        value, with the outer values that regions capture among the uses of their operator. Nodes stand in order of
        execution. All attributes are texts and whole numbers, which every writer of networkx takes:

        - nodes: `kind` (input, operator, output), `label`; of inputs `role` and `type`; of operators `op`, `type` (of
          the results, joined by commas) and `source` (file:line, or '');
        - edges: `value` (its name), `type`, `bytes` (of the unsplit value), `result` (which result of the producer) and
          `operand` (which use of the user; those behind the operands are captured).

        >>> import networkx, numpy as np
        >>> from autoshard import ops, trace
        >>> graph = trace(lambda x, w: ops.relu(ops.matmul(x, w)), np.ones((4, 6)), np.ones((6, 10))).graph
        >>> networkx.dag_longest_path(graph.to_networkx())
        ['x', 'matmul', 'relu', 'output:0']
        """
        import networkx as nx  # only here: the import takes longer than many traces

        view = nx.MultiDiGraph(name=self.name)
        keys = {node: node.results[0].name if node.results else f"node:{i}" for i, node in enumerate(self.nodes)}
        for value in self.inputs:
            view.add_node(value.name, kind="input", label=value.name, role=self.role_of[value], type=str(value.type))
        for node, key in keys.items():
            types = ", ".join(map(str, node.result_types))
            where = "" if node.source is None else str(node.source)
            view.add_node(key, kind="operator", label=node.label, op=node.op.name, type=types, source=where)
        for i in range(len(self.outputs)):
            view.add_node(f"output:{i}", kind="output", label=f"output {i}")
        uses = [(key, operand, value) for node, key in keys.items() for operand, value in enumerate(node.uses)]
        for user, operand, value in (*uses, *((f"output:{i}", 0, value) for i, value in enumerate(self.outputs))):
            node, result = self.producers.get(value, (None, 0))
            producer = value.name if node is None else keys[node]
            data = {"value": value.name, "type": str(value.type), "bytes": value.type.nbytes}
            view.add_edge(producer, user, result=result, operand=operand, **data)
        return view


class Builder:
    """Collects nodes into a graph and keeps value names unique; `makers` has the node that made a value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.roles: list[str] = []
        self.nodes: list[Node] = []
        self.makers: dict[Value, Node] = {}
        self.cotangents: dict[Value, Value] = {}
        self._taken: dict[str, int] = {}

    @staticmethod
    def after(graph: Graph, name: str) -> Builder:
        """A builder that starts with everything of `graph`."""
        builder = Builder(name)
        builder.inputs, builder.roles, builder.nodes = list(graph.inputs), list(graph.roles), list(graph.nodes)
        builder.cotangents = dict(graph.cotangents)
        inside = (region for node in walk(graph.nodes) for region in node.regions)
        for value in (*graph.values, *(value for region in inside for value in region.values)):
            builder._taken.setdefault(value.name, 1)
        return builder

    def unique(self, stem: str) -> str:
        """`stem`, or `stem_1`, `stem_2`, ... whichever is free."""
        count = self._taken.get(stem, 0)
        name = stem if count == 0 else f"{stem}_{count}"
        while count and name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken[stem] = count + 1
        self._taken.setdefault(name, 1)
        return name

    def input(self, type_: TensorType, name: str, role: str = DATA) -> Value:
        if role not in ROLES:
            raise GraphError(f"input {name!r} has role {role!r}; roles are {', '.join(ROLES)}")
        value = Value(type_, self.unique(name))
        self.inputs.append(value)
        self.roles.append(role)
        return value

    def add(
        self,
        op: Operator,
        operands: Sequence[Value],
        attrs: Mapping[str, Any],
        name: str = "",
        source: Source | None = None,
        stem: str = "",
        regions: tuple[Region, ...] = (),
    ) -> Node:
        """Append a node; result types come from the operator. `stem` names its values (default: the node's name)."""
        types = op.result_types(tuple(value.type for value in operands), attrs)
        stem = stem or name or op.name.lower()
        results = tuple(Value(of, self.unique(stem)) for of in types)
        node = Node(op, tuple(operands), attrs, results, name, source, regions)
        self.nodes.append(node)
        self.makers.update((value, node) for value in results)
        return node

    def build(self, outputs: Sequence[Value], updates: Mapping[int, int] | None = None) -> Graph:
        return Graph(
            self.name,
            tuple(self.inputs),
            tuple(self.nodes),
            tuple(outputs),
            tuple(self.roles),
            dict(updates or {}),
            dict(self.cotangents),
        )


def ancestors(graph: Graph, values: Iterable[Value]) -> set[Node]:
    """The nodes that values take."""
    found: set[Node] = set()
    waiting = list(values)
    while waiting:
        node = graph.producers.get(waiting.pop(), (None, 0))[0]
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(node.uses)
    return found
