"""Text: numbers of limited length and excerpts of what strangers write, and the first of many names."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.util.errors import AutoshardError, ParseError, shortened

DIGITS, MOST = 20, 2**64 - 1
"""Digits of a whole number at most, and the largest: what 64 bits hold."""
DEPTH = 64
"""Levels of brackets, regions and other nested forms at most."""


def natural(digits: str, error: type[AutoshardError] = ParseError) -> int:
    """The number that decimal digits write.

    Raises:
        error: more digits than 64 bits can hold, or a character that is no digit.

    >>> natural("1024")
    1024
    """
    if not (digits.isascii() and digits.isdigit()):
        raise error(f"{shortened(repr(digits), 80)} is no whole number")
    if len(digits.lstrip("0")) > DIGITS or int(digits[-DIGITS:]) > MOST:
        raise error(f"the number {shortened(digits, 80)} is too large for 64 bits")
    return int(digits[-DIGITS:])


def integer(text: str, error: type[AutoshardError] = ParseError) -> int:
    """The number that decimal digits write, with a minus before them or without.

    Raises:
        error: as for `natural`.
    """
    return -natural(text[1:], error) if text.startswith("-") else natural(text, error)


def first_of(names: Sequence[str], most: int) -> str:
    """The first of the names, and how many more there are.

    >>> first_of(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"
