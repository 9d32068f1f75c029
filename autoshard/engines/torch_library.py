"""PyTorch's tensors for a Namespace. Functions that torch does not name itself are those of its `torch._numpy`.

The module's own functions are for CPUs; `on(device)` gives them for another device, on which they make what they make
of numpy's arrays. What is made beside tensors (positions, say) lies where these lie.

This file needs numpy, ml_dtypes (for bfloat16 alone) and torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

tnp: Any = import_module("torch._numpy")  # numpy's functions on torch's tensors, which torch.compile reads numpy by
name = "torch"

_SAME = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""By types without a sign those with as many bits, which all of torch's functions that only choose or move take."""
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


@cache
def _types() -> dict[str, torch.dtype]:
    return {one: getattr(torch, one) for one in (*_SAME, *_NARROW)}


@cache
def torch_dtype(of: np.dtype) -> torch.dtype:
    """Torch's name of an element type."""
    found = _types().get(of.name)
    if found is None:
        raise NotImplementedError(f"torch has no tensors of {of.name}")
    return found


@cache
def numpy_dtype(of: torch.dtype) -> np.dtype:
    """Numpy's name of an element type."""
    known = str(of).removeprefix("torch.")
    if known in _NARROW:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, known))
    return np.dtype(known)


def owns(value: Any) -> bool:
    """Whether it is a tensor of torch's."""
    return isinstance(value, torch.Tensor)


def is_known(raw: torch.Tensor) -> bool:
    """Whether its elements can be looked at now."""
    from torch._subclasses.fake_tensor import FakeTensor  # what torch traces with

    return not isinstance(raw, FakeTensor)


def kinds(raws: Sequence[Any]) -> tuple | None:
    """Shapes and types of tensors of torch's own, on which tapes are played; None where torch traces: constants that
    are made then are no numbers to keep, whatever the operands are."""
    if torch._C._len_torch_dispatch_stack():
        return None
    found = []
    for raw in raws:
        if type(raw) is not torch.Tensor:
            return None
        found += (raw.shape, raw.dtype)
    return tuple(found)


def array(value: np.ndarray) -> torch.Tensor:
    """A tensor of the same bits."""
    # C has two types of 64 bits, of which torch knows one.
    kind = np.dtype(value.dtype.name) if value.dtype.kind in "iu" else value.dtype
    value = np.ascontiguousarray(value, kind).reshape(value.shape)
    of = torch_dtype(value.dtype)
    if value.dtype.name in _NARROW:
        bits = np.int16 if value.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(value.view(bits).copy()).view(of)
    return torch.from_numpy(value.copy())


def on(device: str) -> Any:
    """The library for tensors of a device, by torch's name of it."""
    known = {key: one for key, one in globals().items() if not key.startswith("__")}
    if device == "cpu":
        return SimpleNamespace(**known)
    placed: dict[str, Callable] = {
        "array": lambda value: array(value).to(device),
        "tensor": lambda value: tensor(value).to(device),
        "repeated": lambda count, step, raws: repeated(count, step, raws, device),
    }
    return SimpleNamespace(**{**known, **placed})


def tensor(value: np.ndarray) -> torch.Tensor:
    """The same in the memory of the array, where that may be written."""
    plain = value.flags.c_contiguous and value.flags.writeable and value.dtype.name not in _NARROW
    return torch.from_numpy(value) if plain else array(value)


def to_numpy(raw: torch.Tensor) -> np.ndarray:
    """An array of the same bits."""
    raw = raw.detach().resolve_conj().cpu().contiguous()
    of = numpy_dtype(raw.dtype)
    if of.name in _NARROW:
        return raw.view(torch.int16 if of.itemsize == 2 else torch.uint8).numpy().view(of)
    return raw.numpy()


def dtype(raw: torch.Tensor) -> np.dtype:
    return numpy_dtype(raw.dtype)


def number(raw: torch.Tensor) -> Any:
    return raw.item()


def cast(raw: torch.Tensor, to: np.dtype) -> torch.Tensor:
    of = torch_dtype(to)
    return raw if raw.dtype == of else raw.to(of)


def bitcast(raw: torch.Tensor, to: np.dtype) -> torch.Tensor:
    return raw.contiguous().view(torch_dtype(to))


