"""Bubble and memory of the named schedules in closed form, for stages that are alike and transfers at once.

They are independent of orders and simulator, which are checked by them. Sources: GPipe, SC21 (arXiv 2104.04473), the
zero-bubble papers (arXiv 2401.10241, 2405.15362); what holds for fewer micro batches than ranks, or rounds that do not
divide, is derived here. Let p be the ranks, v the chunks of a rank, m the micro batches; f, i, w the seconds of the
forward, input gradient and weight gradient of one chunk and micro batch, t their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from autoshard.pipeline.schedules.named import schedule_kind


class Size(NamedTuple):
    """What a closed form is of: ranks, micro batches, chunks of a rank, seconds of one chunk and micro batch."""

    p: int
    m: int
    v: int
    f: float
    i: float
    w: float

    @property
    def t(self) -> float:
        """Seconds of a micro batch in a chunk."""
        return self.f + self.i + self.w

    @property
    def alike(self) -> bool:
        """Whether the three kinds of action take equally long."""
        return self.f == self.i == self.w

    @property
    def first_round(self) -> int:
        """Micro batches that pass a chunk before the next one has its turn."""
        return -(-self.m // max(1, self.m // self.p))


class ClosedForm(NamedTuple):
    """What a schedule must come to.

    Attributes:
        bubble: seconds of a step beyond the work of a rank; None where no form is known.
        period_bubble: the same of steps without a barrier between them.
        peaks: for each rank the most micro batches times stages that it holds at once.
    """

    bubble: float | None
    period_bubble: float | None
    peaks: tuple[int, ...]


def closed_form(
    name: str,
    ranks: int,
    micro_batches: int,
    chunks: int | None = None,
    seconds: tuple[float, float, float] = (1, 1, 1),
) -> ClosedForm:
    """The closed form of a named schedule.

    Args:
        seconds: forward, input gradient, weight gradient of one micro batch in one chunk.

    >>> closed_form("zbv", ranks=4, micro_batches=8)
    ClosedForm(bubble=3, period_bubble=0, peaks=(8, 8, 8, 8))
    """
    kind = schedule_kind(name)
    size = Size(ranks, micro_batches, chunks or kind.chunks, *seconds)
    bubbles, peak = _FORMS[kind.name]
    return ClosedForm(*bubbles(size), tuple(peak(size, rank) for rank in range(ranks)))


_Bubbles = tuple[float | None, float | None]


def _fused(size: Size) -> _Bubbles:
    """Whole backwards: the hops there and back, and with few micro batches waits before each further chunk."""
    bubble = (size.p - 1 + (size.v - 1) * max(0, size.p - size.m)) * size.t
    return bubble, bubble


def _zb_h1(size: Size) -> _Bubbles:
    if size.w > min(size.f, size.i) or (size.m < size.p and size.v > 1):
        return None, None
    bubble = (size.p - 1) * (size.f + size.i - size.w) + max(0, size.p - size.m) * size.w
    return bubble, bubble


def _zb_h2(size: Size) -> _Bubbles:
    if not size.alike:
        return None, None
    missing = max(0, 2 * size.p - 1 - size.m) * size.f
    return max((size.p - 1) * size.f, missing), missing


def _zbv(size: Size) -> _Bubbles:
    if not size.alike:
        return None, None
    missing = 2 * max(0, 2 * size.p - 1 - size.m) * size.f
    return max((size.p - 1) * size.f, missing), missing


def _dualpipev(size: Size) -> _Bubbles:
    bubble = (size.p - 1) * size.f if size.alike else None
    return bubble, bubble


def _interleaved_peak(size: Size, rank: int) -> int:
    hops = (1 if size.v == 1 else 2) * (size.p - 1 - rank)
    return min(size.m * size.v, (size.v - 1) * size.first_round + hops + 1)


_FORMS: dict[str, tuple[Callable[[Size], _Bubbles], Callable[[Size, int], int]]] = {
    "gpipe": (_fused, lambda size, rank: size.m),
    "1f1b": (_fused, _interleaved_peak),
    "interleaved_1f1b": (_fused, _interleaved_peak),
    "looped_bfs": (_fused, lambda size, rank: size.m * size.v),
    "zb_h1": (_zb_h1, lambda size, rank: min(size.m * size.v, (size.v - 1) * size.first_round + size.p)),
    "zb_h2": (_zb_h2, lambda size, rank: min(size.m, 2 * size.p - 1)),
    "zbv": (_zbv, lambda size, rank: min(2 * size.m, 2 * size.p, size.m + rank + 1)),
    "dualpipev": (_dualpipev, lambda size, rank: 2 * size.p + 1),
}
