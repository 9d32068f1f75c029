"""Graphs as text: `show` prints one, `parse` reads it back, exactly.

    graph mlp(x: f32[64, 256] data, w: f32[256, 1024] parameter)
      h: f32[64, 1024] = MatMul(x, w) "dense1.matmul" @ train.py:33 | x = self.matmul(x, self.weight)
      y: f32[64, 1024] = Concat(h, h) {axis=1}
      return y, h -> w

Attributes at their defaults are left out; `h -> w` in the return line: the output replaces that input. A gradient says
what it is the gradient of behind its type: `dh: f32[64, 1024] of h = ...`. A node's regions stand below it, further in,
and functions that are called below the graph:

    graph main(x: f32[4] data)
      y: f32[4] = While(x)
        region(a: f32[4])
          p: bool[] = Call(a) {callee="small", types=(bool[],)}
          yield p
        region(b: f32[4])
          c: f32[4] = Add(b, b)
          yield c
      return y
    function small(z: f32[4] data)
      ...

A rule that the user gave a node follows its attributes: `y: f32[4] = CustomCall(x) {...} by "([i])->([i]) {i=4}"`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from autoshard.core.rule import Rule
from autoshard.core.rule_sdy import parse_sdy_rule, show_sdy
from autoshard.ir.graph import ROLES, Graph, Node, Region, Source, Value, given
from autoshard.ir.run import Elementwise
from autoshard.ir.scan import Scanner, quote
from autoshard.ir.text_values import SMALL_LITERAL, WORD, read_name, read_type, read_value, show_name, show_value
from autoshard.ir.verify import check_node, verify
from autoshard.ops.body import Body
from autoshard.ops.registry import lookup
from autoshard.util.errors import AutoshardError, GraphError, ParseError
from autoshard.util.text import DEPTH, natural

_MORE = re.compile(r"(?=\S)")
# Bare, these words are never names.
_FIRST = {word: re.compile(rf"\s*{word}(?=[\s(]|$)") for word in ("return", "region", "yield")}
__all__ = ["SMALL_LITERAL", "parse", "read_value", "show", "show_value"]
_SOURCE = re.compile(r'@ ("(?:[^"\\]|\\.)*"|\S+?):([0-9]+)(?: \| (.*))?$')


# -- printing


def show(graph: Graph) -> str:
    """The graph as text, a line per node, with a newline at the end; functions that it calls follow.

    Raises:
        GraphError: an attribute value that has no text.
    """
    lines = [*_show_function("graph", graph)]
    for function in graph.functions.values():
        lines += _show_function("function", function)
    return "\n".join(lines) + "\n"


def _show_function(word: str, graph: Graph) -> Iterator[str]:
    inputs = (f"{_show_typed(value)} {role}" for value, role in zip(graph.inputs, graph.roles, strict=True))
    yield f"{word} {show_name(graph.name)}({', '.join(inputs)})"
    yield from _show_nodes(graph.nodes, graph, "  ")
    outputs = ", ".join(_show_output(graph, i) for i in range(len(graph.outputs)))
    yield f"  return {outputs}".rstrip()


def _show_nodes(nodes: Iterable[Node], graph: Graph, indent: str) -> Iterator[str]:
    for node in nodes:
        yield indent + _show_node(node, graph)
        for region in node.regions:
            yield from _show_region(region, graph, indent + "  ")


def _show_region(region: Region, graph: Graph, indent: str) -> Iterator[str]:
    yield f"{indent}region({', '.join(map(_show_typed, region.args))})"
    yield from _show_nodes(region.nodes, graph, indent + "  ")
    yield f"{indent}  yield {', '.join(show_name(value.name) for value in region.outputs)}".rstrip()


def _show_output(graph: Graph, i: int) -> str:
    name = show_name(graph.outputs[i].name)
    return f"{name} -> {show_name(graph.inputs[graph.updates[i]].name)}" if i in graph.updates else name


def _show_node(node: Node, graph: Graph) -> str:
    results = ", ".join(_show_result(value, graph) for value in node.results)
    operands = ", ".join(show_name(value.name) for value in node.operands)
    attrs = ", ".join(f"{name}={show_value(value)}" for name, value in _given(node))
    text = f"{results} = {node.op.name}({operands})"
    text += f" {{{attrs}}}" if attrs else ""
    text += f" by {quote(show_sdy(node.given_rule))}" if node.given_rule is not None else ""
    text += f" {quote(node.name)}" if node.name else ""
    return text + (f" {_show_source(node.source)}" if node.source else "")


def _show_result(value: Value, graph: Graph) -> str:
    of = graph.cotangents.get(value)
    return _show_typed(value) + (f" of {show_name(of.name)}" if of is not None else "")


def _given(node: Node) -> Iterable[tuple[str, Any]]:
    """The attributes that are not at their defaults; compared as text, so that 1, 1.0 and True differ."""
    for name, value in node.attrs.items():
        default = node.op.attributes.get(name, inspect.Parameter.empty)
        if default is inspect.Parameter.empty or show_value(value) != show_value(default):
            yield name, value


def _show_typed(value: Value) -> str:
    return f"{show_name(value.name)}: {value.type}"


def _show_source(source: Source) -> str:
    bare = source.file and not re.search(r'\s|^"', source.file)
    text = " ".join(source.text.splitlines())
    return f"@ {source.file if bare else quote(source.file)}:{source.line}" + (f" | {text}" if text else "")


# -- reading


def parse(text: str) -> Graph:
    """The graph that `show` printed; blank lines and lines that begin with # are passed over.

    Raises:
        ParseError: text that is no legal graph; the message has the line's number and the reason.
    """
    lines = [Scanner(line, i, _function) for i, line in enumerate(text.split("\n"), 1)]
    lines = [line for line in lines if line.text.strip() and not line.text.lstrip().startswith("#")]
    if not lines:
        raise ParseError("cannot read a graph from empty text; it begins with 'graph name(...)'")
    return _GraphReader(lines).run()


def body(text: str) -> Body:
    """The scalar function that a graph's text says, for operators such as Reduce and Sort.

    Raises:
        ParseError: the text is no graph.
    """
    return Body("", text, _function(text))


def _function(text: str) -> Callable:
    return Elementwise(parse(text))


class _GraphReader:
    def __init__(self, lines: Sequence[Scanner]) -> None:
        self.lines = lines
        self.place = 0
        self.values: dict[str, Value] = {}
        self.taken: set[str] = set()
        self.cotangents: dict[Value, Value] = {}
        self.depth = 0

    def run(self) -> Graph:
        graph = self.function("graph ")
        functions: dict[str, Graph] = {}
        while self.place < len(self.lines):
            line = self.lines[self.place]
            function = self.function("function ")
            if function.name in (graph.name, *functions):
                raise line.error(f"there is a function named {function.name!r} already")
            functions[function.name] = function
        graph = replace(graph, functions=functions)
        try:
            verify(graph)
        except GraphError as error:
            raise ParseError(f"cannot read the graph that ends at line {self.lines[-1].line}: {error}") from None
        return graph

    def function(self, word: str) -> Graph:
        self.values, self.taken, self.cotangents = {}, set(), {}
        name, inputs, roles = self.header(self.take(), word)
        nodes = self.nodes("return")
        outputs, updates = self.outputs(self.take("return"), inputs)
        return Graph(name, inputs, nodes, outputs, roles, updates, self.cotangents)

    def take(self, last: str = "") -> Scanner:
        """The next line."""
        if self.place == len(self.lines):
            end = self.lines[-1]
            raise ParseError(f"cannot read line {end.line}: the text ends here, without {last!r}\n    {end.text}")
        self.place += 1
        return self.lines[self.place - 1]

    def ahead(self, word: str) -> bool:
        """Whether the next line begins with a word of the form."""
        return self.place < len(self.lines) and _FIRST[word].match(self.lines[self.place].text) is not None

    def nodes(self, last: str) -> tuple[Node, ...]:
        """The nodes up to a line that begins with `last`."""
        nodes = []
        while self.place < len(self.lines) and not self.ahead(last):
            if "=" not in self.lines[self.place].text:
                break  # no node: let who needs the last line say what it expects
            nodes.append(self.node(self.take()))
        return tuple(nodes)

    def region(self) -> Region:
        """A region; what is defined in it is known in it only."""
        outside = dict(self.values)
        line = self.take()
        self.depth += 1
        if self.depth > DEPTH:
            raise line.error(f"there are more than {DEPTH} levels of regions")
        line.expect("region")
        line.expect("(")
        args = tuple(line.several(")", lambda: self.define(read_typed(line), line)))
        line.end()
        nodes = self.nodes("yield")
        last = self.take("yield")
        last.expect("yield")
        outputs = []
        while last.take(",") if outputs else last.match(_MORE):
            outputs.append(self.use(last))
        last.end()
        self.depth -= 1
        self.values = outside
        return Region(args, nodes, tuple(outputs))

    def header(self, line: Scanner, word: str) -> tuple[str, tuple[Value, ...], tuple[str, ...]]:
        line.expect(word)
        name = read_name(line)
        line.expect("(")
        pairs = line.several(")", lambda: (self.define(read_typed(line), line), self.role(line)))
        line.end()
        return name, tuple(value for value, _ in pairs), tuple(role for _, role in pairs)

    def role(self, line: Scanner) -> str:
        role = next((role for role in ROLES if line.take(role)), None)
        if role is None:
            raise line.error(f"the input's role is expected here: {', '.join(ROLES)}")
        return role

    def define(self, value: Value, line: Scanner) -> Value:
        if value.name in self.taken:
            raise line.error(f"{value.name!r} is already defined")
        self.taken.add(value.name)
        self.values[value.name] = value
        return value

    def use(self, line: Scanner) -> Value:
        name = read_name(line)
        if name not in self.values:
            raise line.error(f"{name!r} is not defined before this line")
        return self.values[name]

    def node(self, line: Scanner) -> Node:
        results = line.several("=", lambda: self.result(line))
        op_name = line.need(WORD, "an operator's name")
        line.expect("(")
        operands = tuple(line.several(")", lambda: self.use(line)))
        given = dict(line.several("}", lambda: _read_attribute(line))) if line.take("{") else {}
        rule = _read_rule(line) if line.take("by ") else None
        line.skip()
        name = line.string() if line.text.startswith('"', line.position) else ""
        source = _read_source(line)
        line.end()
        regions = []
        while self.ahead("region"):
            regions.append(self.region())
        for value in results:  # only now: a line cannot use what it defines
            self.define(value, line)
        try:
            op = lookup(op_name)
            node = Node(op, operands, op.check_attributes(given), tuple(results), name, source, tuple(regions), rule)
            check_node(node)
        except AutoshardError as error:
            raise ParseError(f"cannot read line {line.line}: {error}\n    {line.text}") from None
        except Exception as error:
            # Shapes are worked out by code that trusts the types of attributes, as those have whom tracing records.
            why = f"{op_name} cannot have these operands and attributes ({type(error).__name__}: {error})"
            raise ParseError(f"cannot read line {line.line}: {why}\n    {line.text}") from error
        return node

    def result(self, line: Scanner) -> Value:
        value = read_typed(line)
        if line.take("of"):
            self.cotangents[value] = self.use(line)
        return value

    def outputs(self, line: Scanner, inputs: tuple[Value, ...]) -> tuple[tuple[Value, ...], dict[int, int]]:
        line.expect("return")
        outputs: list[Value] = []
        updates: dict[int, int] = {}
        while line.take(",") if outputs else line.match(_MORE):
            outputs.append(self.use(line))
            if line.take("->"):
                target = self.use(line)
                if target not in inputs:
                    raise line.error(f"{target.name!r} is no input, so no output can replace it")
                updates[len(outputs) - 1] = inputs.index(target)
        line.end()
        return tuple(outputs), updates


def read_typed(line: Scanner) -> Value:
    name = read_name(line)
    line.expect(":")
    return Value(read_type(line), name)


def _read_source(line: Scanner) -> Source | None:
    found = line.match(_SOURCE)
    if found is None:
        return None
    file = line.unquoted(found[1]) if found[1].startswith('"') else found[1]
    return Source(file, natural(found[2]), found[3] or "")


def _read_rule(line: Scanner) -> Rule:
    text = line.string()
    try:
        return given(parse_sdy_rule(text)[0])
    except AutoshardError as error:
        raise line.error(f"bad rule before here: {error}") from None


def _read_attribute(line: Scanner) -> tuple[str, Any]:
    name = line.need(WORD, "an attribute's name")
    line.expect("=")
    return name, read_value(line)
