"""The mutable module of a graph that propagation edits: ops in linked lists, values that know their uses.

A Graph never changes; the passes of propagation insert data-flow edges, copy constants and drop dead code, so they
work on this copy, in place, and the result is read off it. Order matters to Shardy's answer (which change is chased
first), so uses are kept the way MLIR keeps them: the use added last comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any

from autoshard.core.tensortype import TOKEN, TensorType
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Graph, Node, Region, Value
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding
from autoshard.ops.control import ARG, OPERAND, RESULT, NodeEdges, Sizes, ValueLocation, links
from autoshard.ops.registry import Operator, lookup
from autoshard.propagate.views import inside
from autoshard.util.errors import GraphError

Use = tuple["Operation", int]
# Stands for the blocks of the many ops that have none.
_NO_BLOCKS: list[Any] = []


class MutableValue:
    """One value: the result of an op, or an argument of a block."""

    __slots__ = ("type", "owner", "index", "uses", "sharding", "edge", "origin")

    def __init__(self, type_: TensorType, owner: Operation | Block, index: int, origin: Value | None = None) -> None:
        self.type = type_
        self.owner = owner
        self.index = index
        self.uses: dict[Use, None] = {}
        self.sharding: Sharding | None = None
        # The DataFlowEdge op whose owner target this is.
        self.edge: Operation | None = None
        self.origin = origin

    @property
    def users(self) -> Iterator[Use]:
        """The uses, the one added last first."""
        return reversed(self.uses)

    @property
    def is_tensor(self) -> bool:
        """Whether shardings spread to it; they do not to tokens and tensors of dynamic size."""
        return self.type.dtype is not TOKEN and self.type.is_static

    @property
    def defining(self) -> Operation | None:
        """The op that it is a result of; None for arguments."""
        return self.owner if isinstance(self.owner, Operation) else None

    def replace_by(self, other: MutableValue, keep: Iterable[Operation] = ()) -> None:
        """Let all uses, except those by the ops in `keep`, use `other`; they are moved in the order of `users`."""
        kept = set(keep)
        for op, index in list(self.users):
            if op not in kept:
                op.set_operand(index, other)


class Operation:
    """One operation. `operator` is a registered Operator; functions and terminators have the ones below."""

    __slots__ = (
        "operator",
        "attrs",
        "operands",
        "results",
        "blocks",
        "parent",
        "prev",
        "next",
        "order",
        "number",
        "origin",
        "op_class",
        "holders",
        "devices",
    )

    def __init__(
        self,
        operator: Operator,
        operands: Iterable[MutableValue],
        types: Iterable[TensorType],
        attrs: Mapping[str, Any],
    ) -> None:
        self.operator = operator
        # Passes change attributes of rare operators only, so others share theirs with the graph.
        self.attrs: dict[str, Any] = dict(attrs) if is_rare(operator) else attrs  # type: ignore[assignment]
        self.operands: list[MutableValue] = []
        for value in operands:
            self.add_operand(value)
        self.results: list[MutableValue] = []
        for of in types:
            self.results.append(MutableValue(of, self, len(self.results)))
        self.blocks: list[Block] = _NO_BLOCKS
        self.parent: Block | None = None
        self.prev: Operation | None = None
        self.next: Operation | None = None
        # Grows along the block.
        self.order = 0.0
        # Its number among the ops that propagation visits.
        self.number = -1
        # The node that this is (a copy of); None for what a pass made. A copy has the node of what it was copied from.
        self.origin: Node | None = None
        # What propagation finds out once: a class that equal ops share (its `rule` is the op's), and the values that
        # hold the shardings of the operands and then of the results. None until then.
        self.op_class: Any = None
        self.holders: list[MutableValue] | None = None
        # Where an op without results runs, as far as that is asked: a sharding without dims.
        self.devices: Sharding | None = None

    def __repr__(self) -> str:
        return f"<{self.operator.name} {', '.join(str(value.type) for value in self.results)}>"

    @property
    def name(self) -> str:
        return self.operator.name

    @property
    def parent_op(self) -> Operation | None:
        return self.parent.owner if self.parent is not None else None

    @property
    def links(self) -> NodeEdges:
        """Its data-flow edges."""
        return links(self.operator, Sizes(len(self.operands), len(self.results), len(self.blocks)))

    def at(self, location: ValueLocation) -> MutableValue:
        """The value at a place of this op.

        Raises:
            GraphError: the op has no such place.
        """
        kind, index, region = location
        try:
            if kind == OPERAND:
                return self.operands[index]
            if kind == RESULT:
                return self.results[index]
            block = self.blocks[region]
            return block.args[index] if kind == ARG else block.terminator.operands[index]
        except IndexError:
            raise GraphError(
                f"a data-flow edge of {self.name} names {kind} {index} (region {region}), which it lacks; "
                f"it has {len(self.operands)} operands, {len(self.results)} results and "
                f"{len(self.blocks)} regions"
            ) from None

    def add_operand(self, value: MutableValue) -> None:
        value.uses[self, len(self.operands)] = None
        self.operands.append(value)

    def set_operand(self, index: int, value: MutableValue) -> None:
        """Use `value` instead, as its newest use."""
        del self.operands[index].uses[self, index]
        self.operands[index] = value
        value.uses[self, index] = None

    def add_block(self, types: Iterable[TensorType]) -> Block:
        block = Block(self, types)
        self.take_block(block)
        return block

    def take_block(self, block: Block) -> None:
        """Let a block be its last one."""
        block.owner = self
        # The list of no blocks is everybody's.
        self.blocks = [*self.blocks, block]

    def become(self, operator: Operator) -> None:
        """Be an op of another operator from here on."""
        block, before = self.parent, self.next
        if block is not None:
            block.remove(self)
        self.operator, self.op_class = operator, None
        if block is not None:
            block.insert(self, before)

    def erase(self) -> None:
        """Take it out of its block and of the uses of its operands; nobody may use its results any more."""
        assert not any(value.uses for value in self.results), f"{self} is still used"
        for block in reversed(self.blocks):
            for op in reversed(list(block)):
                op.erase()
        for index, value in enumerate(self.operands):
            del value.uses[self, index]
        self.operands.clear()
        if self.parent is not None:
            self.parent.remove(self)

    def walk(self) -> Iterator[Operation]:
        """This op and all inside it, before what they hold (pre-order). Ops may be changed behind the walk."""
        yield self
        for block in self.blocks:
            op = block.first
            while op is not None:
                # Flat ops, nearly all, need no walk of their own.
                following = op.next
                if op.blocks:
                    yield from op.walk()
                else:
                    yield op
                op = following


class Block:
    """A list of ops with arguments; the last op is the terminator.

    `rare` has the ops of rare operators by operator, in no order: most passes look for those alone, see `find`.
    """

    __slots__ = ("owner", "args", "first", "last", "rare")

    def __init__(self, owner: Operation, types: Iterable[TensorType]) -> None:
        self.owner = owner
        self.args = [MutableValue(of, self, i) for i, of in enumerate(types)]
        self.first: Operation | None = None
        self.last: Operation | None = None
        self.rare: dict[Operator, dict[Operation, None]] = {}

    def __iter__(self) -> Iterator[Operation]:
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = following

    @property
    def terminator(self) -> Operation:
        assert self.last is not None, "a block ends with a terminator"
        return self.last

    def append(self, op: Operation) -> Operation:
        last = self.last
        op.parent, op.prev, op.next = self, last, None
        if last is None:
            self.first = op
            op.order = 0.0
        else:
            last.next = op
            op.order = last.order + 1.0
        self.last = op
        if is_rare(op.operator):
            self.rare.setdefault(op.operator, {})[op] = None
        return op

    def insert(self, op: Operation, before: Operation | None) -> Operation:
        """Put `op` before another one of this block, or at the end."""
        if before is None:
            return self.append(op)
        previous = before.prev
        op.parent, op.prev, op.next = self, previous, before
        if previous is None:
            self.first = op
        else:
            previous.next = op
        before.prev = op
        self._set_order(op, previous, before)
        if is_rare(op.operator):
            self.rare.setdefault(op.operator, {})[op] = None
        return op

    def _set_order(self, op: Operation, previous: Operation | None, before: Operation) -> None:
        """Give an op a place between two others; where there is none left, all get new ones."""
        end = before.order
        start = end - 2.0 if previous is None else previous.order
        op.order = (start + end) / 2
        if not start < op.order < end:
            for i, one in enumerate(self):
                one.order = float(i)

    def remove(self, op: Operation) -> None:
        if is_rare(op.operator):
            del self.rare[op.operator][op]
        if op.prev is None:
            self.first = op.next
        else:
            op.prev.next = op.next
        if op.next is None:
            self.last = op.prev
        else:
            op.next.prev = op.prev
        op.parent = op.prev = op.next = None


@lru_cache(maxsize=4096)
def is_rare(operator: Operator) -> bool:
    """Whether passes look for the operator; what just computes is not rare."""
    if not operator.has_rule or operator.takes_regions or operator.options.effects or operator.edges is not None:
        return True
    return "sharding" in operator.attributes or "in_shardings" in operator.attributes


def find(op: Operation, wanted: Callable[[Operator], bool]) -> list[Operation]:
    """The ops inside `op`, and `op` itself, whose operator is wanted and rare; inner ones first, as they stand now.

    Costs next to nothing where there are none.
    """
    found: list[Operation] = []
    _find(op, wanted, found)
    return found


_by_order = attrgetter("order")


def _find(op: Operation, wanted: Callable[[Operator], bool], found: list[Operation]) -> None:
    for block in op.blocks:
        parts = [one for of, ops in block.rare.items() if wanted(of) or _holds_blocks(of) for one in ops]
        for one in sorted(parts, key=_by_order):
            _find(one, wanted, found)
    if wanted(op.operator):
        found.append(op)


@lru_cache(maxsize=4096)
def _holds_blocks(operator: Operator) -> bool:
    return operator.takes_regions or operator in (lookup("Module"), lookup("Function"))


class MutableModule:
    """A module being worked on: a Module op whose block holds Function ops, and its meshes by symbol.

    A Function has attrs `name`, `public` (bool) and `outputs` (a Sharding or None per output); its one block's
    arguments carry the input shardings, and its terminator is a Return. Inside regions the terminator is a Yield.
    """

    def __init__(self, meshes: Mapping[str, Mesh]) -> None:
        self.meshes = dict(meshes)
        self.op = Operation(lookup("Module"), (), (), {})
        self.op.add_block(())

    @property
    def functions(self) -> list[Operation]:
        return list(self.op.blocks[0])

    def function(self, name: str) -> Operation:
        return next(op for op in self.op.blocks[0] if op.attrs["name"] == name)

    @property
    def main(self) -> Operation | None:
        """The function called main, or the only one."""
        functions = self.functions
        named = [op for op in functions if op.attrs["name"] == "main"]
        return named[0] if named else functions[0] if len(functions) == 1 else None


def from_graph(
    graph: Graph, asked: ShardingAnnotations, order: Iterable[str] = (), public: Iterable[str] = ()
) -> MutableModule:
    """The mutable module of a graph and the functions it calls.

    Args:
        order: names of the functions as they stand in the module, the entry among them; default: entry first.
        public: those that may be called from outside, besides the entry.
    """
    module = MutableModule(asked.meshes)
    graphs = {graph.name: graph, **graph.functions}
    callable_from_outside = {graph.name, *public}
    for name in order or graphs:
        _add_function(module, graphs[name], asked, public=name in callable_from_outside)
    return module


def _add_function(module: MutableModule, graph: Graph, asked: ShardingAnnotations, public: bool) -> None:
    outputs = list(asked.outputs.get(graph.name, (None,) * len(graph.outputs)))
    function = Operation(lookup("Function"), (), (), {"name": graph.name, "public": public, "outputs": outputs})
    block = function.add_block(value.type for value in graph.inputs)
    known: dict[Value, MutableValue] = {}
    _bind(known, graph.inputs, block.args, asked)
    _fill(block, graph.nodes, known, asked)
    block.append(Operation(lookup("Return"), [known[value] for value in graph.outputs], (), {}))
    module.op.blocks[0].append(function)


def _bind(
    known: dict[Value, MutableValue], values: Iterable[Value], vals: Iterable[MutableValue], asked: ShardingAnnotations
) -> None:
    for value, val in zip(values, vals, strict=True):
        known[value] = val
        val.origin, val.sharding = value, asked.values.get(value)


def _fill(block: Block, nodes: Iterable[Node], known: dict[Value, MutableValue], asked: ShardingAnnotations) -> None:
    shardings = asked.values
    for node in nodes:
        op = Operation(node.op, (), (), node.attrs)
        op.origin = node
        results = op.results
        for value in node.results:
            known[value] = val = MutableValue(value.type, op, len(results), value)
            val.sharding = shardings.get(value)
            results.append(val)
        block.append(op)
        # As when MLIR reads text, uses inside regions are older than those of the op itself.
        for region in node.regions:
            _add_region(op, region, known, asked)
        for value in node.operands:
            op.add_operand(known[value])
        if len(results) > 1 or is_rare(op.operator):
            _apply_attributes(op)
        if not results:
            op.devices = asked.effects.get(node)


def _add_region(op: Operation, region: Region, known: dict[Value, MutableValue], asked: ShardingAnnotations) -> None:
    inner = op.add_block(value.type for value in region.args)
    _bind(known, region.args, inner.args, asked)
    _fill(inner, region.nodes, known, asked)
    inner.append(Operation(lookup("Yield"), [known[value] for value in region.outputs], (), {}))


def _apply_attributes(op: Operation) -> None:
    """Let its values have what the attributes ask of them.

    Results are asked all or none, as in Shardy's text; where one is, the others have nothing asked but a mesh.
    """
    asked = op.attrs.get("sharding")
    if op.results and isinstance(asked, Sharding):
        op.results[0].sharding = asked
    if len(op.results) > 1:
        fill_open(op.results)
    if op.operator.edges is None:
        return
    ways = op.links
    for name, edges in (("in_shardings", ways.entering), ("out_shardings", ways.leaving)):
        for edge, sharding in zip(edges, op.attrs.get(name) or (), strict=False):
            axes = op.attrs["manual_axes"] if edge.crosses else ()
            op.at(edge.targets[0]).sharding = inside(sharding, axes) if name == "in_shardings" else sharding


def fill_open(values: Iterable[MutableValue]) -> None:
    """If one of the values has a sharding, let those without have an open one on the same mesh."""
    values = list(values)
    known = next((value.sharding for value in values if value.sharding is not None), None)
    if known is not None:
        for value in values:
            if value.sharding is None:
                value.sharding = Sharding.open(known.mesh, len(value.type.shape), known.mesh_name)
