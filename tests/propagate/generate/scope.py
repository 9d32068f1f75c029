"""Text of a StableHLO function under construction: values in scope, lines, and random choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

Shape = tuple[int, ...]
SIZES = (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True)
class Value:
    """An SSA value: its name (`%3`), shape and element type."""

    name: str
    shape: Shape
    element: str = "f32"

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element)


def tensor(shape: Shape, element: str = "f32") -> str:
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


@dataclass
class Module:
    """What all functions share: random choices, meshes, the functions written so far."""

    random: Random
    meshes: dict[str, dict[str, int]]
    functions: list[str] = field(default_factory=list)
    callees: list[tuple[str, list[Value], list[Value]]] = field(default_factory=list)
    count: int = 0
    groups: list[Shape] = field(default_factory=list)
    features: frozenset[str] = frozenset()
    sharding: Callable[..., str] | None = None

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def group_of(self, shape: Shape) -> int:
        """The number of a sharding group for values of that shape: an old one or a new one."""
        known = [number for number, of in enumerate(self.groups) if of == shape]
        if known and self.chance(0.4):
            return self.random.choice(known)
        self.groups.append(shape)
        return len(self.groups) - 1

    def chance(self, share: float) -> bool:
        return self.random.random() < share


class Scope:
    """A block being written. Values of outer blocks can be used; lines are indented by depth.

    `arguments` may grow while the block is written: a value that is needed and not there becomes an argument of the
    function, so operations never lack operands.
    """

    def __init__(self, module: Module, outer: Scope | None = None, manual: tuple[str, ...] = ()) -> None:
        self.module = module
        self.outer = outer
        self.manual = manual
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.arguments: list[Value] = []
        self.depth: int = outer.depth + 1 if outer else 1

    @property
    def random(self) -> Random:
        return self.module.random

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def argument(self, shape: Shape, element: str = "f32") -> Value:
        """A new argument of the function (of the outermost block)."""
        if self.outer is not None:
            return self.outer.argument(shape, element)
        value = Value(self.module.fresh(), shape, element)
        self.arguments.append(value)
        self.values.append(value)
        return value

    def visible(self) -> list[Value]:
        return self.values if self.outer is None else self.values + self.outer.visible()

    def pick(self, fits: Callable[[Value], bool] = lambda value: True, element: str = "f32") -> Value | None:
        """A value in scope that fits; later ones are likelier. None if there is none."""
        found = [value for value in self.visible() if value.element == element and fits(value)]
        if not found:
            return None
        return found[-1] if self.module.chance(0.4) else self.random.choice(found)

    def any(self, least: int = 0, most: int = 4) -> Value:
        """A value with a number of dims in the range."""
        found = self.pick(lambda value: least <= len(value.shape) <= most)
        return found or self.argument(self.shape(max(least, 1), most))

    def like(self, shape: Shape, element: str = "f32") -> Value:
        """A value of that shape."""
        found = self.pick(lambda value: value.shape == shape, element)
        return found if found is not None and self.module.chance(0.7) else self.argument(shape, element)

    def shape(self, least: int = 1, most: int = 3) -> Shape:
        return tuple(self.random.choice(SIZES) for _ in range(self.random.randint(least, max(least, most))))

    def scalar(self, number: float | int, element: str = "f32") -> Value:
        """A constant scalar, written each time."""
        value = Value(self.module.fresh(), (), element)
        text = f"{float(number):e}" if element.startswith("f") else str(int(number))
        self.line(f"{value.name} = stablehlo.constant dense<{text}> : {value.type}")
        return value

    def emit(self, operation: str, attributes: str, operands: list[Value], results: list[tuple[Shape, str]]) -> Value:
        """Write one operation in generic form; `attributes` is the text between the braces of `<{...}>`.

        Returns the first result; all of them come into scope.
        """
        made = [Value(f"{self.module.fresh()}", shape, element) for shape, element in results]
        return self.write(operation, attributes, operands, made, "")

    def write(
        self, operation: str, attributes: str, operands: list[Value], made: list[Value], regions: str
    ) -> Value:
        extra = self.asked(made)
        left = ", ".join(value.name for value in made)
        names, types = ", ".join(value.name for value in operands), ", ".join(value.type for value in operands)
        properties = f" <{{{attributes}}}>" if attributes else ""
        right = ", ".join(value.type for value in made)
        begin = f"{left} = " if made else ""
        self.line(f'{begin}"{operation}"({names}){properties}{regions}{extra} : ({types}) -> ({right})')
        self.values.extend(made)
        return made[0]

    def asked(self, made: list[Value]) -> str:
        """Sometimes shardings on the results."""
        if not made or self.module.sharding is None or not self.module.chance(0.12):
            return ""
        texts = [self.module.sharding(self.module, value.shape, self.manual) for value in made]
        return f" {{sdy.sharding = #sdy.sharding_per_value<[{', '.join(texts)}]>}}"
