"""How a primitive of MindSpore is said: a function whose signature is MindSpore's, in terms of autoshard's operators.

    @primitive("LayerNorm", core.layer_norm)
    def layer_norm(input_x, gamma, beta, *, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7): ...

Keyword-only parameters are what `ops.LayerNorm(...)` is made with, in MindSpore's order; the others are what it is
called with. `shard` fixes the strategy of the first use of the operator that is named beside.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from autoshard.core.tensortype import DType, dtype
from autoshard.mindspore.tensor import Tensor
from autoshard.ops.primitive import Primitive
from autoshard.ops.registry import Operator
from autoshard.trace.arithmetic import is_number
from autoshard.trace.parameter import active, cast_all_to
from autoshard.trace.tensor import number_type
from autoshard.util.errors import ShapeError, StrategyError, at
from autoshard.util.source import caller

PRIMITIVES: dict[str, type[Named]] = {}
"""Every primitive that is offered under MindSpore's name."""


class Named(Primitive):
    """A primitive with MindSpore's name, arguments, defaults and meaning."""

    function: ClassVar[Callable]
    made_with: ClassVar[inspect.Signature]
    called_with: ClassVar[inspect.Signature]
    strategy: ClassVar[Callable | None]
    strategy_of_call: ClassVar[Callable | None]
    compute_type: DType | None = None
    """Operands of floats are cast to this type, and results to float32: what mixed precision says of it."""

    def __repr__(self) -> str:
        usual = {name: one.default for name, one in self.made_with.parameters.items()}
        shown = [f"{name}={value!r}" for name, value in self.attrs.items() if name in usual and value != usual[name]]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _attributes(self, args: tuple, attrs: dict[str, Any]) -> dict[str, Any]:
        given = _bound(type(self).__name__, self.made_with, args, attrs, "made with")
        return {name: plain(value) for name, value in given.items()}

    def _apply(self, args: tuple, attrs: dict[str, Any]) -> Any:
        given = _bound(type(self).__name__, self.called_with, args, attrs, "called with")
        if self.compute_type is not None:
            given = {name: cast_all_to(self.compute_type, one) for name, one in given.items()}
        noted = len(getattr(active(), "annotations", ()))
        with self._strategy_for(given):
            found = as_tensors(type(self).function(*given.values(), **self.attrs))
        taken = active() is None or len(active().annotations) > noted
        if self.in_strategy is not None and not taken and not _are_numbers(found):
            raise StrategyError(
                f"{self.name or type(self).__name__}.shard{at(self.source)}: with these operands or attributes "
                f"{type(self).__name__} is other operators than {self.operator.name}, and takes no strategy"
            )
        return found if self.compute_type is None else cast_all_to(dtype("f32"), found)

    @contextmanager
    def _strategy_for(self, given: Mapping[str, Any]) -> Iterator[None]:
        """Hold the strategy as the operator has it for what the primitive is called with."""
        translate, before = type(self).strategy_of_call, (self.in_strategy, self.out_strategy)
        if translate is not None and self.in_strategy is not None:
            self.in_strategy, self.out_strategy = translate(given, *before)
        try:
            yield
        finally:
            self.in_strategy, self.out_strategy = before

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Fix how the operator is split, by MindSpore's tuple per tensor operand or Layouts; returns the primitive.

        Raises:
            StrategyError: anything but a tuple of tuples of positive whole numbers or of Layouts.
        """
        translate = type(self).strategy
        if in_strategy is not None and translate is not None:
            try:
                in_strategy, out_strategy = translate(self.attrs, in_strategy, out_strategy)
            except StrategyError as error:
                raise StrategyError(f"{self._sharded()}: {error}") from None
        return super().shard(in_strategy, out_strategy)

    def _sharded(self) -> str:
        """The call of `shard` that is under way, in an error's words."""
        return f"{self.name or type(self).__name__}.shard{at(caller())}"


def primitive(
    name: str, operator: Operator, strategy: Callable | None = None, strategy_of_call: Callable | None = None
) -> Callable[[Callable], type[Named]]:
    """Decorates the function that says MindSpore's primitive `name`; gives its class.

    Args:
        operator: the operator that takes the strategies of `shard`, and the primitive's name.
        strategy: from (attributes, in_strategy, out_strategy), as MindSpore has these, to both as the operator has
            them, where they differ.
        strategy_of_call: the same from (what the primitive is called with, in_strategy, out_strategy).
    """

    def define(function: Callable) -> type[Named]:
        parameters = inspect.signature(function).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        made = [one.replace(kind=one.POSITIONAL_OR_KEYWORD) for one in parameters if one.kind is keyword]
        made_with = inspect.Signature(made)
        kind = type(
            name,
            (Named,),
            {
                "__doc__": function.__doc__,
                "__module__": "autoshard.mindspore.ops",
                "__signature__": made_with,
                "operator": operator,
                "function": staticmethod(function),
                "made_with": made_with,
                "called_with": inspect.Signature([one for one in parameters if one.kind is not keyword]),
                "strategy": None if strategy is None else staticmethod(strategy),
                "strategy_of_call": None if strategy_of_call is None else staticmethod(strategy_of_call),
            },
        )
        PRIMITIVES[name] = kind
        return kind

    return define


def plainly(name: str, operator: Operator, *operands: str, doc: str = "") -> type[Named]:
    """The primitive that is the operator itself, without attributes, under MindSpore's name."""

    def function(*given: Any) -> Any:
        return operator(*tensors(*given))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature([inspect.Parameter(one, kind) for one in operands])  # type: ignore[attr-defined]
    function.__doc__ = doc or operator.__doc__
    return primitive(name, operator)(function)


def _bound(
    name: str, signature: inspect.Signature, args: Sequence[Any], given: Mapping[str, Any], how: str
) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **given)
    except TypeError as error:
        raise ShapeError(f"{name}{at(caller())} is {how} {name}{signature}: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def plain(value: Any) -> Any:
    """Arrays without dims, such as Tensor(1.0) for on_value of OneHot, as numbers; lists as tuples."""
    if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
        return value.item()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def tensors(*operands: Any) -> list[Any]:
    """Operands, with Python's numbers among them as arrays of a type like that of the tensors, as MindSpore has it.

    A float beside whole numbers is float32, and so are they then; alone, numbers are float32, int64 and bool.
    """
    near = [dtype(one.dtype) for one in operands if hasattr(one, "dtype")]
    return [_number(one, near) if is_number(one) and not hasattr(one, "dtype") else one for one in operands]


def _number(number: Any, near: Sequence[Any]) -> np.ndarray:
    if not near and not isinstance(number, bool | float):
        return np.asarray(number, np.int64)
    return np.asarray(number, number_type(number, near).numpy)


def _are_numbers(result: Any) -> bool:
    """Whether a result is known while a model is traced: every rank has the whole of it, whatever the strategy."""
    return all(map(_are_numbers, result)) if isinstance(result, tuple) else isinstance(result, np.ndarray)


def as_tensors(result: Any) -> Any:
    """Arrays as Tensors, inside of tuples too."""
    if isinstance(result, tuple):
        return tuple(map(as_tensors, result))
    return np.asarray(result).view(Tensor) if isinstance(result, np.ndarray | np.generic) else result
