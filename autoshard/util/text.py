"""Text of strangers: numbers of limited length, and excerpts of what is too long to be repeated in a message."""

from __future__ import annotations

from autoshard.util.errors import AutoshardError, ParseError, shortened

DIGITS = 18
"""Digits that a whole number has at most: all such fit into 64 bits."""


def natural(digits: str, error: type[AutoshardError] = ParseError) -> int:
    """The number that decimal digits write.

    Raises:
        error: more digits than 64 bits can hold, or a character that is no digit.

    >>> natural("1024")
    1024
    """
    if not (digits.isascii() and digits.isdigit()):
        raise error(f"{shortened(repr(digits), 80)} is no whole number")
    if len(digits.lstrip("0")) > DIGITS:
        raise error(f"the number {shortened(digits, 80)} has more than {DIGITS} digits")
    return int(digits[-DIGITS:])
