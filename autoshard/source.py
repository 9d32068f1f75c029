"""Source: a line of the user's code, for error messages and dumps; `caller` finds the one being run."""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Source(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def caller() -> Source | None:
    """The innermost line being run that is not autoshard's own; None where there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            return Source(shown(file), frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())
        frame = frame.f_back
    return None


@lru_cache(maxsize=1024)
def shown(file: str) -> str:
    """The file as people know it: relative to the folder they work in, where it is inside."""
    inside = os.path.abspath(file).startswith(os.getcwd() + os.sep)
    return os.path.relpath(file) if inside else file
