"""Text: a program as one Python function over kernels `k` and collectives `c`, the same for all ranks.

    def step(k, c, const, x, w):
        # dense                                                                        model.py:14
        dense = k.MatMul(x, w, transpose_a=False, transpose_b=True, of="f32")          # f32[8, 4] [dp, - +tp]
        dense_1 = c.all_reduce(dense, ("tp",), "sum")                                  # f32[8, 4] [dp, -]
        return dense_1,

`of` are the element types of the results. Names are those of the program; layouts stand as comments. What differs by
rank is said by `c.index`, `c.valid` and `c.pick`; what is no plain value, such as arrays, lies in `const`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autoshard.core.tensortype import TOKEN
from autoshard.engines.grid import Axes, Grid
from autoshard.engines.groups import AxisPieces
from autoshard.engines.tables import boxes, is_whole_permute
from autoshard.ir.graph import Node
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Grouping, GroupList, Groups
from autoshard.ops.attributes import Offset, Valid
from autoshard.ops.windows import Varying
from autoshard.partition.manual import completed, reduction, sources
from autoshard.partition.program import (
    Bundle,
    Collective,
    Compute,
    Instruction,
    ManualCollective,
    Nest,
    NestBody,
    Program,
    Register,
    Start,
    Wait,
    walk,
)
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep
from autoshard.runtime.comm import accumulator
from autoshard.transform.recompute import AGAIN, GATHERED
from autoshard.util.errors import PlanError, at

_COMMENT_AT = 100
_PLAIN = (bool, int, str, type(None))
Lines = Iterator[str]
Ending = tuple[Instruction, Iterable[Register]]
"""An instruction, and what it uses last."""


@dataclass(frozen=True)
class Text:
    """The text, and what it speaks of: the mesh of its axes, and values that have no text."""

    source: str
    grid: Grid
    constants: Mapping[str, Any]
    axes: tuple[Axes, ...] = ()
    """All axes, or groups, over which ranks talk to each other, in the order in which they are first named."""
    repeats: bool = False
    """Whether something is made or sent more than once, rather than kept."""

    @cached_property
    def step(self) -> Any:
        """The function `step` that the text defines. Texts are made here, of programs; none is read from a file."""
        names: dict[str, Any] = {}
        exec(compile(self.source, "<program of a rank>", "exec"), names)
        return names["step"]


def write(program: Program) -> Text:
    """The text of a program.

    Raises:
        PlanError: it does what no text says yet: collectives of a function of their own, ranks that go different ways
            and talk to each other.
    """
    return Writer(program).text()


def refs_of(program: Program) -> tuple[set[AxisRef], bool]:
    """The pieces of axes that a program speaks of, those that split what goes in and out too, and whether it has groups
    that are lists."""
    refs = {ref for one in (*program.inputs, *program.outputs) for ref in one.layout.used}
    listed = False
    for one in walk(program.instructions):
        if isinstance(one, Collective):
            refs.update(one.step.groups.refs, one.step.before.used, one.step.after.used)
        elif isinstance(one, ManualCollective):
            listed = listed or isinstance(one.groups, GroupList)
            refs.update(one.groups.refs if isinstance(one.groups, Groups) else ())
        elif isinstance(one, Compute):
            refs.update(ref for value in one.attrs.values() for ref in _axes_in(value))
    return {ref for ref in refs if ref.size > 1}, listed


def _axes_in(value: Any) -> Iterator[AxisRef]:
    if isinstance(value, Offset | Valid | Varying):
        yield from value.axes
    elif isinstance(value, tuple):
        for one in value:
            yield from _axes_in(one)


@dataclass
class _Names:
    """Names of Python for registers: each its own, none of Python's words."""

    taken: set[str] = field(default_factory=lambda: {"k", "c", "const", "step", *keyword.kwlist})
    of: dict[Register, str] = field(default_factory=dict)

    def __getitem__(self, register: Register) -> str:
        if register not in self.of:
            self.of[register] = self.new(register.name)
        return self.of[register]

    def new(self, name: str) -> str:
        base = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "value"
        base = f"_{base}" if base[0].isdigit() else base
        found, number = base, 1
        while found in self.taken:
            found, number = f"{base}_{number}", number + 1
        self.taken.add(found)
        return found


