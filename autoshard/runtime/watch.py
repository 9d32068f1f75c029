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
from collections.abc import Iterator
from pathlib import Path

from autoshard.runtime.comm import show_ranks
from autoshard.runtime.processes import birth, runs, send
from autoshard.runtime.progress import COLLECTIVE, ENDED, FAILING, Standing, read

LIFELINE = "launcher"
"""The pipe in the folder that is open for writing as long as the launcher lives: its ranks read its end."""

ASK_STACK = signal.SIGUSR2
"""At this signal a rank writes its Python stack."""

_ANSWER_SECONDS = 1.0
_LONGEST_STACK = 30
_NOISE = re.compile(r"^Extension modules|<frozen runpy>|autoshard[/\\]runtime[/\\]worker\.py")
"""Lines of a stack that tell how Python and the worker started the script."""


class Watch:
    """Watches the ranks 0..`ranks`-1, which write to `folder`; None: they are elsewhere and nothing is known."""

    def __init__(self, folder: Path | None, ranks: int) -> None:
        self._folder, self._ranks = folder, range(ranks if folder else 0)
        self._processes: dict[int, tuple[int, str]] = {}
        self._lost: tuple[Standing, float] | None = None

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

    def look(self) -> None:
        """See which ranks have begun, and whether one is gone without having ended."""
        for rank in self._ranks:
            standing = None if rank in self._processes else self.standing(rank)
            # Only a process that was seen to live can be missed: out of a container it goes by another number.
            if standing is not None and birth(standing.pid) == standing.born:
                self._processes[rank] = standing.pid, standing.born
        if self._lost is None and (standing := next(self._gone(), None)):
            self._lost = standing, time.monotonic()

    def _gone(self) -> Iterator[Standing]:
        for rank, (pid, born) in self._processes.items():
            standing = None if birth(pid) == born and runs(pid) else self.standing(rank)
            if standing is not None and standing.state != ENDED:
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

    def standing(self, rank: int) -> Standing | None:
        """What rank `rank` is or was doing; None if that is not known."""
        return None if self._folder is None else read(self._folder, rank)

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
        asked = [rank for rank, (pid, born) in self._processes.items() if send(pid, ASK_STACK, born)]
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
