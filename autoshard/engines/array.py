"""Array: a tensor of torch or JAX behind the face of `numpy.ndarray`, so that what is written for numpy runs on it.

    made = np.zeros((4, 3), np.float32)     # np is a Namespace
    made[1:, 0] += x                        # x is an Array

Values of the library are never changed. What numpy changes in place, an Array replaces; what numpy makes as a view, an
Array makes as a lens: it reads its part of the base each time, and a write to it replaces the base. Element types are
numpy's own (with ml_dtypes' where the library has such).

This file needs numpy alone: exported code carries it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Lens = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]
"""Takes a part out of the library's tensor; and puts one back, which makes a new tensor."""


class Array:
    """One tensor of the library that `space` stands for."""

    # Numpy's arrays and numbers leave operations with an Array to it.
    __array_ufunc__ = None
    __slots__ = ("_base", "_lens", "_raw", "space")

    def __init__(self, space: Any, raw: Any = None, base: Array | None = None, lens: Lens | None = None) -> None:
        self.space, self._raw, self._base, self._lens = space, raw, base, lens

    @property
    def raw(self) -> Any:
        """The library's tensor."""
        return self._raw if self._base is None or self._lens is None else self._lens[0](self._base.raw)

    def write(self, raw: Any) -> None:
        """Take another value of the same shape and type."""
        if self._base is None or self._lens is None:
            self._raw = raw
        else:
            self._base.write(self._lens[1](self._base.raw, raw))

    def view_by(self, get: Callable[[Any], Any], put: Callable[[Any, Any], Any]) -> Array:
        """A lens on this array."""
        return Array(self.space, base=self, lens=(get, put))

    @property
    def is_known(self) -> bool:
        """Whether its elements can be looked at now."""
        return self.space.library.is_known(self.raw)

    # -- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.raw.shape)

    @property
    def ndim(self) -> int:
        return len(self.raw.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.space.library.dtype(self.raw)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Array:
        return self.transpose()

    @property
    def real(self) -> Array:
        return self.space.real(self)

    @real.setter
    def real(self, part: Any) -> None:
        self.write(self.space.library.complexed(self.space.raw(part), self.imag.raw, self.dtype))

    @property
    def imag(self) -> Array:
        return self.space.imag(self)

    @imag.setter
    def imag(self, part: Any) -> None:
        self.write(self.space.library.complexed(self.real.raw, self.space.raw(part), self.dtype))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return self.space.library.truth(self.raw)

    def __int__(self) -> int:
        return int(self.space.library.looked_at(self.raw))

    def __float__(self) -> float:
        return float(self.space.library.looked_at(self.raw))

    def __index__(self) -> int:
        return operator.index(self.space.library.number(self.raw))

    def item(self) -> Any:
        """The one element as a number of Python's."""
        return self.space.library.number(self.raw)

    def tolist(self) -> Any:
        return self.space.library.looked_at(self.raw).tolist()

    # -- shapes

    def reshape(self, *shape: Any) -> Array:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        old, library = self.shape, self.space.library
        new = tuple(map(operator.index, sizes))
        return self.view_by(lambda raw: library.reshape(raw, new), lambda raw, part: library.reshape(part, old))

    def ravel(self) -> Array:
        return self.reshape(-1)

    def flatten(self) -> Array:
        return self.reshape(-1).copy()

    def transpose(self, *axes: Any) -> Array:
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        given = () if given is None else given
        order = tuple(int(axis) % self.ndim for axis in given) if len(given) else tuple(reversed(range(self.ndim)))
        back, library = tuple(np.argsort(order).tolist()), self.space.library
        return self.view_by(lambda raw: library.transpose(raw, order), lambda raw, part: library.transpose(part, back))

    def swapaxes(self, one: int, other: int) -> Array:
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self.transpose(order)

    def astype(self, dtype: Any, copy: bool = True, **_: Any) -> Array:
        return Array(self.space, self.space.library.cast(self.raw, np.dtype(dtype)))

    def copy(self, order: str = "C") -> Array:
        return Array(self.space, self.raw)

    def view(self, dtype: Any) -> Array:
        """The same bits as another type of the same width."""
        return Array(self.space, self.space.library.bitcast(self.raw, np.dtype(dtype)))

    def fill(self, value: Any) -> None:
        self[...] = value

    # -- indices

    def __getitem__(self, index: Any) -> Array:
        library, index = self.space.library, self.space.plain(index)
        if not _is_basic(index):
            return Array(self.space, library.get(self.raw, index))
        return self.view_by(lambda raw: library.get(raw, index), lambda raw, part: library.set(raw, index, part))

    def __setitem__(self, index: Any, value: Any) -> None:
        library = self.space.library
        part = library.cast(self.space.raw(value), self.dtype)
        self.write(library.set(self.raw, self.space.plain(index), part))

    # -- numpy's methods are its functions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(np.ndarray, name, None)):
            raise AttributeError(f"an array of {self.space.library.name} has no {name!r}")
        function = getattr(self.space, name)
        return lambda *args, **kwargs: function(self, *args, **kwargs)


def _is_basic(index: Any) -> bool:
    """Whether numpy makes a view of such an index."""
    items = index if isinstance(index, tuple) else (index,)
    return all(one is None or one is Ellipsis or isinstance(one, slice | int | np.integer) for one in items)


def _binary(ufunc: str) -> tuple[Callable, Callable, Callable]:
    def forward(self: Array, other: Any) -> Array:
        return getattr(self.space, ufunc)(self, other)

    def backward(self: Array, other: Any) -> Array:
        return getattr(self.space, ufunc)(other, self)

    def in_place(self: Array, other: Any) -> Array:
        return getattr(self.space, ufunc)(self, other, out=self)

    return forward, backward, in_place


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
_COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert", "pos": "positive"}
for _name, _ufunc in _BINARY.items():
    for _prefix, _method in zip(("", "r", "i"), _binary(_ufunc), strict=True):
        setattr(Array, f"__{_prefix}{_name}__", _method)
for _name, _ufunc in _COMPARISONS.items():
    setattr(Array, f"__{_name}__", _binary(_ufunc)[0])
for _name, _ufunc in _UNARY.items():
    setattr(Array, f"__{_name}__", lambda self, _of=_ufunc: getattr(self.space, _of)(self))
Array.__hash__ = None  # type: ignore[assignment]
