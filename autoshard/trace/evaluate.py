"""Run a graph on whole tensors with numpy: what every split, searched or transformed version must equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import TOKEN, type_of
from autoshard.ir.graph import Graph, Node, Value, walk
from autoshard.ir.run import TOKEN_VALUE, Held, Runner
from autoshard.ops.hlo_custom import unknown_target
from autoshard.trace.manual import Team
from autoshard.util.errors import RuntimeSetupError, ShapeError, at

Inputs = Mapping[Value, np.ndarray] | Sequence[np.ndarray]


class Replicated(Runner):
    """Runs nodes on whole tensors; a manual computation for all positions along its manual axes side by side."""

    def node(self, node: Node, held: Held) -> tuple:
        if node.op.name == "ManualComputation":
            return Team.run(self.functions, node, held)
        return super().node(node, held)


def evaluate(
    graph: Graph, inputs: Inputs, runner: Callable[[Mapping[str, Graph]], Replicated] = Replicated
) -> list[np.ndarray]:
    """The outputs of the graph; each value is let go after its last use.

    Args:
        inputs: an array per input, in order or by value; anything will do for a token.
        runner: makes what runs the nodes, from the graph's functions.

    Raises:
        RuntimeSetupError: an input is missing or has another type.
        ShapeError: operations that autoshard has no operator for; all of them are listed.
    """
    held = _checked(graph, inputs)
    check_known(graph)
    return list(runner(graph.functions).block(graph.nodes, graph.outputs, held))


def check_known(graph: Graph, custom_calls: bool = True) -> None:
    """That autoshard knows what every operation of the graph computes, so that it can run.

    Custom calls whose types are known can be planned without: `custom_calls` False leaves them out.

    Raises:
        ShapeError: it does not; each operation is named with how often it occurs and where first.
    """
    nodes = (node for one in (graph, *graph.functions.values()) for node in walk(one.nodes))
    unknown = [(name, node) for node in nodes if (name := _unknown(node, custom_calls)) is not None]
    if unknown:
        custom = any(node.op.name != "Opaque" for _, node in unknown)
        hint = "; ops.custom_call_run gives custom calls a meaning" * custom
        raise ShapeError(f"cannot run {graph.name!r}: autoshard has no operator for {_listed(unknown)}{hint}")


def _unknown(node: Node, custom_calls: bool) -> str | None:
    """The name of the operation, if nothing is known of it."""
    if node.op.name == "Opaque":
        return node.attrs["name"]
    target = unknown_target(node.op, node.attrs) if custom_calls else None
    return None if target is None else f"custom call {target}"


def _listed(unknown: Sequence[tuple[str, Node]]) -> str:
    first: dict[str, Node] = {}
    for name, node in unknown:
        first.setdefault(name, node)
    counts = Counter(name for name, _ in unknown)
    return ", ".join(f"{name} ({_times(counts[name], at(node.source))})" for name, node in first.items())


def _times(count: int, where: str) -> str:
    if count == 1:
        return f"once{where and ','}{where}"
    return f"{count} times{where and ', first'}{where}"


def _checked(graph: Graph, inputs: Inputs) -> dict[Value, Any]:
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(graph.inputs):
            names = ", ".join(value.name for value in graph.inputs)
            raise RuntimeSetupError(
                f"running {graph.name!r}: {len(inputs)} arrays for {len(graph.inputs)} inputs ({names})"
            )
        inputs = dict(zip(graph.inputs, inputs, strict=True))
    return {value: _input(graph, value, inputs) for value in graph.inputs}


def _input(graph: Graph, value: Value, inputs: Mapping[Value, Any]) -> Any:
    if value.type.dtype is TOKEN:
        return TOKEN_VALUE
    if value not in inputs:
        raise RuntimeSetupError(f"running {graph.name!r}: no array for input {value.name} ({value.type})")
    array = np.asarray(inputs[value])
    if type_of(array) != value.type:
        raise RuntimeSetupError(f"running {graph.name!r}: input {value.name} is {value.type}, but got {type_of(array)}")
    return array
