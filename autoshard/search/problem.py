"""The problem that a search solves: a graph, a mesh, hardware, and all that people fixed or asked.

The same problem goes to every search mode: strategies of operators that people configured, shardings that they asked
of inputs, outputs and by constraints, and the layouts in which data is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from autoshard.core.place import parse_strategy, show_given
from autoshard.core.strategy import Strategy
from autoshard.cost.prices import Prices, prices_for
from autoshard.ir.graph import DATA, Graph, Node, Source, Value
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding
from autoshard.layout.tensor_map import onto
from autoshard.optimize import DEFAULT
from autoshard.partition.bundling import latency_shares
from autoshard.plan.plan import ASKED, CONFIGURED, Cause
from autoshard.propagate.mutable_ir import MutableModule
from autoshard.search.constraints import (
    constraint_sharding,
    constraint_strategy,
    dividing_layout,
    satisfies,
)
from autoshard.search.shared_inputs import agreeing
from autoshard.util.errors import LayoutError, StrategyError
from autoshard.util.errors import at as where
from costmodel import Hardware

MEMORY = "memory"
"""The name among a problem's options of the limit of a device's memory, in bytes."""
CARRIED = "carried"
"""The role of an input of a flat graph that keeps a tie."""
Path = tuple[Node, ...]
Place = tuple[Path, Value]


class Annotation(Protocol):
    """What a user's `shard(in_strategy, out_strategy)` left at a node."""

    @property
    def in_strategy(self) -> Sequence | None: ...

    @property
    def out_strategy(self) -> Sequence | None: ...

    @property
    def source(self) -> Source | None: ...


