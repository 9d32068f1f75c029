"""Composite operators split in a dim that they need whole: run as the operators of their decomposition.

The strategies of these parts follow from the composite's own: each dim of a value on the way lies along the axes of the
factor that it comes from, and what a part reduces over such a dim is completed at once, by an all-reduce of what is
left. So a softmax over classes in parts sends a largest element and a sum for each row, and a cross entropy the chosen
logit besides (Shoeybi et al. 2019, "Megatron-LM", section 3), never the classes. Narrow floats are computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from autoshard.core.rule import Rule
from autoshard.core.strategy import Strategy, is_runnable, project
from autoshard.core.tensortype import DType, TensorType, dtype
from autoshard.ir.fusion import kernel_traffic
from autoshard.ir.graph import Builder, Graph, KernelTraffic, Node, Value, walk
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Mesh, size_of
from autoshard.ops.attributes import Literal
from autoshard.ops.calls import call_bytes
from autoshard.ops.registry import Operator, lookup
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.redistribute.buffers import staging_bytes
from autoshard.redistribute.planner import evened, plan_steps
from autoshard.redistribute.step import Step
from autoshard.util.errors import GraphError

Lying = dict[Value, tuple[Refs, ...]]
Steps = Iterable[tuple[Any, TensorType]]


@dataclass(frozen=True, eq=False)
class Parts:
    """What a composite runs as: a graph from its operands to its results, and the plan of that graph.

    `strategies` has one for each node of the graph. `layouts` tells how each value is left; operands come, and results
    are left, as the composite's own strategy says.
    """

    graph: Graph
    strategies: tuple[Strategy, ...]
    layouts: Mapping[Value, Layout]

    @property
    def nodes(self) -> Iterator[tuple[Node, Strategy]]:
        return zip(self.graph.nodes, self.strategies, strict=True)


def runs_decomposed(node: Node, strategy: Strategy) -> bool:
    """Whether a node runs as its parts under a strategy: one that splits a factor which its own kernel needs whole."""
    return strategy.exchanges and node.op.runs_decomposed


def parts_of(node: Node, strategy: Strategy) -> Parts:
    """The parts of a composite under a strategy."""
    attrs = tuple(node.attrs.items())
    return _parts(node.op, node.operand_types, attrs, tuple(type(value) for _, value in attrs), strategy)


@lru_cache(maxsize=1 << 14)
def _parts(op: Operator, types: tuple[TensorType, ...], attrs: tuple, kinds: tuple, strategy: Strategy) -> Parts:
    graph = _decomposed(op, types, attrs, kinds)
    lying = _flowing(graph, strategy)
    layouts: dict[Value, Layout] = dict(zip(graph.inputs, strategy.operand_layouts, strict=True))
    kept = dict(zip(graph.outputs, (layout.partial for layout in strategy.result_layouts), strict=True))
    strategies = []
    for node in graph.nodes:
        made = _strategy(node, lying, layouts, strategy)
        strategies.append(made)
        for value, layout in zip(node.results, made.result_layouts, strict=True):
            terms = tuple(ref for ref in layout.partial if ref in made.carried or ref in kept.get(value, ()))
            layouts[value] = Layout(layout.mesh, layout.dims, terms, layout.reduction) if terms else layout.final()
    return Parts(graph, tuple(strategies), layouts)


# -- the decomposition as a graph


class _Symbol:
    """A value of the decomposition under construction: operators that are applied to it become nodes."""

    def __init__(self, value: Value, builder: Builder) -> None:
        self.value, self.builder = value, builder

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.type.shape

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    def __autoshard_apply__(self, op: Operator, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        values = [self._lifted(operand) for operand in operands]
        made = tuple(_Symbol(value, self.builder) for value in self.builder.add(op, values, attrs).results)
        return made[0] if len(made) == 1 else made

    def _lifted(self, operand: Any) -> Value:
        """The value of an operand; arrays become constants, and Python numbers too, of this one's type."""
        if isinstance(operand, _Symbol):
            return operand.value
        number = isinstance(operand, bool | int | float)
        array = np.asarray(operand, self.dtype.numpy) if number else np.asarray(operand)
        constant = lookup("Constant")
        return self.builder.add(constant, (), constant.check_attributes({"value": Literal(array)})).results[0]


