"""Namespace: numpy's names over a library of tensors. `Namespace(library).exp(x)` is what numpy's exp says.

Results have the element types that numpy gives them: its own table of loops is asked (`ufunc.resolve_dtypes`), operands
are brought to the loop's types, and the library computes in these. Functions that are no ufuncs are the library's own
of the same name, on its own tensors.

This file needs numpy and `array.py` alone: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np

from autoshard.engines.array import Array

_NUMBERS = (bool, int, float, complex)


class Lacking(NotImplementedError):
    """The library has no such function, or not for these types."""


class Scalar:
    """A type of numpy's numbers, such as float32: makes an Array of one number, and stands for the dtype."""

    def __init__(self, space: Namespace, kind: type) -> None:
        self.space, self.dtype, self.kind = space, np.dtype(kind), kind

    def __call__(self, value: Any = 0) -> Any:
        return self.space.asarray(value, self.dtype) if isinstance(value, Array) else self.kind(value)


class Ufunc:
    """An elementwise function of numpy's on the library's tensors."""

    def __init__(self, space: Namespace, like: np.ufunc) -> None:
        self.space, self.like, self.__name__, self.nin, self.nout = space, like, like.__name__, like.nin, like.nout

    def __call__(self, *operands: Any, out: Any = None, where: Any = True, dtype: Any = None, casting: str = "") -> Any:
        library = self.space.library
        outs = out if isinstance(out, tuple) else (out,)
        types = self._types(operands, dtype)
        taken, made = types[: self.nin], types[self.nin :]
        raws = [self.space.raw(one, of) for one, of in zip(operands, taken, strict=True)]
        result = library.ufunc(self.__name__)(*raws)
        if isinstance(result, tuple):
            return tuple(Array(self.space, library.cast(one, of)) for one, of in zip(result, made, strict=True))
        result = library.cast(result, made[0])
        if outs[0] is None:
            return Array(self.space, result)
        target: Array = outs[0]
        new = library.cast(library.broadcast(result, target.shape), target.dtype)
        if where is not True:
            new = library.where(self.space.raw(where), new, target.raw)
        target.write(new)
        return target

    def _types(self, operands: Sequence[Any], dtype: Any) -> tuple[np.dtype, ...]:
        """The types that numpy would compute in, and that of the result."""
        kinds = tuple(map(_kind, operands))
        signature = None
        if dtype is not None:
            signature = (None,) * self.nin + (np.dtype(dtype),) * self.nout
        return _resolved(self.like, kinds, signature)

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, keepdims: bool = False, **_: Any) -> Array:
        """All elements along the axes put together."""
        name = _REDUCERS.get(self.__name__)
        given = array if dtype is None else self.space.asarray(array, dtype)
        if name is not None:
            return getattr(self.space, name)(given, axis=axis, keepdims=keepdims)
        for one in sorted((one % given.ndim for one in _listed(axis)), reverse=True):
            pieces = [given[_along(one, given.ndim, slice(i, i + 1))] for i in range(given.shape[one])]
            given = reduce(self, pieces)
            given = given if keepdims else self.space.squeeze(given, one)
        return given

    def accumulate(self, array: Any, axis: int = 0) -> Array:
        """Running results along the axis."""
        pieces = [array[_along(axis, array.ndim, i)] for i in range(array.shape[axis])]
        found = []
        for piece in pieces:
            found.append(self(found[-1], piece) if found else piece)
        return self.space.stack(found, axis=axis) if found else array

    def at(self, target: Array, index: Any, values: Any) -> None:
        """Put values to the elements that the index names, each as often as it is named."""
        library = self.space.library
        part = library.cast(self.space.raw(values), target.dtype)
        target.write(library.at(self.__name__, target.raw, self.space.plain(index), part))


_REDUCERS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
}  # fmt: skip


def _along(axis: int, rank: int, taken: Any) -> tuple:
    return (*(slice(None),) * (axis % rank), taken)


def _kind(value: Any) -> Any:
    """An operand's type as numpy's promotion asks for it: numbers of Python's have only their kind."""
    if isinstance(value, _NUMBERS) and not isinstance(value, np.generic):
        return np.dtype(bool) if isinstance(value, bool) else type(value)
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


