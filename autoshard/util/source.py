"""Source: a line of the user's code, for error messages and dumps; `caller` finds the one being run.

`location_text` describes an exception by the user's lines alone, without autoshard's around them.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from functools import lru_cache
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMMAND_LINE = os.path.join(_PACKAGE, "cli") + os.sep


class Source(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def caller(installed: bool = True) -> Source | None:
    """The innermost line being run that is not autoshard's own; None where there is none.

    What called autoshard's command line is no code of the user's.

    Args:
        installed: a line of an installed package, or of Python itself, counts, too.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_COMMAND_LINE):
            return None
        if not file.startswith(_PACKAGE) and (installed or _is_users(file)):
            return Source(shown(file), frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())
        frame = frame.f_back
    return None


def location_text(error: BaseException, until: bool) -> list[str] | None:
    """The lines of an exception's traceback from the user's first line on; None if no line of theirs is in it.

    Args:
        until: leave out what follows the user's last line, too; for errors whose message says all.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if _is_users(frame.filename)]
    if not own:
        return None
    listed = frames[own[0] : own[-1] + 1 if until else len(frames)]
    text = ["Traceback (most recent call last):\n", *traceback.format_list(listed)]
    return "".join([*text, *traceback.format_exception_only(error)]).splitlines()


def _is_users(file: str) -> bool:
    """Whether the file is neither autoshard's nor installed nor Python's own."""
    return not file.startswith((_PACKAGE, "<frozen", *_installed()))


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = (sysconfig.get_path(name) for name in names)
    return tuple({os.path.join(path, "") for path in paths if path})


@lru_cache(maxsize=1024)
def shown(file: str) -> str:
    """The file as people know it: relative to the folder they work in, where it is inside."""
    inside = os.path.abspath(file).startswith(os.getcwd() + os.sep)
    return os.path.relpath(file) if inside else file
