"""Parameter: a named array that a model owns; a graph input inside a trace, plain numbers outside of one.

Also `active`, which tells whether a trace is under way, and `Owned`, how cells and parameters get their
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, TensorType, dtype, type_of
from autoshard.layout.layout import Layout
from autoshard.layout.spec import Spec
from autoshard.ops.registry import Operator, lookup
from autoshard.trace.arithmetic import Arithmetic
from autoshard.trace.initializer import Deferred, deferred
from autoshard.util.errors import GraphError, ShapeError, at
from autoshard.util.source import Source, caller

Entry = tuple[int, ...] | Layout | None
_ACTIVE: ContextVar[Any] = ContextVar("active_recorder", default=None)


_COMPUTED: ContextVar[DType | None] = ContextVar("computed_in", default=None)


@contextmanager
def computed_in(kind: DType) -> Iterator[None]:
    """Use parameters of float types as this type."""
    token = _COMPUTED.set(kind)
    try:
        yield
    finally:
        _COMPUTED.reset(token)


def cast_to(kind: DType | None, x: Any) -> Any:
    """The tensor or array in that type, if it holds floats of another one."""
    if kind is None or not hasattr(x, "dtype") or not dtype(x.dtype).is_float or dtype(x.dtype) == kind:
        return x
    return lookup("Cast")(x, dtype=kind.name)


def cast_all_to(kind: DType, found: Any) -> Any:
    """The same of all tensors in tuples and lists."""
    if isinstance(found, tuple | list):
        return type(found)(cast_all_to(kind, one) for one in found)
    return cast_to(kind, found)


def computed_type() -> DType | None:
    """The type that `computed_in` asks for, if any."""
    return _COMPUTED.get()


def active() -> Any:
    """The recorder of the trace that is under way, or None."""
    return _ACTIVE.get()


@contextmanager
def activate(recorder: Any) -> Iterator[None]:
    """Make `recorder` the active one."""
    token = _ACTIVE.set(recorder)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


class Owned:
    """What an attribute of a cell inherits: it knows its first owner, and so its path from the outermost
    cell.
    """

    _owner: Any = None
    _label: str = ""

    def adopt(self, owner: Any, label: str) -> None:
        """Note who holds this; what several cells share keeps the name that the first one gave it."""
        if self._owner is None or not self._owner.holds(self._label, self):
            object.__setattr__(self, "_owner", owner)
            object.__setattr__(self, "_label", label)

    @property
    def own_name(self) -> str:
        return self._label

    @property
    def path(self) -> str:
        """The labels from the outermost cell down, joined by dots; '' for the outermost cell itself."""
        if self._owner is None or not self._owner.holds(self._label, self):
            return ""
        own = self.own_name if self._owner.prefixes(self._label, self) else ""
        return ".".join(part for part in (self._owner.path, own) if part)

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to nobody."""
        return {key: value for key, value in vars(self).items() if key not in ("_owner", "_label")}