@lru_cache(maxsize=4096)
def _decomposed(op: Operator, types: tuple[TensorType, ...], attrs: tuple, kinds: tuple) -> Graph:
    """The decomposition on operands of these types; every result is made by a node of its own.

    Raises:
        GraphError: it makes other results than the operator.
    """
    assert op.decomposition is not None, f"{op.name} has no decomposition"
    builder = Builder(op.name)
    inputs = [_Symbol(builder.input(of, f"x{i}"), builder) for i, of in enumerate(types)]
    found = op.decomposition(*map(_wide, inputs), **dict(attrs))
    found = found if isinstance(found, tuple) else (found,)
    wanted = op.result_types(types, dict(attrs))
    if len(found) != len(wanted) or any(one.shape != of.shape for one, of in zip(found, wanted, strict=True)):
        shown = ", ".join(str(one.value.type) for one in found)
        raise GraphError(f"the decomposition of {op.name} makes {shown}, not {', '.join(map(str, wanted))}")
    outputs: list[Value] = []
    for one, of in zip(found, wanted, strict=True):
        one = _cast(one, of.dtype)
        if one.value in (*outputs, *builder.inputs):
            one = lookup("Identity")(one)
        outputs.append(one.value)
    return builder.build(outputs)


def _wide(symbol: _Symbol) -> _Symbol:
    """The same in f32 where it is of a narrower float type: the kernels of composites compute so as well."""
    narrow = symbol.dtype.is_float and symbol.dtype.bits < 32
    return _cast(symbol, dtype("f32")) if narrow else symbol


def _cast(symbol: _Symbol, to: DType) -> _Symbol:
    return symbol if symbol.dtype == to else lookup("Cast")(symbol, dtype=to.name)


# -- strategies of the parts


def _flowing(graph: Graph, strategy: Strategy) -> Lying:
    """Along which axes the dims of all values lie: spread from operands and results until nothing changes."""
    lying: Lying = {value: ((),) * value.type.rank for value in graph.values}
    lying.update((value, lay.dims) for value, lay in zip(graph.outputs, strategy.result_layouts, strict=True))
    lying.update((value, lay.dims) for value, lay in zip(graph.inputs, strategy.operand_layouts, strict=True))
    fixed, touching = {*graph.inputs, *graph.outputs}, _touching(graph)
    due = set(graph.nodes)
    while due:
        for node in (*graph.nodes, *reversed(graph.nodes)):
            if node not in due:
                continue
            due.discard(node)
            values = (*node.operands, *node.results)
            around = tuple([lying[value] for value in values])
            for value, dims in zip(values, _dims_of(node.rule, strategy.mesh, around), strict=True):
                more = tuple([old or new for old, new in zip(lying[value], dims, strict=True)])
                if value not in fixed and more != lying[value] and _disjoint(more):
                    lying[value] = more
                    due.update(touching[value])
    return lying


def _touching(graph: Graph) -> dict[Value, list[Node]]:
    """Per value the nodes that make or use it."""
    found: dict[Value, list[Node]] = {value: [] for value in graph.values}
    for node in graph.nodes:
        for value in (*node.operands, *node.results):
            found[value].append(node)
    return found


@lru_cache(maxsize=1 << 14)
def _dims_of(rule: Rule, mesh: Mesh, lying: tuple[tuple[Refs, ...], ...]) -> tuple[tuple[Refs, ...], ...]:
    """How the dims of a node's values lie once its factors are split as they put it."""
    spread = Strategy(rule, mesh, _axes_of(rule, mesh, lying))
    return tuple(layout.dims for layout in (*spread.operand_layouts, *spread.result_layouts))


def _axes(node: Node, lying: Lying, strategy: Strategy) -> tuple[Refs, ...]:
    """The axes that the dims of a node's values put on its factors, as far as it can run so."""
    return _axes_of(node.rule, strategy.mesh, tuple(lying[value] for value in (*node.operands, *node.results)))


