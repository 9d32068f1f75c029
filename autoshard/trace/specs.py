"""Specs: what a traced model asks of its inputs and outputs; Requests collects them while it is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.ir.graph import Value
from autoshard.layout.spec import Spec
from autoshard.trace.asking import entries
from autoshard.util.errors import at
from autoshard.util.source import Source, caller


@dataclass(frozen=True, eq=False)
class Specs:
    """What people ask of a graph's inputs (`values`) and, in order, of its outputs, before there is a mesh.

    Constraints, groups and manual computations are nodes of the graph. `sources` has the lines where inputs were
    asked, and by its position each output.
    """

    values: Mapping[Value, Spec] = field(default_factory=dict)
    outputs: tuple[Spec | None, ...] = ()
    sources: Mapping[Value | int, Source] = field(default_factory=dict)


class Requests:
    """The Specs of a model that is being traced."""

    def __init__(self) -> None:
        self.inputs: dict[Value, Spec] = {}
        self.outputs: dict[int, Spec] = {}
        self.sources: dict[Value | int, Source] = {}

    @staticmethod
    def after(specs: Specs) -> Requests:
        """Those of a trace that goes on; its outputs are the same, maybe followed by others."""
        requests = Requests()
        requests.inputs.update(specs.values)
        requests.outputs.update((i, spec) for i, spec in enumerate(specs.outputs) if spec is not None)
        requests.sources.update(specs.sources)
        return requests

    def note_inputs(
        self, values: Sequence[Value], arguments: Any, given: Any, graph: str, source: Source | None = None
    ) -> None:
        """What is asked of data inputs, nested as the arguments are; `source` if not by the line being run.

        Raises:
            ShardingError, ParseError: nested otherwise, for another number of dims, or no Spec.
        """
        for i, entry in entries(arguments, given, f"in_shardings of {graph}"):
            self.note(values[i], values[i], entry, source or caller())

    def note_outputs(
        self, values: Sequence[Value], results: Any, given: Any, graph: str, source: Source | None = None
    ) -> None:
        """What is asked of what the model returns, nested as that is. Raises as `note_inputs`."""
        for i, entry in entries(results, given, f"out_shardings of {graph}"):
            self.note(i, values[i], entry, source or caller())

    def note(self, which: Value | int, value: Value, entry: Any, source: Source | None) -> None:
        """What is asked of an input, or of the output at position `which`, whose value is `value`."""
        what = f"{value.name if isinstance(which, Value) else f'output {which}'}{at(source)}"
        spec = Spec.of(entry, what)
        spec.check_rank(value.type.rank, f"{what} ({value.type})")
        if isinstance(which, Value):
            self.inputs[which] = spec
        else:
            self.outputs[which] = spec
        if source is not None:
            self.sources[which] = source

    def specs(self, returned: int, replaced: Sequence[Value]) -> Specs:
        """All that was noted, for a graph with so many returned outputs and then new values of the inputs `replaced`,
        which lie as these do.
        """
        outputs = [*(self.outputs.get(i) for i in range(returned)), *(self.inputs.get(value) for value in replaced)]
        sources = {key: source for key, source in self.sources.items() if not isinstance(key, int) or key < returned}
        for i, value in enumerate(replaced):
            if value in self.sources:
                sources[returned + i] = self.sources[value]
        return Specs(dict(self.inputs), tuple(outputs), sources)
