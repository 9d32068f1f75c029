"""The form of IR dumps, MindSpore's: `show_dump` prints a Dump, `parse_dump` reads it back, exactly.

The form is that of the listings in MindSpore's r2.0 tutorial on sharding propagation, which parse as well:
fragments without a header, `...` where lines are left out. Writers build a Dump, so there is one grammar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autoshard.core.strategy import Parts, show_parts
from autoshard.core.tensortype import TensorType
from autoshard.ir.scan import Scanner, quote
from autoshard.util.errors import ParseError
from autoshard.util.text import integer, natural

ELISIONS = ("...", "…")
_TYPE = re.compile(r"<(.+?)(?:, \(([0-9, ]*)\))?>")
_ELEMENT = re.compile(r"(?:Tensor\[(\w+)\]|Ref\[Tensor\((\w+)\)\])")
_NODE = re.compile(
    r"  %([0-9]+)\(([^()]*)\) = ([\w.]+)\((.*?)\)"
    r"(?: \{instance name: ([^{}]*)\})?(?: primitive_attrs: \{(.*)\})?"
)
_NODE_TYPES = re.compile(r"(?: \{in_strategy: (\(.*?\))\})?      : \((.*)\) -> \((.*)\)")
_RETURN = re.compile(r"  Return\((.*)\)")
_RETURN_TYPES = re.compile(r"      : \((.*)\)")
_SOURCE = re.compile(r"      # In file (.*?)\(([0-9]+)\)/(.*)/")
_KEY = re.compile(r"\w+")
_FLOAT = re.compile(r"-?(?:inf|nan|\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)")
_CONSTANTS = {"true": True, "false": False, "None": None}
_PARAMETER = re.compile(r"%(\S+): (<.*>) : \[[\d, ]*\]")
_SUBGRAPH = re.compile(r"subgraph @(\S+)\((.*)\) \{")
_ARGUMENT = re.compile(r"%(\S+): (<[^<>]*>)")
_BARE = re.compile(r"[^\s,(){}\[\]\"]+")
_REFERENCE = re.compile(r"\$\([^()]*\)|[^\s,()]+")


@dataclass(frozen=True)
class DumpType:
    """`<Tensor[Float32], (64, 64)>`, `<Ref[Tensor(F32)], (64)>` (stored), `<UMonad>`, `<Tuple[Int64*2]>`."""

    head: str
    shape: tuple[int, ...] | None = None

    @property
    def tensor(self) -> TensorType | None:
        """The type in our words; None for what is no tensor."""
        match = _ELEMENT.fullmatch(self.head)
        if match is None or self.shape is None:
            return None
        return TensorType.of(self.shape, match[1] or match[2].lower())

    def __str__(self) -> str:
        return f"<{self.head}>" if self.shape is None else f"<{self.head}, {_show_tuple(self.shape)}>"


@dataclass(frozen=True)
class ListedValue:
    """A value in square brackets: `[x1, x2]`."""

    items: tuple[Attr, ...]


Attr = bool | int | float | str | None | tuple["Attr", ...] | ListedValue
Operand = str | tuple[int, ...]


@dataclass(frozen=True)
class DumpSource:
    """The user's line, with the blanks that it begins with."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class DumpParameter:
    """A parameter of the graph, `para1_x`."""

    name: str
    type: DumpType


@dataclass(frozen=True)
class DumpNode:
    """One line of the graph: `%number(name) = op(operands)`.

    Operands are references (`%3`, `%3[1]` for one of several results, `%para1_x`, `U`) or tuples of numbers.
    `attrs` is None where the line has none; in_strategy is that of the second line, which computations have.
    """

    number: int
    name: str
    op: str
    operands: tuple[Operand, ...]
    operand_types: tuple[DumpType, ...]
    result_types: tuple[DumpType, ...]
    instance: str | None = None
    attrs: tuple[tuple[str, Attr], ...] | None = None
    in_strategy: Parts | None = None
    source: DumpSource | None = None

    def attr(self, name: str) -> Attr:
        """The primitive attribute of that name, None if there is none."""
        return dict(self.attrs or ()).get(name)


@dataclass(frozen=True)
class DumpReturn:
    operands: tuple[Operand, ...]
    types: tuple[DumpType, ...]


@dataclass(frozen=True)
class Elision:
    """`...`: lines that a fragment leaves out."""

    text: str


@dataclass(frozen=True)
class DumpBody:
    """A body of a loop, a branch or a manual computation: a subgraph of its own, which nodes name in `bodies`.

    Nodes are numbered through all subgraphs, so that a body may refer to what is outside of it.
    """

    title: str
    parameters: tuple[DumpParameter, ...]
    body: tuple[DumpNode | DumpReturn | Elision, ...]


