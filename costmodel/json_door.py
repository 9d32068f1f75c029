"""JSON from files, by one door: `decode(data, kind)` and `read(path, kind)` give what `kind` says, or a JsonError.

msgspec reads and checks in one go: a `Record` has the fields that an object must have, no others, each of its type.
Sizes, depths and numbers are limited, so that no file can take more than a small multiple of its own size. The door
lies here because costmodel reads files too, and knows nothing of autoshard.

>>> class Point(Record, frozen=True):
...     x: Natural
>>> decode('{"x": 3}', Point)
Point(x=3)
>>> decode('{"x": -3}', Point)
Traceback (most recent call last):
costmodel.json_door.JsonError: Expected `int` >= 0 - at `$.x`
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from costmodel.json_known import known_words

T = TypeVar("T")
R = TypeVar("R", bound="Record")
MOST_BYTES = 2**26
"""Bytes of the largest file that is read: a plan of 100,000 operators has half as many."""
MOST_DEPTH = 64
"""Levels of what may hold anything; what `Record`s say has ten at most."""
_PIECE = 2**18
"""Bytes that are read at a time: Python makes room for as many as it is asked for."""
_LONGEST = 300
"""Characters of a reason: names that stand in a file are not repeated at any length."""

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A whole number from 0 that fits into 64 bits."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""The same from 1."""


class JsonError(ValueError):
    """What is no JSON, or says something else than was expected; the message has the place, and is short."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An object of JSON with exactly these fields; those with a default may be left out."""


def described(words: str) -> Any:
    """What to annotate a type with so that its schema has words about it."""
    return msgspec.Meta(description=words)


def between(least: int, most: int) -> Any:
    """What to annotate a number with that lies in a range, both ends included."""
    return msgspec.Meta(ge=least, le=most)


def with_schema(more: dict[str, Any]) -> Any:
    """What to annotate a type with so that its schema says more, which the type checks by itself."""
    return msgspec.Meta(extra_json_schema=more)


def matching(pattern: str) -> Any:
    """What to annotate `str` with so that it has to match."""
    return msgspec.Meta(pattern=pattern)


def decode(data: bytes | str, kind: type[T] | Any = Any) -> T:
    """What JSON text says, checked to be of `kind`: a Record, or a type such as `dict[str, list[int]]`.

    Raises:
        JsonError: text that is too long or too deep, is no JSON, has NaN or numbers that no float holds, or is of
            another kind.
    """
    if len(data) > MOST_BYTES:
        raise JsonError(f"it has more than {MOST_BYTES} bytes")
    try:
        found = msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise JsonError(f"it is nested deeper than {MOST_DEPTH} levels") from None
    except ValueError as error:
        raise JsonError(_reason(error, kind)) from None
    check_depth(found)
    return found


def convert(data: Any, kind: type[T] | Any) -> T:
    """The same of plain data that a caller has, such as dicts and lists.

    Raises:
        JsonError: it is of another kind.
    """
    try:
        return msgspec.convert(data, kind)
    except RecursionError:
        raise JsonError(f"it is nested deeper than {MOST_DEPTH} levels") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise JsonError(_reason(error, kind)) from None


def read(path: str | os.PathLike, kind: type[T] | Any = Any) -> T:
    """What the JSON in a file says.

    Raises:
        OSError: it cannot be read.
        JsonError: as for `decode`.
    """
    return decode(contents(path), kind)


def contents(path: str | os.PathLike) -> bytes:
    """The bytes of a file, of a long one the first MOST_BYTES + 1.

    Raises:
        OSError: it cannot be read.
    """
    pieces, left = [], MOST_BYTES + 1
    with open(path, "rb") as file:
        while left and (piece := file.read(min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def plain(data: Any) -> Any:
    """Records as the dicts and lists that JSON has; fields at their defaults are left out."""
    return msgspec.json.decode(msgspec.json.encode(data, enc_hook=_number))


def _number(one: Any) -> Any:
    """The number that a scalar of numpy is."""
    if isinstance(one, np.generic):
        return one.item()
    raise TypeError(f"JSON has nothing for a {type(one).__name__}")


def with_fields(one: R, **fields: Any) -> R:
    """The Record with other values in some fields."""
    return msgspec.structs.replace(one, **fields)


def schema(kind: Any, title: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a kind."""
    (top,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **top, "$defs": parts}


def check_depth(data: Any) -> None:
    """Raise JsonError if lists and objects are nested deeper than MOST_DEPTH; what Records hold is bounded by them."""
    level, depth = [data], 0
    while level:
        if depth > MOST_DEPTH:
            raise JsonError(f"it is nested deeper than {MOST_DEPTH} levels")
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, _HOLDERS)]
        depth += 1


_HOLDERS = (dict, list, tuple, msgspec.Struct)


def _inside(one: Any) -> Any:
    if isinstance(one, Mapping):
        return one.values()
    if isinstance(one, msgspec.Struct):
        return [getattr(one, name) for name in one.__struct_fields__]
    return one if isinstance(one, list | tuple) else ()


def _reason(error: Exception, kind: Any) -> str:
    """The message in one short line, and what would be right where msgspec knows."""
    return short(re.sub(r"\s+", " ", str(error)) or type(error).__name__) + known_words(str(error), kind)


def short(text: str) -> str:
    """The text, without its middle if it is long."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 60]} ... {text[-40:]}"
