"""Names near to one that nobody knows, for the messages that say so."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[str], count: int = 3, cutoff: float = 0.6, otherwise: str = "") -> str:
    """The end of a message about a name: the nearest known ones, or `otherwise` where none is near.

    >>> did_you_mean("matmull", ["matmul", "relu"])
    "; did you mean 'matmul'?"
    """
    near = get_close_matches(str(name), [*known], count, cutoff)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.4) -> str:
    """The nearest known names, or the first where none is near, joined by commas."""
    names = [*known]
    return ", ".join(get_close_matches(name, names, count, cutoff) or names[:count])
