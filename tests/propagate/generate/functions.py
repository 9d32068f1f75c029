"""Random functions and calls of them."""

from __future__ import annotations

from tests.propagate.generate.scope import DYNAMIC, TOKEN, Module, Scope, Value, text_of, types_of
from tests.propagate.generate.structure_table import fill, structure


@structure("calls")
def call(scope: Scope) -> None:
    module = scope.module
    if not module.callees or module.chance(0.4):
        _callee(module)
    name, arguments, results = module.random.choice(module.callees)
    if scope.sealed and any(value.element == DYNAMIC for value in arguments):
        return
    operands = [scope.like(value.shape, value.element) for value in arguments]
    made = [Value(module.fresh(), value.shape, value.element) for value in results]
    asked = scope.asked(made, 0.25)
    scope.line(
        f"{text_of(made)} = func.call @{name}({text_of(operands)}){asked and f' {{{asked}}}'} "
        f": ({types_of(operands)}) -> ({types_of(made)})"
    )
    if module.has("function_edges", 0.9):
        scope.values.extend(_edge(scope, value) if value.element not in (TOKEN, DYNAMIC) else value for value in made)
    else:
        scope.values.extend(made)
        scope.keep(made, asked)


def _edge(scope: Scope, value: Value) -> Value:
    """The data-flow edge from the function to a result of its call."""
    made = Value(scope.module.fresh(), value.shape, value.element)
    asked = scope.asked([made], 0.3)
    scope.line(f"{made.name} = sdy.func_data_flow_edge {value.name}{asked and f' {{{asked}}}'} : {value.type}")
    scope.keep([made], asked)
    return made


def _callee(module: Module) -> None:
    """Write a function, which may call those written before."""
    scope = Scope(module)
    fill(scope, module.random.randint(1, 4))
    results = [scope.any() for _ in range(module.random.randint(1, 2))]
    name = f"f{len(module.callees)}"
    visibility = "public" if module.chance(0.07) else "private"
    module.functions.append(function(scope, name, results, visibility, 0.15))
    module.callees.append((name, scope.arguments, results))


def function(scope: Scope, name: str, results: list[Value], visibility: str, share: float) -> str:
    """The text of a function whose body is `scope`; `share` is the chance of a sharding per argument."""
    module = scope.module

    def asked(value: Value, chance: float) -> str:
        if value.element == TOKEN or not module.chance(chance):
            return ""
        return f" {{sdy.sharding = #sdy.sharding{module.sharding(module, value.dims, ())}}}"

    before: list[str] = []
    # Where a data-flow edge stands on an argument, the edge has the argument's name.
    names = [_argument(module, value, before) for value in scope.arguments]
    pairs = zip(names, scope.arguments, strict=True)
    arguments = ", ".join(f"{shown}: {value.type}{asked(value, share)}" for shown, value in pairs)
    outputs = ", ".join(f"{value.type}{asked(value, share * 0.4)}" for value in results)
    lines = [f"func.func {visibility} @{name}({arguments}) -> ({outputs}) {{", *before, *scope.lines]
    lines += [f"  return {text_of(results)} : {types_of(results)}".rstrip(" :"), "}"]
    return "\n".join(lines)


def _argument(module: Module, value: Value, lines: list[str]) -> str:
    if value.element in (TOKEN, DYNAMIC) or not module.has("function_edges", 0.9):
        return value.name
    edge = Scope(module)
    asked = edge.asked([value], 0.2)
    shown = f" {{{asked}}}" if asked else ""
    lines.append(f"  {value.name} = sdy.func_data_flow_edge {value.name}from{shown} : {value.type}")
    edge.keep([value], asked)
    lines.extend(edge.lines)
    return f"{value.name}from"
