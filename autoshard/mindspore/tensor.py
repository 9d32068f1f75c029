"""Tensor: MindSpore's name for an array with numbers; here numpy's array with MindSpore's constructor and methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype as element
from autoshard.trace.arithmetic import Arithmetic


class _Kinds(type):
    """Also what stands for a tensor while a model is traced, and a parameter, is a Tensor."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, Arithmetic) or super().__instancecheck__(one)


class Tensor(np.ndarray, metaclass=_Kinds):
    """An array, as MindSpore's `Tensor(input_data, dtype)` makes it; all of numpy's methods work on it.

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

    def __truediv__(self, other: Any) -> Any:
        return _real(super().__truediv__(other), self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real(super().__rtruediv__(other), self, other)

    def asnumpy(self) -> np.ndarray:
        """The same numbers as a plain numpy array, in the same memory."""
        return self.view(np.ndarray)

    def __repr__(self) -> str:
        numbers = np.array2string(self.view(np.ndarray), separator=", ")
        return f"Tensor(shape={list(self.shape)}, dtype={element(self.dtype).long_name}, value={numbers})"


def _real(quotient: Any, *operands: Any) -> Any:
    """The quotient of whole numbers as float32, where numpy makes float64."""
    if not isinstance(quotient, np.ndarray) or any(np.asarray(one).dtype.kind not in "iub" for one in operands):
        return quotient
    return quotient.astype(np.float32)


def tensor(
    input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, const_arg: bool = False
) -> Tensor:
    """The same as `Tensor(...)`; `const_arg` changes nothing, as numbers of arrays are always constants of a trace."""
    return Tensor(input_data, dtype, shape, init)


def from_numpy(array: np.ndarray) -> Tensor:
    """The array as a Tensor, in the same memory."""
    return array.view(Tensor)
