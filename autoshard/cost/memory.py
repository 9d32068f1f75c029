"""Memory of a device over a run, exactly, as a sum of terms over the choices of operators and inputs.

A `Term` says: from moment `first` to `last` something takes memory, and how many bytes of it follows from the layouts
that the choices of its `variables` imply. A moment's row is the sum of the terms that cover it; the limit is for each.

- A value, from when it is made until it was used last; inputs that an update replaces likewise, the others throughout.
- A copy in another layout, from the first to the last user that wants it so.
- Buffers and blocks on the way while a value changes its layout, and the scratch of an operator while it runs.
- A view (a transposed operand, say) takes nothing, and keeps what it is a view of.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.cost.blocks import local_nbytes
from autoshard.cost.live_terms import LiveTerms
from autoshard.cost.memory_terms import MemoryModel, Part, Term, Variable
from autoshard.cost.schedule import GraphMoments, Use
from autoshard.ir.flow import borders, is_nest
from autoshard.ir.graph import DATA, Graph, Node, Value
from autoshard.layout.layout import Layout
from autoshard.partition.composites import call_scratch
from autoshard.plan.plan import Plan
from autoshard.redistribute.buffers import transient_bytes
from autoshard.util.gc_paused import gc_paused
from costmodel import live_bytes

KINDS = ("data", "parameter", "state", "gradient", "activation", "output", "copy", "buffer", "scratch", "runtime")


def runtime_bytes(arrays: int, instructions: int = 0) -> int:
    """What Python itself keeps for so many arrays at once besides their elements, and of what ran: measured, and
    rounded up."""
    return 12288 + 512 * arrays + 96 * instructions


def plan_model(plan: Plan) -> MemoryModel:
    """The terms of a plan's graph, with results left and outputs leaving as the plan says."""

    def left(node: Node, i: int) -> Part:
        layout = plan.layouts[node.results[i]]
        return Part(node, lambda strategy: layout, ("fixed", layout))

    pinned = {
        node
        for node in plan.graph.nodes
        if any(
            plan.layouts[value] is not layout
            for value, layout in zip(node.results, plan.strategy(node).result_layouts, strict=True)
        )
    }
    return ModelBuilder(
        plan.graph, left, plan.outputs, pinned, {node: _inside(plan, node) for node in _nests(plan)}
    ).build()


def _nests(plan: Plan) -> list[Node]:
    return [node for node in plan.graph.nodes if node.regions]


def _inside(plan: Plan, node: Node) -> int:
    """Bytes that a loop or a branch takes while it runs: the most that one of its regions does."""
    return max(_region_peak(plan, node, i) for i in range(len(node.regions)))


def _region_peak(plan: Plan, node: Node, place: int) -> int:
    region = node.regions[place]
    inputs = (*region.args, *region.captured)
    graph = Graph(node.label, inputs, region.nodes, region.outputs, (DATA,) * len(inputs))
    yields = borders(node, plan.strategy(node), place).yields if is_nest(node) else ()
    yields = yields or tuple(plan.layouts[value].final() for value in region.outputs)
    use = memory_of(Plan(graph, plan.mesh, plan.decisions, plan.layouts, yields))
    outside = sum(local_nbytes(value.type, plan.layouts[value]) for value in region.captured)
    own = _runtime(graph)
    return max(use.peak - outside - own, 0)


@dataclass(frozen=True)
class HeldBytes:
    """Something that takes `nbytes` at the moments first..last."""

    what: str
    kind: str
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """What lies in a device's memory when. `describe(moment)` tells a moment in words."""

    held: tuple[HeldBytes, ...]
    moments: int
    describe: Callable[[int], str] = field(repr=False)

    @property
    def timeline(self) -> np.ndarray:
        """Bytes at each moment, int64."""
        return live_bytes([(one.first, one.last, one.nbytes) for one in self.held], self.moments)

    @property
    def peak(self) -> int:
        return int(self.timeline.max(initial=0))

    @property
    def peak_moment(self) -> int:
        """The first moment with the most bytes."""
        return int(self.timeline.argmax())

    @property
    def peak_at(self) -> str:
        return self.describe(self.peak_moment)

    def at(self, moment: int) -> tuple[HeldBytes, ...]:
        """What lies there at a moment, the largest first."""
        found = [one for one in self.held if one.first <= moment <= one.last and one.nbytes]
        return tuple(sorted(found, key=lambda one: -one.nbytes))


