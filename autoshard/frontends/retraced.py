"""A model traced once more in another form: what is asked of the first trace holds for the other, by names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoshard.ir.graph import Value
from autoshard.trace.function import Traced
from autoshard.trace.specs import Specs


def annotated_like(traced: Traced, first: Traced) -> Traced:
    """`traced` with the shardings of inputs and outputs that `first` asks for, and with what it fixes of nodes."""
    named = {node.name: found for node, found in first.annotations.items()}
    fixed = {node: named[node.name] for node in traced.graph.nodes if node.name in named}
    return replace(traced, asked=_asked(first, traced), annotations=fixed)


def _asked(one: Traced, other: Traced) -> Specs:
    """What is asked of the inputs and outputs of one trace, of those of another with the same names."""
    inputs = {value.name: value for value in other.graph.inputs}

    def moved(of: Mapping[Any, Any]) -> dict[Any, Any]:
        return {inputs[key.name] if isinstance(key, Value) else key: found for key, found in of.items()}

    return Specs(moved(one.asked.values), one.asked.outputs, moved(one.asked.sources))