@lru_cache(maxsize=1 << 14)
def _axes_of(rule: Rule, mesh: Mesh, lying: tuple[tuple[Refs, ...], ...]) -> tuple[Refs, ...]:
    axes: list[Refs] = [()] * len(rule.factors)
    for dims, along in zip((*rule.operands, *rule.results), lying, strict=True):
        for i, refs in enumerate(project(rule, dims, Layout(mesh, along))):
            tried = [*axes[:i], refs, *axes[i + 1 :]]
            if refs and not axes[i] and _disjoint(tried) and is_runnable(rule, [size_of(one) for one in tried]):
                axes = tried
    return tuple(axes)


def _disjoint(dims: Iterable[Refs]) -> bool:
    refs = [ref for one in dims for ref in one]
    pairs = ((a, b) for i, a in enumerate(refs) for b in refs[:i])
    return not any(a.clashes(b) for a, b in pairs)


def _strategy(node: Node, lying: Lying, layouts: Mapping[Value, Layout], strategy: Strategy) -> Strategy:
    """How a part runs: its factors as the dims lie; terms of a sum that come in pass through if it is linear."""
    axes = _axes(node, lying, strategy)
    partial = [layouts[value].partial for value in node.operands]
    for carriers in node.op.linear_in(len(partial)) if node.rule.reduction == "sum" else ():
        terms = partial[carriers[0]]
        alike = all(refs == (terms if i in carriers else ()) for i, refs in enumerate(partial))
        if terms and alike and _disjoint((*axes, terms)):
            return Strategy(node.rule, strategy.mesh, axes, terms, carriers)
    return Strategy(node.rule, strategy.mesh, axes)


# -- what the parts send, and keep


Moves = Iterator[tuple[int, Layout, Layout, TensorType]]


def _moves(parts: Parts, strategy: Strategy) -> Moves:
    """The changes of layout between the parts, each once: before which node (or after it), from where to where."""
    left, done = dict(parts.layouts), set()
    for at, (node, own) in enumerate(parts.nodes):
        for value, wanted in zip(node.operands, own.operand_layouts, strict=True):
            if wanted is not left[value] and (value, wanted) not in done:
                done.add((value, wanted))
                yield at, left[value], wanted, value.type
        for value, made in zip(node.results, own.result_layouts, strict=True):
            if made is not left[value]:
                yield at, made, left[value], value.type
    for value, wanted in zip(parts.graph.outputs, strategy.result_layouts, strict=True):
        if wanted is not left[value]:
            yield len(parts.strategies) - 1, left[value], wanted, value.type


def _steps(before: Layout, after: Layout, of: TensorType) -> Iterator[tuple[Step, TensorType]]:
    even = of.with_shape(evened(before, after, of.shape))
    return ((step, even) for step in plan_steps(before, after, even.shape))


def composite_steps(node: Node, strategy: Strategy, own: Callable[[Node, Strategy], Steps]) -> Steps:
    """The steps that a composite runs with: between its parts, and inside of them (`own`), each with its type."""
    parts = parts_of(node, strategy)
    for _, before, after, of in _moves(parts, strategy):
        yield from _steps(before, after, of)
    for part, used in parts.nodes:
        yield from own(part, used)


def composite_scratch(node: Node, strategy: Strategy) -> int:
    """Bytes that a rank holds at most while a composite runs as its parts, besides its operands and results."""
    parts = parts_of(node, strategy)
    owner: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for at, (one, _) in enumerate(parts.nodes):
        for value in one.results:
            owner[value] = owner.get(one.operands[0], one.operands[0]) if one.op.view and one.operands else value
        last.update((owner.get(value, value), at) for value in (*one.operands, *one.results))
    last.update(dict.fromkeys(parts.graph.outputs, len(parts.strategies)))
    staging = dict.fromkeys(range(len(parts.strategies)), 0)
    for at, before, after, of in _moves(parts, strategy):
        held = max((staging_bytes(step, even) for step, even in _steps(before, after, of)), default=0)
        staging[at] = max(staging[at], held + _local(of, before) + _local(of, after))
    live: dict[Value, int] = {}
    most = 0
    for at, (one, used) in enumerate(parts.nodes):
        own = [value for value in one.results if owner[value] is value]
        for giver in _givers(one, used, parts.layouts, [value for value in live if last[value] == at]):
            del live[giver]
        live.update((value, _local(value.type, parts.layouts[value])) for value in own)
        most = max(most, sum(live.values()) + call_scratch(one, used) + staging[at])
        live = {value: nbytes for value, nbytes in live.items() if last[value] > at}
    made = zip(node.result_types, strategy.result_layouts, strict=True)
    return max(0, most - sum(_local(of, layout) for of, layout in made))


