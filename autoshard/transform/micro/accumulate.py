"""A training step as a loop over micro batches: once before, once each, once after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Builder, Graph, Node, Region, Value, ancestors, renamed
from autoshard.ops.attributes import Literal
from autoshard.ops.registry import lookup
from autoshard.transform.inline import inline
from autoshard.transform.micro.body import MicroBody, write_body
from autoshard.transform.micro.classify import Forms, classify, with_single_barriers
from autoshard.transform.micro.forms import Form, MicroPartial, MicroRows, cut
from autoshard.transform.micro.statistics import BATCH, check_statistics
from autoshard.transform.simplify import live_nodes, with_nodes
from autoshard.transform.unroll import unrolled
from autoshard.util.checks import positive
from autoshard.util.errors import GraphError

ADDED_BY = {"sum": "Add", "prod": "Mul", "max": "Maximum", "min": "Minimum"}
_COUNT = TensorType.of((), "i32")


def accumulate(graph: Graph, micro_batches: int, statistics: str = BATCH) -> Graph:
    """The same training step with its batch in parts that are done one after the other in a loop.

    Parameters and states are used as they were before the step, gradients are added up (narrow floats in f32), and the
    update is done once. The numbers are those of the step as it was, but for the order in which they are added:
    means over the batch, counts of valid labels and random masks are of the whole batch.

    Args:
        graph: a training step, or any graph with data inputs; dim 0 of those that have as many rows as the first is
            the batch. Row i belongs to micro batch i mod `micro_batches`.
        statistics: "batch": an operator that needs statistics of the whole batch, such as a batch normalization in
            training, is refused. "micro_batch": each micro batch takes its own, the loss is the mean of theirs, and
            states that the forward pass writes (running means) go from one to the next.

    Raises:
        GraphError: micro batches that do not divide the batch; an operator that needs the whole batch at once, or
            computes on parts of it in a way that is not known.
    """
    return Accumulated.of(graph, micro_batches, statistics).graph


@dataclass(frozen=True)
class Accumulated:
    """A training step as a loop, and for nodes that run for each micro batch those of the step that they stand for."""

    graph: Graph
    stands_for: dict[Node, Node]

    @classmethod
    def of(cls, graph: Graph, count: int, statistics: str = BATCH) -> Accumulated:
        """The loop of `count` micro batches; see `accumulate`.

        Raises:
            GraphError: as `accumulate`.
        """
        check_statistics(statistics)
        if positive(count) is None:
            raise GraphError(f"{graph.name!r} cannot be cut into {count!r} micro batches: give a number from 1 on")
        return Accumulated(graph, {}) if count == 1 else Loop.of(graph, count, statistics).written()


@dataclass(frozen=True)
class StepParts:
    """A training step taken apart: what is done once before the micro batches, for each of them, and once after them.

    `graph` is the step, in which each barrier holds one value; nodes before and after are its own, those of `body`
    stand for others of it. `statistics` says whose it takes, and `loss_pieces` in how many pieces each micro batch of
    a step in stages has its loss.
    """

    graph: Graph
    parts: int
    before: tuple[Node, ...]
    body: MicroBody
    after: tuple[Node, ...]
    statistics: str = BATCH
    loss_pieces: int = 1

    @classmethod
    def of(cls, graph: Graph, count: int, statistics: str = BATCH, loss_pieces: int = 1) -> StepParts:
        """The parts of a step of `count` micro batches.

        Raises:
            GraphError: as `accumulate`.
        """
        check_statistics(statistics)
        if positive(count) is None:
            raise GraphError(f"{graph.name!r} cannot be cut into {count!r} micro batches: give a number from 1 on")
        found = Loop.of(graph, count, statistics).step_parts()
        return replace(found, statistics=statistics, loss_pieces=loss_pieces)


class Loop:
    """Writes the loop. All values of the step that are still there afterwards stay the same values."""

    def __init__(self, forms: Forms, builder: Builder | None = None, name: str = "micro_batches") -> None:
        self.forms, self.graph, self.parts, self.name = forms, forms.graph, forms.parts, name
        self.builder = builder or Builder.after(forms.graph, forms.graph.name)
        self.nodes: list[Node] = []

    @classmethod
    def of(cls, graph: Graph, count: int, statistics: str) -> Loop:
        return cls(classify(with_single_barriers(unrolled(inline(graph))), count, statistics))

    def step_parts(self) -> StepParts:
        graph = self.graph
        body, before = self._body()
        after = [node for node in graph.nodes if node not in before and node not in self.forms.cuts]
        first = tuple(node for node in graph.nodes if node in before)
        return StepParts(graph, self.parts, first, body, live_nodes(tuple(after), graph.outputs))

    def written(self) -> Accumulated:
        found = self.step_parts()
        self.nodes += found.before
        self._loop(found.body)
        self.nodes += found.after
        kept = live_nodes(tuple(self.nodes), self.graph.outputs)
        return Accumulated(
            with_nodes(replace(self.graph, cotangents=self._cotangents(found.body)), kept), found.body.of
        )

    def _cotangents(self, body: MicroBody) -> dict[Value, Value]:
        """Which gradients of a micro batch are gradients of which of its values, and the same of the whole step.

        Without those that are made before the value that they are gradients of: the first one, 1 of the loss.
        """
        stands_for = {
            value: one
            for node, original in body.of.items()
            for one, value in zip(node.results, original.results, strict=True)
        }
        inside = {
            stands_for[grad]: stands_for.get(of, of) for grad, of in self.graph.cotangents.items() if grad in stands_for
        }
        return told_in_order({**self.graph.cotangents, **inside}, self.graph.inputs, self.nodes)

    def _body(self) -> tuple[MicroBody, set[Node]]:
        """What is done for one micro batch, and the nodes that run before the first: what follows from data alone and
        is needed whole, and what all micro batches use. What these make need not come of the loop."""
        before = ancestors(self.graph, self.forms.whole)
        body = write_body(self.forms, self._needed(before), self.builder)
        before |= ancestors(self.graph, body.captured)
        return body.giving(self._needed(before)), before

    def _needed(self, before: set[Node]) -> list[Value]:
        """The values that are wanted after the last micro batch and come of all of them."""
        graph, cuts = self.graph, self.forms.cuts
        after = (node for node in graph.nodes if node not in before and node not in cuts)
        wanted = dict.fromkeys((*(value for node in after for value in node.uses), *graph.outputs))
        cut_results = {value for node in cuts if node not in before for value in node.results}
        return [value for value in wanted if value in cut_results]

    # -- the loop

    def _loop(self, body: MicroBody) -> None:
        pieces = {one: self._dealt(*of) for one, of in body.slices.items()}
        states = {new: state for state, new in body.carried.items()}
        carried = {value: states.get(value) or self._start(value, form) for value, (_, form) in body.outputs.items()}
        first = self._number(self.nodes, 0)
        operands = (first, *carried.values())
        results = self._results(body, [one.type for one in operands])
        regions = self._condition(operands), self._turn(body, operands, pieces)
        self.nodes.append(Node(lookup("While"), operands, {}, results, self.name, regions=regions))
        for (value, (_, form)), result in zip(body.outputs.items(), results[1:], strict=True):
            self._finish(value, form, result)

    def _results(self, body: MicroBody, types: Sequence[TensorType]) -> tuple[Value, ...]:
        """What the loop leaves: the very values of the step where these are carried as they are."""
        first = Value(types[0], self.builder.unique(f"{self.name}.count"))
        rest = (
            value if value.type == of else Value(of, self.builder.unique(f"{value.name}.sum"))
            for value, of in zip(body.outputs, types[1:], strict=True)
        )
        return (first, *rest)

    def _condition(self, operands: Sequence[Value]) -> Region:
        nodes: list[Node] = []
        args = self._arguments(operands, "more")
        more = self._add(nodes, "Less", (args[0], self._number(nodes, self.parts)))
        return Region(args, tuple(nodes), (more,))

    def _turn(self, body: MicroBody, operands: Sequence[Value], pieces: dict[Value, Value]) -> Region:
        """One micro batch: its rows, its nodes, and what has been carried so far with what they give."""
        nodes: list[Node] = []
        args = self._arguments(operands, "turn")
        zero = self._number(nodes, 0)
        for one, (_, part) in body.slices.items():
            self._take(nodes, pieces[one], part, (args[0], zero), one)
        states = {operand: arg for operand, arg in zip(operands, args, strict=True) if operand in body.carried}
        nodes += [self._reading(node, states) for node in body.nodes]
        count = self._add(nodes, "Add", (args[0], self._number(nodes, 1)))
        carried = [
            self._give(nodes, held, made, form, (args[0], zero))
            for held, (made, form) in zip(args[1:], body.outputs.values(), strict=True)
        ]
        outputs = (count, *carried)
        return Region(args, tuple(nodes), outputs)

    def _arguments(self, operands: Sequence[Value], what: str) -> tuple[Value, ...]:
        return tuple(Value(one.type, self.builder.unique(f"{one.name}.{what}")) for one in operands)

    def _reading(self, node: Node, states: Mapping[Value, Value]) -> Node:
        """The node where states are what the micro batch before has left."""
        read = states.keys() & set(node.operands)
        return replace(node, operands=renamed(node.operands, states)) if read else node

    # -- rows in and out, and sums

    def _dealt(self, value: Value, part: MicroRows) -> Value:
        """The value with its micro batches as a dim of their own."""
        return self._add(self.nodes, "Reshape", (value,), shape=_spread(value.type.shape, part, self.parts))

    def _take(self, nodes: list[Node], dealt: Value, part: MicroRows, at: tuple[Value, Value], into: Value) -> None:
        """The rows of one micro batch, as `into`."""
        starts = [at[0] if dim == part.dim + 1 else at[1] for dim in range(dealt.type.rank)]
        sizes = tuple(1 if dim == part.dim + 1 else size for dim, size in enumerate(dealt.type.shape))
        taken = self._add(nodes, "DynamicSlice", (dealt, *starts), sizes=sizes)
        self._add(nodes, "Reshape", (taken,), into, shape=into.type.shape)

    def _start(self, value: Value, form: Form) -> Value:
        """What is carried before the first micro batch: nothing yet."""
        if isinstance(form, MicroRows):
            shape = _spread(value.type.shape, form, self.parts)
            return self._add(self.nodes, "Fill", (), shape=shape, value=0, dtype=value.type.dtype.name)
        assert isinstance(form, MicroPartial)
        of = _wide(value.type)
        nothing = _nothing(form.reduction, of)
        return self._add(self.nodes, "Fill", (), shape=of.shape, value=nothing, dtype=of.dtype.name)

    def _give(self, nodes: list[Node], held: Value, made: Value, form: Form, at: tuple[Value, Value]) -> Value:
        """What is carried on: one more term, the rows of one more micro batch written where they belong, or a state."""
        if isinstance(form, MicroPartial):
            same = made.type.dtype == held.type.dtype
            term = made if same else self._add(nodes, "Cast", (made,), dtype=held.type.dtype.name)
            return self._add(nodes, ADDED_BY[form.reduction], (held, term))
        if not isinstance(form, MicroRows):
            return made
        shape = tuple(1 if dim == form.dim + 1 else size for dim, size in enumerate(held.type.shape))
        rows = self._add(nodes, "Reshape", (made,), shape=shape)
        starts = [at[0] if dim == form.dim + 1 else at[1] for dim in range(held.type.rank)]
        return self._add(nodes, "DynamicUpdateSlice", (held, rows, *starts))

    def _finish(self, value: Value, form: Form, result: Value) -> None:
        """The value of the step from what the loop has left, where that is another."""
        if result is value:
            return
        if isinstance(form, MicroRows):
            self._add(self.nodes, "Reshape", (result,), value, shape=value.type.shape)
        else:
            self._add(self.nodes, "Cast", (result,), value, dtype=value.type.dtype.name)

    # -- nodes

    def _number(self, nodes: list[Node], number: int) -> Value:
        return self._add(nodes, "Constant", (), value=Literal(np.asarray(number, _COUNT.dtype.numpy)))

    def _add(
        self, nodes: list[Node], name: str, operands: Sequence[Value], into: Value | None = None, **attrs: Any
    ) -> Value:
        op = lookup(name)
        full = op.check_attributes(attrs)
        (of,) = op.result_types(tuple(one.type for one in operands), full)
        made = into or Value(of, self.builder.unique(f"{self.name}.{name.lower()}"))
        nodes.append(Node(op, tuple(operands), full, (made,)))
        return made


def told_in_order(
    cotangents: Mapping[Value, Value], inputs: Iterable[Value], nodes: Iterable[Node]
) -> dict[Value, Value]:
    """The gradients that are made behind the values that they are of, and are of their type."""
    order = {value: i for i, value in enumerate(_in_order(inputs, nodes))}
    pairs = cotangents.items()
    return {grad: of for grad, of in pairs if grad.type == of.type and order.get(of, len(order)) < order.get(grad, -1)}


def _in_order(inputs: Iterable[Value], nodes: Iterable[Node]) -> Iterator[Value]:
    """All values in the order in which they are made; those of regions before the results of their node."""
    yield from inputs
    for node in nodes:
        for region in node.regions:
            yield from _in_order(region.args, region.nodes)
        yield from node.results


def _spread(shape: tuple[int, ...], part: MicroRows, parts: int) -> tuple[int, ...]:
    """The shape with the micro batches as the dim behind the rows; rows of one element have no dim for it."""
    whole = cut(shape, part, parts)
    return whole if part.inner > 1 else (*whole[: part.dim + 2], *whole[part.dim + 3 :])


def _wide(of: TensorType) -> TensorType:
    """The type in which terms are added up."""
    narrow = of.dtype.is_float and of.dtype.itemsize < 4
    return TensorType.of(of.shape, "f32") if narrow else of


def _nothing(reduction: str, of: TensorType) -> float:
    """What changes nothing when it is added, multiplied, or compared."""
    if reduction in ("sum", "prod"):
        return 0 if reduction == "sum" else 1
    if of.dtype.is_float:
        return -np.inf if reduction == "max" else np.inf
    if of.dtype.numpy.kind == "b":
        return 0 if reduction == "max" else 1
    limits = np.iinfo(of.dtype.numpy)
    return int(limits.min if reduction == "max" else limits.max)
