"""Read a StableHLO module through jaxlib's MLIR bindings: functions, regions, sdy attributes and operations.

Nothing is reordered: nodes stand as the operations do and have the same operands, so that shardings can be written
back. Values are called what MLIR prints them as (`%12`, `%cst_0`), inputs by their name in the program where it is
known. An operation without a translator becomes an Opaque node, which keeps its regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from itertools import chain, repeat
from pkgutil import iter_modules
from typing import Any

from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir

from autoshard.core.rule import Rule
from autoshard.core.rule_sdy import parse_sdy_rule
from autoshard.core.tensortype import TOKEN, TensorType
from autoshard.frontends.stablehlo.attributes import (
    CONSTRAINT,
    any_tensor_type,
    attribute,
    constants_outside,
    tensor_type,
)
from autoshard.frontends.stablehlo.functions import check_calls, entry_of, public_of, with_functions
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.frontends.stablehlo.locations import Locations, argument_name, mlir_reason
from autoshard.frontends.stablehlo.nesting import BYTECODE, DEEPEST, is_deep
from autoshard.frontends.stablehlo.structures import STRUCTURES
from autoshard.frontends.stablehlo.table import TABLE
from autoshard.frontends.stablehlo.tuples import flat_tuples
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import DATA, Graph, Node, Region, Value, given
from autoshard.layout.mesh import Mesh
from autoshard.layout.sdy_text import parse_mesh, parse_per_value, parse_sharding
from autoshard.layout.sharding import Sharding
from autoshard.layout.verify_sharding import verify_sharding
from autoshard.ops.registry import Operator, lookup
from autoshard.util.errors import AutoshardError, GraphError, ParseError, at
from autoshard.util.gc_paused import gc_paused
from autoshard.util.source import Source

_HERE = __name__.rpartition(".")[0]
_SHARDING, _RULE = "sdy.sharding", "sdy.sharding_rule"
_NAME = "jax.arg_info"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
Known = dict[Any, Value]


@cache
def load_translators() -> None:
    """Import the modules beside this one, which register their translators."""
    for found in iter_modules(import_module(_HERE).__path__):
        import_module(f"{_HERE}.{found.name}")


def parse_module(text: str | bytes, file: str = "") -> Any:
    """The MLIR module of a text or of bytecode, in a context of its own that knows StableHLO and sdy.

    Args:
        text: the module.
        file: what to call it in errors.

    Raises:
        ParseError: MLIR does not accept the text; the message is MLIR's, with the place.
    """
    if not text.strip():
        raise ParseError(f"cannot read {file or 'an empty text'} as a StableHLO module: there is nothing in it")
    plain = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if not plain.startswith(BYTECODE) and is_deep(plain):
        raise ParseError(
            f"cannot read {file or 'this'} as a StableHLO module: its brackets are nested deeper than {DEEPEST} levels"
        )
    with make_ir_context() as context:
        # Errors are reported through Python: with threads, MLIR's verifier and the interpreter's lock can deadlock.
        context.enable_multithreading(False)
        try:
            return ir.Module.parse(text)
        except (ir.MLIRError, ValueError) as error:
            reason = mlir_reason(error, file)
            raise ParseError(f"cannot read {file or 'this'} as a StableHLO module: {reason}") from None


def read_module(module: Any, file: str = "", *, dynamic: bool = False) -> Imported:
    """The graphs and shardings of an MLIR module.

    Args:
        module: the module; sharding attributes of GSPMD (`mhlo.sharding`) are no sdy attributes and are not read.
        file: what to call its text in source lines; '' leaves out lines of the text itself.
        dynamic: take tensors of dynamic size, too. What computes with them is Opaque, so shardings spread around them.

    Raises:
        ShapeError: dynamic shapes where they are not taken, or types that are no tensors.
        ParseError: no function to start from, a function that calls itself, or attributes that cannot be read.
        GraphError: an operation whose result types autoshard's own operator does not make.
    """
    load_translators()
    module = flat_tuples(module)
    with module.context, gc_paused():
        return _ModuleReader(module, file, dynamic).read()


def read_scalar_function(region: Any) -> Graph:
    """The graph of a region that is a function of its arguments alone, its values numbered in order.

    Functions that it calls come with it, and constants that it uses from outside.

    Raises:
        ParseError: it uses other values from outside.
    """
    load_translators()
    reader = _ScalarReader(Locations(), _numbered())
    block = only_block(region, "the function inside an operation")
    known: Known = {}
    inputs = reader.arguments(block, known)
    nodes, outputs = reader.block(block, known)
    graph = Graph("body", inputs, nodes, outputs, (DATA,) * len(inputs))
    return with_functions(graph, region, lambda name, op: _ScalarReader(Locations(), _numbered()).function(name, op))


def _numbered() -> Callable[[Any], str]:
    count = iter(range(1 << 62))
    return lambda value: f"v{next(count)}"


def only_block(region: Any, what: str) -> Any:
    """The block of a region.

    Raises:
        ParseError: it has several: jumps between blocks are no data flow.
    """
    if len(region.blocks) != 1:
        raise ParseError(
            f"cannot import {what}: it has {len(region.blocks)} blocks; only regions of one block are read"
        )
    return region.blocks[0]


class OperationReader:
    """Reads operations, blocks and functions; it knows no module, so no mesh.

    Args:
        locations: where names and source lines come from.
        name: the name of an MLIR value.
    """

    def __init__(self, locations: Locations, name: Callable[[Any], str]) -> None:
        self.locations = locations
        self.name = name
        self.meshes: dict[str, Mesh] = {}
        self.values: dict[Value, Sharding] = {}
        self.outputs: dict[str, tuple[Sharding | None, ...]] = {}
        self.effects: dict[Node, Sharding] = {}
        self.operations: dict[Node, Any] = {}
        self.types: dict[Any, TensorType] = {}
        self.parsed: dict[Any, Any] = {}
        self.completed: dict[Any, tuple[Operator, Mapping[str, Any]]] = {}
        self.checked: dict[tuple, Node] = {}
        self.fitting: set[tuple[Sharding, TensorType]] = set()
        self.prefix = ""
        self.taken: dict[str, int] = {}
        self.read_type = tensor_type

    # -- functions and blocks

    def function(self, name: str, op: Any) -> Graph:
        self.taken = {}
        block = only_block(op.regions[0], f"the function @{name}")
        known: Known = {}
        told = list(_dicts(op, "arg_attrs", len(block.arguments)))
        inputs = self.arguments(block, known, [one[_NAME].value if _NAME in one else "" for one in told])
        for value, attrs in zip(inputs, told, strict=True):
            if _SHARDING in attrs:
                self.ask(value, self.sharding(attrs[_SHARDING]))
        nodes, outputs = self.block(block, known)
        results = _dicts(op, "res_attrs", len(outputs))
        shardings = tuple(self.sharding(one[_SHARDING]) if _SHARDING in one else None for one in results)
        for i, (sharding, value) in enumerate(zip(shardings, outputs, strict=True)):
            if sharding is not None:
                self.fit(sharding, value.type, f"result {i} of @{name}")
        self.outputs[name] = shardings
        return Graph(name, inputs, nodes, outputs, (DATA,) * len(inputs))

    def block(self, block: Any, known: Known) -> tuple[tuple[Node, ...], tuple[Value, ...]]:
        """The nodes of a block, and the values that its terminator hands out."""
        operations = [op.operation for op in block.operations]
        if not operations or not operations[-1].name.endswith((".return", ".yield")):
            raise ParseError("cannot import a block that does not end by returning its results (a `return` operation)")
        last = operations.pop()
        nodes = self.nodes(operations, known)
        return nodes, tuple(self.use(value, known) for value in last.operands)

    def nodes(self, operations: Iterable[Any], known: Known) -> tuple[Node, ...]:
        return tuple([self.node(op, known) for op in operations])

    def arguments(self, block: Any, known: Known, told: Iterable[str] = ()) -> tuple[Value, ...]:
        values = []
        for argument, own in zip(block.arguments, chain(told, repeat("")), strict=False):
            name = own or argument_name(argument.location) if not self.prefix else ""
            known[argument] = value = Value(
                self.type(argument.type), self.unique(name) if name else self.named(argument)
            )
            values.append(value)
        return tuple(values)

    def region(self, region: Any, known: Known, owner: str) -> Region:
        """A region of the operation called `owner`; the names of its values begin with that."""
        if not len(region.blocks):
            return Region((), (), ())
        outside, self.prefix = self.prefix, f"{owner}."
        inner = dict(known)
        block = only_block(region, f"a region of {owner}")
        args = self.arguments(block, inner)
        read = Region(args, *self.block(block, inner))
        self.prefix = outside
        return read

    # -- operations

    def node(self, op: Any, known: Known) -> Node:
        name, source = self.locations.read(op.location)
        try:
            return self.translated(op, known, name, source)
        except AutoshardError as error:
            message = str(error)
            raise type(error)(
                message if _READING in message else f"{_READING} {op.name}{at(source)}: {message}"
            ) from None

    def translated(self, op: Any, known: Known, name: str, source: Source | None) -> Node:
        try:
            operands = tuple([known[value] for value in op.operands])
        except KeyError:
            raise ParseError("it uses a value from outside the function that is read") from None
        found = op.results
        results = tuple([Value(self.type(value.type), self.named(value)) for value in found])
        if all(value.type.is_static for value in (*operands, *results)):
            operator, attrs = self.translate(op, results)
        else:
            operator, attrs = self.translate_dynamic(op, results)
        regions: tuple[Region, ...] = ()
        if operator.takes_regions and len(op.regions):
            label = results[0].name if results else self.unique(op.name)
            regions = tuple(self.region(one, known, f"{label}.{_letter(i)}") for i, one in enumerate(op.regions))
        own, custom = self.rule(op) if _RULE in op.attributes and "rule" not in attrs else (None, True)
        node = Node(operator, operands, attrs, results, self.unique(name) if name else "", source, regions, own, custom)
        known.update(zip(found, results, strict=True))
        self.check(node)
        self.operations[node] = op
        self.ask_results(op, node)
        return node

    def translate(self, op: Any, results: tuple[Value, ...]) -> tuple[Operator, Mapping[str, Any]]:
        if op.name in TABLE:
            name, attrs = TABLE[op.name](op)
        elif op.name in STRUCTURES:
            name, attrs = STRUCTURES[op.name](self, op, tuple(value.type for value in results))
        else:
            name, attrs = _opaque(op, results)
        return self.complete(name, attrs)

    def translate_dynamic(self, op: Any, results: tuple[Value, ...]) -> tuple[Operator, Mapping[str, Any]]:
        """Translate what has an operand or a result of dynamic size: rules hold for known sizes only."""
        if op.name in STRUCTURES:
            operator, attrs = self.translate(op, results)
            if not operator.has_rule:
                return operator, attrs
        return self.complete(*_opaque(op, results, op.name not in TABLE or attribute(op, "has_side_effect", False)))

    def complete(self, name: str, attrs: dict[str, Any]) -> tuple[Operator, Mapping[str, Any]]:
        """The operator, and all its attributes: one object for equal ones."""
        key = (name, *attrs, *[(type(value), _exact(value)) for value in attrs.values()])
        try:
            found = self.completed.get(key)
        except TypeError:  # lists, which check_attributes makes hashable
            return (operator := lookup(name)), operator.check_attributes(attrs)
        if found is None:
            operator = lookup(name)
            found = self.completed[key] = operator, operator.check_attributes(attrs)
        return found

    def check(self, node: Node) -> None:
        """Check the results of a node unless those of an equal one were."""
        values = (*node.operands, *node.results)
        key = (node.op.name, id(node.attrs), len(node.operands), *[id(value.type) for value in values])
        if key not in self.checked:
            check_results(node)
            # Attributes and types are kept, so that no other object comes to have their id.
            self.checked[key] = node

    def rule(self, op: Any) -> tuple[Rule, bool]:
        """The rule that an operation carries, which holds instead of the operator's own, and whether it is custom."""
        rule, custom = parse_sdy_rule(str(op.attributes[_RULE]))
        return given(rule), custom

    def ask_results(self, op: Any, node: Node) -> None:
        if _SHARDING not in op.attributes:
            return
        shardings = self.per_value(op.attributes[_SHARDING])
        if not node.results:
            # MLIR's verifier takes at most one here, which has no dims.
            self.effects.update((node, sharding) for sharding in shardings)
            return
        for value, sharding in zip(node.results, shardings, strict=True):
            self.ask(value, sharding)

    def ask(self, value: Value, sharding: Sharding) -> None:
        """Note what is asked of a value, once it is known to fit."""
        self.fit(sharding, value.type, value.name)
        self.values[value] = sharding

    def fit(self, sharding: Sharding, of: TensorType, what: str) -> None:
        if (sharding, of) not in self.fitting:
            verify_sharding(sharding, None if of.dtype is TOKEN else of.shape, what)
            self.fitting.add((sharding, of))

    # -- values, types and shardings, each distinct one read once

    def use(self, value: Any, known: Known) -> Value:
        if value not in known:
            raise ParseError("a function inside an operation uses a value from outside it")
        return known[value]

    def named(self, value: Any) -> str:
        """A name for a value; in a region that of its operation, its letter and its own: `%1.a.iterArg`."""
        name = self.name(value)
        return self.unique(f"{self.prefix}{name.removeprefix('%')}" if self.prefix else name)

    def unique(self, name: str) -> str:
        count = self.taken.get(name, 0)
        self.taken[name] = count + 1
        return self.unique(f"{name}_{count}") if count else name

    def type(self, of: Any) -> TensorType:
        found = self.types.get(of)
        if found is None:
            found = self.types[of] = self.read_type(str(of))
        return found

    def sharding(self, attr: Any) -> Sharding:
        found = self.parsed.get(attr)
        if found is None:
            found = self.parsed[attr] = parse_sharding(str(attr), self.meshes)
        return found

    def per_value(self, attr: Any) -> tuple[Sharding, ...]:
        found = self.parsed.get(attr)
        if found is None:
            found = self.parsed[attr] = parse_per_value(str(attr), self.meshes)
        return found


