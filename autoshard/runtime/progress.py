"""What each rank is doing, written where the launcher can read it when the rank can say nothing any more.

A rank keeps small files in the launcher's folder: `rank-N.now`, a few numbers in shared memory that change with
every collective, `rank-N.places`, a line of text for each place that these numbers name, `rank-N.stack`, where
Python writes its stack when a rank crashes or the launcher asks, and in the end `rank-N.turns`, in how many collectives
of each group it took part. All this costs one or two microseconds per collective.
Nothing is written unless the launcher names the folder in the environment, as it does for ranks on its own machine.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import socket
import struct
import sys
import sysconfig
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from autoshard.runtime.identity import identity
from autoshard.runtime.processes import birth
from autoshard.util.source import shown

FOLDER = "AUTOSHARD_PROGRESS"
"""The variable that names the folder."""

STARTED, COLLECTIVE, FAILING, ENDED = range(4)
"""What a rank can be at: anything outside of collectives, a collective, telling its failure, nothing any more."""

_NOW = struct.Struct("<qqqqqqd")
_OPERATOR = struct.Struct("<q")
"""The second of these numbers, which alone changes with every operator."""
_NOWHERE = -1
_GROUP = "\x1f"
"""Stands before the ranks of a group, behind the text of a collective: ASCII's unit separator."""
_MEETING = "the "
"""Begins the text of a place that is a meeting and no collective of a program."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class RankProgress:
    """Writes what rank `rank` (from 0) does, to the launcher's `folder`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._known: dict[Hashable, int] = {}
        self._groups: dict[int, str] = {}
        self._turns: dict[str, int] = {}
        self._turns_file = folder / f"rank-{rank}.turns"
        self._line = self._collective = _NOWHERE
        self._state, self._count, self._turn = STARTED, 0, 0
        self._has_ended = False
        with open(folder / f"rank-{rank}.now", "w+b") as file:
            file.write(bytes(mmap.PAGESIZE))
            file.flush()
            self._now = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.operator = memoryview(self._now)[_OPERATOR.size : 2 * _OPERATOR.size].cast("q")
        """The number of the operator that runs now, which an interpreter writes itself: it changes with each."""
        self.operator[0] = _NOWHERE
        self._write(STARTED)
        self.stack = open(folder / f"rank-{rank}.stack", "wb", buffering=0)  # noqa: SIM115 (open until the end)
        self._places = os.open(folder / f"rank-{rank}.places", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._tell(f"{os.getpid()} {birth(os.getpid()) or '-'} {socket.gethostname()}")

    def place(self, key: Hashable, text: str, group: Iterable[int] = ()) -> int:
        """The number of the place that `key` stands for here; `text` is what people are told of it.

        `group` is the ranks that take part, if the place is a collective.
        """
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._known)
            self._groups[number] = _named(group)
            self._tell(text, self._groups[number])
        return number

    def find(self, key: Hashable) -> int | None:
        """The number of a place that has been told of already."""
        return self._known.get(key)

    def at(self, place: int | None) -> None:
        """This rank now runs the operator of this place; None: it runs no program."""
        self.operator[0] = _NOWHERE if place is None else place

    def enter(self, collective: int) -> None:
        """It comes to the collective of this place, for an operator if it is at one, else for the user's line."""
        if self.operator[0] == _NOWHERE:
            self._line = self._caller()
        self._count += 1
        self._take_turn(collective)

    def _take_turn(self, collective: int) -> None:
        group = self._groups[collective]
        self._turn = self._turns[group] = self._turns.get(group, 0) + 1
        self._collective = collective
        self._write(COLLECTIVE)

    def leave(self) -> None:
        """The collective is done; be it one that Python has called when it ended, after the rank has said so."""
        self.end(ENDED) if self._has_ended else self._write(STARTED)

    @contextlib.contextmanager
    def meeting(self, text: str, group: Iterable[int]) -> Iterator[None]:
        """The ranks of `group` wait for each other in the `text` (`start of MPI`), which is no collective of a program.

        Within a collective it is a part of that.
        """
        if self._state == COLLECTIVE:
            yield
            return
        before, self._line = self._collective, self._caller()
        self._take_turn(self.place(("meeting", text, group := tuple(group)), f"{_MEETING}{text}", group))
        yield
        self._collective = before
        self.leave()

    def end(self, state: int) -> None:
        """It has ENDED, or is FAILING and says so itself."""
        if state == ENDED:
            self._has_ended = True
            self._turns_file.write_text(json.dumps(self._turns))
        self._write(state)

    def _write(self, state: int) -> None:
        self._state = state
        now = self._now, 0, state, self.operator[0], self._line, self._collective, self._count, self._turn, time.time()
        _NOW.pack_into(*now)

    def _tell(self, text: str, group: str = "") -> None:
        line = " ".join(text.split()) + (f"{_GROUP}{group}" if group else "")
        os.write(self._places, line.encode(errors="replace") + b"\n")

    def _caller(self) -> int:
        """The place of the innermost line being run that is neither autoshard's own nor Python's."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            frame = frame.f_back
        key = frame.f_code, frame.f_lineno
        number = self._known.get(key)
        return self.place(key, f"{shown(key[0].co_filename)}:{key[1]}") if number is None else number


@cache
def of_this_rank() -> RankProgress | None:
    """The RankProgress of this process; None if no launcher on this machine asks for it."""
    folder = os.environ.get(FOLDER)
    own = identity()
    if not folder or own is None:
        return None
    try:
        return RankProgress(Path(folder), own.rank)
    except OSError:
        # The launcher has gone, and its folder with it: there is nobody to tell.
        return None


def note_end() -> None:
    """Say to the launcher that this rank has ended well: where it does not, it ends without coming here."""
    if progress := of_this_rank():
        progress.end(ENDED)


# -- the launcher's side -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """What a rank was doing when it was last heard of: its process (see `birth`), and the texts of its places.

    `line` is the user's line that called the last collective outside of an operator; `count` is the number of
    collectives that the rank has come to, `since` the time (seconds since 1970) when it came to the last one or left
    it; `group` the ranks that take part in it, of whose collectives it was number `turn`, and `turns` how many of each
    group it has come to, once it has ended; `stack` is what Python wrote of its stack, line by line, if it did.
    """

    rank: int
    pid: int
    born: str
    host: str
    state: int
    operator: str
    line: str
    collective: str
    count: int
    turn: int
    since: float
    stack: tuple[str, ...]
    group: tuple[int, ...] = ()
    turns: Mapping[str, int] = field(default_factory=dict)

    def missed_by(self, other: Standing) -> bool:
        """Whether the other rank has ended, without having come to the collective that this one waits in."""
        waits = self.state == COLLECTIVE and other.rank in self.group and other.rank != self.rank
        return waits and other.state == ENDED and other.turns.get(_named(self.group), 0) < self.turn

    @property
    def doing(self) -> str:
        """In words: `in all_reduce of float32[4, 6] over ranks 0-3 (collective 17), for h (MatMul) at train.py:12`."""
        if self.state == COLLECTIVE and self.collective.startswith(_MEETING):
            return f"in {self.collective}" + (f", at {self.line}" if self.line else "")
        called = f"{self.collective} (collective {self.count})"
        if self.state == COLLECTIVE:
            return f"in {called}, {f'for {self.operator}' if self.operator else f'at {self.line}'}"
        now = f"in {self.operator}" if self.operator else "outside of collectives"
        now = f"at {self.innermost}" if self.innermost else now
        at = f", at {self.line}" if self.line and not self.innermost else ""
        return f"{now}, after {called}{at}" if self.count else f"{now}, before its first collective"

    @property
    def innermost(self) -> str:
        """The user's innermost line in the stack, with its function; empty if there is none."""
        for text in self.stack:
            found = _FRAME.fullmatch(text.strip())
            if found and not found[1].startswith(_NOT_THE_USERS):
                return f"{shown(found[1])}:{found[2]} in {found[3]}"
        return ""


