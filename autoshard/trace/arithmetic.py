"""Python's operators and the usual array methods, for whatever an operator can be applied to.

`Tensor` (a value of a graph under construction) and `Parameter` (which is also an array outside of a trace)
inherit them. Each method is one or two calls of registered operators; plain numbers become attributes where
that works.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autoshard.ops  # noqa: F401  (registers the operators that the methods look up)
from autoshard.core.tensortype import DType, dtype
from autoshard.ops.registry import lookup
from autoshard.trace.indexing import take
from autoshard.util.errors import ShapeError, at
from autoshard.util.source import caller

Axis = int | Sequence[int] | None


def is_number(x: object) -> bool:
    """Python's and numpy's scalars, bools included."""
    return isinstance(x, numbers.Real | np.generic)


def _call(name: str, *operands: Any, **attrs: Any) -> Any:
    return lookup(name)(*operands, **attrs)


def _for_number(x: Any, number: Any) -> tuple[Any, int | float]:
    """x in a type that holds the result of arithmetic with the number, and the number in that type.

    Whole numbers next to whole-number tensors stay whole; everything else is a float.
    """
    element = dtype(x.dtype)
    whole = isinstance(number, numbers.Integral | np.bool_)
    if element.is_inexact:
        return x, float(number)
    if not whole:
        return _call("Cast", x, dtype="f32"), float(number)
    return (_call("Cast", x, dtype="i32") if element.name == "bool" else x), int(number)


def _shift(x: Any, number: Any) -> Any:
    x, addend = _for_number(x, number)
    return _call("ScalarAdd", x, addend=addend)


def _scale(x: Any, number: Any) -> Any:
    x, factor = _for_number(x, number)
    return _call("ScalarMul", x, factor=factor)


def _power(x: Any, exponent: Any) -> Any:
    simple = {2: "Square", 0.5: "Sqrt", -1: "Reciprocal", -0.5: "Rsqrt"}
    if is_number(exponent) and exponent in simple and (exponent > 0 or dtype(x.dtype).is_inexact):
        return _call(simple[exponent], x)
    return _call("Pow", x, exponent)


def _matmul(x: Any, w: Any) -> Any:
    """numpy's `@`: vectors are rows or columns for the time of the product, leading dims are a batch."""
    if len(x.shape) == 1:
        return _call("Squeeze", _matmul(_call("ExpandDims", x, axis=0), w), axis=-2)
    if len(w.shape) == 1:
        return _call("Squeeze", _matmul(x, _call("ExpandDims", w, axis=-1)), axis=-1)
    return _call("MatMul" if len(w.shape) == 2 else "BatchMatMul", x, w)


def _operand(other: object) -> bool:
    return is_number(other) or isinstance(other, Arithmetic | np.ndarray)