@dataclass(frozen=True, eq=False)
class Problem:
    """What to plan.

    Attributes:
        annotations: what users said of single operators (`shard`).
        given: layouts of inputs (data fed by each rank, parameters under a parameter plan). Data inputs without one, of
            which nothing is asked either, are whole on every rank (full batch).
        fixed: strategies that are settled already, as `annotations` settle those that a user wrote.
        asked: shardings that people asked of the graph's inputs.
        asked_outputs: the same of its outputs, by position; () where nothing is asked.
        work: makes the working copy of the program that propagation starts from; None where rules have nothing to
            spread from.
        places: where calls have been written out since, by which calls, outermost first, and as which value of the
            program a value is reached; one that is absent is a value of the program itself.
        options: what a mode was asked besides, by name.
        elsewhere: makes the same problem for another mesh of as many devices; None where the mesh is not to be changed.
        runs: how often a step runs each node that comes from a loop, see `flat.py`; those that run once are absent.
        made: how often a step makes values that no node makes which costs something, see `flat.py`.
        passes: what is done to the programs of plans (`optimize`).
        inside: the nodes that come from loops and branches, and those that stand for their borders.
        leaving_loops: those that pass a carried value on to behind a loop or to its condition. There it is a value of
            its own, which shares no copy with the carried one.
        thrifty: one of many to be planned: what takes tens of seconds for a little less cost is left out.
    """

    graph: Graph
    mesh: Mesh
    hardware: Hardware
    annotations: Mapping[Node, Annotation] = field(default_factory=dict)
    given: Mapping[Value, Layout] = field(default_factory=dict)
    fixed: Mapping[Node, Strategy] = field(default_factory=dict)
    asked: Mapping[Value, Sharding] = field(default_factory=dict)
    asked_outputs: tuple[Sharding | None, ...] = ()
    work: Callable[[], MutableModule] | None = None
    places: Mapping[Value, Place] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: Callable[[Mesh], Problem] | None = None
    runs: Mapping[Node, int] = field(default_factory=dict)
    made: Mapping[Value, int] = field(default_factory=dict)
    inside: frozenset[Node] = frozenset()
    leaving_loops: frozenset[Node] = frozenset()
    passes: tuple[str, ...] = DEFAULT
    thrifty: bool = False

    @cached_property
    def remembered(self) -> dict[Any, Any]:
        """What searches of this very problem worked out and others need again, by what it is."""
        return {}

    @property
    def prices(self) -> Prices:
        """What things take on the hardware; what is known of it is shared by all who ask."""
        return prices_for(self.hardware)

    @property
    def limit(self) -> int | None:
        """Bytes of memory that a device has, if there is a limit."""
        return self.options.get(MEMORY)

    def within(self, limit: int | None) -> Problem:
        """The same problem with another limit of memory, or without one."""
        options = {name: value for name, value in self.options.items() if name != MEMORY}
        return replace(self, options=options if limit is None else {**options, MEMORY: limit})

    @cached_property
    def latency_shares(self) -> Mapping[Value, float]:
        """Values whose collectives can share a buffer with others, and what of the latency each counts."""
        return latency_shares(self.graph, self.inside)

    def share(self, value: Value) -> float:
        """The part of the latency that a redistribution of the value counts (`partition/bundling.py`)."""
        return self.latency_shares.get(value, 1.0)

    @cached_property
    def input_layouts(self) -> dict[Value, Layout]:
        """Inputs whose layout is settled before the search."""
        settled = {}
        for value, role in zip(self.graph.inputs, self.graph.roles, strict=True):
            if value in self.given:
                settled[value] = self.given[value]
            elif self._asked_of_input(value) is not None:
                settled[value] = dividing_layout(self.asked[value], value.type.shape)
            elif role == DATA:
                settled[value] = Layout.replicated(self.mesh, value.type.rank)
        return settled

    def _asked_of_input(self, value: Value) -> Sharding | None:
        asked = self.asked.get(value)
        return asked if asked is not None and asked.mesh is self.mesh else None

    @cached_property
    def annotated(self) -> dict[Node, Strategy]:
        """The strategies that are fixed or that annotations ask for, in graph order.

        Raises:
            StrategyError: an annotation that its operator cannot follow, with the user's source line.
        """
        found = {
            node: self.fixed[node] if node in self.fixed else self._read(node, self.annotations[node])
            for node in self.graph.nodes
            if node in self.fixed or node in self.annotations
        }
        movable = {node for node in found if node not in self.fixed and _says_parts(self.annotations[node])}
        kept = [value for value, role in zip(self.graph.inputs, self.graph.roles, strict=True) if role != CARRIED]
        return agreeing(self.graph, found, movable, [value for value in kept if value not in self.input_layouts])

    @cached_property
    def configured(self) -> dict[Node, Strategy]:
        """The strategies of operators that no search may change: those annotated, and of constraints that leave nothing
        open, in graph order.

        Raises:
            StrategyError: an annotation that its operator cannot follow, with the user's source line.
        """
        found = {}
        for node in self.graph.nodes:
            asked = constraint_sharding(node, self.mesh)
            if node in self.annotated:
                found[node] = self.annotated[node]
            elif asked is not None and all(dim.closed for dim in asked.dims):
                found[node] = constraint_strategy(node, asked)
        return found

    def asked_strategy(self, node: Node) -> Strategy | None:
        """The strategy by which the result of a constraint lies as asked, and no further split; None of other nodes."""
        asked = constraint_sharding(node, self.mesh)
        return None if asked is None else constraint_strategy(node, asked)

    def settled_cause(self, node: Node) -> Cause:
        """Why a node has a strategy that is configured, or asked for by a constraint."""
        return Cause(CONFIGURED if node in self.annotated else ASKED)

    def times(self, value: Value) -> int:
        """How often a step redistributes a value: as often as it is made, once where it is an input."""
        made = self.graph.producers.get(value)
        return self.made.get(value) or (self.runs.get(made[0], 1) if made else 1) or 1

    def left(self, node: Node, strategy: Strategy) -> tuple[Layout, ...]:
        """The layouts that a node's results are left in: those of its strategy, or what its out_strategy asks for."""
        annotation = self.annotations.get(node)
        if annotation is None or annotation.out_strategy is None:
            return strategy.result_layouts
        return out_layouts(strategy, annotation.out_strategy, node, self.describe(node))

    def outputs(self, layouts: Mapping[Value, Layout]) -> tuple[Layout, ...]:
        """How the graph's outputs leave: an update in the layout of the input it replaces; others as they come,
        completed where partial, if that is as asked, and else as asked."""
        tied = self.graph.tied
        return tuple(
            layouts[tied[value]] if value in tied else self.leaving(i, layouts[value])
            for i, value in enumerate(self.graph.outputs)
        )

    def leaving(self, i: int, layout: Layout) -> Layout:
        """How output i, which replaces no input, leaves when its value is left in that layout."""
        asked = self.asked_outputs[i] if self.asked_outputs else None
        if asked is None or asked.mesh is not self.mesh or satisfies(layout.final(), asked):
            return layout.final()
        return dividing_layout(asked, self.graph.outputs[i].type.shape)

    def describe(self, node: Node) -> str:
        """A node in an error's words, with the line where the user configured it or else wrote it."""
        annotation = self.annotations.get(node)
        source = annotation.source if annotation is not None and annotation.source else node.source
        return f"{node.label} ({getattr(annotation, 'called', '') or node.op.name}){where(source)}"

    def _read(self, node: Node, annotation: Annotation) -> Strategy:
        what = self.describe(node)
        shapes = [of.shape for of in node.operand_types]
        if annotation.in_strategy is None:
            raise StrategyError(f"{what}: shard() needs an in_strategy; out_strategy alone does not say how to split")
        strategy = parse_strategy(node.rule, annotation.in_strategy, self.mesh, shapes, what, annotation.out_strategy)
        if annotation.out_strategy is not None:
            _check_out(strategy, annotation.out_strategy, node, what)
        return strategy


