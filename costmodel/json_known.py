"""What a place in JSON could have held, for messages about a name or a word that is not known there.

>>> import msgspec
>>> class Link(msgspec.Struct):
...     latency: float
>>> known_words("Object contains unknown field `latncy` - at `$[0]`", list[Link])
'; did you mean latency?'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import msgspec

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<word>.*?)`(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_NO_WORD = re.compile(r"Invalid enum value '(?P<word>.*?)'(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_MOST = 16
"""Names of a message at most."""


def known_words(message: str, kind: Any) -> str:
    """The end of a message of msgspec about JSON of a kind: near names of a field or a word, else all; or nothing."""
    field, word = _UNKNOWN.fullmatch(message), _NO_WORD.fullmatch(message)
    match = field or word
    if match is None:
        return ""
    try:
        there = _at(msgspec.inspect.type_info(kind), match["path"] or "")
    except TypeError:
        return ""  # a kind that msgspec knows no more of
    known = [name for one in there for name in (_fields(one) if field else _values(one))]
    near = get_close_matches(match["word"], known, 2)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; it can be {', '.join(known)}" if 0 < len(known) <= _MOST else ""


def _at(top: msgspec.inspect.Type, path: str) -> list[msgspec.inspect.Type]:
    """The kinds that may stand at a place."""
    found = list(_alone(top))
    steps = list(_STEP.finditer(path))
    if "".join(one[0] for one in steps) != path:
        return []  # a key of an object, say
    for one in steps:
        found = [each for kind in found for inner in _inside(kind, one[1], one[2]) for each in _alone(inner)]
    return found


def _alone(kind: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """The kinds of a union, or the one."""
    if isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _alone(one)
    elif isinstance(kind, msgspec.inspect.Metadata):
        yield from _alone(kind.type)
    else:
        yield kind


def _inside(kind: msgspec.inspect.Type, name: str | None, index: str | None) -> Iterator[msgspec.inspect.Type]:
    """What a kind holds at a field, or at an index."""
    if isinstance(kind, msgspec.inspect.StructType):
        yield from (one.type for one in kind.fields if one.encode_name == name)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield kind.value_type
    elif isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        yield kind.item_type
    elif isinstance(kind, msgspec.inspect.TupleType) and (index or "").isdecimal():
        yield from kind.item_types[int(index or 0) :][:1]


def _fields(kind: msgspec.inspect.Type) -> list[str]:
    return [one.encode_name for one in kind.fields] if isinstance(kind, msgspec.inspect.StructType) else []


def _values(kind: msgspec.inspect.Type) -> list[str]:
    return list(map(str, kind.values)) if isinstance(kind, msgspec.inspect.LiteralType) else []