@dataclass(frozen=True)
class Dump:
    """A dump taken apart. `title` is the graph's name; a fragment has None there, and only a body."""

    title: str | None
    parameters: tuple[DumpParameter, ...]
    body: tuple[DumpNode | DumpReturn | Elision, ...]
    subgraphs: tuple[DumpBody, ...] = ()

    @cached_property
    def nodes(self) -> tuple[DumpNode, ...]:
        return tuple(one for one in self.body if isinstance(one, DumpNode))


# -- printing


def show_dump(dump: Dump) -> str:
    """The dump's text, with a newline at the end."""
    body = [line for one in dump.body for line in _show_item(one)]
    if dump.title is None:
        return "\n".join(body) + "\n"
    head = [f"# IR entry: @{dump.title}", f"# Total params: {len(dump.parameters)}", ""]
    parameters = [f"%{one.name}: {one.type} : {list(one.type.shape or ())}" for one in dump.parameters]
    inner = [line for one in dump.subgraphs for line in _show_body(one)]
    return "\n".join([*head, *parameters, "", f"subgraph @{dump.title}() {{", *body, "}", *inner]) + "\n"


def _show_body(one: DumpBody) -> list[str]:
    parameters = ", ".join(f"%{argument.name}: {argument.type}" for argument in one.parameters)
    body = [line for item in one.body for line in _show_item(item)]
    return ["", f"subgraph @{one.title}({parameters}) {{", *body, "}"]


def _show_item(one: DumpNode | DumpReturn | Elision) -> list[str]:
    if isinstance(one, Elision):
        return [one.text]
    if isinstance(one, DumpReturn):
        return [f"  Return({_show_operands(one.operands)})", f"      : ({_join(one.types)})"]
    return _show_node(one)


def _show_node(node: DumpNode) -> list[str]:
    head = f"  %{node.number}({node.name}) = {node.op}({_show_operands(node.operands)})"
    if node.instance is not None:
        head += f" {{instance name: {node.instance}}}"
    if node.attrs is not None:
        pairs = ", ".join(f"{name}: {show_attr(value)}" for name, value in node.attrs)
        head += f" primitive_attrs: {{{pairs}}}"
    strategy = "" if node.in_strategy is None else f" {{in_strategy: {show_parts(node.in_strategy)}}}"
    lines = [head, f"{strategy}      : ({_join(node.operand_types)}) -> ({_join(node.result_types)})"]
    if node.source is not None:
        lines.append(f"      # In file {node.source.file}({node.source.line})/{node.source.text}/")
    return lines


def _join(items: Sequence) -> str:
    return ", ".join(map(str, items))


def _show_tuple(numbers: tuple[int, ...]) -> str:
    """MindSpore's tuples: one of one entry has no comma behind it."""
    return f"({_join(numbers)})"


def _show_operands(operands: tuple[Operand, ...]) -> str:
    return ", ".join(one if isinstance(one, str) else _show_tuple(one) for one in operands)


