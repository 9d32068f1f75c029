"""Random operations of the sdy dialect on single values: constraints, groups, barriers, edges, reshards."""

from __future__ import annotations

from tests.propagate.generate.scope import Scope, Value
from tests.propagate.generate.structure_table import structure


@structure("constraints")
def constraint(scope: Scope) -> None:
    """A constraint, or a chain of them."""
    x = scope.any()
    for _ in range(scope.random.choice((1, 1, 2, 3))):
        x = annotated(scope, "sdy.sharding_constraint", x)


@structure("reshards")
def reshard(scope: Scope) -> None:
    annotated(scope, "sdy.reshard", scope.any())


def annotated(scope: Scope, operation: str, x: Value) -> Value:
    made = Value(scope.module.fresh(), x.shape)
    asked = scope.module.sharding(scope.module, x.shape, scope.manual)
    scope.line(f"{made.name} = {operation} {x.name} {asked} : {x.type}")
    scope.values.append(made)
    scope.keep([made], asked)
    return made


@structure("groups")
def group(scope: Scope) -> None:
    x = scope.any()
    number = scope.module.group_of((x.shape, scope.place))
    for value in (x, scope.like(x.shape)):
        known = scope.module.grouped.setdefault(value, number)
        if known != number and not scope.module.chance(0.01):
            continue  # Only the whole pipeline makes groups that share a value one.
        scope.line(f"sdy.sharding_group {value.name} group_id={number} : {value.type}")


@structure("barriers")
def optimization_barrier(scope: Scope) -> None:
    values = [scope.any() for _ in range(scope.random.randint(1, 2))]
    types = [(value.shape, value.element) for value in values]
    scope.emit("stablehlo.optimization_barrier", "", values, types, edged=True)
    edges(scope, scope.values[-len(values) :])


@structure("barriers")
def propagation_barrier(scope: Scope) -> None:
    x = scope.any()
    made = Value(scope.module.fresh(), x.shape)
    way = scope.random.choice(("NONE", "FORWARD", "BACKWARD"))
    scope.line(f"{made.name} = sdy.propagation_barrier {x.name} allowed_direction={way} : {x.type}")
    scope.values.append(made)


def edges(scope: Scope, owners: list[Value]) -> None:
    """Sometimes write the data-flow edges of these values, which the passes would have made."""
    if not scope.module.has("edges", 1.0):
        return
    for value in owners:
        made = Value(scope.module.fresh(), value.shape, value.element)
        asked = scope.module.sharding(scope.module, value.shape, scope.manual) if scope.module.chance(0.4) else ""
        scope.line(f"{made.name} = sdy.data_flow_edge {value.name}{asked and f' sharding={asked}'} : {value.type}")
        scope.keep([made], "}p" if "priorities" in scope.module.features else "")
        if value in scope.values:
            scope.values.remove(value)
        scope.values.append(made)
