"""What goes into an imported model and comes out: how many tensors; nested plainly, and parts of it by a path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoshard.trace.tensor import TracedTensor
from autoshard.util.errors import GraphError, UnknownNameError


def check_count(name: str, takes: Mapping[str, Any], tensors: tuple) -> None:
    """That a model is given as many tensors as it takes, which are known by name.

    Raises:
        GraphError: it is not; the message lists them.
    """
    if len(tensors) != len(takes):
        known = ", ".join(f"{one}: {of}" for one, of in takes.items())
        raise GraphError(f"{name} takes {len(takes)} tensors ({known}), but got {len(tensors)}")


def plain(part: Any, other: Callable[[Any], Any] = lambda part: part) -> Any:
    """Nested tuples, lists and dicts of what was nested in classes of other kinds; `other` says what all else is."""
    if isinstance(part, Mapping):
        return {key: plain(one, other) for key, one in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(plain(one, other) for one in part))
    if isinstance(part, tuple | list):
        return type(part)(plain(one, other) for one in part)
    return other(part)


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
            known = ", ".join(map(str, found)) if isinstance(found, Mapping) else _kind(found)
            raise UnknownNameError(f"loss {path!r}: the model's result has no {word!r}; it has: {known}")
    return found


def _kind(found: Any) -> str:
    """What a person calls it."""
    return "Tensor" if isinstance(found, TracedTensor) else type(found).__name__
