"""Text of a StableHLO function under construction: values in scope, lines, and random choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.propagate.generate.rules import random_rule

Shape = tuple[int, ...]
SIZES = (1, 2, 3, 4, 6, 8, 12)
F32 = "f32"
TOKEN = "!stablehlo.token"
# A tensor with a first dim of dynamic size, before those in its shape.
DYNAMIC = "?f32"
MAXIMAL, EMPTY = "maximal_mesh_1", "empty_mesh"


@dataclass(frozen=True)
class Value:
    """An SSA value: its name (`%3`), shape and element type, for which there also stands TOKEN or DYNAMIC."""

    name: str
    shape: Shape
    element: str = F32

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element)

    @property
    def dims(self) -> Shape:
        """The sizes of all dims; 0 for the dynamic one."""
        return (0, *self.shape) if self.element == DYNAMIC else self.shape


def tensor(shape: Shape, element: str = F32) -> str:
    if element == DYNAMIC:
        return f"tensor<{'x'.join(['?', *map(str, shape), F32])}>"
    return TOKEN if element == TOKEN else f"tensor<{'x'.join([*map(str, shape), element])}>"


@dataclass
class Module:
    """What all functions share: random choices, meshes, the functions written so far.

    Attributes:
        random: makes all choices.
        meshes: axes and their sizes by name of the mesh; the first is the one that most shardings use.
        orders: device orders of meshes that have one.
        sharding: the text of a random sharding, of (module, shape, manual axes).
        features: what may occur.
        functions: texts of the functions written so far.
        callees: name, arguments and results of those that can be called.
        groups: the shape of each sharding group's values, and the manual computation that it is in.
        grouped: the first group of each value that is in one.
    """

    random: Random
    meshes: dict[str, dict[str, int]]
    orders: dict[str, list[int]]
    sharding: Callable[[Module, Shape, tuple[str, ...]], str]
    features: frozenset[str] = frozenset()
    functions: list[str] = field(default_factory=list)
    callees: list[tuple[str, list[Value], list[Value]]] = field(default_factory=list)
    count: int = 0
    groups: list[object] = field(default_factory=list)
    grouped: dict[Value, int] = field(default_factory=dict)

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def group_of(self, kind: object) -> int:
        """The number of a sharding group for values of that kind: an old one or a new one."""
        known = [number for number, of in enumerate(self.groups) if of == kind]
        if known and self.chance(0.5):
            return self.random.choice(known)
        self.groups.append(kind)
        return len(self.groups) - 1

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def has(self, feature: str, share: float) -> bool:
        """Whether the feature is on, and then with that chance."""
        return feature in self.features and self.chance(share)


class Scope:
    """A block being written; lines are indented by depth.

    `arguments` may grow while the block is written: a value that is needed and not there becomes an argument of the
    function, so operations never lack operands. A block that cannot see the values outside (`isolated`) makes a
    constant instead.
    """

    def __init__(
        self, module: Module, outer: Scope | None = None, manual: tuple[str, ...] | None = None, isolated: bool = False
    ) -> None:
        self.module = module
        self.outer = None if isolated else outer
        self.isolated = isolated
        self.manual: tuple[str, ...] = manual if manual is not None else outer.manual if outer else ()
        self.place: object = self if manual is not None else outer.place if outer else None
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.arguments: list[Value] = []
        self.used: set[Value] = outer.used if outer else set()
        self.depth: int = outer.depth + 1 if outer else 1

    @property
    def random(self) -> Random:
        return self.module.random

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def argument(self, shape: Shape, element: str = F32) -> Value:
        """A new argument of the function (of the outermost block)."""
        if self.outer is not None:
            return self.outer.argument(shape, element)
        value = Value(self.module.fresh(), shape, element)
        self.values.append(value)
        if self.isolated:
            self.line(f"{value.name} = {literal(value)}")
        else:
            self.arguments.append(value)
        return value

    def visible(self) -> list[Value]:
        return self.values if self.outer is None else self.values + self.outer.visible()

    def pick(self, fits: Callable[[Value], bool] = lambda value: True, element: str = F32) -> Value | None:
        """A value in scope that fits; later ones are likelier. None if there is none."""
        found = [value for value in self.visible() if value.element == element and fits(value)]
        if not found:
            return None
        chosen = found[-1] if self.module.chance(0.4) else self.random.choice(found)
        self.used.add(chosen)
        return chosen

    def any(self, least: int = 0, most: int = 4) -> Value:
        """A value with a number of dims in the range."""
        found = self.pick(lambda value: least <= len(value.shape) <= most)
        return found or self.argument(self.shape(max(least, 1), most))

    def like(self, shape: Shape, element: str = F32) -> Value:
        """A value of that shape."""
        found = self.pick(lambda value: value.shape == shape, element)
        return found if found is not None and self.module.chance(0.7) else self.argument(shape, element)

    @property
    def sealed(self) -> bool:
        """Whether it is in a block that cannot see the arguments of the function."""
        return self.isolated or (self.outer is not None and self.outer.sealed)

    def dynamic(self, *shape: int) -> Value | None:
        """A tensor of dynamic size, `shape` being its other dims; None where none can be seen."""
        found = self.pick(lambda value: value.shape == shape, DYNAMIC)
        return found if found is not None or self.sealed else self.argument(shape, DYNAMIC)

    def token(self) -> Value:
        found = self.pick(element=TOKEN)
        if found is not None and self.module.chance(0.6):
            return found
        return self.emit("stablehlo.create_token", "", [], [((), TOKEN)])

    def shape(self, least: int = 1, most: int = 3) -> Shape:
        return tuple(self.random.choice(SIZES) for _ in range(self.random.randint(least, max(least, most))))

    def scalar(self, number: float | int, element: str = F32) -> Value:
        """A constant scalar, written each time."""
        value = Value(self.module.fresh(), (), element)
        text = f"{float(number):e}" if element.startswith("f") else str(int(number))
        self.line(f"{value.name} = stablehlo.constant dense<{text}> : {value.type}")
        return value

    def integers(self, numbers: Sequence[int]) -> Value:
        """A constant vector of integers."""
        value = Value(self.module.fresh(), (len(numbers),), "i64")
        shown = list(numbers) if numbers else ""
        self.line(f"{value.name} = stablehlo.constant dense<{shown}> : {value.type}")
        return value

    def emit(
        self,
        operation: str,
        attributes: str,
        operands: Sequence[Value],
        results: Sequence[tuple[Shape, str]],
        regions: Sequence[str] = (),
        more: str = "",
        edged: bool = False,
    ) -> Value:
        """Write one operation in generic form; its results come into scope.

        Args:
            operation: its full name.
            attributes: the text between the braces of `<{...}>`.
            operands: what it takes.
            results: shapes and element types of what it makes.
            regions: the texts of its regions, in braces.
            more: the text between the braces of `{...}`, without shardings.
            edged: data-flow edges may follow, which then are the only ones to use the results.

        Returns:
            The first result.
        """
        made = [Value(self.module.fresh(), shape, element) for shape, element in results]
        extra = ", ".join(part for part in (more, self.asked(made), self.ruled(operands, made)) if part)
        left, names = text_of(made), text_of(operands)
        properties = f" <{{{attributes}}}>" if attributes else ""
        begin = f"{left} = " if made else ""
        bodies = f" ({', '.join(regions)})" if regions else ""
        self.line(
            f'{begin}"{operation}"({names}){properties}{bodies}{f" {{{extra}}}" if extra else ""} '
            f": ({types_of(operands)}) -> ({types_of(made)})"
        )
        self.values.extend(made)
        self.keep(made, extra, edged)
        return made[0] if made else Value("", ())

    def keep(self, made: Sequence[Value], asked: str, edged: bool = False) -> None:
        """Use values of which priorities are asked: where their operation is dead, Shardy reads freed memory."""
        if "}p" in asked and not (edged and "edges" in self.module.features):
            self.line(
                f'"stablehlo.custom_call"({text_of(made)}) <{{call_target_name = "sdy_testonly", '
                f"has_side_effect = true}}> : ({types_of(made)}) -> ()"
            )

    def asked(self, made: Sequence[Value], share: float = 0.12) -> str:
        """Sometimes an attribute with shardings of the results, or with where an operation without results runs."""
        if any(value.element == TOKEN for value in made) or not self.module.chance(share if made else 0.3):
            return ""
        # Without results there may be one sharding without dims, or none.
        shapes = [value.dims for value in made] if made else [()] * self.random.choice((0, 1, 1, 1))
        texts = [self.module.sharding(self.module, shape, self.manual if made else ()) for shape in shapes]
        return f"sdy.sharding = #sdy.sharding_per_value<[{', '.join(texts)}]>"

    def ruled(self, operands: Sequence[Value], made: Sequence[Value]) -> str:
        """Sometimes an attribute with a rule of the user's own."""
        tensors = [value.element not in (TOKEN, DYNAMIC) for value in (*operands, *made)]
        if not operands or not made or not all(tensors) or not self.module.has("rules", 0.2):
            return ""
        rule = random_rule(self.random, [value.shape for value in operands], [value.shape for value in made])
        return f"sdy.sharding_rule = #sdy.op_sharding_rule<{rule}>" if rule else ""


def literal(value: Value) -> str:
    """A constant of the value's type."""
    numbers = {"f": "0.0", "b": "0.0", "c": "(0.0, 0.0)"}
    number = "false" if value.element == "i1" else numbers.get(value.element[0], "0")
    return f"stablehlo.constant dense<{number}> : {value.type}"


def text_of(values: Sequence[Value]) -> str:
    return ", ".join(value.name for value in values)


def types_of(values: Sequence[Value]) -> str:
    return ", ".join(value.type for value in values)
