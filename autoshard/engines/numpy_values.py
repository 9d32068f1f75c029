"""Numpy's own arrays as a library for a Namespace, whose calls can be noted.

    space = Namespace(Known(numpy_values))
    x = Array(space, NumpyValue(np.ones(3)))     # np.exp(x) by the namespace is a NumpyCall of numpy's exp

So what an operator's meaning asks of numpy is found from its meaning, as for torch (`tape.py`), and can be written as
plain calls of numpy (`numpy_script.py`). A meaning that asks for the numbers of an operand raises `Broken`: it may go
another way next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from autoshard.engines import numpy_library
from autoshard.engines.tape import Broken

name = "numpy"
UFUNC, REDUCE, VIEW, BROADCAST, GET, CAST, WHERE, SET, AT, PLAIN = (
    "ufunc", "reduce", "view", "broadcast", "get", "cast", "where", "set", "at", "plain",
)  # fmt: skip
"""Kinds of calls: how numpy is told them (`numpy_text.py`)."""


class NumpyValue:
    """An array whose numbers decide nothing."""

    __slots__ = ("raw",)

    def __init__(self, raw: np.ndarray) -> None:
        self.raw = raw

    @property
    def shape(self) -> tuple[int, ...]:
        return self.raw.shape

    @property
    def ndim(self) -> int:
        return self.raw.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.raw.dtype

    def _look(self, *_: Any) -> Any:
        raise Broken("it looks at the numbers of an operand")

    __bool__ = __int__ = __float__ = __index__ = __array__ = __iter__ = __getitem__ = item = tolist = _look


class NumpyCall:
    """A function of numpy's on Values.

    Args:
        of: the function.
        kind: one of the kinds above.
        makes: whether it makes its result in memory of its own, never in that of an operand.
        idle: tells, of the operand and the next argument, that there is nothing to do.
    """

    def __init__(
        self, of: Callable, kind: str, makes: bool = True, idle: Callable[[Any, Any], bool] | None = None
    ) -> None:
        self.of, self.kind, self.makes, self._idle = of, kind, makes, idle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._idle is not None and self._idle(*args):
            return args[0]
        with np.errstate(all="ignore"):  # the run itself warns
            return _valued(self.of(*map(plain, args), **{key: plain(one) for key, one in kwargs.items()}))


def plain(value: Any) -> Any:
    """The value with arrays in the place of Values."""
    if isinstance(value, NumpyValue):
        return value.raw
    return type(value)(map(plain, value)) if isinstance(value, tuple | list) else value


def _valued(made: Any) -> Any:
    if isinstance(made, tuple | list):
        return tuple(map(_valued, made))
    return NumpyValue(np.asarray(made)) if isinstance(made, np.ndarray | np.generic) else made


def owns(value: Any) -> bool:
    """Whether it is a NumpyValue."""
    return isinstance(value, NumpyValue)


def is_known(raw: Any) -> bool:
    """Whether its elements can be looked at now; who does so hears that they cannot be noted."""
    return True


def array(value: np.ndarray) -> NumpyValue:
    return NumpyValue(value)


def dtype(raw: NumpyValue) -> np.dtype:
    return raw.dtype


def number(raw: NumpyValue) -> Any:
    return raw.item()


cast = NumpyCall(numpy_library.cast, CAST, idle=lambda raw, to: raw.dtype == to)
bitcast = NumpyCall(numpy_library.bitcast, PLAIN, makes=False)
reshape = NumpyCall(np.ndarray.reshape, VIEW, makes=False, idle=lambda raw, shape: raw.shape == tuple(shape))
transpose = NumpyCall(np.ndarray.transpose, VIEW, makes=False, idle=lambda raw, order: order == tuple(range(raw.ndim)))
broadcast = NumpyCall(np.broadcast_to, BROADCAST, makes=False, idle=lambda raw, shape: raw.shape == tuple(shape))
complexed = NumpyCall(numpy_library.complexed, PLAIN)
where = NumpyCall(np.where, WHERE)
concatenate = NumpyCall(np.concatenate, PLAIN)
folded = NumpyCall(numpy_library.folded, REDUCE)
get = NumpyCall(numpy_library.get, GET, makes=False)
set = NumpyCall(numpy_library.set, SET)
at = NumpyCall(numpy_library.at, AT)


@cache
def ufunc(name: str) -> NumpyCall:
    return NumpyCall(getattr(np, name), UFUNC)


@cache
def function(name: str) -> NumpyCall:
    """A function of numpy's, by its name."""
    return NumpyCall(numpy_library.function(name), PLAIN, makes=name in _MAKING)


def kinds(raws: Sequence[Any]) -> tuple:
    """Shapes and types of arrays."""
    return tuple(one for raw in raws for one in (raw.shape, raw.dtype))


_MAKING = {"vdot", "dot", "tensordot", "outer", "cumsum", "cumprod", "argmax", "argmin", "argsort", "linalg.inv"}
"""Functions known to make their results in memory of their own; of others it is taken that they may not."""
