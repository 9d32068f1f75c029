"""Which operators of the registry each ATen overload is made of: one table, filled by the modules beside this one.

A translator takes the call (see `Call`) and the overload's own arguments, where tensors are symbolic tensors, or
arrays where they are known already; it returns what the overload returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import numpy as np

from autoshard.core.tensortype import DType, TensorType, dtype, type_of
from autoshard.ops.registry import Operator, lookup
from autoshard.trace.parameter import Parameter, active
from autoshard.trace.tensor import TracedTensor
from autoshard.util.errors import AutoshardError

Translator = Callable[..., Any]
TABLE: dict[str, Translator] = {}
CHECKS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten._assert_async.msg",
        "aten._linalg_check_errors.default",
        "aten.sym_constrain_range_for_size.default",
        "aten.sym_constrain_range.default",
    }
)
"""Overloads that only check what export has settled; they compute nothing."""

FOLDED = 1 << 14
"""How many elements a value known in advance may have to become a constant; a larger one is computed by the ranks,
each its block."""


class Refused(AutoshardError):
    """A translator cannot say this call with operators; the importer gathers these into one error."""


_FAMILIES = (
    "pointwise", "shapes", "reduce", "indexing", "contract", "norm", "resample", "window", "composites", "complexes",
    "markers", "autograd", "experts", "ctc", "counts", "quantize",
    "linalg", "order", "special", "random", "scatter", "sampling",
)  # fmt: skip


@cache
def load_translators() -> None:
    """Fill the table from the modules beside this one, once."""
    for family in _FAMILIES:
        import_module(f"autoshard.frontends.torch.{family}")
    for name in list(TABLE):
        space, op, overload = name.split(".", 2)
        TABLE.setdefault(f"{space}.{op}_copy.{overload}", TABLE[name])  # what a view shows, in memory of its own


def translates(*names: str) -> Callable[[Translator], Translator]:
    """Register a translator for overloads by their full names, such as `aten.add.Tensor`."""

    def register(translator: Translator) -> Translator:
        for name in names:
            assert name not in TABLE, f"{name} has a translator already"
            TABLE[name] = translator
        return translator

    return register


@dataclass(frozen=True, eq=False)
class Call:
    """One node of the exported graph.

    Attributes:
        node: the node itself, for what torch knows of it (`meta["val"]` are its fake results).
        results: types of the tensors that it returns, None for what is no tensor.
        counter: gives the scalar that random operators count their uses by.
        seed: sets random operators of one model apart.
        training: whether a gradient will be taken.
        memo: what `once` made so far.
    """

    node: Any
    results: tuple[TensorType | None, ...]
    counter: Callable[[], Any]
    seed: int
    training: bool
    memo: dict[Any, Any]

    def once(self, op: Operator, x: Any, **attrs: Any) -> Any:
        """The operator's result for x, made once for all calls that ask for it: what all layers make of one mask."""
        key = (op.name, id(x), tuple(attrs.items()))
        if key not in self.memo:
            # x is kept, so that no other tensor comes to have its id.
            self.memo[key] = x, do(op, x, **attrs)
        return self.memo[key][1]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def type(self) -> TensorType:
        first = self.results[0]
        assert first is not None, f"{self.node.target} returns no tensor first"
        return first

    def used(self, result: int) -> bool:
        """Whether a result of several is used at all."""
        return any(user.args[1] == result and user.users for user in self.node.users if len(user.args) == 2)

    def refuse(self, why: str) -> NoReturn:
        """Say that this call cannot be translated, and why."""
        raise Refused(why)

    def cast(self, x: Any) -> Any:
        """x in the element type of the (first) result."""
        return cast(x, self.dtype)


def do(op: Operator, *operands: Any, **attrs: Any) -> Any:
    """Apply an operator: to arrays at once if the result is small, else as a node of the trace under way."""
    recorder = active()
    if recorder is None or any(isinstance(one, TracedTensor | Parameter) for one in operands):
        return op(*operands, **attrs)
    full = op.check_attributes(attrs)
    arrays = [np.asarray(one) for one in operands]
    types = op.result_types(tuple(map(type_of, arrays)), full)
    if sum(math.prod(one.shape) for one in types) <= FOLDED:
        return op(*arrays, **attrs)
    return recorder.apply(op, arrays, full)


def lifted(value: Any) -> Any:
    """A value as something that a trace takes for an output."""
    recorder = active()
    return recorder.constant(value) if recorder is not None and isinstance(value, np.ndarray) else value


def cast(x: Any, to: DType) -> Any:
    """x in an element type; itself if it has it."""
    return x if dtype(x.dtype) == to else do(lookup("Cast"), x, dtype=to.name)


def number(value: Any, of: DType) -> np.ndarray:
    """A Python number as a scalar array."""
    return np.asarray(value, of.numpy)


def axis(dim: int, rank: int) -> int:
    """A dim counted from the front; that of a scalar is 0."""
    return dim % max(rank, 1)


def axes(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Dims counted from the front in rising order; none, or an empty list, means all. A scalar has none."""
    if not rank:
        return ()
    given = (dims,) if isinstance(dims, int) else tuple(dims or ())
    return tuple(sorted(axis(dim, rank) for dim in given)) or tuple(range(rank))