def show_attr(value: Attr) -> str:
    """Lower-case truth values, None, numbers, words, ((2, 1), (4)), [x1, x2]; other strings in quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"({', '.join(map(show_attr, value))})"
    if isinstance(value, ListedValue):
        return f"[{', '.join(map(show_attr, value.items))}]"
    if isinstance(value, str):
        plain = _BARE.fullmatch(value) and isinstance(_bare(value), str)
        return value if plain else quote(value)
    return repr(value)


# -- reading


def parse_dump(text: str) -> Dump:
    """The Dump that `show_dump` prints as this text.

    Raises:
        ParseError: a line that is none of the form's; the message has its number.
    """
    return _DumpReader(text.removesuffix("\n").split("\n")).run()


class _DumpReader:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.place = 0
        self.inner = Scanner("", 0)

    def run(self) -> Dump:
        if not self.lines[0].startswith("# IR entry: @"):
            return Dump(None, (), tuple(self.body()))
        title = self.next().removeprefix("# IR entry: @")
        total = self.match(re.compile(r"# Total params: ([0-9]+)"), "# Total params: N")
        self.match(re.compile(""), "an empty line")
        parameters = []
        while not self.done and self.line:
            found = self.match(_PARAMETER, "a parameter line")
            parameters.append(DumpParameter(found[1], *self.types(found[2])))
        if len(parameters) != natural(total[1]):
            raise self.error(f"the header counts {total[1]} parameters, but {len(parameters)} are listed")
        self.match(re.compile(""), "an empty line")
        self.match(re.compile(re.escape(f"subgraph @{title}() {{")), f"subgraph @{title}() {{")
        body = tuple(self.body())
        self.match(re.compile(r"\}"), "the closing }")
        subgraphs = []
        while not self.done:
            subgraphs.append(self.subgraph())
        return Dump(title, tuple(parameters), body, tuple(subgraphs))

    def subgraph(self) -> DumpBody:
        if self.line:
            raise self.error("nothing may follow the closing } but further subgraphs")
        self.next()
        found = self.match(_SUBGRAPH, "subgraph @name(%parameter: <type>, ...) {")
        pairs = _ARGUMENT.findall(found[2])
        if ", ".join(f"%{name}: {of}" for name, of in pairs) != found[2]:
            raise self.error("parameters such as %para1_x: <Tensor[Float32], (64)> are expected here")
        parameters = [DumpParameter(name, *self.types(of)) for name, of in pairs]
        body = tuple(self.body())
        self.match(re.compile(r"\}"), "the closing }")
        return DumpBody(found[1], tuple(parameters), body)

    @property
    def done(self) -> bool:
        return self.place >= len(self.lines)

    @property
    def line(self) -> str:
        return "" if self.done else self.lines[self.place]

    def next(self) -> str:
        self.place += 1
        return self.lines[self.place - 1]

    def error(self, reason: str) -> ParseError:
        return ParseError(f"cannot read line {self.place + 1} of the dump: {reason}\n    {self.line}")

    def match(self, pattern: re.Pattern, what: str) -> re.Match:
        found = None if self.done else pattern.fullmatch(self.line)
        if found is None:
            raise self.error(f"{what} is expected here")
        self.place += 1
        return found

    def body(self) -> list[DumpNode | DumpReturn | Elision]:
        items: list[DumpNode | DumpReturn | Elision] = []
        while not self.done and self.line != "}":
            if self.line.strip() in ELISIONS:
                items.append(Elision(self.next()))
            elif _RETURN.fullmatch(self.line):
                operands = self.operands(self.match(_RETURN, "Return")[1])
                items.append(DumpReturn(operands, self.types(self.match(_RETURN_TYPES, "`: (types)`")[1])))
            else:
                items.append(self.node())
        return items

    def node(self) -> DumpNode:
        head = self.match(_NODE, "a node `  %n(name) = Op(...)`, Return or ...")
        operands = self.operands(head[4])
        attrs = None if head[6] is None else tuple(self.scanner(head[6] + "}").several("}", self.pair))
        types = self.match(_NODE_TYPES, "` {in_strategy: ...}      : (types) -> (types)`")
        strategy = None if types[1] is None else self.strategy(types[1])
        operand_types, result_types = self.types(types[2]), self.types(types[3])
        source = None if self.done else _SOURCE.fullmatch(self.line)
        if source is not None:
            self.place += 1
        return DumpNode(
            number=natural(head[1]),
            name=head[2],
            op=head[3],
            operands=operands,
            operand_types=operand_types,
            result_types=result_types,
            instance=head[5],
            attrs=attrs,
            in_strategy=strategy,
            source=source and DumpSource(source[1], natural(source[2]), source[3]),
        )

    # -- inside the line that was matched last

    def scanner(self, text: str) -> Scanner:
        self.inner = Scanner(text, self.place)
        return self.inner

    def pair(self) -> tuple[str, Attr]:
        name = self.inner.need(_KEY, "an attribute's name")
        self.inner.expect(":")
        return name, parse_attr(self.inner)

    def operands(self, text: str) -> tuple[Operand, ...]:
        line = self.scanner(text + ")")
        return tuple(line.several(")", lambda: _read_operand(line)))

    def types(self, text: str) -> tuple[DumpType, ...]:
        line = self.scanner(text + ")")
        return tuple(line.several(")", lambda: _read_type(line)))

    def strategy(self, text: str) -> Parts:
        line = self.scanner(text)
        value = parse_attr(line)
        line.end()
        if not isinstance(value, tuple):
            raise line.error("a strategy such as ((2, 1), (4)) is expected here")
        return tuple(_numbers(one, line) for one in value)


def _numbers(value: object, line: Scanner) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(isinstance(one, int) for one in value):
        raise line.error("a tuple of whole numbers is expected here")
    return value


def _read_operand(line: Scanner) -> Operand:
    line.skip()
    if line.text.startswith("(", line.position):
        return _numbers(parse_attr(line), line)
    return line.need(_REFERENCE, "an operand")


def _read_type(line: Scanner) -> DumpType:
    found = line.match(_TYPE)
    if found is None:
        raise line.error("a type such as <Tensor[Float32], (64, 64)> is expected here")
    if found[2] is None:
        return DumpType(found[1])
    return DumpType(found[1], tuple(natural(size) for size in re.findall("[0-9]+", found[2])))


def parse_attr(line: Scanner) -> Attr:
    """An attribute value as `show_attr` prints it."""
    if line.take("("):
        return tuple(line.several(")", lambda: parse_attr(line)))
    if line.take("["):
        return ListedValue(tuple(line.several("]", lambda: parse_attr(line))))
    if line.text.startswith('"', line.position):
        return line.string()
    return _bare(line.need(_BARE, "a value"))


def _bare(word: str) -> bool | int | float | str | None:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if re.fullmatch(r"-?[0-9]+", word):
        return integer(word)
    return float(word) if _FLOAT.fullmatch(word) else word
