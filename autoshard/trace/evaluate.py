"""Run a graph on whole tensors with numpy: what every split, searched or transformed version must equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoshard.errors import RuntimeSetupError
from autoshard.ir.graph import Graph, Value
from autoshard.tensortype import type_of

Inputs = Mapping[Value, np.ndarray] | Sequence[np.ndarray]


def evaluate(graph: Graph, inputs: Inputs) -> list[np.ndarray]:
    """The outputs of the graph; each value is let go after its last use.

    Args:
        inputs: an array per input, in order or by value.

    Raises:
        RuntimeSetupError: an input is missing or has another type.
    """
    held = _checked(graph, inputs)
    last = _last_uses(graph)
    for i, node in enumerate(graph.nodes):
        results = node.op.evaluate([held[value] for value in node.operands], node.attrs)
        held.update(zip(node.results, results, strict=True))
        for value in (*node.operands, *node.results):
            if last.get(value, i) == i:
                held.pop(value, None)
    return [held[value] for value in graph.outputs]


def _last_uses(graph: Graph) -> dict[Value, int]:
    """Position of the last node that needs a value; outputs are needed after all nodes."""
    last = {value: i for i, node in enumerate(graph.nodes) for value in node.operands}
    return {**last, **dict.fromkeys(graph.outputs, len(graph.nodes))}


def _checked(graph: Graph, inputs: Inputs) -> dict[Value, np.ndarray]:
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(graph.inputs):
            names = ", ".join(value.name for value in graph.inputs)
            raise RuntimeSetupError(
                f"running {graph.name!r}: {len(inputs)} arrays for {len(graph.inputs)} inputs ({names})"
            )
        inputs = dict(zip(graph.inputs, inputs, strict=True))
    held = {}
    for value in graph.inputs:
        if value not in inputs:
            raise RuntimeSetupError(f"running {graph.name!r}: no array for input {value.name} ({value.type})")
        held[value] = np.asarray(inputs[value])
        if type_of(held[value]) != value.type:
            found = type_of(held[value])
            raise RuntimeSetupError(f"running {graph.name!r}: input {value.name} is {value.type}, but got {found}")
    return held
