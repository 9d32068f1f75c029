"""The ranks of a job as the launcher sees them: which live, which is lost, and what each was doing.

MPI launchers notice most deaths, but not all and not always whose; the ranks' own notes (`progress`) and the
system's list of processes complete the picture. Only ranks of this machine can be watched.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from autoshard.runtime.comm import show_ranks
from autoshard.runtime.processes import birth, runs, send, stopped
from autoshard.runtime.progress import COLLECTIVE, ENDED, FAILING, Standing, read, read_state, unknown

LIFELINE = "launcher"
"""The pipe in the folder that is open for writing as long as the launcher lives: its ranks read its end."""

ASK_STACK = signal.SIGUSR2
"""At this signal a rank writes its Python stack."""

MISSED_SECONDS = 2.0
"""For how long ranks may be seen to wait for one that has ended: none can come, but what is read is a moment old."""
STOPPED_SECONDS = 5.0
"""For how long ranks may be seen to wait for one that a signal has stopped."""
_LONGEST_LOOK = 1.0
"""Seconds between two looks that are counted at most: the launcher itself may have been stopped in between."""
_ANSWER_SECONDS = 1.0
_LONGEST_STACK = 30
_NOISE = re.compile(r"^Extension modules|<frozen runpy>|autoshard[/\\]runtime[/\\]worker\.py")
"""Lines of a stack that tell how Python and the worker started the script."""


@dataclass(frozen=True)
class Absence:
    """Rank `rank` does not come to where rank `waiting` waits, in its collective number `count` and turn `turn`."""

    rank: int
    stopped: bool
    waiting: int
    count: int
    turn: int

    @property
    def most_seconds(self) -> float:
        """For how long this may be seen."""
        return STOPPED_SECONDS if self.stopped else MISSED_SECONDS


class Watch:
    """Watches the ranks 0..`ranks`-1, which write to `folder`; None: they are elsewhere and nothing is known."""

    def __init__(self, folder: Path | None, ranks: int) -> None:
        self._folder, self._ranks = folder, range(ranks if folder else 0)
        self._elsewhere = range(0 if folder else ranks)
        self._processes: dict[int, tuple[int, str]] = {}
        self._lost: tuple[Standing, float] | None = None
        self._absences: dict[Absence, float] = {}
        self._looked = time.monotonic()

    @contextlib.contextmanager
    def lifeline(self) -> Iterator[None]:
        """Hold the ranks' pipe open; they end themselves when it closes, however this process ends."""
        if self._folder is None:
            yield
            return
        os.mkfifo(self._folder / LIFELINE)
        # Open for both: for writing alone would wait until somebody reads.
        pipe = os.open(self._folder / LIFELINE, os.O_RDWR)
        try:
            yield
        finally:
            os.close(pipe)

    def expect(self, rank: int, pid: int, born: str) -> None:
        """Know a rank's process before it writes anything."""
        self._processes[rank] = pid, born

    def look(self, departed: Collection[int] = ()) -> None:
        """See which ranks have begun, and whether one is gone without having ended.

        Args:
            departed: ranks whose processes have ended by what mpiexec says, who tells it of those that were never seen.
        """
        for rank in self._ranks:
            standing = None if rank in self._processes else self.standing(rank)
            # Only a process that was seen to live can be missed: out of a container it goes by another number.
            if standing is not None and birth(standing.pid) == standing.born:
                self._processes[rank] = standing.pid, standing.born
        if self._lost is None and (standing := next(self._gone(tuple(departed)), None)):
            self._lost = standing, time.monotonic()
        self._count_absences()

    def _count_absences(self) -> None:
        """For how many seconds each absence that is seen now has been seen without a break."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK), now
        seen = self._absences
        self._absences = {one: seen[one] + passed if one in seen else 0.0 for one in self._absent()}

    def _absent(self) -> Iterator[Absence]:
        """Ranks that have ended or are stopped while others wait for them."""
        states = {rank: self._state(rank) for rank in self._ranks}
        still = {rank for rank, (pid, born) in self._processes.items() if stopped(pid) and birth(pid) == born}
        ended = {rank for rank, state in states.items() if state == ENDED}
        waiting = [rank for rank, state in states.items() if state == COLLECTIVE and rank not in still]
        if not waiting or not still | ended:
            return
        standings = {rank: one for rank in {*waiting, *ended} if (one := self.standing(rank))}
        for one in (standings[rank] for rank in waiting if rank in standings):
            missed = {rank for rank in ended if rank in standings and one.missed_by(standings[rank])}
            for rank in sorted(missed | still.intersection(one.group)):
                yield Absence(rank, rank in still, one.rank, one.count, one.turn)

    @property
    def absent(self) -> tuple[int, bool] | None:
        """The first rank that others have waited for too long, and whether it is stopped; else it has ended."""
        found = (one for one, seconds in self._absences.items() if seconds > one.most_seconds)
        return next(((one.rank, one.stopped) for one in found), None)

    def tell_absent(self, rank: int, is_stopped: bool) -> list[str]:
        """That others wait for this rank in vain, and where."""
        waiting = sorted({one.waiting for one in self._absences if one.rank == rank})
        why = "a signal (SIGSTOP, SIGTSTP) has stopped it" if is_stopped else "it has ended"
        first = self.standing(waiting[0])
        where = f" (rank {first.rank} {first.doing})" if first else ""
        wait = "waits" if len(waiting) == 1 else "wait"
        return self.tell(rank, f"rank {rank} failed: {why}, while {show_ranks(waiting)} {wait} for it{where}")

    def _gone(self, departed: Collection[int]) -> Iterator[Standing]:
        for rank in departed:
            standing = self.standing(rank)
            if standing is not None and standing.state != ENDED:
                yield standing
        for rank, (pid, born) in self._processes.items():
            if birth(pid) == born and runs(pid):
                continue
            standing = self.standing(rank) or unknown(rank, pid, born)
            if standing.state != ENDED:
                yield standing

    @property
    def lost(self) -> Standing | None:
        """The first rank that was seen to be gone without having ended."""
        return self._lost[0] if self._lost else None

    @property
    def lost_seconds(self) -> float:
        """For how long it is known to be gone; 0 if none is."""
        return time.monotonic() - self._lost[1] if self._lost else 0.0

    @property
    def living(self) -> dict[int, str]:
        """The processes of ranks that still run, with the time each was born."""
        return {pid: born for pid, born in self._processes.values() if birth(pid) == born and runs(pid)}

    def silent(self, departed: Collection[int]) -> list[int]:
        """The ranks elsewhere that have not said that they ended well: each does so if it can."""
        return [rank for rank in self._elsewhere if rank not in departed]

    def standing(self, rank: int) -> Standing | None:
        """What rank `rank` is or was doing; None if that is not known."""
        return None if self._folder is None else read(self._folder, rank)

    def _state(self, rank: int) -> int | None:
        return None if self._folder is None else read_state(self._folder, rank)

    def tell(self, rank: int, text: str) -> list[str]:
        """`text`, the failure of a rank that could not speak for itself, with its process and what it was doing."""
        standing = self.standing(rank)
        if standing is None:
            return [text]
        stack = [line for line in standing.stack if line.strip() and not _NOISE.search(line)]
        return [*stack[:_LONGEST_STACK], f"{text}; process {standing.pid} on {standing.host}, {standing.doing}"]

    def stall(self) -> list[str]:
        """What all ranks are doing that have not ended, one line for those that do the same."""
        self._ask_stacks()
        alike: dict[str, list[Standing]] = {}
        silent = []
        for rank in self._ranks:
            if standing := self.standing(rank):
                alike.setdefault(_state(standing), []).append(standing)
            else:
                silent.append(rank)
        lines = [
            f"{show_ranks(one.rank for one in ranks)}: {text}{_for_seconds(ranks)}" for text, ranks in alike.items()
        ]
        return lines + ([f"{show_ranks(silent)}: not begun"] if silent else [])

    def _ask_stacks(self) -> None:
        """Have the ranks write their stacks, and wait a little for them."""
        self.look()
        running = {rank: one for rank, one in self._processes.items() if self._state(rank) != ENDED}
        asked = [rank for rank, (pid, born) in running.items() if send(pid, ASK_STACK, born)]
        end = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < end and not all(one.stack for rank in asked if (one := self.standing(rank))):
            time.sleep(0.02)


def _state(standing: Standing) -> str:
    if standing.state == COLLECTIVE:
        return f"waiting {standing.doing}"
    return {ENDED: "ended", FAILING: "telling its failure"}.get(standing.state, standing.doing)


def _for_seconds(ranks: list[Standing]) -> str:
    """For how long those that wait in a collective have waited."""
    if ranks[0].state != COLLECTIVE:
        return ""
    return f", for {time.time() - max(one.since for one in ranks):.1f} s"
