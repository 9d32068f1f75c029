"""Python for the data of exported stages, as people read it: what is long over several lines, without defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from autoshard.engines.standalone import BoundaryValue
from autoshard.pipeline.planned.programs import Place

_WIDTH = 120
_WORDS = {"P": "once", "F": "forward", "I": "input_gradient", "W": "weight_gradient", "D": "from_data", "L": "loss"}
Parts = tuple[str, list[tuple[str, Any]], str]
"""How a value begins, its parts, each behind what it is called, and how it ends."""


class CodeName(str):
    """A name that the code has."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def function_name(place: Place) -> str:
    """The name of the function of a piece in its stage's own module.

    >>> function_name((1, "F")), function_name((1, "U0"))
    ('forward', 'update_0')
    """
    return _WORDS.get(place[1]) or f"update_{place[1][1:]}"


def text_of(value: Any, before: str = "", pad: str = "") -> str:
    """A value as Python says it.

    Args:
        before: what stands ahead of it on its line.
        pad: the indent of that line.

    >>> from autoshard.engines.grid import Grid
    >>> text_of(Grid((("dp", 2),), (0, 1)))
    "Grid((('dp', 2),), (0, 1))"
    """
    found = _parts(value)
    if found is None:
        return repr(value)
    begin, parts, end = found
    flat = begin + ", ".join(_named(said, value) + text_of(one) for said, one in parts) + end
    if len(pad) + len(before) + len(flat) < _WIDTH and "\n" not in flat:
        return flat
    inside = f"{pad}    "
    lines = (f"{inside}{said}{text_of(one, said, inside)},\n" for said, one in parts)
    return f"{begin}\n{''.join(lines)}{pad}{end.removeprefix(',')}"


def _parts(value: Any) -> Parts | None:
    """None of what is written as it is."""
    if isinstance(value, Mapping) and not all(isinstance(one, int) for one in value.values()):
        return "{", [(f"{key!r}: ", one) for key, one in value.items()], "}"
    if is_dataclass(value) and not isinstance(value, BoundaryValue | type):
        told = ((of, getattr(value, of.name)) for of in fields(value))
        return f"{type(value).__name__}(", [(f"{of.name}=", one) for of, one in told if not _is_default(of, one)], ")"
    if isinstance(value, tuple) and not hasattr(value, "_fields") and value:
        return "(", [("", one) for one in value], ",)" if len(value) == 1 else ")"
    return None


def _named(said: str, whole: Any) -> str:
    """How a part is called on one line: what is always told needs no name."""
    if is_dataclass(whole) and any(of.name == said[:-1] and not _has_default(of) for of in fields(whole)):
        return ""
    return said


def _has_default(of: Field) -> bool:
    return of.default is not MISSING or of.default_factory is not MISSING


def _is_default(of: Field, one: Any) -> bool:
    made = of.default_factory() if of.default_factory is not MISSING else of.default
    return _has_default(of) and type(made) is type(one) and made == one
