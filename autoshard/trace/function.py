"""trace: run model code once on symbolic tensors, and keep what it did as a graph.

Beside the graph stand the strategies that the user gave (`annotations`) and the parameters that its inputs
stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from autoshard.core.tensortype import TOKEN, TensorType, type_of
from autoshard.ir.graph import DATA, PARAMETER, STATE, Builder, Graph, Node, Value
from autoshard.ops.primitive import current_primitive, named_primitive
from autoshard.ops.registry import Operator, lookup
from autoshard.trace.arguments import argument_names, by_position, check_count
from autoshard.trace.asking import constrained
from autoshard.trace.cell import Cell, stages_of_cells
from autoshard.trace.evaluate import evaluate
from autoshard.trace.parameter import Entry, Parameter, activate, cast_to, computed_type
from autoshard.trace.specs import Requests, Specs
from autoshard.trace.structure import flatten, shown, unflatten
from autoshard.trace.tensor import Recorder, TracedTensor, snake
from autoshard.util.errors import GraphError, RuntimeSetupError, ShapeError, at
from autoshard.util.source import Source, caller


@dataclass(frozen=True)
class NodeAnnotation:
    """What a user fixed for one node: per operand and per result the parts of each dim, or a Layout.

    `called` is what the user calls the operator, where that is another name than its own.
    """

    in_strategy: tuple[Entry, ...] | None
    out_strategy: tuple[Entry, ...] | None = None
    source: Source | None = None
    called: str = ""


@dataclass(frozen=True, eq=False)
class Traced:
    """A graph, and what it means to the model that it came from.

    `arguments` and `results` are the nested structures of the arguments and of the returned value, with a
    `Leaf` for each tensor; the graph's data inputs and its first outputs are these leaves in order. `stages` are those
    of a pipeline that parts of the model are given to, by patterns of names: as its cells bear them, or by `annotate`.
    """

    graph: Graph
    annotations: Mapping[Node, NodeAnnotation]
    parameters: Mapping[Value, Parameter]
    arguments: Any
    results: Any
    asked: Specs = field(default_factory=Specs)
    stages: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def _data(self) -> tuple[Value, ...]:
        """The inputs that arguments stand for."""
        return tuple(value for value in self.graph.inputs if value not in self.parameters)

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
        arrays = iter(self.data(*args))
        return [
            self.parameters[value].data if value in self.parameters else next(arrays) for value in self.graph.inputs
        ]

    def data(self, *args: Any) -> list[np.ndarray]:
        """The tensors among the arguments, in the order of the graph's inputs of data.

        Raises:
            RuntimeSetupError: arguments of another structure or type than those of the trace.
        """
        leaves, structure = flatten(args, _is_array)
        values = self._data
        if structure != self.arguments:
            wanted = shown(self.arguments, [f"{value.name}: {value.type}" for value in values])
            raise RuntimeSetupError(
                f"calling {self.graph.name!r}: the arguments must be arrays nested as in {wanted}, not "
                f"{shown(structure, [str(type_of(np.asarray(one))) for _, one in leaves])}"
            )
        return [_fit(one, value, self.graph.name) for (_, one), value in zip(leaves, values, strict=True)]

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


def trace(
    fn: Callable, *example_args: Any, name: str | None = None, in_shardings: Any = None, out_shardings: Any = None
) -> Traced:
    """Run `fn` once on symbolic tensors of the arguments' types and return its graph.

    Args:
        fn: a Cell or a function that calls cells and operators.
        example_args: arrays or TensorTypes, or nested tuples, lists and dicts of them; anything else is
            passed as is.
        name: the graph's name, by default that of the function or of the cell's class.
        in_shardings: what is asked of the inputs: an entry per argument that `Spec.of` takes, nested where the argument
            is, None where nothing is asked; or a dict by the arguments' names. By default a cell's own `in_shardings`.
        out_shardings: the same of what is returned, nested as that is.

    Raises:
        GraphError: fn returns no tensor, or needs the numbers of a tensor.
        ShardingError: shardings of another structure than the arguments, or for another number of dims.
        ShapeError: operands that do not fit; the message names the instance, the types and the source line.

    >>> import numpy as np
    >>> from autoshard import ops, trace
    >>> graph = trace(lambda x, w: ops.relu(ops.matmul(x, w)), np.ones((4, 6)), np.ones((6, 10))).graph
    >>> [node.op.name for node in graph.nodes]
    ['MatMul', 'ReLU']
    """
    recorder = TraceRecorder(Builder(name or _name_of(fn)))
    check_count(fn, len(example_args), f"tracing {recorder.builder.name!r}")
    leaves, arguments = flatten(example_args, _is_tensor)
    names = argument_names(fn, leaves)
    tensors = [recorder.data(one, label) for label, (_, one) in zip(names, leaves, strict=True)]
    asked_in = asked_out = None
    if isinstance(fn, Cell):
        recorder.outermost = fn
        asked_in, asked_out = (fn.annotation_sources.get(name) for name in ("in_shardings", "out_shardings"))
        in_shardings, asked_in = (fn.in_shardings, asked_in) if in_shardings is None else (in_shardings, None)
        out_shardings, asked_out = (fn.out_shardings, asked_out) if out_shardings is None else (out_shardings, None)
    by_place = by_position(in_shardings, fn, len(example_args), "in_shardings")
    recorder.requests.note_inputs([one.value for one in tensors], arguments, by_place, recorder.builder.name, asked_in)
    with activate(recorder):
        returned = fn(*unflatten(arguments, tensors))
        found, results = flatten(
            returned, lambda part: isinstance(part, TracedTensor | Parameter | np.ndarray | np.generic)
        )
        if not any(isinstance(one, TracedTensor | Parameter) for _, one in found):
            raise GraphError(
                f"tracing {recorder.builder.name!r}: it returned {_shown(returned)}, which holds no tensor"
            )
        outputs = [recorder.lift(one) for _, one in found]
    recorder.requests.note_outputs(outputs, results, out_shardings, recorder.builder.name, asked_out)
    found = recorder.finish(outputs, arguments, results)
    return replace(found, stages=stages_of_cells(fn)) if isinstance(fn, Cell) else found


@dataclass
class _Met:
    """A parameter met during a trace: its input, and its value at this point of the model."""

    parameter: Parameter
    value: Value
    tensor: TracedTensor
    updated: bool = field(default=False)


class TraceRecorder(Recorder):
    """Records a model: nodes are named by cells and primitives, parameters become inputs when met."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.annotations: dict[Node, NodeAnnotation] = {}
        self._met: dict[int, _Met] = {}
        # What primitives made, of whose results a model may use some.
        self._of_primitives: set[Node] = set()
        self._cells: list[Cell] = []
        self.outermost: Cell | None = None
        self._place: tuple[str, Source | None] | None = None
        self.requests = Requests()

    @staticmethod
    def resume(graph: Graph, traced: Traced) -> TraceRecorder:
        """A recorder that goes on where `traced` ended, with the nodes of `graph` (its own, maybe more)."""
        recorder = TraceRecorder(Builder.after(graph, graph.name))
        recorder.annotations.update(traced.annotations)
        recorder.requests = Requests.after(traced.asked)
        following = {into: out for out, into in traced.graph.tied.items()}
        for value, parameter in traced.parameters.items():
            tensor = TracedTensor(following.get(value, value), recorder)
            recorder._met[id(parameter)] = _Met(parameter, value, tensor, value in following)
        return recorder

    def data(self, example: Any, name: str) -> TracedTensor:
        """A data input of the example's type.

        Raises:
            ShapeError: it holds no numbers.
        """
        try:
            of = _type_of(example)
        except ShapeError as error:
            raise ShapeError(f"the input {name!r} is no array of numbers: {error}") from None
        return TracedTensor(self.builder.input(of, name, DATA), self)

    # -- names and annotations

    def describe(self, op: Operator) -> tuple[str, Source | None]:
        if self._place is not None:
            path, source = self._place
            return (f"{path}.{snake(op.name)}" if path else snake(op.name)), source or caller()
        primitive = current_primitive()
        own = primitive is not None and primitive.operator is op
        return (self._primitive_name(primitive) if own else self._here(snake(op.name))), caller()

    @contextmanager
    def at(self, path: str, source: Source | None) -> Iterator[None]:
        """Name nodes after `path` and say that they come from `source`, for models that are read, not run."""
        before, self._place = self._place, (path, source)
        try:
            yield
        finally:
            self._place = before

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
        if primitive is not None:
            self._of_primitives.add(node)
        if primitive is None or primitive.operator is not node.op:
            return
        if primitive.in_strategy is not None or primitive.out_strategy is not None:
            given = primitive.in_strategy, primitive.out_strategy, primitive.source
            self.annotations[node] = NodeAnnotation(*given, type(primitive).__name__)

    def _fixed(self, tensor: TracedTensor, name: str, entry: Entry, source: Source | None) -> TracedTensor:
        """The tensor behind an Identity node that carries the strategy."""
        if entry is None:
            return tensor
        node = self.builder.add(lookup("Identity"), [tensor.value], {}, self._names.unique(name), source or caller())
        self.annotations[node] = NodeAnnotation((entry,), None, source)
        return self.made(node)[0]

    # -- cells

    @contextmanager
    def _inside(self, cell: Cell) -> Iterator[None]:
        self._cells.append(cell)
        try:
            yield
        finally:
            self._cells.pop()

    def call(self, cell: Cell, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Apply a cell: its path names its nodes, its `shard` strategies fix its inputs and outputs, and what it asks
        of them becomes constraints, unless they are those of the graph.
        """
        asks = self._cells or cell is not self.outermost
        with self._inside(cell):
            args, kwargs = self._shard_tensors(cell, (args, kwargs), cell.in_strategy, "input")
            if asks and cell.in_shardings is not None:
                args, kwargs = self._constrain_arguments(cell, args, kwargs)
            returned = self._shard_tensors(cell, cell.construct(*args, **kwargs), cell.out_strategy, "output")
            if asks and cell.out_shardings is not None:
                returned = constrained(returned, cell.out_shardings, f"{_named(cell)}.out_shardings")
            return returned

    def _constrain_arguments(self, cell: Cell, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        given, what = cell.in_shardings, f"{_named(cell)}.in_shardings"
        by_name = isinstance(given, Mapping)
        named = {name: given[name] for name in kwargs if name in given} if by_name else {}
        rest = {name: entry for name, entry in given.items() if name not in named} if by_name else given
        args = constrained(args, by_position(rest, cell, len(args), what), what)
        return args, constrained(kwargs, named, what)

    def _shard_tensors(self, cell: Cell, tree: Any, given: Sequence[Entry] | None, what: str) -> Any:
        if given is None:
            return tree
        leaves, structure = flatten(tree, lambda part: isinstance(part, TracedTensor | Parameter))
        if len(leaves) != len(given):
            raise ShapeError(
                f"{cell.path or type(cell).__name__}.shard{at(cell.shard_source)}: {len(given)} "
                f"strategies for {len(leaves)} {what} tensors; give one per tensor, None to leave one open"
            )
        fixed = [
            self._fixed(TracedTensor(self.lift(one), self), self._here(f"{what}{i}"), entry, cell.shard_source)
            for i, ((_, one), entry) in enumerate(zip(leaves, given, strict=True))
        ]
        return unflatten(structure, fixed)

    # -- parameters

    def _meet(self, parameter: Parameter) -> _Met:
        met = self._met.get(id(parameter))
        if met is None:
            value = self.builder.input(parameter.type, parameter.name, PARAMETER)
            tensor = self._entering(parameter, TracedTensor(value, self))
            met = self._met[id(parameter)] = _Met(parameter, value, tensor)
            if parameter.sharding is not None:
                self.requests.note(value, value, parameter.sharding, parameter.annotation_source)
        return met

    def _entering(self, parameter: Parameter, tensor: TracedTensor) -> TracedTensor:
        """The tensor behind the node that carries the parameter's strategy, wherever the parameter is met first."""
        if parameter.in_strategy is None:
            return tensor
        enclosures, self.enclosures = self.enclosures, []
        try:
            with self.outside():
                return self._fixed(tensor, f"{parameter.name}.shard", parameter.in_strategy, parameter.source)
        finally:
            self.enclosures = enclosures

    def parameter(self, parameter: Parameter) -> TracedTensor:
        return cast_to(computed_type(), self._meet(parameter).tensor)

    def assign(self, parameter: Parameter, new: Any) -> None:
        """From here on the parameter is `new`, and so is the graph's input in the next step.

        Raises:
            ShapeError: a value of another type.
            GraphError: it is assigned inside a loop, branch or manual computation.
        """
        if self.in_region:
            raise GraphError(
                f"{parameter.name} is assigned inside a loop, branch or manual computation{at(caller())}; return the "
                "new value from the body and assign it behind"
            )
        met = self._meet(parameter)
        value = self.lift(new, [parameter.dtype])
        if value.type != parameter.type:
            raise ShapeError(f"assigning {value.type} to {parameter.name}, which is {parameter.type}{at(caller())}")
        met.tensor, met.updated = TracedTensor(value, self), True

    @contextmanager
    def only_if(self, condition: TracedTensor) -> Iterator[None]:
        """Let what is assigned inside hold where the condition does; elsewhere parameters stay as they were."""
        before = {key: met.tensor for key, met in self._met.items()}
        yield
        for key, met in self._met.items():
            old = before.get(key, TracedTensor(met.value, self))
            if met.updated and met.tensor is not old:
                met.tensor = named_primitive("Select", f"kept.{met.parameter.name}")(condition, met.tensor, old)

    def finish(self, outputs: Sequence[Value], arguments: Any, results: Any) -> Traced:
        """The graph with the given outputs, followed by the new values of updated parameters."""
        position = {value: i for i, value in enumerate(self.builder.inputs)}
        changed = [met for met in self._met.values() if met.updated]
        for met in changed:
            if not met.parameter.requires_grad:
                self.builder.roles[position[met.value]] = STATE
        updates = {len(outputs) + i: position[met.value] for i, met in enumerate(changed)}
        ends = [*outputs, *(met.tensor.value for met in changed)]
        self.builder.nodes = _without_unused(self.builder.nodes, ends, self._of_primitives - self.annotations.keys())
        graph = self.builder.build(ends, updates)
        parameters = {met.value: met.parameter for met in self._met.values()}
        # A new value lies as the parameter does.
        asked = self.requests.specs(len(outputs), [met.value for met in changed])
        return Traced(graph, self.annotations, parameters, arguments, results, asked)


def _without_unused(nodes: list[Node], ends: Sequence[Value], unless_used: set[Node]) -> list[Node]:
    """The nodes, of these ones only those whose results are used."""
    needed, kept = set(ends), []
    for node in reversed(nodes):
        if node not in unless_used or not needed.isdisjoint(node.results) or node.op.has_effects(node.attrs):
            kept.append(node)
            needed.update(node.uses)
    return kept[::-1]


def known_trace(target: Any) -> Traced | None:
    """What is traced already, or what traces itself, as imported models do; None of anything else.

    An AttributeError on the way is an error of what is traced, and does not mean that there is no trace.
    """
    if isinstance(target, Traced):
        return target
    if not hasattr(type(target), "traced") and "traced" not in getattr(target, "__dict__", {}):
        return None
    return target.traced if isinstance(target.traced, Traced) else None


def _is_tensor(part: object) -> bool:
    return isinstance(part, np.ndarray | TensorType | np.generic)


def _is_array(part: object) -> bool:
    """Whether it is an array of values: numpy's, or one of another framework that numpy reads."""
    return _is_tensor(part) or (hasattr(part, "__array__") and hasattr(part, "shape"))


def _type_of(example: Any) -> TensorType:
    return example if isinstance(example, TensorType) else type_of(np.asarray(example))


def _name_of(fn: Any) -> str:
    if isinstance(fn, Cell):
        return snake(type(fn).__name__)
    return getattr(fn, "__name__", type(fn).__name__).replace("<lambda>", "main")


def _named(cell: Cell) -> str:
    return cell.path or type(cell).__name__


def _fit(array: Any, value: Value, graph: str) -> np.ndarray:
    try:
        array = np.asarray(array)
    except (RuntimeError, TypeError) as error:
        raise RuntimeSetupError(
            f"calling {graph!r}: {value.name} is {value.type}, but numpy reads no values of what is given: {error}"
        ) from error
    if value.type.dtype is TOKEN:
        return np.zeros((), bool)  # it has no contents
    if array.shape != value.type.shape or not np.can_cast(array.dtype, value.type.dtype.numpy, "same_kind"):
        raise RuntimeSetupError(f"calling {graph!r}: {value.name} is {value.type}, but got {type_of(array)}")
    return array.astype(value.type.dtype.numpy, copy=False)


def _shown(returned: Any) -> str:
    return "nothing (is a return missing?)" if returned is None else f"{returned!r} ({type(returned).__name__})"