class Writer:
    """Writes a program as text. What stands for an operator, and what the function takes first, others may change."""

    first: tuple[str, ...] = ("k", "c", "const")

    def __init__(self, program: Program, cuts: AxisPieces | None = None, entry: str = "step") -> None:
        """
        Args:
            cuts: the pieces of the mesh's axes that the text has names for; by default those that it speaks of.
            entry: the name of the function.
        """
        self.program, self.names, self.entry = program, _Names(), entry
        self.cuts = cuts or AxisPieces(program.mesh, *refs_of(program))
        self.constants: dict[str, Any] = {}
        self.tables: dict[Any, str] = {}
        self.over: dict[Axes, None] = {}
        self.repeats = False
        self._known: dict[Any, str] = {}
        self._alive: dict[str, None] = {}
        self._sent: set[tuple[Register, Any]] = set()

    def text(self) -> Text:
        """The text, once."""
        source = "\n".join(self.whole()) + "\n"
        return Text(source, self.cuts.grid, self.constants, tuple(self.over), self.repeats)

    def whole(self) -> Lines:
        inputs = [self.names[one] for one in self.program.inputs]
        body = list(self.block(self.program.instructions, self.program.last_uses, self.program.outputs, 1))
        yield f"# {self.program.name} on mesh {self.program.mesh}: what every rank runs."
        yield f"# Axes: {' '.join(f'{name}={size}' for name, size in self.cuts.grid.axes)}"
        yield from ("", *(f"{name} = {value!r}" for value, name in self.tables.items())) if self.tables else ()
        yield ""
        yield from _signature(self.entry, (*self.first, *inputs))
        for one, name in zip(self.program.inputs, inputs, strict=True):
            yield f"    # {name}: {one.local} [{one.layout}]"
        yield from body

    # -- blocks

    def block(
        self,
        instructions: Sequence[Instruction],
        last_uses: Sequence[Iterable[Register]],
        outputs: Sequence[Register],
        depth: int,
    ) -> Lines:
        around, self._alive, self._sent = (self._alive, self._sent), {}, set()
        yield from self.run_of(list(zip(instructions, last_uses, strict=True)), depth)
        self._alive, self._sent = around
        yield f"{'    ' * depth}return {self._tuple(self.names[one] for one in outputs)}"

    def run_of(self, pairs: Sequence[Ending], depth: int) -> Lines:
        """Instructions that follow each other, each with what it uses last."""
        node = None
        for one, ending in pairs:
            served = _node_of(one)
            if served is not None and served is not node:
                node = served
                yield _commented(f"{'    ' * depth}# {_one_line(node.label)}", str(node.source) if node.source else "")
            yield from self.instruction(one, depth)
            yield from self.let_go(ending, depth)

    def let_go(self, ending: Iterable[Register], depth: int) -> Lines:
        gone = [self.names[register] for register in ending if register in self.names.of]
        if gone:
            yield f"{'    ' * depth}del {', '.join(dict.fromkeys(gone))}"
        for name in gone:
            self._alive.pop(name, None)

    def instruction(self, one: Instruction, depth: int) -> Lines:
        pad = "    " * depth
        if isinstance(one, Nest):
            yield from self.nest(one, depth)
            return
        if isinstance(one, Start):
            self.names.of[one] = self.names.new("sent")  # type: ignore[index]
            yield f"{pad}{self.names.of[one]} = c.start({self.begun(one.of)})"  # type: ignore[index]
            return
        if isinstance(one, Wait):
            yield from self.made(one.results, f"c.wait({self.names.of[one.start]})", one.start.of, pad)  # type: ignore[index]
            return
        if isinstance(one, Compute):
            yield from self.made(one.results, self.compute(one), None, pad)
        elif isinstance(one, Bundle):
            yield from self.made(one.results, self.call(self.begun(one)), one, pad)
        elif isinstance(one, ManualCollective):
            yield from self.together(one, pad)
        else:
            yield from self.made((one.result,), self.moved(one), one, pad)

    def made(self, results: Sequence[Register], value: str, of: Any, pad: str) -> Lines:
        """`results = value`, and what of them is kept where a step worked on padded blocks."""
        names = [self.names[one] for one in results]
        pairs = zip(names, results, strict=True)
        self._alive |= {name: None for name, one in pairs if one.whole.dtype is not TOKEN}
        target = names[0] if len(names) == 1 and not isinstance(of, Bundle) else f"({', '.join(names)},)"
        yield _commented(f"{pad}{target} = {value}", ", ".join(f"{one.local} [{one.layout}]" for one in results))
        parts = of.parts if isinstance(of, Bundle) else (of,) if isinstance(of, Collective) else ()
        for name, part in zip(names, parts, strict=True) if parts else ():
            step = part.step
            if isinstance(step, Step) and step.after.local_shape(part.of.shape) != part.result.local.shape:
                yield f"{pad}{name} = c.fit({name}, {part.result.local.shape!r})"

    # -- operators

    def compute(self, one: Compute) -> str:
        kinds = tuple(register.whole.dtype.name for register in one.results)
        attrs = [f"{name}={self.value(value)}" for name, value in one.attrs.items()]
        operands = self.operands(one)
        of = f"of={(kinds[0] if len(kinds) == 1 else kinds)!r}"
        return f"k.{one.op.name}({', '.join((*operands, *attrs, of))})"

    def operands(self, one: Compute) -> list[str]:
        """What an operator takes: what is kept of the forward pass anew, if it is made or gathered again."""
        names = [self.names[register] for register in one.operands]
        if not one.node.results or not one.node.results[0].name.endswith((AGAIN, GATHERED)):
            return names
        return [name if AGAIN in of.name else self.anew(name) for name, of in zip(names, one.operands, strict=True)]

    def value(self, value: Any) -> str:
        """An attribute's value as Python says it."""
        if isinstance(value, Offset):
            return f"c.index({self.axes(value.axes)}) * {value.chunk}"
        if isinstance(value, Valid):
            return f"c.valid({self.axes(value.axes)}, {value.chunk}, {value.size})"
        if isinstance(value, Varying):
            return f"c.pick({self.axes(value.axes)}, {value.values!r})"
        if type(value) in _PLAIN:
            return repr(value)
        if type(value) is float:
            return repr(value) if value - value == 0 else f"float({str(value)!r})"
        if type(value) is complex:
            return f"complex({self.value(value.real)}, {self.value(value.imag)})"
        if type(value) is tuple:
            return self._tuple(map(self.value, value)) if value else "()"
        return f"const[{self.constant(value)!r}]"

    def constant(self, value: Any) -> str:
        key: Any = value
        try:
            hash(key)
        except TypeError:
            key = id(value)
        if key not in self._known:
            self._known[key] = f"{type(value).__name__.lower()}_{len(self.constants)}"
            self.constants[self._known[key]] = value
        return self._known[key]

    # -- collectives

    def axes(self, over: Refs | Grouping) -> str:
        found = self.cuts.axes(over)
        self.over[found] = None
        return self.table(found, "GROUPS") if found and isinstance(found[0], tuple) else repr(found)

    def table(self, value: Any, kind: str) -> str:
        """The name of a table at the top of the text."""
        if value not in self.tables:
            self.tables[value] = self.names.new(f"{kind}_{len(self.tables)}")
        return self.tables[value]

    def moved(self, one: Collective) -> str:
        step = one.step
        if isinstance(step, WindowStep):
            return self._boxes(one, self.operand(one))
        if step.kind == "slice":
            return f"c.slice({self.grown(one)}, {self.axes(step.groups)}, {step.dim})"
        if is_whole_permute(step):
            table = self.table(tuple(step.round(0).sources), "SOURCES")
            return f"c.permute({self.grown(one)}, {table})"
        if step.kind in ("keep", "permute"):
            return self._boxes(one, self.grown(one))
        return self.call(self.begun(one))

    def _boxes(self, one: Collective, name: str) -> str:
        step = one.step
        shape = one.result.local.shape if isinstance(step, WindowStep) else step.after.local_shape(one.of.shape)
        wide = ""
        if isinstance(step, Step) and step.fetched is not None and step.fetched.reduced:
            kind = accumulator(one.of.dtype.numpy)
            wide = f", {step.before.reduction!r}, {kind.name!r}"
        return f"c.boxes({name}, {shape!r}, {self.table(boxes(one), 'BOXES')}{wide})"

    def operand(self, one: Collective) -> str:
        """What a collective takes, anew where the same was sent before."""
        key = (one.operand, one.step)
        if key in self._sent:
            return self.anew(self.names[one.operand])
        self._sent.add(key)
        return self.names[one.operand]

    def anew(self, name: str) -> str:
        """A value behind what was made last: a compiler would otherwise keep what it has made or sent of it before, as
        of parameters that are gathered again for the gradient.
        """
        after = next((last for last in reversed(self._alive) if last != name), "")
        self.repeats = self.repeats or bool(after)
        return f"c.again({name}, {after})" if after else name

    def grown(self, one: Collective) -> str:
        """The operand, padded to what the step works on."""
        name, shape = self.operand(one), one.step.before.local_shape(one.of.shape)
        return name if one.operand.local.shape == shape else f"c.fit({name}, {shape!r})"

    def begun(self, one: Collective | Bundle) -> str:
        """A collective as a function with its arguments: `c.all_reduce, x, ("tp",), "sum"`."""
        if isinstance(one, Bundle):
            step = one.parts[0].step
            operands = self._tuple(map(self.grown, one.parts))
            dims = tuple((part.step.dim or 0, part.step.to_dim or 0) for part in one.parts)
            reduced = f", {step.reduction!r}" if step.kind in ("all_reduce", "reduce_scatter") else ""
            return f"c.bundle, {step.kind!r}, {operands}, {self.axes(step.groups)}, {dims!r}{reduced}"
        step = one.step
        dims = {"all_gather": (step.dim,), "reduce_scatter": (step.dim,), "all_to_all": (step.dim, step.to_dim)}
        rest = [repr(dim) for dim in dims.get(step.kind, ())]
        if step.kind in ("all_reduce", "reduce_scatter"):
            rest.append(repr(step.reduction))
        return ", ".join((f"c.{step.kind}", self.grown(one), self.axes(step.groups), *rest))

    @staticmethod
    def call(begun: str) -> str:
        function, _, arguments = begun.partition(", ")
        return f"{function}({arguments})"

    def together(self, one: ManualCollective, pad: str) -> Lines:
        if one.kind == "rank":
            counts = one.node.op.name == "PartitionId"
            yield from self.made(one.results, f"c.rank({counts!r})", None, pad)
            return
        for operand, result in zip(one.operands, one.results, strict=True):
            yield from self.made((result,), self._by_hand(one, self.names[operand]), None, pad)

    def _by_hand(self, one: ManualCollective, name: str) -> str:
        """A collective that the model writes itself."""
        attrs, axes = one.node.attrs, self.axes(one.groups)
        if one.kind == "permute":
            pairs = sources(one.node, one.results[0].layout.mesh)
            whole = completed(pairs, self.program.mesh.devices)
            table = self.table(tuple(one_of if i in pairs else None for i, one_of in enumerate(whole)), "SOURCES")
            return f"c.permute({name}, {table})"
        if one.kind == "all_reduce":
            return f"c.all_reduce({name}, {axes}, {reduction(one.node)!r})"
        if one.kind == "reduce_scatter":
            return f"c.reduce_scatter({name}, {axes}, {attrs['dim']}, {reduction(one.node)!r})"
        if one.kind == "all_to_all":
            return f"c.all_to_all({name}, {axes}, {attrs['split']}, {attrs['concat']})"
        if one.node.op.name == "AllGather":
            return f"c.all_gather({name}, {axes}, {attrs['dim']})"
        raise PlanError(
            f"{one.node.label} ({one.node.op.name}){at(one.node.source)}: its function is no sum, product, largest or "
            "least, by which alone engines other than numpy combine"
        )

    # -- loops, branches, manual computations

    def nest(self, nest: Nest, depth: int) -> Lines:
        if nest.divergent and nest.communicates:
            raise PlanError(
                f"{nest.node.label} ({nest.node.op.name}){at(nest.node.source)}: ranks may go different ways and talk "
                "to each other there, which only the numpy engine checks"
            )
        pad, name = "    " * depth, nest.node.op.name
        entering = [self.names[one] for one in nest.entering]
        if name not in ("While", "Case"):
            (body,) = nest.bodies
            yield from self.body("inner", body, depth)
            yield from self.made(nest.results, f"{self._last}({', '.join(entering)})", Bundle(()), pad)
            return
        functions = []
        for kind, body in zip(_kinds(name, len(nest.bodies)), nest.bodies, strict=True):
            yield from self.body(kind, body, depth)
            functions.append(self._last)
        if name == "While":
            call = f"k.while_loop({functions[0]}, {functions[1]}, {self._tuple(entering)})"
        else:
            call = f"k.case({entering[0]}, {self._tuple(functions)})"
        yield from self.made(nest.results, call, Bundle(()), pad)

    def body(self, kind: str, body: NestBody, depth: int) -> Lines:
        self._last = self.names.new(kind)
        name = self._last
        arguments = ", ".join(self.names[one] for one in body.args)
        yield f"{'    ' * depth}def {name}({arguments}):"
        yield from self.block(body.instructions, [()] * len(body.instructions), body.outputs, depth + 1)
        self._last = name

    @staticmethod
    def _tuple(items: Iterable[str]) -> str:
        items = list(items)
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _signature(name: str, arguments: Sequence[str]) -> Lines:
    line = f"def {name}({', '.join(arguments)}):"
    yield from (line,) if len(line) <= _COMMENT_AT else (f"def {name}(", *(f"    {one}," for one in arguments), "):")


def _kinds(name: str, count: int) -> tuple[str, ...]:
    return ("holds", "turn") if name == "While" else tuple(f"branch_{i}" for i in range(count))


def _node_of(one: Instruction) -> Node | None:
    return one.node if isinstance(one, Compute | ManualCollective | Nest) else one.serves


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _commented(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_AT}}  # {_one_line(comment)}" if comment else line


__all__ = ["Axes", "Text", "Writer", "write"]
