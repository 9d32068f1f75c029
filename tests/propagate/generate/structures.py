"""Random operations with regions: loops, branches, manual and named computations."""

from __future__ import annotations

from tests.propagate.generate.annotations import edges
from tests.propagate.generate.scope import DYNAMIC, Scope, Value, text_of, types_of
from tests.propagate.generate.structure_table import fill, structure


def _inner(scope: Scope, count: int, values: list[Value], manual: tuple[str, ...] | None = None, **kind: bool) -> Scope:
    """A block with `values` for arguments and `count` random things in it."""
    inner = Scope(scope.module, scope, manual, **kind)
    inner.values.extend(values)
    fill(inner, count)
    return inner


def _hand_out(inner: Scope, like: Value) -> Value:
    """A value of that type made inside from something near."""
    near = inner.like(like.shape)
    if inner.module.chance(0.2):
        return near
    made = Value(inner.module.fresh(), like.shape)
    inner.line(f"{made.name} = stablehlo.add {near.name}, {inner.like(like.shape).name} : {made.type}")
    return made


def _header(values: list[Value]) -> str:
    return ", ".join(f"{value.name}: {value.type}" for value in values)


def _several(scope: Scope) -> list[Value]:
    return [scope.any() for _ in range(scope.random.randint(1, 2))]


def _new(scope: Scope, values: list[Value]) -> list[Value]:
    return [Value(scope.module.fresh(), value.shape, value.element) for value in values]


def _came(scope: Scope, made: list[Value], asked: str) -> None:
    scope.values.extend(made)
    scope.keep(made, asked, edged=True)
    edges(scope, made)


@structure("while")
def while_(scope: Scope) -> None:
    values = [scope.like((), "i32"), *_several(scope)]
    made = _new(scope, values)
    tested, turned = _new(scope, values), _new(scope, values)
    test = scope.module.fresh()
    body = _inner(scope, scope.random.randint(0, 3), turned)
    handed = [turned[0], *(_hand_out(body, value) for value in values[1:])]
    if len(handed) == 3 and handed[1].shape == handed[2].shape and scope.module.chance(0.5):
        handed[1], handed[2] = handed[2], handed[1]
    scope.line(f'{text_of(made)} = "stablehlo.while"({text_of(values)}) ({{')
    scope.line(f"^bb0({_header(tested)}):")
    first = tested[0].name
    scope.line(f"  {test} = stablehlo.compare LT, {first}, {first} : (tensor<i32>, tensor<i32>) -> tensor<i1>")
    scope.line(f"  stablehlo.return {test} : tensor<i1>")
    scope.line("}, {")
    scope.line(f"^bb0({_header(turned)}):")
    scope.lines.extend(body.lines)
    scope.line(f"  stablehlo.return {text_of(handed)} : {types_of(handed)}")
    asked = scope.asked(made)
    scope.line(f"}}){asked and f' {{{asked}}}'} : ({types_of(values)}) -> ({types_of(values)})")
    _came(scope, made, asked)


@structure("case")
def case(scope: Scope) -> None:
    which = scope.random.choice(("case", "case", "if"))
    index = scope.like((), "i32" if which == "case" else "i1")
    made = _new(scope, _several(scope))
    asked = scope.asked(made)
    branches = []
    for _ in range(scope.random.randint(1, 3) if which == "case" else 2):
        inner = _inner(scope, scope.random.randint(0, 2), [])
        branches.append((inner, [_hand_out(inner, value) for value in made]))
    scope.line(f'{text_of(made)} = "stablehlo.{which}"({index.name}) ({{')
    for i, (inner, handed) in enumerate(branches):
        scope.lines.extend(inner.lines)
        scope.line(f"  stablehlo.return {text_of(handed)} : {types_of(handed)}")
        last = f"}}){asked and f' {{{asked}}}'} : ({index.type}) -> ({types_of(made)})"
        scope.line("}, {" if i + 1 < len(branches) else last)
    _came(scope, made, asked)


