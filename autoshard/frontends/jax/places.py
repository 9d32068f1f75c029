"""Where a node of a JAX program comes from: scopes as a dotted path, and the user's source line.

`jit(run)/LM/layers_0/attn/query/dot_general` stands in `layers_0.attn.query`; what transformations, inner functions and
equations add (`jit(silu)`, `jvp(...)`, `...k,kh->...h`) is no name that anybody gave.
"""

from __future__ import annotations

import re
from typing import Any

from autoshard.frontends.stablehlo.imported import Imported
from autoshard.frontends.stablehlo.locations import Locations, innermost, name_text
from autoshard.ir.graph import Node
from autoshard.util.source import Source

_WRAPPED = re.compile(r"(?:jvp|vmap|transpose|checkpoint|remat)\((.*)\)")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_OF_JAX = ("while", "body", "cond", "closed_call", "core_call", "checkpoint")
# Frames inside of these packages are not the user's.
_LIBRARIES = ("/flax/", "/jax/", "/optax/", "/jaxlib/", "/autoshard/frontends/", "<")


class NodeLocations:
    """The places of the nodes of one program; equal locations are read once.

    Args:
        imported: the program.
        top: a scope around all of it, which paths leave out.
    """

    def __init__(self, imported: Imported, top: str = "") -> None:
        self.operations, self.top = imported.operations, top
        self.locations = Locations()
        self._known: dict[Any, tuple[list[str], Source | None]] = {}

    def of(self, node: Node) -> tuple[list[str], Source | None]:
        """The names around a node, but for those of calls that it is reached by, and its line."""
        op = self.operations.get(node)
        if op is None:
            return [], None
        location = op.location
        found = self._known.get(location)
        if found is None:
            found = self._known[location] = self._read(location)
        return found

    def _read(self, location: Any) -> tuple[list[str], Source | None]:
        words = _scopes(name_text(location))
        if words and words[0] == self.top:
            words = words[1:]
        place = innermost(location, _is_users)
        return words, self.locations.source(place) if place is not None else None


def _scopes(text: str) -> list[str]:
    """The names among the scopes of an operation; the last one is the operation's own."""
    words = []
    for part in text.split("/")[:-1]:
        match = _WRAPPED.fullmatch(part)
        while match is not None:
            part = match[1]
            match = _WRAPPED.fullmatch(part)
        if _NAME.fullmatch(part) and part not in _OF_JAX:
            words.append(part)
    return words


def _is_users(place: Any) -> bool:
    """Whether a place in a file is in no library."""
    return bool(place.filename) and not any(one in place.filename for one in _LIBRARIES)