def _named(group: Iterable[int]) -> str:
    return ",".join(map(str, group))


_NOT_THE_USERS = ("<", _PACKAGE, *(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib", "purelib")))
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (.*)')


def read_state(folder: Path, rank: int) -> int | None:
    """What a rank is at; None if it has not begun."""
    try:
        return _NOW.unpack_from((folder / f"rank-{rank}.now").read_bytes())[0]
    except (OSError, struct.error):
        return None


def read(folder: Path, rank: int) -> Standing | None:
    """What is known of a rank; None if it has not begun."""
    try:
        places = (folder / f"rank-{rank}.places").read_text(errors="replace").splitlines()
        now = _NOW.unpack_from((folder / f"rank-{rank}.now").read_bytes())
        stack = (folder / f"rank-{rank}.stack").read_text(errors="replace").splitlines()
    except (OSError, struct.error):
        return None
    if not places or len(places[0].split()) != 3:
        return None
    pid, born, host = places[0].split()
    state, operator, line, collective, count, turn, since = now
    at, by, what = (dict(enumerate(places[1:])).get(number, "") for number in (operator, line, collective))
    called, _, members = what.partition(_GROUP)
    group = tuple(map(int, members.split(","))) if members else ()
    turns = _read_turns(folder / f"rank-{rank}.turns") if state == ENDED else {}
    known = int(pid), born, host, state, at, by, called, count, turn, since, tuple(stack)
    return Standing(rank, *known, group=group, turns=turns)


def unknown(rank: int, pid: int, born: str) -> Standing:
    """What is known of a rank that has written nothing."""
    return Standing(rank, pid, born, socket.gethostname(), STARTED, "", "", "", 0, 0, 0.0, ())


def _read_turns(path: Path) -> dict[str, int]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
