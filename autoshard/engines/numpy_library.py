"""Numpy's arrays for a Namespace, and a library whose values are numpy's as long as they are known before the run.

What no tensor of a run goes into (positions, masks, random bits of a known seed) numpy computes at once: such values
may then decide, as a Python `if` or the size of a slice, also where a framework traces.

This file needs numpy alone: exported code carries it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

name = "numpy"


def owns(value: Any) -> bool:
    """Whether it is a tensor of numpy's."""
    return isinstance(value, np.ndarray | np.generic)


def array(value: np.ndarray) -> np.ndarray:
    return value


def dtype(raw: np.ndarray) -> np.dtype:
    return raw.dtype


def number(raw: np.ndarray) -> Any:
    return raw.item()


def cast(raw: np.ndarray, to: np.dtype) -> np.ndarray:
    return raw if raw.dtype == to else _filling(raw.astype, raw, to)


def _filling(of: Callable, raw: np.ndarray, to: np.dtype) -> np.ndarray:
    """A conversion of one number where there is only one, however often it stands there."""
    if raw.ndim and raw.size and not any(raw.strides):
        return np.broadcast_to(raw[(0,) * raw.ndim].astype(to), raw.shape)
    with np.errstate(all="ignore"):
        return of(to)


def bitcast(raw: np.ndarray, to: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(raw).view(to).reshape(raw.shape)


def reshape(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.reshape(raw, shape)


def transpose(raw: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    return np.transpose(raw, order)


def broadcast(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(raw, shape)


def complexed(real: np.ndarray, imag: np.ndarray, to: np.dtype) -> np.ndarray:
    return (real + 1j * imag).astype(to)


def where(condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition, x, y)


def concatenate(raws: list, axis: int) -> np.ndarray:
    return np.concatenate(raws, axis)


def folded(name: str, raw: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    return np.asarray(getattr(np, name)(raw, axis=axes, keepdims=keepdims))


def get(raw: np.ndarray, index: Any) -> np.ndarray:
    return raw[index]


def set(raw: np.ndarray, index: Any, part: np.ndarray) -> np.ndarray:
    made = np.array(raw)
    made[index] = part
    return made


def at(ufunc: str, raw: np.ndarray, index: Any, part: np.ndarray) -> np.ndarray:
    made = np.array(raw)
    getattr(np, ufunc).at(made, index, part)
    return made


def ufunc(name: str) -> Callable:
    return getattr(np, name)


def function(name: str) -> Callable:
    return reduce(getattr, name.split("."), np)


class Known:
    """A library whose functions run on numpy's arrays as long as all that they take are numpy's."""

    def __init__(self, library: Any) -> None:
        self.library, self.name = library, library.name
        self.noting = Noting()
        self.get: Callable
        self._ufuncs: dict[str, Callable] = {}
        for one in _SAME:
            setattr(self, one, self._either(globals()[one], partial(getattr, self.library, one)))
        self.get = self._indexing(self.get)

    def owns(self, value: Any) -> bool:
        """Whether it is a tensor of numpy's or of the library's."""
        return owns(value) or self.library.owns(value)

    def array(self, value: np.ndarray) -> np.ndarray:
        return value

    def is_known(self, raw: Any) -> bool:
        """Whether its elements can be looked at now."""
        return owns(raw) or (not self.noting.is_blind and self.library.is_known(raw))

    def truth(self, raw: Any) -> bool:
        """The one element as a truth value, which decides what is done."""
        found, tape = bool(raw), self.noting.tape
        if tape is not None and not owns(raw):
            tape.assume(raw, found)
        return found

    def looked_at(self, raw: Any) -> Any:
        """The tensor, whose numbers now decide what is done."""
        if not owns(raw):
            self.noting.looks()
        return raw

    def number(self, raw: Any) -> Any:
        """The one element as a number of Python's."""
        return number(raw) if owns(raw) else self.library.number(self.looked_at(raw))

    def final(self, raw: Any) -> Any:
        """The library's own tensor."""
        return raw if self.library.owns(raw) else self._constant(np.asarray(raw))

    def dtype(self, raw: Any) -> np.dtype:
        return raw.dtype if owns(raw) else self.library.dtype(raw)

    def ufunc(self, name: str) -> Callable:
        if name not in self._ufuncs:
            self._ufuncs[name] = self._either(getattr(np, name), lambda: self.library.ufunc(name))
        return self._ufuncs[name]

    def function(self, name: str) -> Callable:
        def find() -> Callable:
            of = self.library.function(name)
            return self._sized_by_numbers(of) if name in _SIZED_BY_NUMBERS else of

        return self._either(function(name), find)

    def do(self, of: Callable, *args: Any, **kwargs: Any) -> Any:
        """What a function of the library makes of its own tensors."""
        made, tape = of(*args, **kwargs), self.noting.tape
        if tape is not None:
            tape.note(of, args, kwargs, made)
        return made

    def repeated(self, count: int, step: Callable[[Any, tuple], tuple], raws: tuple) -> tuple:
        """`raws` after that many steps of a function; it holds what it has met, so no tape plays it."""
        if self.noting.tape is not None:
            self.noting.tape.breaks("it repeats a function of its own")
        return self.library.repeated(count, step, tuple(map(self.final, raws)))

    def _either(self, known: Callable, find: Callable[[], Callable]) -> Callable:
        found: list[Callable] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            if not (self._runs(args) or (kwargs and self._runs(tuple(kwargs.values())))):
                with np.errstate(all="ignore"):
                    return known(*args, **kwargs)
            if not found:
                found.append(find())
            return self.do(found[0], *map(self._own, args), **{key: self._own(value) for key, value in kwargs.items()})

        return call

    def _indexing(self, get: Callable) -> Callable:
        """`get`, of which as much is found as an index of truth values says."""

        def call(raw: Any, index: Any) -> Any:
            items = index if isinstance(index, tuple) else (index,)
            if any(self.library.owns(one) and self.dtype(one) == np.bool_ for one in items):
                self.noting.looks()
            return get(raw, index)

        return call

    def _sized_by_numbers(self, of: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.noting.looks()
            return of(*args, **kwargs)

        return call

    def _runs(self, value: tuple | list) -> bool:
        """Whether a tensor of the library is in it."""
        owns = self.library.owns
        return any(owns(one) or (isinstance(one, tuple | list) and self._runs(one)) for one in value)

    def _own(self, value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return self._constant(np.asarray(value))
        return type(value)(map(self._own, value)) if isinstance(value, tuple | list) else value

    def _constant(self, value: np.ndarray) -> Any:
        made, tape = self.library.array(value), self.noting.tape
        if tape is not None:
            tape.constant(value, made)
        return made


class Noting(threading.local):
    """What a thread's calls of a library are noted on, while an operator's meaning runs (`autoshard.engines.tape`)."""

    tape: Any = None

    @property
    def is_blind(self) -> bool:
        """Whether numbers of tensors are not to be looked at."""
        return self.tape is not None and self.tape.is_blind

    def looks(self) -> None:
        """The meaning looks at numbers of a tensor: next time it may go another way."""
        if self.tape is not None:
            self.tape.breaks("it looks at the numbers of a tensor")


_SAME = (
    "cast", "bitcast", "reshape", "transpose", "broadcast", "complexed", "where", "concatenate", "folded", "get", "set",
    "at",
)  # fmt: skip
_SIZED_BY_NUMBERS = {"nonzero", "flatnonzero", "argwhere", "unique", "extract", "compress", "bincount", "repeat"}
"""Functions of numpy's whose results are as large as the numbers of their operands say."""