_READING = "reading the operation"


class _ScalarReader(OperationReader):
    """Reads functions of numbers: sharding constraints say nothing of these, and their meshes are not known here.

    Constants that they use may stand outside, to where `jax.export` moves them.
    """

    def block(self, block: Any, known: Known) -> tuple[tuple[Node, ...], tuple[Value, ...]]:
        outside = [op for op in constants_outside(block) if op.results[0] not in known]
        before = tuple([self.node(op, known) for op in outside])
        nodes, outputs = super().block(block, known)
        return (*before, *nodes), outputs

    def nodes(self, operations: Iterable[Any], known: Known) -> tuple[Node, ...]:
        nodes = []
        for op in operations:
            if op.name == CONSTRAINT:
                known[op.results[0]] = self.use(op.operands[0], known)
            else:
                nodes.append(self.node(op, known))
        return tuple(nodes)


class _ModuleReader(OperationReader):
    def __init__(self, module: Any, file: str, dynamic: bool) -> None:
        state = ir.AsmState(module.operation)
        super().__init__(Locations(file), lambda value: value.get_name(state))
        self.module = module
        if dynamic:
            self.read_type = any_tensor_type

    def read(self) -> Imported:
        operations = [op.operation for op in self.module.body.operations]
        for op in operations:
            if op.name == "sdy.mesh":
                self.meshes[attribute(op, "sym_name")] = parse_mesh(str(op.attributes["mesh"]))
        found = {attribute(op, "sym_name"): op for op in operations if op.name == "func.func"}
        functions = {name: op for name, op in found.items() if len(op.regions[0].blocks)}
        if not functions:
            raise ParseError("the module has no function with a body (func.func) that could be read")
        graphs = {name: self.function(name, op) for name, op in functions.items()}
        check_calls(graphs)
        entry = graphs.pop(entry_of(functions))
        entry = Graph(entry.name, entry.inputs, entry.nodes, entry.outputs, entry.roles, functions=graphs)
        asked = ShardingAnnotations(self.meshes, self.values, self.outputs, self.effects)
        names = _result_names(functions[entry.name], len(entry.outputs))
        public = public_of(functions)
        return Imported(entry, asked, tuple(functions), self.module, self.operations, names, public)


