"""Cells of published tables: numbers, words, GPUs and models, whatever the case and the spaces they are written with.

>>> whole({"# GPUs": " 64 "}, "# GPUs"), number({"MFU": "41.2%"}, "MFU")
(64, 41.2)
>>> one_of({"recompute": "Full"}, "recompute", {"none": 0, "full": 1})
1
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from costmodel import presets

T = TypeVar("T")
Cells = Mapping[str, str]
"""Of a line by column; those of columns that a source may leave out may be missing."""


def text(cells: Cells, name: str) -> str:
    """What stands in a cell; nothing where the table has no such column."""
    return cells.get(name, "").strip()


def whole(cells: Cells, name: str) -> int:
    """A number from 1 up; "64.0", as tools that know floats alone write it, is one.

    Raises:
        ValueError: another text.
    """
    found = text(cells, name)
    if not re.fullmatch(r"[0-9]{1,15}(\.0*)?", found) or not int(float(found)):
        raise ValueError(f"{name} is {found!r}; it is a whole number from 1 up")
    return int(float(found))


def number(cells: Cells, name: str) -> float:
    """A number above 0.

    Raises:
        ValueError: another text.
    """
    try:
        found = float(text(cells, name).rstrip("%"))
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise ValueError(f"{name} is {text(cells, name)!r}; it is a number above 0")
    return found


def one_told(cells: Cells, names: Sequence[str]) -> str:
    """Of columns that tell the same the first in which something stands.

    Raises:
        ValueError: nothing stands in any.
    """
    found = next((name for name in names if text(cells, name)), None)
    if found is None:
        raise ValueError(f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} empty; one of them has a number")
    return found


def one_of(cells: Cells, name: str, words: Mapping[str, T]) -> T:
    """What a word stands for.

    Raises:
        ValueError: a word that is not known; the message has those that are.
    """
    known = {_plain(word): meant for word, meant in words.items()}
    found = text(cells, name)
    if _plain(found) not in known:
        raise ValueError(f"{name} is {found!r}; it is one of {', '.join(words)}")
    return known[_plain(found)]


def truth(cells: Cells, name: str) -> bool:
    """True or False."""
    return one_of(cells, name, {"True": "yes", "False": "", "yes": "yes", "no": ""}) == "yes"


def gpu(cells: Cells, name: str) -> str:
    """The preset of the hardware that a cell names: as vendors do, or by the preset's own name."""
    return one_of(cells, name, {**_GPUS, **{preset: preset for preset in presets()}})


_GPUS = {
    "A100-80GB": "a100", "A100-40GB": "a100-40gb", "H100-80GB": "h100", "H100-96GB-500W": "h100-500w",
    "H200-141GB": "h200", "B200-180GB": "b200", "B200-192GB": "b200",
}  # fmt: skip


def _plain(word: str) -> str:
    """Letters and digits alone: "Llama 3.1 8B" is "llama-3.1-8b"."""
    return re.sub(r"[^a-z0-9]", "", word.lower())
