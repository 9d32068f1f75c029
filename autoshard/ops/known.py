"""Questions about values that a meaning may ask only where the values are known: not while a framework traces it."""

from __future__ import annotations

from typing import Any


def surely(condition: Any) -> bool:
    """Whether a condition on elements is known to hold. False where nobody can know before the run.

    For shortcuts, which give what the longer way gives, and for checks, which an engine that traces cannot do.
    """
    return bool(getattr(condition, "is_known", True)) and bool(condition)