def _binary(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A method for `self <op> other` that leaves unknown things to Python."""
    return lambda self, other: apply(self, other) if _operand(other) else NotImplemented


def _pair(name: str) -> tuple[Callable, Callable]:
    """The method and its mirror image for an operator without a form for numbers."""
    return _binary(lambda x, y: _call(name, x, y)), _binary(lambda x, y: _call(name, y, x))


def _with_number(name: str, by_number: Callable[[Any, Any], Any]) -> Callable:
    return _binary(lambda x, y: by_number(x, y) if is_number(y) else _call(name, x, y))


def _axes(axis: Axis) -> int | tuple[int, ...]:
    """numpy's axis=None is () here: all dims."""
    if axis is None:
        return ()
    return axis if isinstance(axis, int) else tuple(axis)


def _sizes(sizes: tuple) -> tuple[int, ...]:
    """Sizes given one by one or as a sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes


# Numpy's functions that are Python's operators: the method of the left operand, and that of the right one.
_SAME = {name: (f"__{name}__", f"__r{name}__") for name in ("add", "matmul")}
_OPERATORS = _SAME | {
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "true_divide": ("__truediv__", "__rtruediv__"),
    "floor_divide": ("__floordiv__", "__rfloordiv__"),
    "remainder": ("__mod__", "__rmod__"),
    "power": ("__pow__", "__rpow__"),
    "bitwise_and": ("__and__", "__rand__"),
    "bitwise_or": ("__or__", "__ror__"),
    "bitwise_xor": ("__xor__", "__rxor__"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
}


class Arithmetic:
    """Operators and methods; a subclass has `shape`, `dtype` and the hook `__autoshard_apply__`."""

    __hash__ = object.__hash__
    shape: tuple[int, ...]
    dtype: DType

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        """Python's operators with a numpy array on the left are ours; numpy's functions need numbers."""
        own = _OPERATORS.get(function.__name__)
        if own is not None and method == "__call__" and not settings:
            left, right = inputs
            ours = isinstance(left, Arithmetic)
            return getattr(left, own[0])(right) if ours else getattr(right, own[1])(left)
        arrays = [one.to_numpy(function.__name__) if isinstance(one, Arithmetic) else one for one in inputs]
        return getattr(function, method)(*arrays, **settings)

    def to_numpy(self, function: str) -> np.ndarray:
        """The numbers, for numpy's function of that name."""
        return np.asarray(self)

    __add__ = __radd__ = _with_number("Add", _shift)
    __sub__ = _with_number("Sub", lambda x, n: _shift(x, -n))
    __rsub__ = _binary(lambda x, y: _shift(_scale(x, -1), y) if is_number(y) else _call("Sub", y, x))
    __mul__ = __rmul__ = _with_number("Mul", _scale)
    __truediv__ = _binary(lambda x, y: _divide(x, y))
    __rtruediv__ = _binary(
        lambda x, y: _scale(_call("Reciprocal", _as_float(x)), y) if is_number(y) else _call("Div", y, x)
    )
    __pow__ = _binary(_power)
    __rpow__ = _binary(lambda x, y: _call("Pow", y, x))
    __matmul__ = _binary(_matmul)
    __rmatmul__ = _binary(lambda x, y: _matmul(y, x))
    __floordiv__, __rfloordiv__ = _pair("FloorDiv")
    __mod__, __rmod__ = _pair("FloorMod")
    __and__, __rand__ = _pair("LogicalAnd")
    __or__, __ror__ = _pair("LogicalOr")
    __xor__, __rxor__ = _pair("LogicalXor")
    __eq__ = _pair("Equal")[0]  # type: ignore[assignment]
    __ne__ = _pair("NotEqual")[0]  # type: ignore[assignment]
    __lt__, __gt__ = _pair("Less")[0], _pair("Greater")[0]
    __le__, __ge__ = _pair("LessEqual")[0], _pair("GreaterEqual")[0]

    def __neg__(self) -> Any:
        return _call("Neg", self)

    def __abs__(self) -> Any:
        return _call("Abs", self)

    def __invert__(self) -> Any:
        return _call("LogicalNot", self)

    def __getitem__(self, index: Any) -> Any:
        return take(self, index)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a scalar tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def T(self) -> Any:  # noqa: N802  (numpy's name)
        return _call("Transpose", self)

    def reshape(self, *shape: Any) -> Any:
        return _call("Reshape", self, shape=_sizes(shape))

    view = reshape

    def flatten(self, *, start_dim: int = 0, end_dim: int = -1) -> Any:
        """The dims from `start_dim` to `end_dim` as one."""
        if not self.shape:
            return self.reshape(1)
        start, end = start_dim % self.ndim, end_dim % self.ndim
        return self.reshape(*self.shape[:start], -1, *self.shape[end + 1 :])

    def ravel(self) -> Any:
        return self.flatten()

    def transpose(self, *perm: Any) -> Any:
        """Dim i of the result is dim perm[i]; without arguments the dims are reversed."""
        return _call("Transpose", self, perm=_sizes(perm) or None)

    def swapaxes(self, first: int, second: int) -> Any:
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return _call("Transpose", self, perm=tuple(order))

    def expand_dims(self, axis: int) -> Any:
        return _call("ExpandDims", self, axis=axis)

    unsqueeze = expand_dims
    permute = transpose

    def squeeze(self, axis: Axis = None) -> Any:
        return _call("Squeeze", self, axis=axis)

    def broadcast_to(self, shape: Sequence[int]) -> Any:
        return _call("BroadcastTo", self, shape=tuple(shape))

    def astype(self, element: DType | str | np.dtype | type) -> Any:
        """The elements as another type; the tensor itself if it has that type."""
        target = dtype(element)
        return self if target == dtype(self.dtype) else _call("Cast", self, dtype=target.name)

    to = astype

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Sums of whole numbers and truth values are i64."""
        return _call("ReduceSum", _added(self), axis=_axes(axis), keep_dims=keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Raises ShapeError for whole numbers, whose mean MindSpore truncates and numpy does not."""
        check_mean(self)
        return _call("ReduceMean", self, axis=_axes(axis), keep_dims=keepdims)

    def max(self, *dim: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        return _extreme("max", self, dim, axis, keepdims)

    def min(self, *dim: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        return _extreme("min", self, dim, axis, keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return _call("ReduceProd", _added(self), axis=_axes(axis), keep_dims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The place (i64) of the largest element along `axis`, or in the flat tensor."""
        return _call("Cast", self._place("ArgMax", axis, keepdims), dtype="i64")

    def _place(self, name: str, axis: int | None, keepdims: bool) -> Any:
        if axis is not None:
            return _call(name, self, axis=axis, keep_dims=keepdims)
        found = _call(name, self.reshape(-1), axis=0, keep_dims=False)
        return found.reshape((1,) * self.ndim) if keepdims else found

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The place (i32) of the smallest element along `axis`, or in the flat tensor."""
        return _call("Cast", self._place("ArgMin", axis, keepdims), dtype="i32")

    def all(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return _call("ReduceAll", self != 0, axis=_axes(axis), keep_dims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return _call("ReduceAny", self != 0, axis=_axes(axis), keep_dims=keepdims)

    def cumsum(self, axis: int) -> Any:
        """Sums up to each element; of whole numbers and truth values as i64."""
        return _call("CumSum", _added(self), axis=axis)

    def var(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Any:
        """The mean square distance from the mean, its divisor less by `ddof`."""
        off = self - self.mean(axis, keepdims=True)
        count = self.size if axis is None else int(np.prod([self.shape[one] for one in np.atleast_1d(axis)]))
        return (off * off).sum(axis, keepdims) / (count - ddof)

    def std(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Any:
        return self.var(axis, ddof, keepdims).sqrt()

    def pow(self, exponent: Any) -> Any:
        return self**exponent

    def round(self) -> Any:
        """The nearest whole number, of two the even one."""
        return _call("Round", self)

    def exp(self) -> Any:
        return _call("Exp", self)

    def log(self) -> Any:
        return _call("Log", self)

    def sqrt(self) -> Any:
        return _call("Sqrt", self)

    def tanh(self) -> Any:
        return _call("Tanh", self)

    def abs(self) -> Any:
        return _call("Abs", self)


def check_mean(x: Any) -> None:
    """Raises ShapeError for whole numbers: their mean is cut off by MindSpore and not by numpy."""
    if not dtype(x.dtype).is_inexact:
        raise ShapeError(
            f"mean of {dtype(x.dtype)}{at(caller())}: MindSpore cuts it off to a whole number, numpy does not; "
            f"say x.astype('f32').mean()"
        )


def _added(x: Any) -> Any:
    """Whole numbers and truth values as i64, in which numpy and MindSpore add and multiply them."""
    return x if dtype(x.dtype).is_inexact or dtype(x.dtype).name == "i64" else _call("Cast", x, dtype="i64")


def _extreme(name: str, x: Any, dim: Sequence[Any], axis: Axis, keepdims: bool) -> Any:
    """The largest or smallest elements; an axis is given by name: one by position means values to numpy, and values
    with their places to MindSpore and PyTorch.
    """
    if dim and dim != (None,):
        raise ShapeError(
            f"{name}({', '.join(map(str, dim))}){at(caller())}: numpy means values by it, MindSpore values and places; "
            f"say {name}(axis={dim[0]}) for the values, {name}(axis=...) and arg{name}(...) for both"
        )
    return _call("ReduceMax" if name == "max" else "ReduceMin", x, axis=_axes(axis), keep_dims=keepdims)


def _as_float(x: Any) -> Any:
    return x if dtype(x.dtype).is_inexact else _call("Cast", x, dtype="f32")


def _divide(x: Any, y: Any) -> Any:
    """x / y; by a number it is a product, which partial sums pass through (the last bit may differ)."""
    if not is_number(y) or y == 0:
        return _call("Div", x, y)
    return _scale(x, 1.0 / float(y))
