"""Tensor: MindSpore's name for an array with numbers; here numpy's array with MindSpore's constructor and methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype as element
from autoshard.trace.arithmetic import Arithmetic, check_mean
from autoshard.util.errors import ShapeError


class _Kinds(type):
    """Also what stands for a tensor while a model is traced, and a parameter, is a Tensor."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, Arithmetic) or super().__instancecheck__(one)


class Tensor(np.ndarray, metaclass=_Kinds):
    """An array, as MindSpore's `Tensor(input_data, dtype)` makes it.

    numpy's functions and methods work on it; a method that MindSpore has, too, means what MindSpore means by it.

    Args:
        input_data: anything numpy makes an array of; Python floats become float32, whole numbers int64.
        dtype: `autoshard.mindspore.float32` and the like, numpy's types, or names such as "f32".
        shape, init: instead of data, what `common.initializer.initializer(init, shape, dtype)` makes.

    Example:
        >>> Tensor([1, 2.5]).asnumpy()
        array([1. , 2.5], dtype=float32)
    """

    def __new__(cls, input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None) -> Tensor:
        if init is not None:
            from autoshard.trace.initializer import initializer

            return initializer(init, shape or (), dtype or "f32").view(cls)
        if input_data is None:
            raise TypeError("Tensor: give input_data, or init with shape and dtype")
        array = np.array(input_data)
        if dtype is not None:
            return array.astype(element(dtype).numpy).view(cls)
        plain_floats = array.dtype == np.float64 and not isinstance(input_data, np.ndarray | np.generic)
        return (array.astype(np.float32) if plain_floats else array).view(cls)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        """numpy's arithmetic; what it makes float64 of whole numbers, or with Python's floats, is float32."""
        if any(isinstance(one, Arithmetic) for one in inputs):
            return NotImplemented
        given = tuple(map(_plain, inputs))
        arrays = [one for one in given if isinstance(one, np.ndarray)]
        single = all(one.dtype != np.float64 for one in arrays)
        if any(isinstance(one, float) for one in given) and all(one.dtype.kind in "iub" for one in arrays):
            given = tuple(one.astype(np.float32) if isinstance(one, np.ndarray) else one for one in given)
        out = settings.get("out")
        if out is not None:
            getattr(function, method)(*given, **settings | {"out": tuple(map(_plain, out))})
            return out[0] if len(out) == 1 else out
        made = getattr(function, method)(*given, **settings)
        return tuple(_tensor(one, single) for one in made) if isinstance(made, tuple) else _tensor(made, single)

    def __getitem__(self, index: Any) -> Any:
        return _tensor(super().__getitem__(index))

    def init_data(
        self, slice_index: int | None = None, shape: Any = None, opt_shard_group: str | None = None
    ) -> Tensor:
        """This tensor: what `initializer` makes has its numbers from the beginning."""
        if slice_index is not None or shape is not None or opt_shard_group is not None:
            raise ShapeError(
                "init_data: one slice of a tensor is not made here; parameters are split when they are loaded"
            )
        return self

    def asnumpy(self) -> np.ndarray:
        """The same numbers as a plain numpy array, in the same memory."""
        return super().view(np.ndarray)

    def __repr__(self) -> str:
        numbers = np.array2string(self.asnumpy(), separator=", ")
        return f"Tensor(shape={list(self.shape)}, dtype={element(self.dtype).long_name}, value={numbers})"

    # -- methods by which numpy means something else, or that it lacks

    def abs(self) -> Any:
        return _tensor(np.abs(self))

    def exp(self) -> Any:
        return _tensor(np.exp(self))

    def log(self) -> Any:
        return _tensor(np.log(self))

    def sqrt(self) -> Any:
        return _tensor(np.sqrt(self))

    def tanh(self) -> Any:
        return _tensor(np.tanh(self))

    def pow(self, exponent: Any) -> Any:
        return self**exponent

    def clamp(self, min: Any = None, max: Any = None) -> Any:
        return self.clip(min, max)

    def to(self, dtype: Any) -> Any:
        return self.astype(element(dtype).numpy)

    def astype(self, dtype: Any, copy: bool = True) -> Any:  # type: ignore[override]
        return super().astype(element(dtype).numpy, copy=copy)

    def expand_dims(self, axis: int) -> Any:
        return _tensor(np.expand_dims(self.asnumpy(), axis))

    unsqueeze = expand_dims

    def permute(self, *axis: Any) -> Any:
        return self.transpose(*axis)

    def broadcast_to(self, shape: Any) -> Any:
        return _tensor(np.broadcast_to(self.asnumpy(), shape))

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        """The same numbers in another shape; numpy's own `view(type)` with a type."""
        if len(shape) == 1 and isinstance(shape[0], type | np.dtype | str):
            return super().view(shape[0])
        return self.reshape(*shape)

    def flatten(self, order: Any = "C", *, start_dim: int = 0, end_dim: int = -1) -> Any:  # type: ignore[override]
        """The dims from `start_dim` to `end_dim` as one."""
        if self.ndim == 0 or order != "C":
            return super().flatten(order)
        start, end = start_dim % self.ndim, end_dim % self.ndim
        return self.reshape(*self.shape[:start], -1, *self.shape[end + 1 :]).copy()

    def fill(self, value: Any) -> Any:  # type: ignore[override]
        """A tensor of this shape and type with `value` everywhere; this one stays as it is."""
        return _tensor(np.full_like(self.asnumpy(), value))

    def resize(self, *new_shape: Any) -> Any:  # type: ignore[override]
        """The first numbers in another shape, and zeros if there are too few of them."""
        shape = new_shape[0] if len(new_shape) == 1 and isinstance(new_shape[0], tuple | list) else new_shape
        made = np.zeros(shape, self.dtype)
        count = min(made.size, self.size)
        made.reshape(-1)[:count] = self.asnumpy().reshape(-1)[:count]
        return _tensor(made)

    def max(self, *dim: Any, axis: Any = None, keepdims: bool = False) -> Any:  # type: ignore[override]
        """The largest elements; with the dim by position their places, too."""
        return self._extreme(np.max, np.argmax, dim, axis, keepdims)

    def min(self, *dim: Any, axis: Any = None, keepdims: bool = False) -> Any:  # type: ignore[override]
        """The smallest elements; with the dim by position their places, too."""
        return self._extreme(np.min, np.argmin, dim, axis, keepdims)

    def _extreme(self, values: Any, places: Any, dim: Any, axis: Any, keepdims: bool) -> Any:
        plain = self.asnumpy()
        if not dim or dim == (None,):
            return _tensor(values(plain, axis=axis, keepdims=keepdims))
        found = (function(plain, *dim, keepdims=keepdims) for function in (values, places))
        return tuple(map(_tensor, found))

    def argmax(self, axis: Any = None, keepdims: bool = False) -> Any:  # type: ignore[override]
        """The place of the largest element along `axis`, or in the flat tensor."""
        return _tensor(self.asnumpy().argmax(axis, keepdims=keepdims))

    def argmin(self, axis: Any = None, keepdims: bool = False) -> Any:  # type: ignore[override]
        """The place (int32) of the smallest element along `axis`, or in the flat tensor."""
        return _tensor(np.asarray(self.asnumpy().argmin(axis, keepdims=keepdims)).astype(np.int32))

    def argsort(self, axis: int = -1, descending: bool = False) -> Any:  # type: ignore[override]
        """The places (int32) of the elements in order along `axis`."""
        return self.sort(axis, descending)[1]

    def sort(self, axis: int = -1, descending: bool = False) -> Any:  # type: ignore[override]
        """The elements in order along `axis`, and their places (int32); this one stays as it is."""
        plain = self.asnumpy()
        # Turned round without overflow: ~x is -x - 1.
        turned = plain if not descending else -plain if plain.dtype.kind == "f" else ~plain
        places = np.argsort(turned, axis, kind="stable")
        return _tensor(np.take_along_axis(plain, places, axis)), _tensor(places.astype(np.int32))

    def mean(self, axis: Any = None, keep_dims: bool = False, **settings: Any) -> Any:  # type: ignore[override]
        """Raises ShapeError for whole numbers, whose mean MindSpore cuts off and numpy does not."""
        check_mean(self)
        return _tensor(self.asnumpy().mean(axis, keepdims=settings.pop("keepdims", keep_dims), **settings))

    def std(self, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:  # type: ignore[override]
        return _tensor(self.asnumpy().std(axis, ddof=ddof, keepdims=keepdims), single=self.dtype != np.float64)

    def var(self, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:  # type: ignore[override]
        return _tensor(self.asnumpy().var(axis, ddof=ddof, keepdims=keepdims), single=self.dtype != np.float64)

    def nonzero(self) -> Any:
        """The places of what is not zero: a row for each."""
        return _tensor(np.argwhere(self.asnumpy()))

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None) -> Any:  # type: ignore[override]
        """Where (int32) elements of `v` would stand in this sorted row."""
        return _tensor(np.searchsorted(self.asnumpy(), v, side, sorter).astype(np.int32))  # type: ignore[call-overload]


def _plain(one: Any) -> Any:
    return one.asnumpy() if isinstance(one, np.ndarray) and isinstance(one, Tensor) else one


def _tensor(made: Any, single: bool = False) -> Any:
    """An array or a number of numpy as a Tensor, float64 as float32 if `single`."""
    if not isinstance(made, np.ndarray | np.generic):
        return made
    array = np.asarray(made)
    return (array.astype(np.float32) if single and array.dtype == np.float64 else array).view(Tensor)


def tensor(
    input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, const_arg: bool = False
) -> Tensor:
    """The same as `Tensor(...)`; `const_arg` changes nothing, as numbers of arrays are always constants of a trace."""
    return Tensor(input_data, dtype, shape, init)


def from_numpy(array: np.ndarray) -> Tensor:
    """The array as a Tensor, in the same memory."""
    return array.view(Tensor)
