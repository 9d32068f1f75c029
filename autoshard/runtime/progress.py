"""What each rank is doing, written where the launcher can read it when the rank can say nothing any more.

A rank keeps small files in the launcher's folder: `rank-N.now`, a few numbers in shared memory that change with
every collective, `rank-N.places`, a line of text for each place that these numbers name, and `rank-N.stack`, where
Python writes its stack when a rank crashes or the launcher asks. All this costs one or two microseconds per collective.
Nothing is written unless the launcher names the folder in the environment, as it does for ranks on its own machine.
"""

from __future__ import annotations

import mmap
import os
import re
import socket
import struct
import sys
import sysconfig
import time
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autoshard.runtime.processes import birth
from autoshard.util.source import shown

FOLDER = "AUTOSHARD_PROGRESS"
"""The variable that names the folder."""

STARTED, COLLECTIVE, FAILING, ENDED = range(4)
"""What a rank can be at: anything outside of collectives, a collective, telling its failure, nothing any more."""

_NOW = struct.Struct("<qqqqqd")
_OPERATOR = struct.Struct("<q")
"""The second of these numbers, which alone changes with every operator."""
_NOWHERE = -1
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Progress:
    """Writes what rank `rank` (from 0) does, to the launcher's `folder`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._known: dict[Hashable, int] = {}
        self._state, self._operator, self._line, self._collective, self._count = (
            STARTED,
            _NOWHERE,
            _NOWHERE,
            _NOWHERE,
            0,
        )
        with open(folder / f"rank-{rank}.now", "w+b") as file:
            file.write(bytes(mmap.PAGESIZE))
            file.flush()
            self._now = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._write()
        self.stack = open(folder / f"rank-{rank}.stack", "wb", buffering=0)  # noqa: SIM115 (open until the end)
        self._places = os.open(folder / f"rank-{rank}.places", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._tell(f"{os.getpid()} {birth(os.getpid()) or '-'} {socket.gethostname()}")

    def place(self, key: Hashable, text: str) -> int:
        """The number of the place that `key` stands for here; `text` is what people are told of it."""
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._known)
            self._tell(text)
        return number

    def find(self, key: Hashable) -> int | None:
        """The number of a place that has been told of already."""
        return self._known.get(key)

    def at(self, place: int | None) -> None:
        """This rank now runs the operator of this place; None: it runs no program."""
        self._operator = _NOWHERE if place is None else place
        _OPERATOR.pack_into(self._now, _OPERATOR.size, self._operator)

    def enter(self, collective: int) -> None:
        """It comes to the collective of this place, for an operator if it is at one, else for the user's line."""
        if self._operator == _NOWHERE:
            self._line = self._caller()
        self._state, self._collective = COLLECTIVE, collective
        self._count += 1
        self._write()

    def leave(self) -> None:
        """The collective is done."""
        self._state = STARTED
        self._write()

    def end(self, state: int) -> None:
        """It has ENDED, or is FAILING and says so itself."""
        self._state = state
        self._write()

    def _write(self) -> None:
        now = time.time()
        _NOW.pack_into(self._now, 0, self._state, self._operator, self._line, self._collective, self._count, now)

    def _tell(self, text: str) -> None:
        os.write(self._places, " ".join(text.split()).encode(errors="replace") + b"\n")

    def _caller(self) -> int:
        """The place of the innermost line being run that is not autoshard's own."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        key = frame.f_code, frame.f_lineno
        number = self._known.get(key)
        return self.place(key, f"{shown(key[0].co_filename)}:{key[1]}") if number is None else number


@cache
def of_this_rank() -> Progress | None:
    """The Progress of this process; None if no launcher on this machine asks for it."""
    folder = os.environ.get(FOLDER)
    rank = next((os.environ[name] for name in _RANK_NAMES if os.environ.get(name, "").isdecimal()), None)
    if not folder or rank is None:
        return None
    try:
        return Progress(Path(folder), int(rank))
    except OSError:
        # The launcher has gone, and its folder with it: there is nobody to tell.
        return None


_RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


# -- the launcher's side -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """What a rank was doing when it was last heard of: its process (see `birth`), and the texts of its places.

    `line` is the user's line that called the last collective outside of an operator; `count` is the number of
    collectives that the rank has come to, `since` the time (seconds since 1970) when it came to the last one or left
    it; `stack` is what Python wrote of its stack, line by line, if it did.
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
    since: float
    stack: tuple[str, ...]

    @property
    def doing(self) -> str:
        """In words: `in all_reduce of float32[4, 6] over ranks 0-3 (collective 17), for h (MatMul) at train.py:12`."""
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


_NOT_THE_USERS = ("<", _PACKAGE, *(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib", "purelib")))
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (.*)')


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
    state, operator, line, collective, count, since = now
    at, by, what = (dict(enumerate(places[1:])).get(number, "") for number in (operator, line, collective))
    return Standing(rank, int(pid), born, host, state, at, by, what, count, since, tuple(stack))
