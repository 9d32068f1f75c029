"""Plain data as JSON with a line for each entry of the outer lists and tables.

The encoder in C writes each line: to indent everything falls to the one in Python, which takes ten times as long and
leaves a plan on ten times as many lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DEPTH = 2
"""How deep lists and tables are opened: the data itself, and what it consists of."""


def json_text(data: Any) -> str:
    """The text, with a newline at its end.

    >>> print(json_text({"name": "f", "layouts": {"x": [1, 2], "y": [3]}, "sizes": [4, 5]}), end="")
    {
     "name": "f",
     "layouts": {
      "x": [1, 2],
      "y": [3]
     },
     "sizes": [4, 5]
    }
    """
    return "".join(_pieces(data, 0)) + "\n"


def _pieces(data: Any, depth: int) -> Iterator[str]:
    if depth == DEPTH or not _opened(data):
        yield json.dumps(data)
        return
    table = isinstance(data, dict)
    ends, space = "{}" if table else "[]", " " * (depth + 1)
    before = ends[0]
    for key in data:
        yield f"{before}\n{space}"
        if table:
            yield f"{json.dumps(_name(key))}: "
        yield from _pieces(data[key] if table else key, depth + 1)
        before = ","
    yield f"\n{space[1:]}{ends[1]}"


def _opened(data: Any) -> bool:
    """Whether there is something in it that is more than a number or a word; tables of words are opened too."""
    if isinstance(data, dict):
        return bool(data)
    return isinstance(data, list | tuple) and any(isinstance(one, dict | list | tuple) for one in data)


def _name(key: Any) -> str:
    """A key as the encoder writes it."""
    return key if isinstance(key, str) else next(iter(json.loads(json.dumps({key: 0}))))
