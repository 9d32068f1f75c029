"""JAX's tensors for a Namespace: arrays on a device, or those that a transformation traces.

Whole numbers and floats of 64 bits need `jax.enable_x64(True)` around all of it.
This file needs numpy, scipy and jax alone: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

name = "jax"


def owns(value: Any) -> bool:
    """Whether it is a tensor of JAX's."""
    return isinstance(value, jax.Array | Masked)


def is_known(raw: Any) -> bool:
    """Whether its elements can be looked at now."""
    return not isinstance(raw, Tracer | Masked)


def kinds(raws: Sequence[Any]) -> None:
    """No tapes are played: JAX traces a program itself."""


def array(value: np.ndarray) -> jax.Array:
    """The tensor; one that is the same number all over is no constant of its size in a compiled program."""
    if value.ndim and value.size > 1 and not any(value.strides):
        return jnp.broadcast_to(jnp.asarray(value[(0,) * value.ndim]), value.shape)
    return jnp.asarray(value)


def dtype(raw: jax.Array) -> np.dtype:
    return np.dtype(raw.dtype)


def number(raw: jax.Array) -> Any:
    return raw.item()


def cast(raw: jax.Array, to: np.dtype) -> jax.Array:
    """Conversion as numpy does it on this kind of processor, also of floats that do not fit."""
    if isinstance(raw, Masked):
        return Masked(cast(raw.raw, to), raw.mask)  # type: ignore[return-value]
    return raw if raw.dtype == to else raw.astype(to)


def bitcast(raw: jax.Array, to: np.dtype) -> jax.Array:
    return lax.bitcast_convert_type(raw, to)


def reshape(raw: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.reshape(raw, shape)


def transpose(raw: jax.Array, order: tuple[int, ...]) -> jax.Array:
    return jnp.transpose(raw, order)


def broadcast(raw: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.broadcast_to(raw, shape)


def complexed(real: jax.Array, imag: jax.Array, to: np.dtype) -> jax.Array:
    part = np.dtype(f"f{to.itemsize // 2}")
    return lax.complex(real.astype(part), imag.astype(part))


def where(condition: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(condition, x, y)


def concatenate(raws: list, axis: int) -> jax.Array:
    return jnp.concatenate(raws, axis)


def folded(name: str, raw: jax.Array, axes: tuple[int, ...], keepdims: bool) -> jax.Array:
    return getattr(jnp, name)(raw, axis=axes, keepdims=keepdims)


def get(raw: jax.Array, index: Any) -> jax.Array:
    if not is_known(index) and getattr(index, "dtype", None) == np.bool_:
        return Masked(raw, index)  # type: ignore[return-value]
    return raw[index]


def set(raw: jax.Array, index: Any, part: jax.Array) -> jax.Array:
    if is_whole(index, raw.shape):
        # XLA makes a map of a scatter to all elements, which its simplifier (of jaxlib 0.10) cannot reverse: it aborts.
        return jnp.broadcast_to(part, raw.shape).astype(raw.dtype)
    mask = _only_mask(index)
    if mask is None:
        return raw.at[index].set(part)
    first, mask = mask
    if mask.dtype == np.bool_ and first < 0:
        first = raw.ndim - mask.ndim
    shape = (1,) * first + mask.shape + (1,) * (raw.ndim - first - mask.ndim)
    return jnp.where(jnp.reshape(mask, shape), part, raw) if part.ndim == 0 else raw.at[index].set(part)


def is_whole(index: Any, shape: tuple[int, ...]) -> bool:
    """Whether an index takes all elements in their order."""
    items = index if isinstance(index, tuple) else (index,)
    slices = [one for one in items if one is not Ellipsis]
    if any(not isinstance(one, slice) for one in slices) or len(slices) > len(shape):
        return False
    if len(slices) < len(items):  # an ellipsis: the slices are of other dims than they stand at
        return all(one == slice(None) for one in slices)
    return all(one.indices(size) == (0, size, 1) for one, size in zip(slices, shape, strict=False))


def _only_mask(index: Any) -> tuple[int, Any] | None:
    """The one mask of an index, and how many dims lie before it, if all else is whole."""
    items = index if isinstance(index, tuple) else (index,)
    masks = [(i, one) for i, one in enumerate(items) if getattr(one, "dtype", None) == np.bool_]
    others = [one for one in items if getattr(one, "dtype", None) != np.bool_ and one is not Ellipsis]
    if len(masks) != 1 or any(not isinstance(one, slice) or one != slice(None) for one in others):
        return None
    if items[0] is Ellipsis:
        return (-1, masks[0][1]) if len(items) == 2 else None
    return masks[0]


class Masked:
    """Elements picked by a mask that is known in the run only: all elements, and which of them are meant."""

    def __init__(self, raw: jax.Array, mask: jax.Array) -> None:
        self.raw, self.mask, self.dtype = raw, mask, raw.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError("how many elements a mask picks is not known before the run")


def at(ufunc: str, raw: jax.Array, index: Any, part: jax.Array) -> jax.Array:
    method = {"add": "add", "multiply": "multiply", "maximum": "max", "minimum": "min"}[ufunc]
    if isinstance(index, Masked):
        index = jnp.where(index.mask, index.raw, raw.shape[0])
        part = part.raw if isinstance(part, Masked) else part
        return getattr(raw.at[index], method)(part, mode="drop")
    return getattr(raw.at[index], method)(part)


def repeated(count: int, step: Callable[[Any, tuple], tuple], raws: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """`raws` after that many steps, each of its number and what the one before it has left."""
    return lax.fori_loop(0, count, step, raws)


def ufunc(name: str) -> Callable:
    return _UFUNCS.get(name) or getattr(jnp, name)


def function(name: str) -> Callable:
    """A function of numpy's, by its name."""
    return _FUNCTIONS.get(name) or reduce(getattr, name.split("."), jnp)


_BY_ROW = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
_ALONG_ROWS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def grouped_matmul(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """Rows of group i times matrix i: x is [rows, k], w [groups, k, n].

    Before the first group are `sizes[0]` rows, in group i are `sizes[i + 1]`; others give zeros.
    """
    w = jnp.concatenate([jnp.zeros((1, *w.shape[1:]), w.dtype), w])
    made = lax.ragged_dot_general(x, w, sizes, _BY_ROW, precision=lax.Precision.HIGHEST)
    inside = jnp.arange(x.shape[0]) < sizes.sum()
    return jnp.where(inside[:, None], made, jnp.zeros((), made.dtype))


def grouped_outer(x: jax.Array, g: jax.Array, sizes: jax.Array) -> jax.Array:
    """For each group x's rows transposed times g's: x is [rows, k], g [rows, n], `sizes` as of `grouped_matmul`."""
    return lax.ragged_dot_general(x, g, sizes, _ALONG_ROWS, precision=lax.Precision.HIGHEST)[1:]


def padded(raw: jax.Array, value: jax.Array, ends: tuple[tuple[int, int, int], ...]) -> jax.Array:
    """With a value before, after and between the elements of each dim: `ends` are how often, negative takes away."""
    return lax.pad(raw, value, [(int(low), int(high), int(inner)) for low, high, inner in ends])


def _unique(raw: jax.Array, return_inverse: bool = False) -> Any:
    """As many as there are elements, of which the last may be repeated: how many differ is known in the run only."""
    return jnp.unique(raw, return_inverse=return_inverse, size=raw.size)


_FUNCTIONS: dict[str, Callable] = {"unique": _unique}
_UFUNCS: dict[str, Callable] = {"matmul": lambda x, y: jnp.matmul(x, y, precision=lax.Precision.HIGHEST)}
