"""StableHLO modules drawn at random: what propagation meets, mixed without plan."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

AXES = {"a": 2, "b": 2, "c": 4, "d": 3}
# Axes of size 4 also come in pieces.
PIECES = [['"a"'], ['"b"'], ['"c"', '"c":(1)2', '"c":(2)2'], ['"d"']]
ORDERS = {"mesh": "abcd", "other": "bcda"}
SIZES = (1, 2, 3, 4, 6, 8, 12)
Shape = tuple[int, ...]


@dataclass
class Value:
    name: str
    shape: Shape


@dataclass
class Features:
    """What may occur; chances are per op, or per value for shardings."""

    sharded: float = 0.15
    priorities: bool = False
    groups: bool = False
    second_mesh: bool = False
    constraints: bool = True
    edges: bool = True
    manual: bool = True
    maximal: bool = False


@dataclass
class Writer:
    """Writes the ops of one block; blocks inside get a writer of their own."""

    rng: random.Random
    features: Features
    names: list[int] = field(default_factory=lambda: [0])
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    manual: frozenset[str] = frozenset()
    depth: int = 0
    grouped: set[str] = field(default_factory=set)
    groups: dict[object, int] = field(default_factory=dict)
    # Distinguishes the constants of a body that cannot use those outside.
    suffix: str = ""

    def fresh(self, count: int = 1) -> str:
        self.names[0] += 1
        return f"%v{self.names[0]}" + (f":{count}" if count > 1 else "")

    def put(self, text: str, *shapes: Shape, attrs: str = "") -> list[Value]:
        """Add an operation; `text` holds {} where the sharding attribute goes."""
        name = self.fresh(len(shapes))
        asked = self.result_shardings(shapes)
        both = ", ".join(part for part in (attrs, asked) if part)
        self.lines.append(f"{name} = {text.format(f'{{{both}}}' if both else '')}")
        base = name.partition(":")[0]
        made = [Value(base if len(shapes) == 1 else f"{base}#{i}", shape) for i, shape in enumerate(shapes)]
        if "}p" in asked:
            self.keep(made)
        self.values += made
        return made

    def keep(self, values: list[Value]) -> None:
        """Use values, so that their op is not erased: Shardy crashes where an erased op had priorities."""
        names, types = ", ".join(value.name for value in values), ", ".join(kind(value.shape) for value in values)
        self.lines.append(f"stablehlo.custom_call @sdy_testonly({names}) {{has_side_effect = true}} : ({types}) -> ()")

    def result_shardings(self, shapes: tuple[Shape, ...]) -> str:
        if self.rng.random() >= self.features.sharded:
            return ""
        mesh = self.mesh()
        inner = ", ".join(self.sharding(shape, mesh) for shape in shapes)
        return f"sdy.sharding = #sdy.sharding_per_value<[{inner}]>"

    def mesh(self) -> str:
        if self.features.maximal and self.rng.random() < 0.1 and not self.manual:
            return "single"
        return "other" if self.features.second_mesh and self.rng.random() < 0.3 and not self.manual else "mesh"

    def sharding(self, shape: Shape, mesh: str = "mesh", closed: float = 0.4) -> str:
        if mesh == "single":
            return "<@single, []>"
        rng = self.rng
        free = [rng.choice(pieces) for pieces in PIECES if pieces[0].strip('"') not in self.manual]
        rng.shuffle(free)
        dims = []
        for _ in shape:
            axes = [free.pop() for _ in range(rng.choice((0, 0, 1, 1, 2))) if free]
            is_open = rng.random() >= closed
            priority = f"p{rng.choice((0, 1, 1, 3))}" if self.features.priorities and rng.random() < 0.4 else ""
            dims.append("{" + ", ".join(axes + ["?"] * is_open) + "}" + (priority if axes or is_open else ""))
        order = ORDERS[mesh]
        kept = sorted((axis for axis in free if rng.random() < 0.15), key=lambda axis: (order.index(axis[1]), axis))
        replicated = f", replicated={{{', '.join(kept)}}}" if kept else ""
        return f"<@{mesh}, [{', '.join(dims)}]{replicated}>"

    def pick(self, where: Callable[[Value], bool] = lambda value: True) -> Value | None:
        fitting = [value for value in self.values if where(value)]
        if not fitting:
            return None
        # Mostly late values, so that chains get long.
        return fitting[max(self.rng.randrange(len(fitting)), self.rng.randrange(len(fitting)))]

    def child(self, values: list[Value], manual: frozenset[str] | None = None) -> Writer:
        manual = self.manual if manual is None else manual
        made = Writer(self.rng, self.features, self.names, [], values, manual, self.depth + 1)
        made.grouped, made.groups, made.suffix = self.grouped, self.groups, self.suffix
        return made

    def constants(self, suffix: str) -> None:
        self.suffix = suffix
        for name, value, element in (("zero", "0.0", "f32"), ("index", "0", "i32"), ("true", "true", "i1")):
            self.lines.append(f"%{name}{suffix} = stablehlo.constant dense<{value}> : tensor<{element}>")

    # -- operations

    def fill(self, count: int) -> None:
        kinds = [self.unary, self.binary, self.binary, self.transpose, self.reshape, self.broadcast, self.dot, self.dot]
        kinds += [self.reduce, self.slice, self.dynamic_slice, self.concatenate, self.sort, self.unknown, self.barrier]
        if self.features.constraints:
            kinds += [self.constraint, self.constraint]
        if self.features.groups:
            kinds += [self.group, self.group]
        if self.features.edges and self.depth < 2:
            kinds += [self.loop, self.case, self.optimization_barrier]
        if self.features.manual and self.depth < 2:
            kinds += [self.manual_computation, self.manual_computation]
        for _ in range(count):
            self.rng.choice(kinds)()

    def unary(self) -> None:
        x = self.pick()
        assert x is not None
        self.put(f"stablehlo.tanh {x.name} {{}} : {kind(x.shape)}", x.shape)

    def binary(self) -> None:
        x = self.pick()
        assert x is not None
        y = self.pick(lambda value: value.shape == x.shape)
        assert y is not None
        self.put(f"stablehlo.add {x.name}, {y.name} {{}} : {kind(x.shape)}", x.shape)

    def transpose(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 1)
        if x is not None:
            order = self.rng.sample(range(len(x.shape)), len(x.shape))
            shape = tuple(x.shape[i] for i in order)
            self.put(f"stablehlo.transpose {x.name}, dims = {order} {{}} : ({kind(x.shape)}) -> {kind(shape)}", shape)

    def reshape(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 0)
        if x is None:
            return
        shape, left = [], math.prod(x.shape)
        for _ in range(self.rng.choice((0, 1, 2))):
            size = self.rng.choice([size for size in SIZES if left % size == 0])
            shape.append(size)
            left //= size
        made = (*shape, left)
        self.put(f"stablehlo.reshape {x.name} {{}} : ({kind(x.shape)}) -> {kind(made)}", made)

    def broadcast(self) -> None:
        x = self.pick(lambda value: len(value.shape) < 3)
        if x is None:
            return
        rank = self.rng.randint(max(len(x.shape), 1), 3)
        dims = sorted(self.rng.sample(range(rank), len(x.shape)))
        shape = [self.rng.choice(SIZES) for _ in range(rank)]
        for i, dim in enumerate(dims):
            shape[dim] = x.shape[i] if x.shape[i] > 1 else shape[dim]
        made = tuple(shape)
        self.put(f"stablehlo.broadcast_in_dim {x.name}, dims = {dims} {{}} : ({kind(x.shape)}) -> {kind(made)}", made)

    def dot(self) -> None:
        x = self.pick(lambda value: len(value.shape) == 2)
        y = x and self.pick(lambda value: len(value.shape) == 2 and value.shape[0] == x.shape[1])
        if x is None or y is None:
            return
        shape = (x.shape[0], y.shape[1])
        types = f"({kind(x.shape)}, {kind(y.shape)}) -> {kind(shape)}"
        self.put(f"stablehlo.dot_general {x.name}, {y.name}, contracting_dims = [1] x [0] {{}} : {types}", shape)

    def reduce(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 1)
        if x is None:
            return
        dim = self.rng.randrange(len(x.shape))
        shape = tuple(size for i, size in enumerate(x.shape) if i != dim)
        types = f"({kind(x.shape)}, tensor<f32>) -> {kind(shape)}"
        what = f"({x.name} init: %zero{self.suffix}) applies stablehlo.add across dimensions = [{dim}]"
        self.put(f"stablehlo.reduce{what} {{}} : {types}", shape)

    def slice(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 0)
        if x is not None:
            shape = tuple(self.rng.randint(max(size // 2, 1), size) for size in x.shape)
            ranges = ", ".join(f"0:{size}" for size in shape)
            self.put(f"stablehlo.slice {x.name} [{ranges}] {{}} : ({kind(x.shape)}) -> {kind(shape)}", shape)

    def dynamic_slice(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 0)
        if x is not None:
            shape = tuple(self.rng.choice((size, max(size // 2, 1))) for size in x.shape)
            starts = ", ".join([f"%index{self.suffix}"] * len(shape))
            types = f"({', '.join([kind(x.shape), *['tensor<i32>'] * len(shape)])}) -> {kind(shape)}"
            sizes = list(shape)
            self.put(f"stablehlo.dynamic_slice {x.name}, {starts}, sizes = {sizes} {{}} : {types}", shape)

    def concatenate(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 0)
        y = x and self.pick(lambda value: value.shape == x.shape)
        if x is not None and y is not None:
            shape = (x.shape[0] * 2, *x.shape[1:])
            types = f"({kind(x.shape)}, {kind(x.shape)}) -> {kind(shape)}"
            self.put(f"stablehlo.concatenate {x.name}, {y.name}, dim = 0 {{}} : {types}", shape)

    def sort(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 0)
        y = x and self.pick(lambda value: value.shape == x.shape)
        if x is None or y is None:
            return
        body = "^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>): "
        body += "%less = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1> "
        body += "stablehlo.return %less : tensor<i1>"
        types = f"({kind(x.shape)}, {kind(x.shape)}) -> ({kind(x.shape)}, {kind(x.shape)})"
        self.put(
            f'"stablehlo.sort"({x.name}, {y.name}) <{{{{dimension = 0 : i64}}}}> ({{{{ {body} }}}}) {{}} : {types}',
            x.shape,
            x.shape,
        )

    def unknown(self) -> None:
        x = self.pick()
        assert x is not None
        types = f"({kind(x.shape)}) -> ({kind(x.shape)}, {kind(x.shape)})"
        self.put(f"stablehlo.custom_call @sdy_testonly({x.name}) {{}} : {types}", x.shape, x.shape)

    def barrier(self) -> None:
        x = self.pick()
        assert x is not None
        way = self.rng.choice(("NONE", "FORWARD", "BACKWARD"))
        self.put(f"sdy.propagation_barrier {x.name} allowed_direction={way} {{}} : {kind(x.shape)}", x.shape)

    def constraint(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 0)
        if x is not None:
            name = self.fresh()
            asked = self.sharding(x.shape, self.mesh())
            self.lines.append(f"{name} = sdy.sharding_constraint {x.name} {asked} : {kind(x.shape)}")
            if self.rng.random() < 0.8:
                self.values.append(Value(name, x.shape))

    def group(self) -> None:
        x = self.pick(lambda value: len(value.shape) > 0 and value.name not in self.grouped)
        if x is not None:
            number = self.groups.setdefault((self.manual, x.shape), len(self.groups))
            self.grouped.add(x.name)
            self.lines.append(f"sdy.sharding_group {x.name} group_id={number} : {kind(x.shape)}")

    # -- operations with regions or edges

    def optimization_barrier(self) -> None:
        x, y = self.pick(), self.pick()
        assert x is not None and y is not None
        self.put(
            f"stablehlo.optimization_barrier {{}} {x.name}, {y.name} : {kind(x.shape)}, {kind(y.shape)}",
            x.shape,
            y.shape,
        )

    def loop(self) -> None:
        taken = [value for value in (self.pick(), self.pick()) if value is not None]
        args = [Value(self.fresh(), value.shape) for value in taken]
        inner = self.child(list(self.values) + args)
        inner.fill(self.rng.randint(1, 5))
        yielded = [inner.pick(lambda value, like=value: value.shape == like.shape) for value in taken]
        heads = ", ".join(f"{arg.name} = {value.name}" for arg, value in zip(args, taken, strict=True))
        types = ", ".join(kind(value.shape) for value in taken)
        names = ", ".join(value.name for value in yielded if value is not None)
        token = self.fresh()
        shapes = tuple(value.shape for value in taken)
        asked = self.result_shardings((*shapes, ())) if self.rng.random() < 0.5 else ""
        name = self.fresh(3)
        self.lines += [
            f"{name} = stablehlo.while({heads}, {token} = %true{self.suffix}) : {types}, tensor<i1>"
            + (f" attributes {{{asked}}}" if asked else ""),
            f"cond {{ stablehlo.return {token} : tensor<i1> }} do {{",
            *inner.lines,
            f"stablehlo.return {names}, {token} : {types}, tensor<i1> }}",
        ]
        base = name.partition(":")[0]
        made = [Value(f"{base}#{i}", shape) for i, shape in enumerate(shapes)]
        self.values += made
        if "}p" in asked:
            self.keep(made)

    def case(self) -> None:
        like = self.pick()
        assert like is not None
        bodies = []
        for _ in range(2):
            inner = self.child(list(self.values))
            inner.fill(self.rng.randint(1, 4))
            out = inner.pick(lambda value: value.shape == like.shape)
            assert out is not None
            lines = "\n".join([*inner.lines, f"stablehlo.return {out.name} : {kind(like.shape)}"])
            bodies.append(f"{{ {lines} }}".replace("{", "{{").replace("}", "}}"))
        self.put(
            f'"stablehlo.case"(%index{self.suffix}) ({", ".join(bodies)}) {{}} : (tensor<i32>) -> {kind(like.shape)}',
            like.shape,
        )

    def manual_computation(self) -> None:
        free = [axis for axis in AXES if axis not in self.manual]
        axis = self.rng.choice(free)
        found = [
            (value, dim)
            for value in self.values
            for dim, size in enumerate(value.shape)
            if size % AXES[axis] == 0 and size > 1
        ]
        if not found:
            return
        x, dim = self.rng.choice(found)
        local = tuple(size // AXES[axis] if i == dim else size for i, size in enumerate(x.shape))
        arg = Value(self.fresh(), local)
        inner = self.child([arg], self.manual | {axis})
        inner.constants(arg.name.strip("%"))
        inner.fill(self.rng.randint(1, 5))
        out = inner.pick(lambda value: value.shape == local)
        assert out is not None
        asked = [self.manual_sharding(inner, local, axis, dim) for _ in range(2)]
        name = self.fresh()
        self.lines += [
            f"{name} = sdy.manual_computation({x.name}) in_shardings=[{asked[0]}] out_shardings=[{asked[1]}] "
            f'manual_axes={{"{axis}"}} ({arg.name}: {kind(local)}) {{',
            *inner.lines,
            f"sdy.return {out.name} : {kind(local)} }} : ({kind(x.shape)}) -> {kind(x.shape)}",
        ]
        self.values.append(Value(name, x.shape))

    def manual_sharding(self, inner: Writer, shape: Shape, axis: str, dim: int) -> str:
        """The manual axis first in its dim, then what is drawn for the others."""
        dims = []
        free = [pieces[0] for pieces in PIECES if pieces[0].strip('"') not in inner.manual]
        self.rng.shuffle(free)
        for i in range(len(shape)):
            axes = [f'"{axis}"'] if i == dim else []
            if self.rng.random() < 0.2 and free:
                axes.append(free.pop())
            dims.append("{" + ", ".join(axes + ["?"] * (self.rng.random() < 0.6)) + "}")
        return f"<@mesh, [{', '.join(dims)}]>"


def kind(shape: Shape) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, 'f32')))}>"


def random_module(rng: random.Random, features: Features, ops: int = 12) -> str:
    """The text of a module with one function of about that many operations."""
    writer = Writer(rng, features)
    sizes = [rng.choice(SIZES) for _ in range(3)]
    args = []
    for i in range(rng.randint(2, 4)):
        shape = tuple(rng.choice(sizes) for _ in range(rng.choice((1, 2, 2, 2, 3))))
        args.append(Value(f"%arg{i}", shape))
    writer.values += args
    writer.constants("")
    writer.fill(ops)
    outputs = [value for value in (writer.pick() for _ in range(rng.randint(1, 3))) if value is not None]
    heads = ", ".join(f"{arg.name}: {kind(arg.shape)}{_asked(writer, arg, 0.6)}" for arg in args)
    results = ", ".join(f"{kind(out.shape)}{_asked(writer, out, 0.3)}" for out in outputs)
    mesh = ", ".join(f'"{name}"={size}' for name, size in AXES.items())
    body = "\n".join(writer.lines)
    return f"""module {{
sdy.mesh @mesh = <[{mesh}]>
sdy.mesh @other = <[{mesh.replace('"a"=2, ', "", 1)}, "a"=2]>
sdy.mesh @single = <[], device_ids=[1]>
func.func @main({heads}) -> ({results}) {{
{body}
return {", ".join(out.name for out in outputs)} : {", ".join(kind(out.shape) for out in outputs)}
}}
}}
"""


def _asked(writer: Writer, value: Value, chance: float) -> str:
    if writer.rng.random() >= chance:
        return ""
    return f" {{sdy.sharding = #sdy.sharding{writer.sharding(value.shape, writer.mesh())}}}"
