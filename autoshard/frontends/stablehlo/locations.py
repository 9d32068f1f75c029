"""MLIR locations as names and source lines: `loc("jit(f)/mlp/dot_general"(callsite("f"("model.py":12:3) at ...)))`."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir

from autoshard.util.source import Source, shown

# What MLIR calls text that came from no file.
_NO_FILE = ("-", "")


class Locations:
    """Reads the locations of one module; equal ones are read once.

    Args:
        file: what to call the module's own text, which locations without a file are in; '' if nobody knows it.
    """

    def __init__(self, file: str = "") -> None:
        self.file = file
        self._known: dict[Any, tuple[str, Source | None]] = {}

    def read(self, location: Any) -> tuple[str, Source | None]:
        """The name ('' if it has none) and the innermost source line."""
        found = self._known.get(location)
        if found is None:
            place = innermost(location)
            found = self._known[location] = _name(location), place and self.source(place)
        return found

    def source(self, place: Any) -> Source | None:
        file, line = place.filename, place.start_line
        if file in _NO_FILE:
            file = self.file
        if not file:
            return None
        return Source(shown(file), line, linecache.getline(file, line).strip() if file != self.file else "")


def mlir_reason(error: Exception, file: str) -> str:
    """What MLIR reports, in one line with where it is; notes that repeat the program are left out.

    Args:
        file: what to call the module's own text; '' if nobody knows it.
    """
    for one in getattr(error, "error_diagnostics", ()):
        notes = (_reported(note, file) for note in one.notes if not note.message.startswith(_LONG_NOTES))
        return "; ".join((_reported(one, file), *notes))
    return " ".join(str(error).split())


# They hold whole operations, and all dialects that there are.
_LONG_NOTES = ("see current operation", "Available dialects")


def _reported(diagnostic: Any, file: str) -> str:
    message, location = " ".join(diagnostic.message.split()), diagnostic.location
    place = innermost(ir.Location.from_attr(location.attr, location.context))  # a diagnostic's has no kind
    if place is None or not place.start_line:  # of bytecode
        return message
    own = place.filename in _NO_FILE
    if own and not file:
        return f"line {place.start_line}, column {place.start_col}: {message}"
    return f"{file if own else shown(place.filename)}:{place.start_line}:{place.start_col}: {message}"


def argument_name(location: Any) -> str:
    """The name of an argument, '' where the location says something else of it."""
    is_plain = isinstance(location, ir.NameLoc) and isinstance(location.child_loc, ir.UnknownLoc)
    return location.name_str if is_plain else ""


def _name(location: Any) -> str:
    """The user's name of an operation: `mlp/dot_general` in `jit(f)/mlp/dot_general`, '' for `jit(f)/dot_general`.

    JAX puts the function's name first and the primitive last; a name without slashes was given by somebody else.
    """
    text = name_text(location)
    first, _, rest = text.partition("/")
    if not rest:
        return "" if first.endswith((")", ":")) else first
    if not first.startswith(("jit(", "pjit(")):
        return text
    return rest if "/" in rest else ""


def name_text(location: Any) -> str:
    """The text of the first name that a location has, '' if it has none."""
    if isinstance(location, ir.NameLoc):
        return location.name_str
    if isinstance(location, ir.FusedLoc):
        return next(filter(None, map(name_text, location.locations)), "")
    return ""


def innermost(location: Any, counts: Callable[[Any], bool] = lambda place: True) -> Any:
    """The innermost place in a file that a location comes from and that `counts`; None if it says none."""
    if isinstance(location, ir.FileLineColLoc):
        return location if counts(location) else None
    if isinstance(location, ir.NameLoc):
        return innermost(location.child_loc, counts)
    if isinstance(location, ir.CallSiteLoc):
        return innermost(location.callee, counts) or innermost(location.caller, counts)
    if isinstance(location, ir.FusedLoc):
        return next(filter(None, (innermost(one, counts) for one in location.locations)), None)
    return None
