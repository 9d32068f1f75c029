"""What is being done, on the standard error output: a line that changes in a terminal, and lines with -v.

Nothing is shown of what takes less than a second, nor in a pipe without -v, nor with -q.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock, Timer
from time import monotonic

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from autoshard.util.doing import listening
from costmodel import format_seconds

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
AFTER, EVERY = 1.0, 10.0
"""Seconds after which a line appears in a terminal, and between lines of what goes on elsewhere (-v)."""


@contextmanager
def shown_progress(quiet: bool, verbose: bool, console: Console | None = None) -> Iterator[None]:
    """Show what is done in this block: not at all if `quiet`, as lines, too, if `verbose`."""
    _QUIET.set(quiet)
    out = console or Console(stderr=True, highlight=False, markup=False)
    if quiet or not (verbose or out.is_terminal):
        yield
        return
    shown = Shown(out, verbose)
    try:
        with listening(shown):
            yield
    finally:
        shown.close()


def note(text: str) -> None:
    """Tell something besides what was asked for, on the standard error output; nothing with -q."""
    if not is_quiet():
        typer.echo(text, err=True)


def is_quiet() -> bool:
    """Whether the command was given -q."""
    return _QUIET.get()


@dataclass
class Phase:
    """Something that is being done: since when, on the monotonic clock, and what it has found so far, in seconds."""

    what: str
    begun: float
    best: float | None = None
    bound: float | None = None

    def __str__(self) -> str:
        """In words: `searching by optimal  12 s  best 3.4 ms, bound 3.3 ms, gap 2.9 %`."""
        figures = [f"{name} {format_seconds(one)}" for name, one in (("best", self.best), ("bound", self.bound)) if one]
        if self.best and self.bound:
            figures.append(f"gap {max(0.0, 1 - self.bound / self.best):.1%}")
        return "  ".join((self.what, f"{monotonic() - self.begun:.1f} s", *([", ".join(figures)] if figures else [])))


@dataclass
class Shown:
    """Hears what is done and shows it on a console."""

    console: Console
    verbose: bool
    phases: list[Phase] = field(default_factory=list)
    _live: Live | None = None
    _timer: Timer | None = None
    _lock: RLock = field(default_factory=RLock)
    _spinner: Spinner = field(default_factory=lambda: Spinner("line"))

    def begin(self, what: str) -> None:
        with self._lock:
            self.phases.append(Phase(what, monotonic()))
            if len(self.phases) == 1:
                self._later(AFTER if self.console.is_terminal else EVERY)

    def end(self) -> None:
        with self._lock:
            phase, depth = self.phases.pop(), len(self.phases)
            if not self.phases:
                self.close()
            if self.verbose:
                self.console.print(f"{'  ' * depth}{phase}", soft_wrap=True)

    def so_far(self, best: float | None, bound: float | None) -> None:
        with self._lock:
            if self.phases:
                phase = self.phases[-1]
                phase.best, phase.bound = best or phase.best, bound or phase.bound

    def close(self) -> None:
        """Take the line away."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._live is not None:
                self._live.stop()
            self._timer = self._live = None

    def __rich__(self) -> Spinner:
        # Without the lock: the thread that draws has its own, and `close` takes both the other way round.
        now = self.phases[-1:]
        self._spinner.update(text=f"{now[0]}" if now else "")
        return self._spinner

    def _later(self, seconds: float) -> None:
        self._timer = Timer(seconds, self._tick)
        self._timer.daemon = True
        self._timer.start()

    def _tick(self) -> None:
        with self._lock:
            if self._timer is None or not self.phases:
                return  # it has ended in the meantime
            if self.console.is_terminal:
                # The streams stay as they are: what a script prints while it is loaded goes where it always goes.
                self._live = Live(
                    self, console=self.console, transient=True, redirect_stdout=False, redirect_stderr=False
                )
                self._live.start()
            else:
                self.console.print(f"... {self.phases[-1]}", soft_wrap=True)
                self._later(EVERY)
