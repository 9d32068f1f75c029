"""Symbolic tensors and the recorder that turns operator calls on them into nodes of a graph.

A `TracedTensor` is a value of a graph under construction. Applying a registered operator to it asks its recorder,
which lifts numbers and arrays among the operands to constants, adds the node, and says what is wrong if it
does not fit. `Recorder.region` records what a Python function does as the body of a loop, a branch or the like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

import autoshard.ops
from autoshard.core.tensortype import DType, TensorType, dtype
from autoshard.ir.graph import Builder, Node, Region, Value, walk
from autoshard.layout.mesh import Mesh
from autoshard.ops.attributes import Literal
from autoshard.ops.registry import Operator, lookup
from autoshard.trace.arithmetic import Arithmetic, is_number
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import GraphError, ShapeError, at
from autoshard.util.source import Source, caller


class TracedTensor(Arithmetic):
    """A value of the graph that `recorder` builds; it has a type but no numbers yet."""

    def __init__(self, value: Value, recorder: Recorder) -> None:
        self.value = value
        self.recorder = recorder

    @property
    def type(self) -> TensorType:
        return self.value.type

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.value.type.shape

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.value.type.dtype

    def __repr__(self) -> str:
        return f"Tensor({self.value.name}: {self.type})"

    def __autoshard_apply__(self, op: Operator, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        return self.recorder.apply(op, operands, attrs)

    def _unknown(self, use: str) -> NoReturn:
        raise GraphError(
            f"{use} needs the numbers of the tensor {self.value.name} ({self.type}){at(caller())}, but while "
            f"a model is traced a tensor has only a type; choose between tensors with ops.select(condition, "
            f"x, y), or decide by Python values such as shapes and attributes of the cell"
        )

    def __bool__(self) -> bool:
        self._unknown("a condition (if, while, and, or, not, assert)")

    def __float__(self) -> float:
        self._unknown("float()")

    def __int__(self) -> int:
        self._unknown("int()")

    def __index__(self) -> int:
        self._unknown("an index or range()")

    def item(self) -> Any:
        self._unknown(".item()")

    def asnumpy(self) -> np.ndarray:
        self._unknown(".asnumpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._unknown("a conversion to numpy")

    def to_numpy(self, function: str) -> NoReturn:
        near = f"autoshard.ops.{function}" if function in vars(autoshard.ops) else "autoshard.ops"
        self._unknown(f"numpy.{function} ({near} is for tensors)")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        self.to_numpy(function.__name__)


@dataclass(frozen=True)
class Enclosure:
    """A manual computation whose body is being recorded: its mesh, its manual axes and those around it, and values
    from outside with the arguments that stand for them inside.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    brought: dict[Value, Value] = field(default_factory=dict)


