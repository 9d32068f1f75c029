"""How deep the brackets of MLIR text are nested: its parser calls itself for each level, and overflows the stack."""

from __future__ import annotations

import re

import numpy as np

DEEPEST = 500
"""Levels at most: modules have some ten, inlined source locations some hundred; jaxlib's parser ends the process at
about 10,000 on a stack of 8 MiB."""
BYTECODE = b"ML\xefR"
"""What MLIR's bytecode begins with."""
_PIECE = 2**20
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord(one) for one in "([{<"]] = 1
_STEPS[[ord(one) for one in ")]}>"]] = -1
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|//[^\n]*|->|[(\[{<]|[)\]}>]')


def is_deep(text: bytes) -> bool:
    """Whether brackets are nested deeper than DEEPEST levels."""
    # Counting all brackets alike is fast, and enough for modules without many unpaired ones in strings.
    return _most(text) > DEEPEST and _exact(text) > DEEPEST


def _most(text: bytes) -> int:
    data = np.frombuffer(text, np.uint8)
    level = most = 0
    for low in range(0, len(data), _PIECE):
        piece = data[low : low + _PIECE]
        steps = _STEPS[piece].astype(np.int32)
        arrows = (piece[1:] == ord(">")) & (piece[:-1] == ord("-"))
        steps[1:][arrows] = 0
        levels = level + np.cumsum(steps)
        most, level = max(most, int(levels.max(initial=0))), int(levels[-1])
    return most


def _exact(text: bytes) -> int:
    level = most = 0
    for token in _TOKEN.findall(text):
        if token in (b"(", b"[", b"{", b"<"):
            level += 1
            most = max(most, level)
        elif token in (b")", b"]", b"}", b">"):
            level -= 1
    return most
