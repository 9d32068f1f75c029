"""What propagation leaves: shardings, their causes, sources. `api.propagate.Propagated` adds what reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autoshard.frontends.stablehlo.imported import Imported
from autoshard.ir.graph import Graph, Value
from autoshard.layout.sharding import Sharding
from autoshard.propagate.causes import AxisHistory
from autoshard.propagate.mutable_ir import MutableModule, MutableValue
from autoshard.propagate.record import PropagationRecord
from autoshard.propagate.run import Log, Options
from autoshard.propagate.values import get_sharding
from autoshard.trace.function import Traced
from autoshard.util.source import Source


@dataclass(frozen=True, eq=False)
class PropagatedData:
    """What propagation made of a module or a traced model.

    Attributes:
        graph: what was propagated over, unchanged.
        which: the pass that was run, one of PASSES.
        options: how it was run.
        work: the working copy, as the passes left it.
        log: every step that changed something, and what has no rule.
        record: what the working copy looked like when spreading started and ended.
        imported: the module that the graph came from, if it came from one.
        traced: the trace that the graph came from, if it came from one.
        file: the file that the module was read from, '' if from none.
        seconds: how long the passes took, reading and tracing not included.
    """

    graph: Graph
    which: str
    options: Options
    module: MutableModule
    log: Log
    record: PropagationRecord
    imported: Imported | None
    traced: Traced | None
    file: str
    seconds: float

    @cached_property
    def shardings(self) -> dict[Value, Sharding | None]:
        """The sharding of each value of the graph, regions and called functions included.

        Of a constant that each use has its own copy of, the first copy counts; values that nobody needs are absent.
        """
        found: dict[Value, Sharding | None] = {}
        for val in self.vals():
            if val.origin is not None:
                found.setdefault(val.origin, get_sharding(val))
        return found

    @cached_property
    def history(self) -> AxisHistory:
        """Who gave which axes to whom."""
        return AxisHistory(self.record, self.log)

    @cached_property
    def sources(self) -> dict[Value | int, Source]:
        """The source lines of the arguments of functions, and by position of outputs, as far as they are known."""
        if self.imported is None:
            return dict(self.traced.asked.sources) if self.traced is not None else {}
        return dict(_argument_sources(self.imported, self.file))

    def vals(self) -> Iterator[MutableValue]:
        """The values of the working copy, in the order of the program."""
        for op in self.module.op.walk():
            yield from op.results
            for block in op.blocks:
                yield from block.args


def _argument_sources(imported: Imported, file: str) -> Iterator[tuple[Value, Source]]:
    from autoshard.frontends.stablehlo.locations import Locations

    locations = Locations(file)
    graphs = {imported.graph.name: imported.graph, **imported.graph.functions}
    for op in (one.operation for one in imported.module.body.operations):
        graph = graphs.get(op.attributes["sym_name"].value) if op.name == "func.func" else None
        if graph is not None:
            for value, argument in zip(graph.inputs, op.regions[0].blocks[0].arguments, strict=True):
                _, source = locations.read(argument.location)
                if source is not None:
                    yield value, source