@gc_paused()
def memory_of(plan: Plan) -> MemoryUse:
    """What a plan keeps in memory when, by the model."""
    model, choice = plan_model(plan), _choices(plan)
    held = tuple(HeldBytes(one.what, one.kind, one.first, one.last, one.at(choice)) for one in model.terms)
    return MemoryUse(held, model.moments, model.schedule.describe)


def peak_memory(plan: Plan) -> int:
    """The most bytes that a device needs at once: the largest row of the plan's model."""
    known = _PEAKS.get(plan)
    if known is None:
        with gc_paused():
            timeline = LiveTerms(plan_model(plan)).timeline(_choices(plan))
        known = _PEAKS[plan] = int(timeline.max(initial=0))
    return known


def note_peak(plan: Plan, nbytes: int) -> None:
    """Spare `peak_memory` the work for a plan whose peak is known."""
    _PEAKS[plan] = nbytes


_PEAKS: WeakKeyDictionary[Plan, int] = WeakKeyDictionary()


def _choices(plan: Plan) -> Callable[[Variable], Strategy | Layout]:
    decisions, layouts = plan.decisions, plan.layouts
    return lambda variable: decisions[variable].strategy if isinstance(variable, Node) else layouts[variable]


def _runtime(graph: Graph) -> int:
    """All inputs, and each value with a copy."""
    return runtime_bytes(len(graph.inputs) + 2 * len(graph.nodes))


# -- how terms come about


def kind_of(graph: Graph, value: Value) -> str:
    """Which of KINDS a value is: by its role, that of what it replaces, or what it is the gradient of."""
    if value in graph.role_of:
        return graph.role_of[value]
    if value in graph.tied:
        return graph.role_of[graph.tied[value]]
    if graph.cotangents.get(value) in graph.role_of:
        return "gradient"
    return "output" if value in _outputs(graph) else "activation"


@lru_cache(maxsize=8)
def _outputs(graph: Graph) -> frozenset[Value]:
    return frozenset(graph.outputs)


def _operand(node: Node, i: int) -> Part:
    return Part(node, lambda strategy: strategy.operand_layouts[i], ("operand", i))


def result_part(node: Node, i: int) -> Part:
    return Part(node, lambda strategy: strategy.result_layouts[i], ("result", i))


def _of_input(value: Value) -> Part:
    return Part(value, lambda layout: layout, "input")


def _fixed(variable: Variable, layout: Layout) -> Part:
    return Part(variable, lambda choice: layout, ("fixed", layout))


