"""trace: run model code once on symbolic tensors, and keep what it did as a graph.

Beside the graph stand the strategies that the user gave (`annotations`) and the parameters that its inputs
stand for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoshard.errors import GraphError, RuntimeSetupError, ShapeError, at
from autoshard.ir.graph import DATA, PARAMETER, STATE, Builder, Graph, Node, Value
from autoshard.ops.primitive import current_primitive
from autoshard.ops.registry import Operator, lookup
from autoshard.source import Source, caller
from autoshard.tensortype import TensorType, type_of
from autoshard.trace.cell import Cell
from autoshard.trace.evaluate import evaluate
from autoshard.trace.parameter import Entry, Parameter, activate
from autoshard.trace.structure import flatten, unflatten
from autoshard.trace.tensor import Recorder, Tensor, snake


@dataclass(frozen=True)
class Annotation:
    """What a user fixed for one node: per operand and per result the parts of each dim, or a Layout."""

    in_strategy: tuple[Entry, ...] | None
    out_strategy: tuple[Entry, ...] | None = None
    source: Source | None = None


@dataclass(frozen=True, eq=False)
class Traced:
    """A graph, and what it means to the model that it came from.

    `arguments` and `results` are the nested structures of the arguments and of the returned value, with a
    `Leaf` for each tensor; the graph's data inputs and its first outputs are these leaves in order.
    """

    graph: Graph
    annotations: Mapping[Node, Annotation]
    parameters: Mapping[Value, Parameter]
    arguments: Any
    results: Any

    @property
    def updated(self) -> dict[int, Parameter]:
        """Position of an output -> the parameter whose new value it is."""
        inputs = self.graph.inputs
        return {out: self.parameters[inputs[into]] for out, into in self.graph.updates.items()}

    def inputs(self, *args: Any) -> list[np.ndarray]:
        """An array per input of the graph: the tensors among the arguments, and the parameters' values.

        Raises:
            RuntimeSetupError: arguments of another structure or type than those of the trace.
        """
        leaves, structure = flatten(args, _is_tensor)
        if structure != self.arguments:
            raise RuntimeSetupError(
                f"calling {self.graph.name!r}: the arguments must have the structure {self.arguments}, not {structure}"
            )
        arrays = iter(leaves)
        return [
            self.parameters[value].data if value in self.parameters else _fit(next(arrays)[1], value, self.graph.name)
            for value in self.graph.inputs
        ]

    def unpack(self, outputs: Sequence[Any]) -> Any:
        """The returned value, from the outputs of the graph."""
        return unflatten(self.results, outputs)

    def store(self, outputs: Sequence[np.ndarray]) -> None:
        """Write new values among the outputs back to the parameters that they belong to."""
        for out, parameter in self.updated.items():
            parameter.set_data(outputs[out])

    def __call__(self, *args: Any) -> Any:
        """Run the whole graph with numpy, updates included; the returned value of the model."""
        outputs = evaluate(self.graph, self.inputs(*args))
        self.store(outputs)
        return self.unpack(outputs)


def trace(fn: Callable, *example_args: Any, name: str | None = None) -> Traced:
    """Run `fn` once on symbolic tensors of the arguments' types and return its graph.

    Args:
        fn: a Cell or a function that calls cells and operators.
        example_args: arrays or TensorTypes, or nested tuples, lists and dicts of them; anything else is
            passed as is.
        name: the graph's name, by default that of the function or of the cell's class.

    Raises:
        GraphError: fn returns no tensor, or needs the numbers of a tensor.
        ShapeError: operands that do not fit; the message names the instance, the types and the source line.
    """
    recorder = TraceRecorder(Builder(name or _name_of(fn)))
    leaves, arguments = flatten(example_args, _is_tensor)
    names = _argument_names(fn, leaves)
    tensors = [recorder.data(one, label) for label, (_, one) in zip(names, leaves, strict=True)]
    with activate(recorder):
        returned = fn(*unflatten(arguments, tensors))
        found, results = flatten(returned, lambda part: isinstance(part, Tensor | Parameter | np.ndarray | np.generic))
        if not any(isinstance(one, Tensor | Parameter) for _, one in found):
            raise GraphError(
                f"tracing {recorder.builder.name!r}: it returned {_shown(returned)}, which holds no tensor"
            )
        outputs = [recorder.lift(one) for _, one in found]
    return recorder.finish(outputs, arguments, results)


@dataclass
class _Met:
    """A parameter met during a trace: its input, and its value at this point of the model."""

    parameter: Parameter
    value: Value
    tensor: Tensor
    updated: bool = field(default=False)


class TraceRecorder(Recorder):
    """Records a model: nodes are named by cells and primitives, parameters become inputs when met."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.annotations: dict[Node, Annotation] = {}
        self._met: dict[int, _Met] = {}
        self._cells: list[Cell] = []

    @staticmethod
    def resume(graph: Graph, traced: Traced) -> TraceRecorder:
        """A recorder that goes on where `traced` ended, with the nodes of `graph` (its own, maybe more)."""
        recorder = TraceRecorder(Builder.after(graph, graph.name))
        recorder.annotations.update(traced.annotations)
        following = {into: out for out, into in traced.graph.tied.items()}
        for value, parameter in traced.parameters.items():
            tensor = Tensor(following.get(value, value), recorder)
            recorder._met[id(parameter)] = _Met(parameter, value, tensor, value in following)
        return recorder

    def data(self, example: Any, name: str) -> Tensor:
        """A data input of the example's type."""
        return Tensor(self.builder.input(_type_of(example), name, DATA), self)

    # -- names and annotations

    def describe(self, op: Operator) -> tuple[str, Source | None]:
        primitive = current_primitive()
        own = primitive is not None and primitive.operator is op
        return (self._primitive_name(primitive) if own else self._here(snake(op.name))), caller()

    def _here(self, name: str) -> str:
        path = self._cells[-1].path if self._cells else ""
        return f"{path}.{name}" if path else name

    def _primitive_name(self, primitive: Any) -> str:
        """The path of the cell that holds it; one that no cell on the way holds is named from here."""
        for cell in reversed(self._cells):
            label = cell.label_of(primitive)
            if label is not None:
                return f"{cell.path}.{label}" if cell.path else label
        return self._here(primitive.name or snake(primitive.operator.name))

    def noted(self, node: Node) -> None:
        primitive = current_primitive()
        if primitive is None or primitive.operator is not node.op:
            return
        if primitive.in_strategy is not None or primitive.out_strategy is not None:
            self.annotations[node] = Annotation(primitive.in_strategy, primitive.out_strategy, primitive.source)

    def _fixed(self, tensor: Tensor, name: str, entry: Entry, source: Source | None) -> Tensor:
        """The tensor behind an Identity node that carries the strategy."""
        if entry is None:
            return tensor
        node = self.builder.add(lookup("Identity"), [tensor.value], {}, self._names.unique(name), source or caller())
        self.annotations[node] = Annotation((entry,), None, source)
        return Tensor(node.results[0], self)

    # -- cells

    @contextmanager
    def _inside(self, cell: Cell) -> Iterator[None]:
        self._cells.append(cell)
        try:
            yield
        finally:
            self._cells.pop()

    def call(self, cell: Cell, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Apply a cell: its path names its nodes, its `shard` strategies fix its inputs and outputs."""
        with self._inside(cell):
            args, kwargs = self._shard_tensors(cell, (args, kwargs), cell.in_strategy, "input")
            return self._shard_tensors(cell, cell.construct(*args, **kwargs), cell.out_strategy, "output")

    def _shard_tensors(self, cell: Cell, tree: Any, given: Sequence[Entry] | None, what: str) -> Any:
        if given is None:
            return tree
        leaves, structure = flatten(tree, lambda part: isinstance(part, Tensor | Parameter))
        if len(leaves) != len(given):
            raise ShapeError(
                f"{cell.path or type(cell).__name__}.shard{at(cell.shard_source)}: {len(given)} "
                f"strategies for {len(leaves)} {what} tensors; give one per tensor, None to leave one open"
            )
        fixed = [
            self._fixed(Tensor(self.lift(one), self), self._here(f"{what}{i}"), entry, cell.shard_source)
            for i, ((_, one), entry) in enumerate(zip(leaves, given, strict=True))
        ]
        return unflatten(structure, fixed)

    # -- parameters

    def _meet(self, parameter: Parameter) -> _Met:
        met = self._met.get(id(parameter))
        if met is None:
            value = self.builder.input(parameter.type, parameter.name, PARAMETER)
            tensor = self._fixed(
                Tensor(value, self), f"{parameter.name}.shard", parameter.in_strategy, parameter.source
            )
            met = self._met[id(parameter)] = _Met(parameter, value, tensor)
        return met

    def parameter(self, parameter: Parameter) -> Tensor:
        return self._meet(parameter).tensor

    def assign(self, parameter: Parameter, new: Any) -> None:
        """From here on the parameter is `new`, and so is the graph's input in the next step.

        Raises:
            ShapeError: a value of another type.
        """
        met = self._meet(parameter)
        value = self.lift(new, [parameter.dtype])
        if value.type != parameter.type:
            raise ShapeError(f"assigning {value.type} to {parameter.name}, which is {parameter.type}{at(caller())}")
        met.tensor, met.updated = Tensor(value, self), True

    def finish(self, outputs: Sequence[Value], arguments: Any, results: Any) -> Traced:
        """The graph with the given outputs, followed by the new values of updated parameters."""
        position = {value: i for i, value in enumerate(self.builder.inputs)}
        changed = [met for met in self._met.values() if met.updated]
        for met in changed:
            if not met.parameter.requires_grad:
                self.builder.roles[position[met.value]] = STATE
        updates = {len(outputs) + i: position[met.value] for i, met in enumerate(changed)}
        graph = self.builder.build([*outputs, *(met.tensor.value for met in changed)], updates)
        parameters = {met.value: met.parameter for met in self._met.values()}
        return Traced(graph, self.annotations, parameters, arguments, results)


def _is_tensor(part: object) -> bool:
    return isinstance(part, np.ndarray | TensorType | np.generic)


def _type_of(example: Any) -> TensorType:
    return example if isinstance(example, TensorType) else type_of(np.asarray(example))


def _name_of(fn: Any) -> str:
    if isinstance(fn, Cell):
        return snake(type(fn).__name__)
    return getattr(fn, "__name__", type(fn).__name__).replace("<lambda>", "main")


def _argument_names(fn: Any, leaves: Sequence[tuple[str, Any]]) -> list[str]:
    """`x`, `batch.label`: the path of each leaf with the parameter's name in place of its position."""
    target = fn.construct if isinstance(fn, Cell) else fn
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    heads_and_tails = [path.partition(".") for path, _ in leaves]
    heads = [plain[int(head)] if int(head) < len(plain) else f"{rest}{head}" for head, _, _ in heads_and_tails]
    return [f"{head}.{tail}" if tail else head for head, (_, _, tail) in zip(heads, heads_and_tails, strict=True)]


def _fit(array: Any, value: Value, graph: str) -> np.ndarray:
    array = np.asarray(array)
    if array.shape != value.type.shape or not np.can_cast(array.dtype, value.type.dtype.numpy, "same_kind"):
        raise RuntimeSetupError(f"calling {graph!r}: {value.name} is {value.type}, but got {type_of(array)}")
    return array.astype(value.type.dtype.numpy, copy=False)


def _shown(returned: Any) -> str:
    return "nothing (is a return missing?)" if returned is None else f"{returned!r} ({type(returned).__name__})"