def _givers(
    node: Node, strategy: Strategy, layouts: Mapping[Value, Layout], ending: Collection[Value]
) -> Iterator[Value]:
    """Values among those that end with a part in whose memory it makes results (`Operator.over`)."""
    taken: set[Value] = set()
    for result, places in zip(node.results, node.op.over, strict=False):
        for i in places:
            value = node.operands[i]
            as_it_is = value in ending and value not in taken and layouts[value] == strategy.operand_layouts[i]
            if as_it_is and value.type == result.type:
                taken.add(value)
                yield value
                break


def call_scratch(node: Node, strategy: Strategy) -> int:
    """Bytes that a node takes while it runs under a strategy, besides what it reads and makes; 0 for loops and
    branches, whose operators are counted inside."""
    if node.regions:
        return 0
    if runs_decomposed(node, strategy):
        return composite_scratch(node, strategy)
    operands, results = (
        tuple(of.with_shape(layout.local_shape(of.shape)) for of, layout in zip(types, layouts, strict=True))
        for types, layouts in (
            (node.operand_types, strategy.operand_layouts),
            (node.result_types, strategy.result_layouts),
        )
    )
    return call_bytes(node.op, node.rule if node.op.has_rule else None, operands, results, node.attrs)


def _local(of: TensorType, layout: Layout) -> int:
    return of.with_shape(layout.local_shape(of.shape)).nbytes


# -- a plan with its composites taken apart


@dataclass(frozen=True, eq=False)
class Decomposition:
    """A plan that knows the parts of its composites too: the nodes of each, and of each part the outermost composite.

    The plan's graph is as before; its strategies and layouts hold those of the parts besides.
    """

    plan: Plan
    parts: Mapping[Node, tuple[Node, ...]]
    composites: Mapping[Node, Node]


def decomposition_plan(plan: Plan) -> Decomposition:
    """The plan with the parts of all composites that run so, at any depth."""
    parts: dict[Node, tuple[Node, ...]] = {}
    composites: dict[Node, Node] = {}
    decisions: dict[Node, Decision] = {}
    layouts: dict[Value, Layout] = {}
    pending = [(node, plan.strategy(node), node) for node in walk(plan.graph.nodes)]
    while pending:
        node, strategy, composite = pending.pop()
        if not runs_decomposed(node, strategy):
            continue
        made = parts_of(node, strategy)
        written, known = _written(node, made.graph)
        parts[node] = written
        layouts.update((known[value], layout) for value, layout in made.layouts.items())
        for one, used in zip(written, made.strategies, strict=True):
            decisions[one] = Decision(Option(used, 0.0, 0.0, 0.0), Cause(CONFIGURED))
            composites[one] = composite
            pending.append((one, used, composite))
    if not parts:
        return Decomposition(plan, {}, {})
    whole = replace(plan, decisions={**decisions, **plan.decisions}, layouts={**layouts, **plan.layouts})
    return Decomposition(whole, parts, composites)


def _written(node: Node, graph: Graph) -> tuple[tuple[Node, ...], dict[Value, Value]]:
    """Copies of the parts that work on the very operands and results of the node; and what stands for which value."""
    known = dict(zip((*graph.inputs, *graph.outputs), (*node.operands, *node.results), strict=True))
    traffic = {} if node.traffic is None else _traffic(graph, node.traffic.how)
    written = []
    for one in graph.nodes:
        for value in one.results:
            known.setdefault(value, Value(value.type, f"{node.label}.{value.name}"))
        operands, results = (tuple(known[value] for value in values) for values in (one.operands, one.results))
        name = f"{node.label}.{one.results[0].name}"
        written.append(Node(one.op, operands, one.attrs, results, name, node.source, traffic=traffic.get(one)))
    return tuple(written), known


@lru_cache(maxsize=1 << 10)
def _traffic(graph: Graph, how: str) -> dict[Node, KernelTraffic]:
    """What the parts move where kernels are made so of them."""
    return kernel_traffic(graph, how)
