"""Random structure around operations: constraints, groups, barriers, loops, branches, manual computations, calls."""

from __future__ import annotations

from collections.abc import Callable

from tests.propagate.generate.operations import F32, OPERATIONS
from tests.propagate.generate.scope import Module, Scope, Value
from tests.propagate.generate.shardings import sharding

STRUCTURES: list[tuple[str, Callable[[Scope], object]]] = []


def structure(feature: str) -> Callable:
    def register(maker: Callable[[Scope], object]) -> Callable[[Scope], object]:
        STRUCTURES.append((feature, maker))
        return maker

    return register


def fill(scope: Scope, count: int) -> None:
    """Write `count` random things into the scope."""
    makers = [maker for weight, maker in OPERATIONS for _ in range(weight)]
    special = [maker for feature, maker in STRUCTURES if feature in scope.module.features]
    for _ in range(count):
        deep = scope.depth > 3
        chosen = special if special and not deep and scope.module.chance(0.3) else makers
        scope.random.choice(chosen)(scope)


def _inner(scope: Scope, values: list[Value], count: int, **options: object) -> Scope:
    inner = Scope(scope.module, scope, **options)  # type: ignore[arg-type]
    inner.manual = inner.manual or scope.manual
    inner.values.extend(values)
    fill(inner, count)
    return inner


def _hand_out(inner: Scope, value: Value) -> Value:
    """A value of that type made inside from something near; an elementwise operation of `value`."""
    other = inner.like(value.shape)
    made = Value(inner.module.fresh(), value.shape)
    inner.line(f"{made.name} = stablehlo.add {value.name}, {other.name} : {value.type}")
    return made


def _text(values: list[Value]) -> str:
    return ", ".join(value.name for value in values)


def _types(values: list[Value]) -> str:
    return ", ".join(value.type for value in values)


def _header(values: list[Value]) -> str:
    return ", ".join(f"{value.name}: {value.type}" for value in values)


def _several(scope: Scope, least: int = 1) -> list[Value]:
    return [scope.any() for _ in range(scope.random.randint(least, 2))]


@structure("constraints")
def constraint(scope: Scope) -> None:
    x = scope.any()
    made = Value(scope.module.fresh(), x.shape)
    asked = sharding(scope.module, x.shape, scope.manual, closed=scope.module.chance(0.5))
    scope.line(f"{made.name} = sdy.sharding_constraint {x.name} {asked} : {x.type}")
    scope.values.append(made)


@structure("groups")
def group(scope: Scope) -> None:
    x = scope.any()
    y = scope.like(x.shape)
    number = scope.module.group_of(x.shape)
    for value in (x, y):
        scope.line(f"sdy.sharding_group {value.name} group_id={number} : {value.type}")


@structure("barriers")
def optimization_barrier(scope: Scope) -> None:
    values = _several(scope)
    made = [Value(scope.module.fresh(), value.shape) for value in values]
    scope.write("stablehlo.optimization_barrier", "", values, made, "")


@structure("barriers")
def propagation_barrier(scope: Scope) -> None:
    x = scope.any()
    made = Value(scope.module.fresh(), x.shape)
    way = scope.random.choice(("NONE", "FORWARD", "BACKWARD"))
    scope.line(f"{made.name} = sdy.propagation_barrier {x.name} allowed_direction={way} : {x.type}")
    scope.values.append(made)


@structure("while")
def while_(scope: Scope) -> None:
    counter = scope.like((), "i32")
    values = _several(scope)
    made = [Value(scope.module.fresh(), value.shape) for value in values]
    turn = scope.module.fresh()
    arguments = [[Value(scope.module.fresh(), (), "i32"), *(Value(scope.module.fresh(), v.shape) for v in values)] for _ in range(2)]
    test = scope.module.fresh()
    body = _inner(scope, arguments[1][1:], scope.random.randint(0, 3))
    handed = [arguments[1][0], *(_hand_out(body, value) for value in arguments[1][1:])]
    if len(handed) == 3 and handed[1].shape == handed[2].shape and scope.module.chance(0.3):
        handed[1], handed[2] = handed[2], handed[1]
    operands = [counter, *values]
    scope.line(f'{_text([Value(turn, ()), *made])} = "stablehlo.while"({_text(operands)}) ({{')
    scope.line(f"^bb0({_header(arguments[0])}):")
    scope.line(
        f"  {test} = stablehlo.compare LT, {arguments[0][0].name}, {arguments[0][0].name} : "
        "(tensor<i32>, tensor<i32>) -> tensor<i1>"
    )
    scope.line(f"  stablehlo.return {test} : tensor<i1>")
    scope.line("}, {")
    scope.line(f"^bb0({_header(arguments[1])}):")
    scope.lines.extend(body.lines)
    scope.line(f"  stablehlo.return {_text(handed)} : {_types(handed)}")
    scope.line(f"}}) : ({_types(operands)}) -> ({_types(operands)})")
    scope.values.extend(made)


