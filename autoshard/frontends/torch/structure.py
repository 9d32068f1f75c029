"""What a module returns: nested plain, and parts of it by a path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import UnknownNameError


def plain(part: Any) -> Any:
    """Nested tuples, lists and dicts of what was nested in classes of other kinds."""
    if isinstance(part, Mapping):
        return {key: plain(one) for key, one in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*map(plain, part))
    if isinstance(part, tuple | list):
        return type(part)(map(plain, part))
    return part


def picked(found: Any, path: str) -> Any:
    """The part of a result at a path such as "loss", "output.loss" or "0".

    Raises:
        UnknownNameError: there is none; the message says what there is.
    """
    words = [word for word in path.split(".") if word]
    words = words[1:] if words and words[0] == "output" else words
    for word in words:
        if isinstance(found, Mapping) and word in found:
            found = found[word]
        elif isinstance(found, tuple | list) and word.isdigit() and int(word) < len(found):
            found = found[int(word)]
        else:
            known = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
            raise UnknownNameError(f"loss {path!r}: the model's result has no {word!r}; it has: {known}")
    return found