def check_results(node: Node) -> None:
    """That the operator makes results of the types that the module says.

    Raises:
        GraphError: it does not: autoshard has the operation wrong.
    """
    made = node.op.result_types(node.operand_types, node.attrs)
    if made != node.result_types:
        types = " and ".join(", ".join(map(str, some)) or "nothing" for some in (node.result_types, made))
        raise GraphError(
            f"internal error: the module's result types and those of autoshard's operator {node.op.name} differ: "
            f"{types}; operands {', '.join(map(str, node.operand_types))}, attributes {dict(node.attrs)}"
        )


def _opaque(op: Any, results: tuple[Value, ...], effects: bool = True) -> tuple[str, dict[str, Any]]:
    """What stands for an operation of which only the types of its results count."""
    types = tuple(value.type for value in results)
    return "Opaque", {"name": op.name, "types": types, "text": _text(op), "effects": effects}


def _exact(value: Any) -> Any:
    """Something equal for equal values only: 0.0 equals -0.0, but is another constant."""
    return repr(value) if isinstance(value, float | complex) else value


def _result_names(op: Any, count: int) -> tuple[str, ...]:
    """What the program calls its outputs (`jax.result_info`), '' where it does not say."""
    infos = (
        attrs["jax.result_info"].value if "jax.result_info" in attrs else "" for attrs in _dicts(op, "res_attrs", count)
    )
    return tuple(infos)


def _dicts(op: Any, name: str, count: int) -> Iterable[Any]:
    return op.attributes[name] if name in op.attributes else ({},) * count


def _text(op: Any) -> str:
    """The attributes of an operation, in order."""
    return ", ".join(f"{one.name}={one.attr}" for one in _named_attributes(op) if not one.name.startswith("sdy."))


def _named_attributes(op: Any) -> list[Any]:
    return [op.attributes[i] for i in range(len(op.attributes))]


def _letter(index: int) -> str:
    """a, b, ..., z, a1, b1, ...: names of the regions of one operation."""
    turn, place = divmod(index, len(_LETTERS))
    return _LETTERS[place] + (str(turn) if turn else "")