def _says_parts(annotation: Annotation) -> bool:
    """Whether it says into how many parts operands are split, and no more."""
    return annotation.out_strategy is None and not any(isinstance(one, Layout) for one in annotation.in_strategy or ())


def _check_out(strategy: Strategy, given: Sequence, node: Node, what: str) -> None:
    """out_strategy may say what follows from in_strategy anyway, or how a partial result is to be left."""
    wanted = out_layouts(strategy, given, node, what)
    for layout, of, one in zip(wanted, node.result_types, given, strict=True):
        if not isinstance(one, Layout) and not layout.divides(of.shape):
            raise StrategyError(f"out_strategy {show_given(given)} of {what} does not divide the result {of}")


def out_layouts(strategy: Strategy, given: Sequence, node: Node, what: str) -> tuple[Layout, ...]:
    """The layouts that an out_strategy asks for: given Layouts, or parts placed as the results' own rule has them.

    Parts beyond those of the in_strategy are taken from the axes along which the result is partial (MatMul with k
    split and out dim 0 = m * k leaves by ReduceScatter, as in MindSpore).
    """
    if len(given) != len(strategy.result_layouts):
        raise StrategyError(
            f"out_strategy {show_given(given)} of {what} has {len(given)} tuples, the operator has "
            f"{len(strategy.result_layouts)} results"
        )
    layouts = []
    for i, (one, base) in enumerate(zip(given, strategy.result_layouts, strict=True)):
        count = one.rank if isinstance(one, Layout) else len(one)
        if count != base.rank:
            raise StrategyError(
                f"out_strategy {show_given(given)} of {what}: tuple {i} has {count} entries, but result "
                f"{i} has {base.rank} dims {node.result_types[i].shape}"
            )
        if isinstance(one, Layout):
            layouts.append(_moved(one, base.mesh, given, what))
        else:
            layouts.append(_scattered(base, one, given, what))
    return tuple(layouts)


def _moved(one: Layout, mesh: Mesh, given: Sequence, what: str) -> Layout:
    try:
        return onto(one, mesh)
    except LayoutError as error:
        raise StrategyError(f"out_strategy {show_given(given)} of {what}: {error}") from None


def _scattered(base: Layout, parts: Sequence[int], given: Sequence, what: str) -> Layout:
    dims, terms = list(base.dims), list(base.partial)
    for i, (wanted, have) in enumerate(zip(parts, base.parts, strict=True)):
        if wanted == have:
            continue
        size = wanted // have if wanted % have == 0 else 0
        match = next((ref for ref in terms if ref.size == size), None)
        if match is None:
            raise StrategyError(
                f"out_strategy {show_given(given)} of {what}: dim {i} is left in {have} parts, and no partial axis "
                f"of the result (it is [{base}]) makes {wanted}"
            )
        terms.remove(match)
        dims[i] = dims[i] + (match,)
    return Layout(base.mesh, dims)
