"""The schedules that have a name, and `make_schedule`, which makes one of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from autoshard.pipeline.schedules.action import MOST_INDEX, Action
from autoshard.pipeline.schedules.breadth_first import gpipe, looped_bfs
from autoshard.pipeline.schedules.greedy import zb_h2
from autoshard.pipeline.schedules.one_forward_one_backward import interleaved_1f1b, zb_h1
from autoshard.pipeline.schedules.schedule import Orders, Schedule
from autoshard.pipeline.schedules.v_shaped import dualpipev, dualpipev_pairs, zbv
from autoshard.util.checks import positive
from autoshard.util.errors import ScheduleError, UnknownNameError

MOST_ACTIONS = 2**22
"""Actions of a named schedule at most."""


@dataclass(frozen=True)
class Kind:
    """A named schedule: `orders` and `overlapped` make it of ranks, micro batches and chunks.

    `chunks` is how many stages a rank runs unless one says so, `fixed` that it runs no other number.
    """

    name: str
    summary: str
    orders: Callable[[int, int, int], Orders]
    chunks: int = 1
    fixed: bool = True
    v_shaped: bool = False
    fewest_per_rank: int = 0
    overlapped: Callable[[int, int, int], frozenset[Action]] = lambda *_: frozenset()


_KINDS = (
    Kind("gpipe", "all forwards, then all backwards", gpipe),
    Kind("1f1b", "warm up, then one forward, one backward", interleaved_1f1b),
    Kind("interleaved_1f1b", "1F1B over several chunks of a rank in turn", interleaved_1f1b, chunks=2, fixed=False),
    Kind("looped_bfs", "all micro batches through one chunk, then the next", looped_bfs, chunks=2, fixed=False),
    Kind("zb_h1", "1F1B with weight gradients where ranks would wait", zb_h1, fixed=False),
    Kind("zb_h2", "no bubble between steps without a barrier, twice the memory", zb_h2),
    Kind("zbv", "two chunks in V form, weight gradients late", zbv, chunks=2, v_shaped=True),
    Kind(
        "dualpipev",
        "V form, forwards beside backwards",
        dualpipev,
        chunks=2,
        v_shaped=True,
        fewest_per_rank=2,
        overlapped=dualpipev_pairs,
    ),
)
SCHEDULES: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""The named schedules."""

# What torch's and MindSpore's runtimes call them, without case and marks.
_ALIASES = {
    "interleaved1f1b": "interleaved_1f1b",
    "loopedbfs": "looped_bfs",
    "interleavedzerobubble": "zb_h1",
    "zbvzerobubble": "zbv",
    "zerobubblev": "zbv",
    **{name.replace("_", ""): name for name in SCHEDULES},
}


def schedule_kind(name: str) -> Kind:
    """The schedule of a name: ours, or torch's (`Interleaved1F1B`, `ZBVZeroBubble`), whatever its case.

    Raises:
        UnknownNameError: there is none; the message has those that there are.
    """
    plain = "".join(char for char in name.lower() if char.isalnum())
    if plain not in _ALIASES:
        near = difflib.get_close_matches(name.lower(), SCHEDULES, n=2, cutoff=0.5)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnknownNameError(f"there is no schedule {name!r}; {meant}known are {', '.join(SCHEDULES)}")
    return SCHEDULES[_ALIASES[plain]]


def make_schedule(name: str, ranks: int, micro_batches: int, chunks: int | None = None) -> Schedule:
    """A named schedule for `ranks` ranks that run `chunks` stages each.

    Args:
        name: one of SCHEDULES.
        chunks: stages of each rank; by default 1, or 2 where the schedule is about several.

    Raises:
        UnknownNameError: there is no schedule of that name.
        ScheduleError: a number is below 1, or one with which the schedule does not exist.

    Example:
        >>> print(make_schedule("zb_h1", ranks=2, micro_batches=2))
        0F0 0F1 0I0 0W0 0I1 0W1
        1F0 1I0 1F1 1I1 1W0 1W1
    """
    kind = schedule_kind(name)
    _check_numbers(kind, ranks, micro_batches, chunks)
    chunks = chunks or kind.chunks
    size = ranks, micro_batches, chunks
    places = _ranks_of_stages(kind, ranks, chunks)
    return Schedule(places, kind.orders(*size), micro_batches, kind.overlapped(*size), kind.name)


def _check_numbers(kind: Kind, ranks: int, micro_batches: int, chunks: int | None) -> None:
    given = {"ranks": ranks, "micro batches": micro_batches, "chunks": kind.chunks if chunks is None else chunks}
    for what, number in given.items():
        if positive(number) is None or number >= MOST_INDEX:
            raise ScheduleError(f"schedule {kind.name} of {number!r} {what}: a whole number from 1 on is needed")
    if kind.fixed and chunks not in (None, kind.chunks):
        other = "; interleaved_1f1b and looped_bfs take any number" if kind.chunks == 1 else ""
        raise ScheduleError(f"schedule {kind.name} has {kind.chunks} chunks a rank, not {chunks}{other}")
    fewest = kind.fewest_per_rank * ranks
    if micro_batches < fewest:
        raise ScheduleError(
            f"schedule {kind.name} on {ranks} ranks needs at least {fewest} micro batches, not {micro_batches}"
        )
    actions = 3 * ranks * micro_batches * given["chunks"]
    if actions > MOST_ACTIONS:
        raise ScheduleError(f"a schedule of {actions} actions is too long; {MOST_ACTIONS} are the most")


def _ranks_of_stages(kind: Kind, ranks: int, chunks: int) -> tuple[int, ...]:
    if kind.v_shaped:
        return (*range(ranks), *reversed(range(ranks)))
    return tuple(stage % ranks for stage in range(ranks * chunks))
