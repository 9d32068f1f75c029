"""Checks of single arguments that several public calls share."""

from __future__ import annotations

import operator
from typing import Any


def positive(value: Any) -> int | None:
    """The int that a whole number of at least 1 stands for, numpy's included; None for anything else.

    Bools and floats are no counts, also where they equal one.
    """
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number >= 1 else None