@structure("case")
def case(scope: Scope) -> None:
    index = scope.like((), "i32")
    made = [Value(scope.module.fresh(), scope.any().shape) for _ in range(scope.random.randint(1, 2))]
    branches = []
    for _ in range(scope.random.randint(2, 3)):
        inner = _inner(scope, [], scope.random.randint(0, 2))
        handed = [_hand_out(inner, inner.like(value.shape)) for value in made]
        branches.append((inner, handed))
    scope.line(f'{_text(made)} = "stablehlo.case"({index.name}) ({{')
    for i, (inner, handed) in enumerate(branches):
        scope.lines.extend(inner.lines)
        scope.line(f"  stablehlo.return {_text(handed)} : {_types(handed)}")
        scope.line("}, {" if i + 1 < len(branches) else f"}}) : (tensor<i32>) -> ({_types(made)})")
    scope.values.extend(made)


@structure("manual")
def manual_computation(scope: Scope) -> None:
    if scope.manual:
        return
    name, mesh = next(iter(scope.module.meshes.items()))
    axis = scope.random.choice([axis for axis, size in mesh.items() if size > 1])
    values = _several(scope)
    arguments, asked = [], []
    for value in values:
        dims = [i for i, size in enumerate(value.shape) if size % mesh[axis] == 0]
        split = scope.random.choice(dims) if dims and scope.module.chance(0.7) else None
        asked.append(_manual_sharding(scope, name, axis, value.shape, split))
        local = tuple(size // mesh[axis] if i == split else size for i, size in enumerate(value.shape))
        arguments.append(Value(scope.module.fresh(), local))
    inner = _Local(scope.module, manual=(axis,))
    inner.depth = scope.depth + 1
    inner.values.extend(arguments)
    fill(inner, scope.random.randint(0, 3))
    handed = [_hand_out(inner, scope.random.choice(arguments))]
    results, given = [], []
    for value in handed:
        split = scope.random.choice([None, *range(len(value.shape))]) if value.shape else None
        whole = tuple(size * mesh[axis] if i == split else size for i, size in enumerate(value.shape))
        given.append(_manual_sharding(scope, name, axis, whole, split))
        results.append(Value(scope.module.fresh(), whole))
    scope.line(
        f"{_text(results)} = sdy.manual_computation({_text(values)}) in_shardings=[{', '.join(asked)}] "
        f'out_shardings=[{", ".join(given)}] manual_axes={{"{axis}"}} ({_header(arguments)}) {{'
    )
    scope.lines.extend(inner.lines)
    scope.line(f"  sdy.return {_text(handed)} : {_types(handed)}")
    scope.line(f"}} : ({_types(values)}) -> ({_types(results)})")
    scope.values.extend(results)


def _manual_sharding(scope: Scope, mesh: str, axis: str, shape: tuple[int, ...], split: int | None) -> str:
    is_open = "?" if scope.module.chance(0.6) else ""
    dims = []
    for i in range(len(shape)):
        axes = [f'"{axis}"'] if i == split else []
        dims.append("{" + ", ".join([*axes, *([is_open] if is_open else [])]) + "}")
    replicated = f', replicated={{"{axis}"}}' if split is None else ""
    return f"<@{mesh}, [{', '.join(dims)}]{replicated}>"


class _Local(Scope):
    """The body of a manual computation: nothing outside can be used, so what is missing is made of a constant."""

    def argument(self, shape: tuple[int, ...], element: str = F32) -> Value:
        made = Value(self.module.fresh(), shape, element)
        number = "0.0" if element in (F32, "bf16") else "false" if element == "i1" else "0"
        self.line(f"{made.name} = stablehlo.constant dense<{number}> : {made.type}")
        self.values.append(made)
        return made


@structure("calls")
def call(scope: Scope) -> None:
    module = scope.module
    if not module.callees or module.chance(0.5):
        if scope.manual:
            return
        _callee(module)
    name, arguments, results = module.random.choice(module.callees)
    operands = [scope.like(value.shape, value.element) for value in arguments]
    made = [Value(module.fresh(), value.shape) for value in results]
    extra = scope.asked(made)
    scope.line(f"{_text(made)} = func.call @{name}({_text(operands)}){extra} : ({_types(operands)}) -> ({_types(made)})")
    scope.values.extend(made)


def _callee(module: Module) -> None:
    """Write a private function, which may call those written before."""
    scope = Scope(module)
    fill(scope, module.random.randint(1, 4))
    results = [scope.any() for _ in range(module.random.randint(1, 2))]
    name = f"f{len(module.callees)}"
    module.functions.append(function(scope, name, results, "private", 0.15))
    module.callees.append((name, scope.arguments, results))


def function(scope: Scope, name: str, results: list[Value], visibility: str, share: float) -> str:
    """The text of a function whose body is `scope`."""
    module = scope.module

    def asked(value: Value) -> str:
        wanted = module.sharding is not None and module.chance(share) and value.element not in ("ui64",)
        return f" {{sdy.sharding = #sdy.sharding{sharding(module, value.shape)}}}" if wanted else ""

    arguments = ", ".join(f"{value.name}: {value.type}{asked(value)}" for value in scope.arguments)
    outputs = ", ".join(f"{value.type}{asked(value) if module.chance(0.4) else ''}" for value in results)
    lines = [f"func.func {visibility} @{name}({arguments}) -> ({outputs}) {{", *scope.lines]
    lines += [f"  return {_text(results)} : {_types(results)}", "}"]
    return "\n".join(lines)