class ModelBuilder:
    def __init__(
        self,
        graph: Graph,
        left: Callable[[Node, int], Part],
        outputs: Sequence[Layout] | None,
        pinned: set[Node],
        inside: Mapping[Node, int] | None = None,
    ) -> None:
        self.graph, self.outputs, self.inside = graph, outputs, inside or {}
        self.schedule = GraphMoments(graph, pinned.__contains__)
        self.left: dict[Value, Part] = {value: _of_input(value) for value in graph.inputs}
        for node in graph.nodes:
            self.left.update((value, left(node, i)) for i, value in enumerate(node.results))
        self.terms: list[Term] = []

    @gc_paused()
    def build(self) -> MemoryModel:
        """All terms."""
        tied = set(self.graph.tied.values())
        for value, role in zip(self.graph.inputs, self.graph.roles, strict=True):
            self._value(value, role, 0, gone=value in tied and bool(self.schedule.uses[value]))
        for node in self.graph.nodes:
            self._node(node)
        for value in self.graph.values:
            self._copies(value)
        own = _runtime(self.graph)
        self._add("the interpreter", "runtime", 0, self.schedule.end, (), lambda: own, ("runtime", own))
        return MemoryModel(self.schedule, tuple(self.terms))

    def _add(
        self, what: str, kind: str, first: int, last: int, parts: Sequence[Part], size: Callable, form, surely: int = 0
    ) -> None:
        if first <= last:
            self.terms.append(Term(what, kind, first, last, tuple(parts), size, form, surely))

    def _node(self, node: Node) -> None:
        runs = self.schedule.runs[node]

        def scratch(strategy: Strategy) -> int:
            if node in self.inside:
                return self.inside[node]
            return call_scratch(node, strategy)

        own = node if node in self.inside else node.key
        whole = Part(node, lambda strategy: strategy, "strategy")
        self._add(node.label, "scratch", runs, runs, [whole], scratch, ("scratch", own))
        is_view = self.schedule.is_view(node)
        for i, value in enumerate(node.results):
            if node in self.schedule.settles:
                at = self.schedule.settles[node]
                self._bytes(value, kind_of(self.graph, value), runs, at, result_part(node, i))
                self._change(value, at, result_part(node, i), self.left[value])
                self._value(value, kind_of(self.graph, value), at)
            elif not is_view:
                # What is made in an operand's memory counts as that operand until it is there.
                self._value(value, kind_of(self.graph, value), runs + (value in self.schedule.over))

    def _bytes(self, value: Value, kind: str, first: int, last: int, part: Part) -> None:
        of = value.type
        self._add(value.name, kind, first, last, [part], lambda layout: local_nbytes(of, layout), ("bytes", of))

    def _value(self, value: Value, kind: str, first: int, gone: bool = True) -> None:
        """A value in the layout it is left in, until its last use; to the end if it is not `gone` then."""
        part, uses = self.left[value], self.schedule.uses[value]
        if not gone:
            self._bytes(value, kind, first, self.schedule.end, part)
            return
        surely = max((first, *(use.begin for use in uses)))
        self._bytes(value, kind, first, surely, part)
        # Beyond, only for those that use it as it is: others have copies by then.
        ends = sorted({use.end for use in uses if use.end > surely})
        for begin, end in itertools.pairwise([surely, *ends]):
            late = [self._wanted(value, use) for use in uses if use.end >= end]
            self._add(value.name, kind, begin + 1, end, [part, *late], _kept(value.type), ("kept", value.type), 2)

    def _wanted(self, value: Value, use: Use) -> Part:
        """The layout that a user wants."""
        if use.node is not None:
            return _operand(use.node, use.place)
        if self.outputs is not None:
            return _fixed(self.left[value].variable, self.outputs[use.place])
        if value in self.graph.tied:
            return _of_input(self.graph.tied[value])
        left = self.left[value]
        return Part(left.variable, lambda choice: left.read(choice).final(), ("final", left.key))

    def _copies(self, value: Value) -> None:
        """Copies of a value in other layouts, each from the first to the last user that wants it so."""
        uses, part = self.schedule.uses[value], self.left[value]
        if not value.type.rank and uses:
            # A number, which many may use (a step counter): a whole copy besides its terms, and a buffer.
            of, last = value.type, max(use.end for use in uses)
            self._add(value.name, "copy", uses[0].begin, last, (), lambda: 2 * of.nbytes, ("number", of))
            return
        wanted = {use: self._wanted(value, use) for use in uses}
        for i, use in enumerate(uses):
            earlier = [wanted[uses[i - 1]]] if i else []
            self._change(value, use.begin, part, wanted[use], earlier)
        cuts = sorted({use.begin for use in uses} | {use.end + 1 for use in uses})
        for begin, end in itertools.pairwise(cuts):
            now = [wanted[use] for use in uses if use.begin <= begin <= use.end]
            before = [wanted[use] for use in uses if use.end < begin]
            after = [wanted[use] for use in uses if use.begin > begin]
            if not (before and after):
                before, after = [], []
            if now or before:
                counts = len(now), len(before)
                parts = [part, *now, *before, *after]
                self._add(
                    value.name,
                    "copy",
                    begin,
                    end - 1,
                    parts,
                    _copied(value.type, *counts),
                    ("copy", value.type, counts),
                    2 if now else 0,
                )

    def _change(self, value: Value, moment: int, before: Part, after: Part, earlier: Sequence[Part] = ()) -> None:
        """Buffers while a value is brought from one layout into another, unless the user before had it so."""
        of, strided = value.type, value in self.schedule.strided
        form = ("change", of, strided, len(earlier))
        self._add(value.name, "buffer", moment, moment, [before, after, *earlier], _changed(of, strided), form)


def _kept(of: TensorType) -> Callable[..., int]:
    def size(left: Layout, *wanted: Layout) -> int:
        return local_nbytes(of, left) if any(layout is left for layout in wanted) else 0

    return size


def _copied(of: TensorType, now: int, before: int) -> Callable[..., int]:
    def size(left: Layout, *wanted: Layout) -> int:
        live = set(wanted[:now]) | set(wanted[now : now + before]).intersection(wanted[now + before :])
        live.discard(left)
        return sum(local_nbytes(of, layout) for layout in live)

    return size


def _changed(of: TensorType, strided: bool) -> Callable[..., int]:
    def size(left: Layout, wanted: Layout, *earlier: Layout) -> int:
        return 0 if wanted in earlier else change_bytes(of, strided, left, wanted)

    return size


def change_bytes(of: TensorType, strided: bool, left: Layout, wanted: Layout) -> int:
    """Buffers on the way from one layout to another; a `strided` tensor is copied before it is sent."""
    if wanted is left:
        return 0
    return transient_bytes(left, wanted, of, strided)