def reshape(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return raw.reshape(shape)


def transpose(raw: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    return raw.permute(order)


def broadcast(raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return raw if raw.shape == tuple(shape) else raw.broadcast_to(shape)


def complexed(real: torch.Tensor, imag: torch.Tensor, to: np.dtype) -> torch.Tensor:
    part = torch_dtype(np.dtype(f"f{to.itemsize // 2}"))
    return torch.complex(real.to(part).contiguous(), imag.to(part).contiguous())


def where(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    signed = _SIGNED.get(x.dtype) if x.dtype == y.dtype else None
    if signed is None:
        return torch.where(condition, x, y)
    return torch.where(condition, x.view(signed), y.view(signed)).view(x.dtype)


def concatenate(raws: list, axis: int) -> torch.Tensor:
    return torch.cat(raws, axis)


def folded(name: str, raw: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    if not axes:
        return raw.to(torch.bool) if name in ("all", "any") else raw
    if name == "prod":
        for axis in sorted(axes, reverse=True):
            raw = torch.prod(raw, axis, keepdim=keepdims)
        return raw
    run = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "all": torch.all, "any": torch.any}[name]
    if name in ("max", "min") and raw.dtype in _SIGNED:
        return _unsigned(f"{name}imum", lambda raw: run(raw, axes, keepdim=keepdims), (raw,), raw.dtype)
    return run(raw, axes, keepdim=keepdims)


def get(raw: torch.Tensor, index: Any) -> torch.Tensor:
    raw, index = _forward(raw, index)
    signed = _SIGNED.get(raw.dtype)
    return _elements(raw.view(signed), index).view(raw.dtype) if signed else _elements(raw, index)


def _elements(raw: torch.Tensor, index: tuple[Any, ...]) -> torch.Tensor:
    """What an index finds. Of tensors alone by torch's operator: brackets ask the host for one that has no dims."""
    return torch.ops.aten.index.Tensor(*_with_dims(raw, index)) if _is_tensors(index) else raw[index]


def _with_dims(raw: torch.Tensor, index: tuple[Any, ...]) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The same where a mask has no dims, which torch's operators do not take: a mask of one of these tensors."""
    if index[0].dtype == torch.bool and not index[0].ndim:
        return raw.unsqueeze(0), (index[0].reshape(1), *index[1:])
    return raw, index


def _is_tensors(index: tuple[Any, ...]) -> bool:
    return bool(index) and all(isinstance(one, torch.Tensor) for one in index)


def set(raw: torch.Tensor, index: Any, part: torch.Tensor) -> torch.Tensor:
    made = raw.clone(memory_format=torch.contiguous_format)
    if signed := _SIGNED.get(raw.dtype):
        return set(made.view(signed), index, part.to(raw.dtype).view(signed)).view(raw.dtype)
    if _has_backward(index):
        places = torch.arange(raw.numel(), device=raw.device).reshape(raw.shape)
        made.view(-1)[get(places, index)] = part
    elif _is_tensors(places := _indices(index, raw.device)):
        whole, places = _with_dims(made, places)
        whole.index_put_(places, part)
    else:
        made[places] = part
    return made


def _argsort(raw: torch.Tensor, axis: int, stable: bool) -> torch.Tensor:
    return torch.argsort(raw, dim=axis, stable=stable)


def at(ufunc: str, raw: torch.Tensor, index: Any, part: torch.Tensor) -> torch.Tensor:
    places = _elements(torch.arange(raw.numel(), device=raw.device).reshape(raw.shape), _indices(index, raw.device))
    values = part.broadcast_to(places.shape).reshape(-1)
    flat = raw.reshape(-1).clone()
    by = {"add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin"}[ufunc]
    if raw.dtype in _SIGNED:

        def combined(flat: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return flat.scatter_reduce(0, places.reshape(-1), values, by, include_self=True)

        return _unsigned(ufunc, combined, (flat, values), raw.dtype).reshape(raw.shape)
    if raw.dtype == torch.bool:  # which CUDA does not scatter
        flat, values = flat.to(torch.int32), values.to(torch.int32)
    found = flat.scatter_reduce(0, places.reshape(-1), values, by, include_self=True)
    return found.to(raw.dtype).reshape(raw.shape)


def repeated(
    count: int, step: Callable[[Any, tuple], tuple], raws: tuple[torch.Tensor, ...], device: str = "cpu"
) -> tuple:
    """`raws` after that many steps, each of its number and what the one before it has left."""
    for turn in range(count):
        raws = step(torch.tensor(turn, device=device), raws)
    return raws


def _has_backward(index: Any) -> bool:
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, slice) and (one.step or 1) < 0 for one in items)


def _indices(index: Any, device: torch.device) -> Any:
    """Numbers that index tensors of a device, as torch takes them: of 64 bits."""
    items = index if isinstance(index, tuple) else (index,)
    return tuple(_index(one, device) for one in items)


def _index(one: Any, device: torch.device) -> Any:
    if isinstance(one, list | range | np.ndarray):
        one = torch.as_tensor(np.asarray(one), device=device)
    if isinstance(one, torch.Tensor) and one.dtype != torch.bool:
        return one.to(torch.int64)
    return one


def _forward(raw: torch.Tensor, index: Any) -> tuple[torch.Tensor, Any]:
    """The same element by steps forward: torch knows no others."""
    items = list(_indices(index, raw.device))
    if not _has_backward(tuple(items)):
        return raw, tuple(items)
    taken = sum(map(_dims_of, items))
    if any(one is Ellipsis for one in items):
        place = next(i for i, one in enumerate(items) if one is Ellipsis)
        items[place : place + 1] = [slice(None)] * (raw.ndim - taken + 1)
    dim = 0
    for i, one in enumerate(items):
        if isinstance(one, slice) and (one.step or 1) < 0:
            places = torch.tensor(range(raw.shape[dim])[one], dtype=torch.int64, device=raw.device)
            raw = raw.index_select(dim, places)
            items[i] = slice(None)
        dim += _dims_of(one)
    return raw, tuple(items)


def _dims_of(one: Any) -> int:
    """How many dims a part of an index speaks of."""
    return one.ndim if isinstance(one, torch.Tensor) and one.dtype == torch.bool else int(one is not None)


def ufunc(name: str) -> Callable:
    """An elementwise function of numpy's, by its name."""
    of = _UFUNCS.get(name) or getattr(torch, name, None) or function(name)

    def call(*raws: torch.Tensor) -> Any:
        for raw in raws:
            if raw.dtype in _SIGNED:
                return _unsigned(name, of, raws, raw.dtype)
        return of(*raws)

    return call


# Torch has tensors of these types, and hardly computes on them.
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
_OF_64_BITS = ("add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift")


def _unsigned(name: str, of: Callable, raws: tuple[torch.Tensor, ...], kind: torch.dtype) -> torch.Tensor:
    """The function on numbers without a sign, computed in i64: exact for 16 and 32 bits; of 64 where bits suffice."""
    if kind == torch.uint64:
        return _of_64_bits(name, of, [raw.view(torch.int64) for raw in raws])
    made = of(*(raw.to(torch.int64) for raw in raws))
    return made if made.dtype != torch.int64 else (made & (2 ** (8 * kind.itemsize) - 1)).to(kind)


def _of_64_bits(name: str, of: Callable, raws: list[torch.Tensor]) -> torch.Tensor:
    least = torch.iinfo(torch.int64).min
    if name in _COMPARISONS:
        return of(*(raw ^ least for raw in raws))
    if name in ("maximum", "minimum"):
        return (of(*(raw ^ least for raw in raws)) ^ least).view(torch.uint64)
    if name == "right_shift":
        x, count = raws
        rest = torch.where(count == 0, -1, (1 << (64 - count).clamp(max=63)) - 1)
        return ((x >> count) & rest).view(torch.uint64)
    if name not in _OF_64_BITS:
        raise NotImplementedError(f"torch has no {name} of uint64")
    return of(*raws).view(torch.uint64)


def function(name: str) -> Callable:
    """A function of numpy's, by its name."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    try:
        of = reduce(getattr, name.split("."), tnp)
    except AttributeError:
        raise NotImplementedError(f"torch has no function {name!r} of numpy's") from None

    def call(*args: Any, **kwargs: Any) -> Any:
        return _tensors(of(*map(_known, args), **{key: _known(one) for key, one in kwargs.items()}))

    return call


def _known(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return getattr(tnp, value.name)
    if isinstance(value, np.ndarray):
        return array(value)
    return type(value)(map(_known, value)) if isinstance(value, tuple | list) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, tnp.ndarray):
        return value.tensor
    return tuple(map(_tensors, value)) if isinstance(value, tuple | list) else value


def _take_along_axis(raw: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    signed, index = _SIGNED.get(raw.dtype), index.to(torch.int64)
    found = torch.take_along_dim(raw.view(signed) if signed else raw, index, axis)
    return found.view(raw.dtype) if signed else found


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rounded down; of whole numbers 0 where y is 0, as numpy has it."""
    if x.dtype.is_floating_point:
        return torch.floor_divide(x, y)
    zero = y == 0
    return torch.where(zero, 0, torch.floor_divide(x, torch.where(zero, 1, y)))


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.dtype.is_floating_point:
        return torch.remainder(x, y)
    zero = y == 0
    return torch.where(zero, 0, torch.remainder(x, torch.where(zero, 1, y)))


def _where_it_works(of: Callable) -> Callable:
    """What torch's function makes of each matrix, NaN where it finds that it cannot: in padding, say, lies anything."""

    def call(*raws: torch.Tensor) -> torch.Tensor:
        made, info = of(*raws)
        failed = (info != 0).reshape(info.shape + (1,) * (made.ndim - info.ndim))
        return torch.where(failed, torch.nan, made)

    return call


def _matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The product; of bools, which torch does not multiply, where any pair is true."""
    if x.dtype == w.dtype == torch.bool:
        return torch.matmul(x.float(), w.float()) > 0
    return torch.matmul(x, w)


_UFUNCS: dict[str, Callable] = {
    "matmul": _matmul,
    "divide": torch.true_divide,
    "equal": torch.eq,
    "power": torch.pow,
    "invert": torch.bitwise_not,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "rint": torch.round,
    "sign": torch.sgn,  # of complex numbers, too
    "conjugate": torch.conj_physical,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "cbrt": lambda x: torch.sign(x) * torch.pow(torch.abs(x), 1 / 3),
    "isfinite": torch.isfinite,
}

_FUNCTIONS: dict[str, Callable] = {
    "argsort": _argsort,
    "linalg.cholesky": _where_it_works(torch.linalg.cholesky_ex),
    "linalg.inv": _where_it_works(torch.linalg.inv_ex),
    "linalg.solve": _where_it_works(torch.linalg.solve_ex),
    "take_along_axis": _take_along_axis,
}