class Parameter(Arithmetic, Owned):
    """An array that training changes (or, with requires_grad=False, that only the model itself updates).

    Args:
        default_input: an array, a number, or another parameter, whose values are copied.
        name: its last name; by default the attribute of the cell that it is assigned to.
        requires_grad: whether optimizers train it.
        layerwise_parallel: MindSpore's; False only.
        parallel_optimizer: whether optimizer parallelism may split it between ranks that hold it whole.
        sharding: how it is asked to lie, as anything that `Spec.of` takes; None asks nothing.

    >>> import numpy as np
    >>> from autoshard import Parameter
    >>> weight = Parameter(np.zeros((12, 64), np.float32), sharding='[{?}, {"tp", ?}]')
    >>> weight.shape, weight.requires_grad
    ((12, 64), True)
    """

    def __init__(
        self,
        default_input: Any,
        name: str | None = None,
        requires_grad: bool = True,
        layerwise_parallel: bool = False,
        parallel_optimizer: bool = True,
        *,
        sharding: Any = None,
    ) -> None:
        if layerwise_parallel:
            raise GraphError(f"Parameter {name or ''}: layerwise_parallel=True is not offered; leave it False")
        self.parallel_optimizer = parallel_optimizer
        self._values: np.ndarray | Deferred = (
            default_input if isinstance(default_input, Deferred) else _as_array(default_input)
        )
        self.requires_grad = requires_grad
        self._given_name = name
        self.in_strategy: Entry = None
        self.source: Source | None = None
        self.annotation_source: Source | None = None
        self._sharding: Spec | None = None
        if sharding is not None:
            self.sharding = sharding

    @classmethod
    def of_values(cls, values: np.ndarray | Deferred, name: str, requires_grad: bool) -> Parameter:
        """A parameter of arrays as they are, of element types that numpy lacks as well."""
        made = cls(values if isinstance(values, Deferred) else 0, name=name, requires_grad=requires_grad)
        if not isinstance(values, Deferred):
            made.data = values
        return made

    @property
    def sharding(self) -> Spec | None:
        """How it is asked to lie; set to anything that `Spec.of` takes.

        Raises:
            ShardingError, ParseError: not of this form, or for another number of dims.
        """
        return self._sharding

    @sharding.setter
    def sharding(self, asked: Any) -> None:
        self.annotation_source = caller()
        if asked is not None:
            what = f"{self.name}{at(self.annotation_source)}"
            asked = Spec.of(asked, what)
            asked.check_rank(len(self.shape), f"{what} ({self.type})")
        self._sharding = asked

    @property
    def own_name(self) -> str:
        return self._given_name or self._label

    @property
    def name(self) -> str:
        """`dense1.weight`: the path from the outermost cell."""
        return self.path or self.own_name or "parameter"

    @name.setter
    def name(self, name: str) -> None:
        self._given_name = name

    @property
    def data(self) -> np.ndarray:
        """The values; deferred initial ones are made now."""
        if isinstance(self._values, Deferred):
            self._values = self._values.array()
        return self._values

    @data.setter
    def data(self, values: np.ndarray | Deferred) -> None:
        self._values = values

    @property
    def pending(self) -> Deferred | None:
        """What makes the values, while nobody has asked for them."""
        return self._values if isinstance(self._values, Deferred) else None

    @property
    def type(self) -> TensorType:
        return self._values.type if isinstance(self._values, Deferred) else type_of(self._values)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.type.shape

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.type.dtype

    def asnumpy(self) -> np.ndarray:
        return self.data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if active() is not None:
            raise GraphError(
                f"{self.name} is converted to numpy inside a traced model; use autoshard.ops on it instead"
            )
        return np.array(self.data, dtype) if copy else np.asarray(self.data, dtype)

    def __bool__(self) -> bool:
        return bool(self.__array__())

    def __float__(self) -> float:
        return float(self.__array__())

    def __repr__(self) -> str:
        return f"Parameter({self.name}: {self.type}{'' if self.requires_grad else ', requires_grad=False'})"

    def clone(self, init: Any = "same") -> Parameter:
        """Another parameter of its name and settings, with the same values, or others: an array, or an initializer or
        its name, as layers take them.
        """
        values = (
            self.data.copy() if isinstance(init, str) and init == "same" else deferred(init, self.shape, self.dtype)
        )
        name = self._given_name or self.name
        return Parameter(values, name, self.requires_grad, parallel_optimizer=self.parallel_optimizer)

    def init_data(self, layout: Any = None, set_sliced: bool = False) -> Parameter:
        """Itself: values are made when they are asked for, whole."""
        return self

    def set_data(self, data: Any) -> None:
        """Replace the values.

        Raises:
            ShapeError: another shape or kind of element.
        """
        self.data = self.checked(data)

    def checked(self, data: Any) -> np.ndarray:
        """Values as it would hold them.

        Raises:
            ShapeError: another shape or kind of element.
        """
        array = _as_array(data)
        if array.shape != self.shape or not np.can_cast(array.dtype, self.dtype.numpy, "same_kind"):
            raise ShapeError(f"{self.name} is {self.type}; it cannot take the values of {type_of(array)}")
        return array.astype(self.dtype.numpy, copy=False)

    def assign(self, value: Any) -> None:
        """Replace the value from inside a model: at once outside of a trace, else as an update of the graph's
        input.
        """
        recorder = active()
        if recorder is None:
            self.set_data(value)
        else:
            recorder.assign(self, value)

    def __autoshard_apply__(self, op: Operator, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        recorder = active()
        if recorder is not None:
            return recorder.apply(op, operands, attrs)
        return op(*map(_eager, operands, [self.dtype.numpy] * len(operands)), **attrs)


def _as_array(data: Any) -> np.ndarray:
    if isinstance(data, Parameter):
        return data.data.copy()
    if isinstance(data, bool | int | float):
        return np.asarray(data, np.float32 if isinstance(data, float) else None)
    array = np.array(data)
    dtype(array.dtype)
    return array


def _eager(operand: Any, element: np.dtype) -> Any:
    """The array behind an operand; a Python float takes the parameter's type."""
    if isinstance(operand, Parameter):
        return cast_to(computed_type(), operand.data)
    if isinstance(operand, float) and element.kind == "f":
        return np.asarray(operand, element)
    return operand
