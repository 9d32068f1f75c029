"""Symbolic tensors and the recorder that turns operator calls on them into nodes of a graph.

A `Tensor` is a value of a graph under construction. Applying a registered operator to it asks its recorder,
which lifts numbers and arrays among the operands to constants, adds the node, and says what is wrong if it
does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from autoshard.errors import GraphError, ShapeError, at
from autoshard.ir.graph import Builder, Node, Value
from autoshard.ops.registry import Literal, Operator, lookup
from autoshard.source import Source, caller
from autoshard.tensortype import DType, TensorType, dtype
from autoshard.trace.arithmetic import Arithmetic, is_number
from autoshard.trace.parameter import Parameter


class Tensor(Arithmetic):
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

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        self._unknown(f"numpy.{function.__name__} (autoshard.ops has operators for tensors)")


class Recorder:
    """Adds a node to `builder` for each operator call; subclasses say how nodes are called and what more to
    note.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._names = Builder("node names")
        for node in builder.nodes:
            self._names.unique(node.name)

    def describe(self, op: Operator) -> tuple[str, Source | None]:
        """Instance name (not yet unique) and source line for the node of the call under way."""
        return snake(op.name), caller()

    def noted(self, node: Node) -> None:
        """Called with each new node."""

    def parameter(self, parameter: Parameter) -> Tensor:
        """The tensor of a model's parameter."""
        raise GraphError(f"parameter {parameter.name} is used outside of a trace, next to a tensor of one")

    def tensor(self, value: Value) -> Tensor:
        return Tensor(value, self)

    def apply(self, op: Operator, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Add the node; a tensor per result.

        Raises:
            ShapeError: operands that the operator cannot take.
            GraphError: tensors of another graph.
        """
        near = [dtype(one.dtype) for one in operands if isinstance(one, Arithmetic | np.ndarray)]
        values = [self.lift(one, near) for one in operands]
        name, source = self.describe(op)
        name = self._names.unique(name)
        try:
            node = self.builder.add(op, values, attrs, name, source)
        except ShapeError as error:
            raise ShapeError(_misfit(name, values, source, error)) from None
        self.noted(node)
        tensors = tuple(Tensor(value, self) for value in node.results)
        return tensors[0] if len(tensors) == 1 else tensors

    def lift(self, operand: Any, near: Sequence[DType] = ()) -> Value:
        """The value of an operand; numbers and arrays become constants, numbers of a type like `near`."""
        if isinstance(operand, Tensor):
            if operand.recorder is not self:
                raise GraphError(
                    f"tensor {operand.value.name} ({operand.type}) belongs to the graph "
                    f"{operand.recorder.builder.name!r}, not to {self.builder.name!r}{at(caller())}; "
                    f"a tensor must not be kept from one trace to another"
                )
            return operand.value
        if isinstance(operand, Parameter):
            return self.parameter(operand).value
        if is_number(operand):
            return self.fill((), operand, _number_type(operand, near)).value
        return self.constant(operand).value

    def fill(self, shape: Sequence[int], number: Any, element: DType) -> Tensor:
        """A tensor with the same number everywhere."""
        fill = lookup("Fill")
        return self.apply(fill, (), fill.check_attributes(_fill_attributes(shape, number, element)))

    def constant(self, data: Any) -> Tensor:
        """A tensor with the numbers of an array; one of equal numbers needs no array."""
        array = np.asarray(data)
        if array.dtype.kind not in "fiub":
            raise ShapeError(f"an operand is {data!r} ({type(data).__name__}), which is no tensor{at(caller())}")
        if array.size and (array == array.flat[0]).all():
            return self.fill(array.shape, array.flat[0].item(), dtype(array.dtype))
        constant = lookup("Constant")
        return self.apply(constant, (), constant.check_attributes({"value": Literal(array)}))


def snake(name: str) -> str:
    """`ReduceSum` -> `reduce_sum`, `GeLUGrad` -> `gelu_grad`; MatMul is one word."""
    name = name.replace("MatMul", "Matmul")
    return re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z]$)", "_", name).lower()


def _fill_attributes(shape: Sequence[int], number: Any, element: DType) -> dict[str, Any]:
    kind = float if element.is_float else bool if element.name == "bool" else int
    return {"shape": tuple(shape), "value": kind(number), "dtype": element.name}


def _number_type(number: Any, near: Sequence[DType]) -> DType:
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
