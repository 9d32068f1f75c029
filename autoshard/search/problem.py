"""The problem that a search solves: a graph with annotations, a mesh, hardware, and where data and outputs lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from autoshard.errors import LayoutError, StrategyError
from autoshard.errors import at as where
from autoshard.ir.graph import DATA, Graph, Node, Source, Value
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.tensor_map import onto
from autoshard.strategy import Strategy, parse_strategy, show_given
from costmodel import Hardware


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

    `given` fixes layouts of inputs (data fed by each rank, parameters under a parameter plan); data inputs without one
    are whole on every rank (full batch). `fixed` holds strategies that are settled already, as `annotations` settle
    those that a user wrote.
    """

    graph: Graph
    mesh: Mesh
    hardware: Hardware
    annotations: Mapping[Node, Annotation] = field(default_factory=dict)
    given: Mapping[Value, Layout] = field(default_factory=dict)
    fixed: Mapping[Node, Strategy] = field(default_factory=dict)

    @cached_property
    def input_layouts(self) -> dict[Value, Layout]:
        """Inputs whose layout is settled before the search."""
        settled = {}
        for value, role in zip(self.graph.inputs, self.graph.roles, strict=True):
            if value in self.given:
                settled[value] = self.given[value]
            elif role == DATA:
                settled[value] = Layout.whole(self.mesh, value.type.rank)
        return settled

    @cached_property
    def configured(self) -> dict[Node, Strategy]:
        """The strategies that are fixed or that annotations ask for, in graph order.

        Raises:
            StrategyError: an annotation that its operator cannot follow, with the user's source line.
        """
        return {
            node: self.fixed[node] if node in self.fixed else self._read(node, self.annotations[node])
            for node in self.graph.nodes
            if node in self.fixed or node in self.annotations
        }

    def left(self, node: Node, strategy: Strategy) -> tuple[Layout, ...]:
        """The layouts that a node's results are left in: those of its strategy, or what its out_strategy asks for."""
        annotation = self.annotations.get(node)
        if annotation is None or annotation.out_strategy is None:
            return strategy.result_layouts
        return out_layouts(strategy, annotation.out_strategy, node, self.describe(node))

    def outputs(self, layouts: Mapping[Value, Layout]) -> tuple[Layout, ...]:
        """How the graph's outputs leave: in the layout they come in, completed where partial; an update in that of the
        input it replaces."""
        tied = self.graph.tied
        return tuple(layouts[tied[value]] if value in tied else layouts[value].final() for value in self.graph.outputs)

    def describe(self, node: Node) -> str:
        """A node in an error's words, with the line where the user configured it or else wrote it."""
        annotation = self.annotations.get(node)
        source = annotation.source if annotation is not None and annotation.source else node.source
        return f"{node.label} ({node.op.name}){where(source)}"

    def _read(self, node: Node, annotation: Annotation) -> Strategy:
        what = self.describe(node)
        shapes = [of.shape for of in node.operand_types]
        if annotation.in_strategy is None:
            raise StrategyError(f"{what}: shard() needs an in_strategy; out_strategy alone does not say how to split")
        strategy = parse_strategy(node.rule, annotation.in_strategy, self.mesh, shapes, what)
        if annotation.out_strategy is not None:
            _check_out(strategy, annotation.out_strategy, node, what)
        return strategy


def _check_out(strategy: Strategy, given: Sequence, node: Node, what: str) -> None:
    """out_strategy may say what follows from in_strategy anyway, or how a partial result is to be left."""
    wanted = out_layouts(strategy, given, node, what)
    for layout, of in zip(wanted, node.result_types, strict=True):
        if not layout.divides(of.shape):
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