@cache
def _resolved(ufunc: np.ufunc, kinds: tuple, signature: tuple | None) -> tuple[np.dtype, ...]:
    asked = (*kinds, *(None,) * ufunc.nout)
    if signature is None:
        return ufunc.resolve_dtypes(asked)
    return ufunc.resolve_dtypes(asked, signature=signature, casting="unsafe")


class Namespace:
    """Numpy's functions on Arrays of a library."""

    ndarray = Array
    newaxis = None
    ufunc = np.ufunc

    def __init__(self, library: Any) -> None:
        self.library = library
        self.linalg, self.fft = NamespacePart(self, "linalg"), NamespacePart(self, "fft")
        self._known: dict[str, Any] = {}

    # -- to the library's tensors and back

    def raw(self, value: Any, dtype: Any = None) -> Any:
        """The library's tensor of a value, of numpy's type unless `dtype` says another."""
        made = value.raw if isinstance(value, Array) else value
        if not self.library.owns(made):
            if isinstance(made, list | tuple) and any(isinstance(one, Array) for one in made):
                return self.raw(self.stack([self.asarray(one) for one in made]), dtype)
            made = self.library.array(np.asarray(made))
        return made if dtype is None else self.library.cast(made, np.dtype(dtype))

    def plain(self, value: Any) -> Any:
        """The value with all Arrays in it replaced by the library's tensors; functions take arrays as Arrays."""
        if isinstance(value, Array):
            return value.raw
        if isinstance(value, Scalar):
            return value.dtype
        if isinstance(value, range):
            return np.arange(value.start, value.stop, value.step)
        if isinstance(value, tuple | list):
            return type(value)(map(self.plain, value))
        return value

    def wrapped(self, value: Any) -> Any:
        """The value with all tensors of the library in it as Arrays."""
        if self.library.owns(value):
            return Array(self, value)
        return tuple(map(self.wrapped, value)) if isinstance(value, tuple | list) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = self.__dict__.setdefault("_known", {})
        if name not in known:
            known[name] = self._found(name)
        return known[name]

    def _found(self, name: str) -> Any:
        like = getattr(np, name)
        if isinstance(like, np.ufunc):
            return Ufunc(self, like)
        if isinstance(like, type) and issubclass(like, np.generic):
            return Scalar(self, like)
        if not callable(like) or name in _AS_THEY_ARE:
            return like
        return self.function(self.library.function(name))

    def function(self, of: Callable) -> Callable:
        """A function of the library's tensors as one of Arrays."""

        def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
            plain = {key: self.plain(value) for key, value in kwargs.items() if value is not None or key == "axis"}
            made = self.wrapped(of(*map(self.plain, args), **plain))
            if out is None:
                return made
            out.write(self.library.cast(self.library.broadcast(made.raw, out.shape), out.dtype))
            return out

        return call

    # -- making arrays

    def asarray(self, value: Any, dtype: Any = None, **_: Any) -> Array:
        if isinstance(value, Array) and (dtype is None or value.dtype == np.dtype(dtype)):
            return value
        return Array(self, self.raw(value, dtype))

    def array(self, value: Any, dtype: Any = None, **_: Any) -> Array:
        return Array(self, self.raw(value, dtype))

    ascontiguousarray = asarray

    def empty(self, shape: Any, dtype: Any = float) -> Array:
        return self.zeros(shape, dtype)

    def zeros(self, shape: Any, dtype: Any = float) -> Array:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = float) -> Array:
        return self.full(shape, 1, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Array:
        sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        of = np.dtype(dtype) if dtype is not None else np.dtype(_kind(value))
        return Array(self, self.library.broadcast(self.raw(value, of), sizes))

    def empty_like(self, like: Array, dtype: Any = None, shape: Any = None) -> Array:
        return self.full_like(like, 0, dtype, shape)

    zeros_like = empty_like

    def ones_like(self, like: Array, dtype: Any = None) -> Array:
        return self.full_like(like, 1, dtype)

    def full_like(self, like: Array, value: Any, dtype: Any = None, shape: Any = None) -> Array:
        return self.full(like.shape if shape is None else shape, value, dtype or like.dtype)

    def arange(self, *ends: Any, dtype: Any = None) -> Array:
        """Numbers in a row; whole ones also from a start that is an Array."""
        if any(isinstance(end, Array) for end in ends):
            raise Lacking("the ends of a range are not known before the run")
        return Array(self, self.library.array(np.arange(*ends, dtype=None if dtype is None else np.dtype(dtype))))

    def eye(self, *sizes: Any, dtype: Any = float, **kwargs: Any) -> Array:
        return Array(self, self.library.array(np.eye(*sizes, dtype=np.dtype(dtype), **kwargs)))

    # -- views

    def reshape(self, array: Any, shape: Any) -> Array:
        return self.asarray(array).reshape(shape)

    def ravel(self, array: Any) -> Array:
        return self.asarray(array).ravel()

    def transpose(self, array: Any, axes: Any = None) -> Array:
        return self.asarray(array).transpose(*([] if axes is None else [tuple(axes)]))

    def swapaxes(self, array: Any, one: int, other: int) -> Array:
        return self.asarray(array).swapaxes(one, other)

    def moveaxis(self, array: Any, source: Any, target: Any) -> Array:
        array = self.asarray(array)
        sources, targets = ([axis % array.ndim for axis in _listed(some)] for some in (source, target))
        order = [axis for axis in range(array.ndim) if axis not in sources]
        for to, axis in sorted(zip(targets, sources, strict=True)):
            order.insert(to, axis)
        return array.transpose(order)

    def expand_dims(self, array: Any, axis: Any) -> Array:
        array = self.asarray(array)
        axes = _listed(axis)
        new = {one % (array.ndim + len(axes)) for one in axes}
        sizes = iter(array.shape)
        return array.reshape(tuple(1 if i in new else next(sizes) for i in range(array.ndim + len(axes))))

    def squeeze(self, array: Any, axis: Any = None) -> Array:
        array = self.asarray(array)
        axes = {i for i, size in enumerate(array.shape) if size == 1}
        gone = axes if axis is None else {one % array.ndim for one in _listed(axis)}
        return array.reshape(tuple(size for i, size in enumerate(array.shape) if i not in gone))

    def broadcast_to(self, array: Any, shape: Any) -> Array:
        return Array(self, self.library.broadcast(self.raw(array), tuple(_listed(shape))))

    def copyto(self, target: Array, value: Any, where: Any = True) -> None:
        part = self.library.broadcast(self.raw(value, target.dtype), target.shape)
        target.write(part if where is True else self.library.where(self.raw(where), part, target.raw))

    def put_along_axis(self, target: Array, index: Any, values: Any, axis: int) -> None:
        index = self.asarray(index)
        axis = axis % target.ndim
        shape = tuple(
            size if i == axis else full for i, (size, full) in enumerate(zip(index.shape, target.shape, strict=True))
        )
        grid = [
            one.reshape([-1 if i == j else 1 for j in range(target.ndim)])
            for i, one in enumerate(map(np.arange, shape))
        ]
        places = (*grid[:axis], index.raw, *grid[axis + 1 :])
        part = self.library.broadcast(self.raw(values, target.dtype), shape)
        target.write(self.library.set(target.raw, places, part))

    def argsort(self, array: Any, axis: int = -1, kind: str = "", **_: Any) -> Array:
        """Always stable."""
        return self.asarray(self._argsort(self.asarray(array), axis=axis, stable=True), np.intp)

    def sort(self, array: Any, axis: int = -1, **_: Any) -> Array:
        array = self.asarray(array)
        return self.take_along_axis(array, self.argsort(array, axis), axis)

    def take_along_axis(self, array: Any, index: Any, axis: int) -> Array:
        return self._take_along_axis(array, self.asarray(index, np.int64), axis=axis)

    def take(self, array: Any, index: Any, axis: Any = None, mode: str = "", **_: Any) -> Array:
        """Elements by their number along the axis; `mode` "clip" takes the nearest for numbers outside."""
        array, index = self.asarray(array), self.asarray(index)
        if axis is None:
            return self.take(array.ravel(), index, 0, mode)
        axis = axis % array.ndim
        if mode == "clip":
            index = self.clip(index, 0, array.shape[axis] - 1)
        return array[(*(slice(None),) * axis, index)]

    def compress(self, condition: Any, array: Any, axis: Any = None) -> Array:
        """Elements where the condition holds, which has to be known: how many they are is the size of the result."""
        known = self.asarray(condition)
        if not known.is_known:
            raise Lacking("how many elements a condition picks is not known before the run")
        return self.take(array, np.flatnonzero([bool(one) for one in known]), axis)

    def roll(self, array: Any, shift: Any, axis: Any = None) -> Array:
        """Elements moved along dims, those at the end to the front."""
        array = self.asarray(array)
        if axis is None:
            return self.roll(array.ravel(), shift, 0).reshape(array.shape)
        axes, shifts = _listed(axis), _listed(shift)
        for one, by in zip(axes, shifts * len(axes) if len(shifts) == 1 else shifts, strict=True):
            size = array.shape[one]
            array = self.take(array, (np.arange(size) - by) % max(size, 1), one)
        return array

    @property
    def _argsort(self) -> Callable:
        return self.function(self.library.function("argsort"))

    @property
    def _take_along_axis(self) -> Callable:
        return self.function(self.library.function("take_along_axis"))

    # -- types and selections

    def result_type(self, *values: Any) -> np.dtype:
        kinds = (np.zeros((), one.dtype) if isinstance(one, Array) else self.plain(one) for one in values)
        return np.result_type(*(one.dtype if isinstance(one, np.ndarray) else one for one in kinds))

    def where(self, condition: Any, *pair: Any) -> Any:
        if not pair:
            return self.nonzero(condition)
        x, y = (self.raw(one, self.result_type(*pair)) for one in pair)
        return Array(self, self.library.where(self.raw(condition, bool), x, y))

    def clip(self, array: Any, low: Any = None, high: Any = None, **_: Any) -> Array:
        found = array if low is None else self.maximum(array, low)
        return found if high is None else self.minimum(found, high)

    def _folded(self, name: str, array: Any, axis: Any, dtype: Any, keepdims: bool) -> Array:
        array = self.asarray(array)
        like = np.zeros((1,) * array.ndim, array.dtype)
        made = getattr(np, name)(like, **({} if dtype is None else {"dtype": np.dtype(dtype)})).dtype
        axes = tuple(range(array.ndim)) if axis is None else tuple(one % array.ndim for one in _listed(axis))
        raw = self.library.cast(array.raw, made) if name in ("sum", "prod") else array.raw
        return Array(self, self.library.cast(self.library.folded(name, raw, axes, keepdims), made))

    def sum(self, array: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **_: Any) -> Array:
        return self._folded("sum", array, axis, dtype, keepdims)

    def prod(self, array: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **_: Any) -> Array:
        return self._folded("prod", array, axis, dtype, keepdims)

    def max(self, array: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        return self._folded("max", array, axis, None, keepdims)

    def min(self, array: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        return self._folded("min", array, axis, None, keepdims)

    def all(self, array: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        return self._folded("all", array, axis, None, keepdims)

    def any(self, array: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Array:
        return self._folded("any", array, axis, None, keepdims)

    def mean(self, array: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **_: Any) -> Array:
        array = self.asarray(array)
        total = self.sum(array, axis, dtype, keepdims)
        return total / (array.size / max(1, total.size))

    def count_nonzero(self, array: Any, axis: Any = None, keepdims: bool = False) -> Array:
        return self.sum(self.asarray(array) != 0, axis, np.intp, keepdims)

    def stack(self, arrays: Sequence[Any], axis: int = 0) -> Array:
        joined = [self.expand_dims(one, axis) for one in arrays]
        return self.concatenate(joined, axis)

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Array:
        arrays = [self.asarray(one) for one in arrays]
        of = reduce(np.promote_types, (one.dtype for one in arrays))
        return Array(self, self.library.concatenate([self.raw(one, of) for one in arrays], axis % arrays[0].ndim))


class NamespacePart:
    """A part of numpy such as `linalg`."""

    LinAlgError = np.linalg.LinAlgError

    def __init__(self, space: Namespace, name: str) -> None:
        self._space, self._name = space, name

    def __getattr__(self, name: str) -> Callable:
        return self._space.function(self._space.library.function(f"{self._name}.{name}"))


_AS_THEY_ARE = {
    "dtype", "errstate", "finfo", "iinfo", "broadcast_shapes", "promote_types", "getbufsize", "ndindex", "can_cast",
}  # fmt: skip


def _listed(value: Any) -> list[int]:
    return [int(one) for one in value] if isinstance(value, tuple | list | range | Array) else [int(value)]
