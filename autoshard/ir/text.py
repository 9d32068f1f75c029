"""Graphs as text: `show` prints one, `parse` reads it back, exactly.

    graph mlp(x: f32[64, 256] data, w: f32[256, 1024] parameter)
      h: f32[64, 1024] = MatMul(x, w) "dense1.matmul" @ train.py:33 | x = self.matmul(x, self.weight)
      y: f32[64, 1024] = Concat(h, h) {axis=1}
      return y, h -> w

Attributes at their defaults are left out; `h -> w` in the return line: the output replaces that input. A gradient says
what it is the gradient of behind its type: `dh: f32[64, 1024] of h = ...`.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autoshard.errors import AutoshardError, GraphError, ParseError
from autoshard.ir.graph import ROLES, Graph, Node, Source, Value
from autoshard.ir.scan import Scanner, quote
from autoshard.ir.verify import check_node, verify
from autoshard.ops.registry import Literal, lookup
from autoshard.tensortype import DType, TensorType, dtype, type_of

SMALL_LITERAL = 16
_WORD = re.compile(r"[^\W\d][\w./-]*")
_TYPE = re.compile(r"\w+\[[\d, ]*\]")
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b")
_SOURCE = re.compile(r'@ ("(?:[^"\\]|\\.)*"|\S+?):(\d+)(?: \| (.*))?$')
_KEYWORDS = {"return": None, "graph": None}
_CONSTANTS = {"True": True, "False": False, "None": None}


# -- printing


def show(graph: Graph) -> str:
    """The graph as text, a line per node, with a newline at the end.

    Raises:
        GraphError: an attribute value that has no text.
    """
    inputs = (f"{_show_typed(value)} {role}" for value, role in zip(graph.inputs, graph.roles, strict=True))
    lines = [f"graph {_show_name(graph.name)}({', '.join(inputs)})"]
    lines += [f"  {_show_node(node, graph)}" for node in graph.nodes]
    outputs = ", ".join(_show_output(graph, i) for i in range(len(graph.outputs)))
    lines.append(f"  return {outputs}".rstrip())
    return "\n".join(lines) + "\n"


def _show_output(graph: Graph, i: int) -> str:
    name = _show_name(graph.outputs[i].name)
    return f"{name} -> {_show_name(graph.inputs[graph.updates[i]].name)}" if i in graph.updates else name


def _show_node(node: Node, graph: Graph) -> str:
    results = ", ".join(_show_result(value, graph) for value in node.results)
    operands = ", ".join(_show_name(value.name) for value in node.operands)
    attrs = ", ".join(f"{name}={show_value(value)}" for name, value in _given(node))
    text = f"{results} = {node.op.name}({operands})"
    text += f" {{{attrs}}}" if attrs else ""
    text += f" {quote(node.name)}" if node.name else ""
    return text + (f" {_show_source(node.source)}" if node.source else "")


def _show_result(value: Value, graph: Graph) -> str:
    of = graph.cotangents.get(value)
    return _show_typed(value) + (f" of {_show_name(of.name)}" if of is not None else "")


def _given(node: Node) -> Iterable[tuple[str, Any]]:
    """The attributes that are not at their defaults; compared as text, so that 1, 1.0 and True differ."""
    for name, value in node.attrs.items():
        default = node.op.attributes.get(name, inspect.Parameter.empty)
        if default is inspect.Parameter.empty or show_value(value) != show_value(default):
            yield name, value


def _show_typed(value: Value) -> str:
    return f"{_show_name(value.name)}: {value.type}"


def _show_name(name: str) -> str:
    return name if _WORD.fullmatch(name) and name not in _KEYWORDS else quote(name)


def _show_source(source: Source) -> str:
    bare = source.file and not re.search(r'\s|^"', source.file)
    text = " ".join(source.text.splitlines())
    return f"@ {source.file if bare else quote(source.file)}:{source.line}" + (f" | {text}" if text else "")


def show_value(value: Any) -> str:
    """The text of an attribute value: numbers, strings, None, tuples, element types and constant arrays.

    Raises:
        GraphError: any other kind of value.
    """
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, tuple | list):
        items = ", ".join(map(show_value, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, Literal):
        return _show_literal(value.array)
    if isinstance(value, DType | np.dtype | type):
        return f"dtype({dtype(value)})"
    raise GraphError(
        f"attribute value {value!r} ({type(value).__name__}) has no text; a graph can hold numbers, strings, "
        f"None, tuples, element types and Literal arrays"
    )


def _show_literal(array: np.ndarray) -> str:
    """Small arrays as nested lists; others, and any NaN (a list loses its bits), as base64 of the bytes."""
    of = type_of(array)
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).reshape(array.shape)
    if array.size <= SMALL_LITERAL and not np.isnan(array).any():
        return f"Literal({of}, {_show_nested(native.tolist())})"
    return f"Literal({of}, {quote(base64.b64encode(native.tobytes()).decode())})"


def _show_nested(items: Any) -> str:
    return f"[{', '.join(map(_show_nested, items))}]" if isinstance(items, list) else repr(items)


# -- reading


def parse(text: str) -> Graph:
    """The graph that `show` printed; blank lines and lines that begin with # are passed over.

    Raises:
        ParseError: text that is no legal graph; the message has the line's number and the reason.
    """
    lines = [Scanner(line, i) for i, line in enumerate(text.split("\n"), 1)]
    lines = [line for line in lines if line.text.strip() and not line.text.lstrip().startswith("#")]
    if not lines:
        raise ParseError("cannot read a graph from empty text; it begins with 'graph name(...)'")
    return _Reader(lines).run()


class _Reader:
    def __init__(self, lines: Sequence[Scanner]) -> None:
        self.lines = lines
        self.values: dict[str, Value] = {}
        self.cotangents: dict[Value, Value] = {}

    def run(self) -> Graph:
        name, inputs, roles = self.header(self.lines[0])
        nodes = tuple(self.node(line) for line in self.lines[1:-1])
        last = self.lines[-1]
        outputs, updates = self.outputs(last, inputs)
        graph = Graph(name, inputs, nodes, outputs, roles, updates, self.cotangents)
        try:
            verify(graph)
        except GraphError as error:
            raise ParseError(f"cannot read the graph that ends at line {last.line}: {error}") from None
        return graph

    def header(self, line: Scanner) -> tuple[str, tuple[Value, ...], tuple[str, ...]]:
        line.expect("graph ")
        name = _read_name(line)
        line.expect("(")
        pairs = line.several(")", lambda: (self.define(_read_typed(line), line), self.role(line)))
        line.end()
        return name, tuple(value for value, _ in pairs), tuple(role for _, role in pairs)

    def role(self, line: Scanner) -> str:
        role = next((role for role in ROLES if line.take(role)), None)
        if role is None:
            raise line.error(f"the input's role is expected here: {', '.join(ROLES)}")
        return role

    def define(self, value: Value, line: Scanner) -> Value:
        if value.name in self.values:
            raise line.error(f"{value.name!r} is already defined")
        self.values[value.name] = value
        return value

    def use(self, line: Scanner) -> Value:
        name = _read_name(line)
        if name not in self.values:
            raise line.error(f"{name!r} is not defined before this line")
        return self.values[name]

    def node(self, line: Scanner) -> Node:
        results = line.several("=", lambda: self.result(line))
        op_name = line.need(_WORD, "an operator's name")
        line.expect("(")
        operands = tuple(line.several(")", lambda: self.use(line)))
        given = dict(line.several("}", lambda: _read_attribute(line))) if line.take("{") else {}
        line.skip()
        name = line.string() if line.text.startswith('"', line.place) else ""
        source = _read_source(line)
        line.end()
        for value in results:  # only now: a line cannot use what it defines
            self.define(value, line)
        try:
            op = lookup(op_name)
            node = Node(op, operands, op.check_attributes(given), tuple(results), name, source)
            check_node(node)
        except AutoshardError as error:
            raise ParseError(f"cannot read line {line.line}: {error}\n    {line.text}") from None
        return node

    def result(self, line: Scanner) -> Value:
        value = _read_typed(line)
        if line.take("of"):
            self.cotangents[value] = self.use(line)
        return value

    def outputs(self, line: Scanner, inputs: tuple[Value, ...]) -> tuple[tuple[Value, ...], dict[int, int]]:
        line.expect("return")
        outputs: list[Value] = []
        updates: dict[int, int] = {}
        while line.take(",") if outputs else line.match(re.compile(r"(?=\S)")):
            outputs.append(self.use(line))
            if line.take("->"):
                target = self.use(line)
                if target not in inputs:
                    raise line.error(f"{target.name!r} is no input, so no output can replace it")
                updates[len(outputs) - 1] = inputs.index(target)
        line.end()
        return tuple(outputs), updates


def _read_typed(line: Scanner) -> Value:
    name = _read_name(line)
    line.expect(":")
    return Value(_read_type(line), name)


def _read_name(line: Scanner) -> str:
    line.skip()
    return line.string() if line.text.startswith('"', line.place) else line.need(_WORD, "a name")


def _read_type(line: Scanner) -> TensorType:
    text = line.need(_TYPE, "a type such as f32[64, 1024]")
    try:
        return TensorType.parse(text)
    except AutoshardError as error:
        raise line.error(str(error)) from None


def _read_source(line: Scanner) -> Source | None:
    found = line.match(_SOURCE)
    if found is None:
        return None
    file = json.loads(found[1], strict=False) if found[1].startswith('"') else found[1]
    return Source(file, int(found[2]), found[3] or "")


def _read_attribute(line: Scanner) -> tuple[str, Any]:
    name = line.need(_WORD, "an attribute's name")
    line.expect("=")
    return name, read_value(line)


def read_value(line: Scanner) -> Any:
    """An attribute value as `show_value` prints it."""
    if line.take("("):
        return tuple(line.several(")", lambda: read_value(line)))
    if line.take("Literal("):
        return _read_literal(line)
    if line.take("dtype("):
        name = line.need(_WORD, "an element type")
        line.expect(")")
        return dtype(name)
    if line.text.startswith('"', line.place):
        return line.string()
    return _read_scalar(line)


def _read_scalar(line: Scanner) -> Any:
    for word, value in _CONSTANTS.items():
        if line.take(word):
            return value
    number = line.need(_NUMBER, "a value (number, string, True, False, None, tuple, dtype(..) or Literal(..))")
    return int(number) if re.fullmatch(r"-?\d+", number) else float(number)


def _read_literal(line: Scanner) -> Literal:
    of = _read_type(line)
    line.expect(",")
    line.skip()
    try:
        if line.text.startswith('"', line.place):
            data = base64.b64decode(line.string(), validate=True)
            flat = np.frombuffer(data, of.dtype.numpy.newbyteorder("<"))
            array = flat.astype(of.dtype.numpy).reshape(of.shape)
        else:
            array = np.array(_read_nested(line), of.dtype.numpy).reshape(of.shape)
    except (ValueError, OverflowError) as error:
        raise line.error(f"bad data for a Literal of type {of} before here: {error}") from None
    line.expect(")")
    return Literal(array)


def _read_nested(line: Scanner) -> Any:
    return line.several("]", lambda: _read_nested(line)) if line.take("[") else _read_scalar(line)