class Recorder:
    """Adds a node to `builder` for each operator call; subclasses say how nodes are called and what more to
    note.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._names = Builder("node names")
        self._around: list[list[Node]] = []
        self._gone: set[Value] = set()
        self.enclosures: list[Enclosure] = []
        self._level: dict[Value, int] = {}
        self._groups: dict[object, int] = {}
        self.know_names(builder.nodes)

    def know_names(self, nodes: Sequence[Node]) -> None:
        """Note the names of nodes, and the numbers of sharding groups, that another recorder added."""
        for node in walk(nodes):
            self._names.unique(node.name)
            if node.op.name == "ShardingGroup":
                self._groups.setdefault(node.attrs["group"], node.attrs["group"])

    def describe(self, op: Operator) -> tuple[str, Source | None]:
        """Instance name (not yet unique) and source line for the node of the call under way."""
        return snake(op.name), caller()

    def noted(self, node: Node) -> None:
        """Called with each new node."""

    def parameter(self, parameter: Parameter) -> TracedTensor:
        """The tensor of a model's parameter."""
        raise GraphError(f"parameter {parameter.name} is used outside of a trace, next to a tensor of one")

    def tensor(self, value: Value) -> TracedTensor:
        return TracedTensor(value, self)

    def apply(self, op: Operator, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Add the node; a tensor if it has one result, else a tuple of them. Raises as `add` does."""
        tensors = self.add(op, operands, attrs)
        return tensors[0] if len(tensors) == 1 else tensors

    def add(
        self, op: Operator, operands: Sequence[Any], attrs: Mapping[str, Any], regions: tuple[Region, ...] = ()
    ) -> tuple[TracedTensor, ...]:
        """Add the node; a tensor per result.

        Raises:
            ShapeError: operands that the operator cannot take.
            GraphError: tensors of another graph, or of a region that is closed.
        """
        near = [dtype(one.dtype) for one in operands if isinstance(one, Arithmetic | np.ndarray)]
        values = [self.lift(one, near) for one in operands]
        name, source = self.describe(op)
        name = self._names.unique(name)
        try:
            node = self.builder.add(op, values, attrs, name, source, regions=regions)
        except ShapeError as error:
            raise ShapeError(_misfit(name, values, source, error)) from None
        self.noted(node)
        return self.made(node)

    def made(self, node: Node) -> tuple[TracedTensor, ...]:
        """The tensors of a node that was added here."""
        self._belong_here(node.results)
        return tuple(TracedTensor(value, self) for value in node.results)

    def lift(self, operand: Any, near: Sequence[DType] = ()) -> Value:
        """The value of an operand; numbers and arrays become constants, numbers of a type like `near`."""
        if isinstance(operand, TracedTensor):
            if operand.recorder is not self:
                raise GraphError(
                    f"tensor {operand.value.name} ({operand.type}) belongs to the graph "
                    f"{operand.recorder.builder.name!r}, not to {self.builder.name!r}{at(caller())}; "
                    f"a tensor must not be kept from one trace to another"
                )
            return self._reached(operand.value)
        if isinstance(operand, Parameter):
            return self._reached(self.parameter(operand).value)
        if is_number(operand):
            return self.fill((), operand, number_type(operand, near)).value
        return self.constant(operand).value

    def fill(self, shape: Sequence[int], number: Any, element: DType) -> TracedTensor:
        """A tensor with the same number everywhere."""
        fill = lookup("Fill")
        return self.apply(fill, (), fill.check_attributes(_fill_attributes(shape, number, element)))

    def constant(self, data: Any) -> TracedTensor:
        """A tensor with the numbers of an array; one of equal numbers needs no array."""
        array = np.asarray(data)
        if array.dtype.kind == "V" and array.dtype.names is None and dtype(array.dtype).extended:
            return self._of_extended(array)
        if array.dtype.kind == "c":
            return self.apply(lookup("Complex"), (self.constant(np.real(array)), self.constant(np.imag(array))), {})
        if array.dtype.kind not in "fiub":
            raise ShapeError(f"an operand is {data!r} ({type(data).__name__}), which is no tensor{at(caller())}")
        if array.size and (array == array.flat[0]).all():
            return self.fill(array.shape, array.flat[0].item(), dtype(array.dtype))
        constant = lookup("Constant")
        return self.apply(constant, (), constant.check_attributes({"value": Literal(array)}))

    def _of_extended(self, array: np.ndarray) -> TracedTensor:
        """A constant of a type that numpy lacks, such as bf16: its numbers as f32, made that type in the graph."""
        known = dtype(array.dtype)
        wide = array.astype(np.float32)
        if wide.size and (wide == wide.flat[0]).all():
            return self.fill(wide.shape, wide.flat[0].item(), known)
        cast = lookup("Cast")
        return self.apply(cast, (self.constant(wide),), cast.check_attributes({"dtype": known.name}))

    # -- regions

    def region(
        self, body: Callable[..., Sequence[Value]], types: Sequence[TensorType], stem: str, *, names: Sequence[str] = ()
    ) -> Region:
        """What `body` does with a tensor per type; it returns the values that the region yields.

        Args:
            stem: what names of the arguments start with; `names` are the rest of them.
        """
        self._around.append(self.builder.nodes)
        self.builder.nodes = []
        labels = names or ("",) * len(types)
        stems = (f"{stem}.{label}" if label else stem for label in labels)
        args = tuple(Value(of, self.builder.unique(name)) for of, name in zip(types, stems, strict=True))
        self._belong_here(args)
        try:
            outputs = tuple(body(*(TracedTensor(value, self) for value in args)))
            region = Region(args, tuple(self.builder.nodes), outputs)
        finally:
            self.builder.nodes = self._around.pop()
        self._gone.update(region.values)
        return region

    @property
    def in_region(self) -> bool:
        return bool(self._around)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Add nodes to the graph itself, before the node whose region is being recorded."""
        inside = self.builder.nodes
        self.builder.nodes = self._around[0] if self._around else inside
        try:
            yield
        finally:
            self.builder.nodes = inside

    @contextmanager
    def enclosed(self, enclosure: Enclosure) -> Iterator[None]:
        """Record the body of a manual computation, which takes what it uses from outside as arguments."""
        self.enclosures.append(enclosure)
        try:
            yield
        finally:
            self.enclosures.pop()
        self._gone.update(enclosure.brought.values())

    def group(self, name: str | None) -> int:
        """The number of the sharding group of that name, or of one of its own for None."""
        number = max(self._groups.values(), default=-1) + 1
        return self._groups.setdefault(object() if name is None else name, number)

    def _belong_here(self, values: Sequence[Value]) -> None:
        if self.enclosures:
            self._level.update(dict.fromkeys(values, len(self.enclosures)))

    def _reached(self, value: Value) -> Value:
        """The value by which nodes here use `value`: inside of manual computations an argument stands for it.

        Raises:
            GraphError: it is inside a region that is closed.
        """
        if value in self._gone:
            raise GraphError(
                f"tensor {value.name} ({value.type}) was made inside a loop, branch or manual computation and is "
                f"used outside of it{at(caller())}; return it from the body instead"
            )
        for level in range(self._level.get(value, 0), len(self.enclosures)):
            value = self._brought(value, level)
        return value

    def _brought(self, value: Value, level: int) -> Value:
        brought = self.enclosures[level].brought
        if value not in brought:
            inner = brought[value] = Value(value.type, self.builder.unique(value.name))
            self._level[inner] = level + 1
        return brought[value]


def snake(name: str) -> str:
    """`ReduceSum` -> `reduce_sum`, `GeLUGrad` -> `gelu_grad`, `GatherD` -> `gather_d`; MatMul and ViT are one word."""
    name = name.replace("MatMul", "Matmul")
    return re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z][a-z])|(?<=[a-z]{2})(?=[A-Z]$)", "_", name).lower()


def _fill_attributes(shape: Sequence[int], number: Any, element: DType) -> dict[str, Any]:
    kind = float if element.is_float else bool if element.name == "bool" else int
    return {"shape": tuple(shape), "value": kind(number), "dtype": element.name}


def number_type(number: Any, near: Sequence[DType]) -> DType:
    """A float takes the widest float type near it, a whole number the widest number type; else f32, i32."""
    if isinstance(number, bool | np.bool_):
        return dtype("bool")
    floats = [one for one in near if one.is_float]
    if floats or isinstance(number, float | np.floating):
        return max(floats, key=lambda one: one.itemsize, default=dtype("f32"))
    whole = [one for one in near if one.name != "bool"]
    return max(whole, key=lambda one: one.itemsize, default=dtype("i32"))


def _misfit(name: str, values: Sequence[Value], source: Source | None, error: ShapeError) -> str:
    shown = ", ".join(str(value.type) for value in values)
    types = "" if shown in str(error) or not shown else f"; operands {shown}"
    line = f"\n    {source.text}" if source is not None and source.text else ""
    return f"{name}{at(source)}: {error}{types}{line}"