@structure("manual")
def manual_computation(scope: Scope) -> None:
    name, mesh = next(iter(scope.module.meshes.items()))
    free = [axis for axis, size in mesh.items() if size > 1 and axis not in scope.manual]
    if not free:
        return
    axes = scope.random.sample(free, min(len(free), scope.random.choice((1, 1, 1, 2))))
    manual = tuple(axis for axis in mesh if axis in axes)
    values = _several(scope)
    if scope.module.has("groups", 0.5):
        values.append(scope.like(values[0].shape))
    more = scope.dynamic(4) if scope.module.has("dynamic", 0.3) else None
    values += [more] if more is not None else []
    asked, arguments = [], []
    for value in values:
        places = _places(scope, manual, mesh, value.shape) if value.element != DYNAMIC else {}
        asked.append(_manual_sharding(scope, name, mesh, manual, places, len(value.dims)))
        local = list(value.shape)
        for axis, dim in places.items():
            local[dim] //= mesh[axis]
        arguments.append(Value(scope.module.fresh(), tuple(local), value.element))
    inner = _inner(scope, scope.random.randint(0, 3), arguments, (*scope.manual, *manual), isolated=True)
    _group_arguments(inner, arguments)
    handed = [_hand_out(inner, inner.any(0, 3)) for _ in range(scope.random.randint(1, 2))]
    made, given = [], []
    for value in handed:
        places = {axis: scope.random.randrange(len(value.shape)) for axis in manual if value.shape}
        places = {axis: dim for axis, dim in places.items() if scope.module.chance(0.6)}
        given.append(_manual_sharding(scope, name, mesh, manual, places, len(value.shape)))
        whole = list(value.shape)
        for axis, dim in places.items():
            whole[dim] *= mesh[axis]
        made.append(Value(scope.module.fresh(), tuple(whole)))
    shown = ", ".join(f'"{axis}"' for axis in manual)
    scope.line(
        f"{text_of(made)} = sdy.manual_computation({text_of(values)}) in_shardings=[{', '.join(asked)}] "
        f"out_shardings=[{', '.join(given)}] manual_axes={{{shown}}} ({_header(arguments)}) {{"
    )
    scope.lines.extend(inner.lines)
    scope.line(f"  sdy.return {text_of(handed)} : {types_of(handed)}")
    scope.line(f"}} : ({types_of(values)}) -> ({types_of(made)})")
    _came(scope, made, "")


def _group_arguments(inner: Scope, arguments: list[Value]) -> None:
    """Sometimes put the arguments of a body that have one shape into a group, however they are asked to lie."""
    alike = [value for value in arguments if value.dims == arguments[0].dims]
    if len(alike) < 2 or not inner.module.has("groups", 0.5):
        return
    number = inner.module.group_of((arguments[0].shape, inner.place))
    for value in alike:
        if inner.module.grouped.setdefault(value, number) == number:
            inner.line(f"sdy.sharding_group {value.name} group_id={number} : {value.type}")


def _places(scope: Scope, manual: tuple[str, ...], mesh: dict[str, int], shape: tuple[int, ...]) -> dict[str, int]:
    """For some of the manual axes the dim that each splits."""
    left = list(shape)
    places: dict[str, int] = {}
    for axis in manual:
        dims = [dim for dim, size in enumerate(left) if size % mesh[axis] == 0]
        if dims and scope.module.chance(0.7):
            places[axis] = scope.random.choice(dims)
            left[places[axis]] //= mesh[axis]
    return places


def _manual_sharding(
    scope: Scope, name: str, mesh: dict[str, int], manual: tuple[str, ...], places: dict[str, int], rank: int
) -> str:
    """Manual axes first in each dim, then sometimes free ones; those that split nothing are replicated or left out."""
    free = [axis for axis in mesh if axis not in manual and axis not in scope.manual]
    scope.random.shuffle(free)
    dims = []
    for dim in range(rank):
        axes = [f'"{axis}"' for axis in manual if places.get(axis) == dim]
        axes += [f'"{free.pop()}"'] if free and scope.module.chance(0.15) else []
        dims.append("{" + ", ".join([*axes, *(["?"] if scope.module.chance(0.5) else [])]) + "}")
    rest = ", ".join(f'"{axis}"' for axis in manual if axis not in places)
    replicated = f", replicated={{{rest}}}" if rest and scope.module.chance(0.7) else ""
    return f"<@{name}, [{', '.join(dims)}]{replicated}>"


@structure("named")
def named_computation(scope: Scope) -> None:
    values = _several(scope)
    arguments = _new(scope, values)
    inner = _inner(scope, scope.random.randint(0, 3), arguments, isolated=True)
    handed = [_hand_out(inner, value) for value in arguments]
    made = _new(scope, handed)
    name = scope.random.choice(("once", "twice"))
    lists = ""
    for word, listed in (("in", values), ("out", made)):
        if scope.module.chance(0.4):
            shown = [scope.module.sharding(scope.module, value.shape, scope.manual) for value in listed]
            lists += f" {word}_shardings=[{', '.join(shown)}]"
    scope.line(
        f'{text_of(made)} = sdy.named_computation<"{name}{scope.module.count}">({text_of(values)}){lists} '
        f"({_header(arguments)}) {{"
    )
    scope.lines.extend(inner.lines)
    scope.line(f"  sdy.return {text_of(handed)} : {types_of(handed)}")
    scope.line(f"}} : ({types_of(values)}) -> ({types_of(made)})")
    _came(scope, made, lists)
