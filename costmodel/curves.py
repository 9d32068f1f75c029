"""What a measured collective or operator takes: straight lines with one bend, as `costmodel.fit` finds them.

Libraries change their algorithm with the size of a message, and caches end: one line does not fit both sides, two
that meet do (as SimGrid's calibrated networks have it: Clauss et al., IPDPS 2011).

>>> round(CollectiveCurve("all_reduce", 4, 2e-6, 1e-9, 1000.0, 5e-10).seconds(3000.0), 9)
4e-06
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar, cast

import numpy as np

Bytes = TypeVar("Bytes", float, np.ndarray)


@dataclass(frozen=True)
class CollectiveCurve:
    """Seconds of `kind` in groups of `ranks`: a latency, then seconds a byte up to `knee` bytes and beyond it.

    Bytes are counted as in `collectives.seconds`.
    """

    kind: str
    ranks: int
    latency: float
    per_byte: float
    knee: float
    per_byte_beyond: float

    def __post_init__(self) -> None:
        what = f"curve of {self.kind!r} among {self.ranks} ranks"
        if self.ranks < 2:
            raise ValueError(f"{what}: there must be at least 2")
        _require_numbers(what, self)

    def seconds(self, nbytes: Bytes) -> Bytes:
        """Seconds for this many bytes (a number or an array)."""
        return self.latency + _bent(nbytes, self.per_byte, self.knee, self.per_byte_beyond)

    def slowed(self, times: float, more: float = 0.0) -> CollectiveCurve:
        """The curve where it takes so many times as long, and `more` seconds each time."""
        return replace(
            self,
            latency=times * self.latency + more,
            per_byte=times * self.per_byte,
            per_byte_beyond=times * self.per_byte_beyond,
        )


@dataclass(frozen=True)
class OperatorCurve:
    """Seconds of an operator on one device: to start it, by its operations, and by the bytes it touches.

    The parts add up: numpy computes and moves data one after the other.
    """

    operator: str
    dtype: str
    launch: float
    per_flop: float
    per_byte: float
    knee: float
    per_byte_beyond: float

    def __post_init__(self) -> None:
        _require_numbers(f"curve of operator {self.operator!r} in {self.dtype}", self)

    def seconds(self, flops: Bytes, nbytes: Bytes) -> Bytes:
        """Seconds for local sizes (numbers or arrays)."""
        return self.launch + self.per_flop * flops + _bent(nbytes, self.per_byte, self.knee, self.per_byte_beyond)

    def slowed(self, times: float, more: float = 0.0) -> OperatorCurve:
        """The curve on a device that takes so many times as long for everything, and `more` seconds to start."""
        return replace(
            self,
            launch=times * self.launch + more,
            per_flop=times * self.per_flop,
            per_byte=times * self.per_byte,
            per_byte_beyond=times * self.per_byte_beyond,
        )


def _bent(nbytes: Bytes, below: float, knee: float, beyond: float) -> Bytes:
    within = np.minimum(nbytes, knee) if isinstance(nbytes, np.ndarray) else min(nbytes, knee)
    return cast(Bytes, below * within + beyond * (nbytes - within))


def _require_numbers(what: str, curve: CollectiveCurve | OperatorCurve) -> None:
    for field in fields(curve):
        value = getattr(curve, field.name)
        if field.type == "float" and not 0 <= value < float("inf"):
            raise ValueError(f"{what}: {field.name} is {value}; it is a finite number from 0 up")
