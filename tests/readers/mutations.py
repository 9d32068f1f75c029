"""Mutations of good files and texts: what a reader meets when a file is damaged, cut, forged, or written by an enemy.

    for sample in mutations(text, 300, seed=1): ...

They are drawn by a seed, so that a failure comes again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

CANARY = "autoshard-canary"
CODE = f"__import__('pathlib').Path('{CANARY}').touch()"
DEEP = 20_000
NUMBERS = [
    "0", "-1", "1e400", "-1e400", "NaN", "Infinity", "1.5", "99999999999999999999", "9" * 5000, "0x10", "1e2",
    "-0", "\u0663", "00", "9223372036854775807", "9223372036854775808", "2147483648", "1" + "0" * 300, "20000000000",
]  # fmt: skip
WORDS = [
    "", " ", "\n", "\0", "\t", "\u2028", "\x85", "\r", "é", "\ud800", "../../" + CANARY, "/tmp/" + CANARY, CODE,
    "x" * 30_000, "$(touch " + CANARY + ")", "%s{0}", "[" * DEEP, "{" * DEEP, "(" * DEEP, "<" * DEEP, '"', "'", "\\",
    ",", ":", "=", "-", "+", "->", "@", "#", "!", "~", "...", "()", "[]", "{}", "d:(1)2", "tp", "dp", "None", "true",
    "f32[3 5]", "f32[-1]", "f99[2]", "f32[99999999999, 99999999999]", "[{}]", "?", "p0", "p99999999999999999999",
]  # fmt: skip
VALUES: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 2**63, lambda: 2**70, lambda: 1e308, lambda: 1.5,
    lambda: "", lambda: "x" * 30_000, lambda: "../../" + CANARY, lambda: "/etc/passwd", lambda: CODE, lambda: "a\nb",
    lambda: "\0", lambda: [], lambda: {}, lambda: [[]], lambda: {"": None}, lambda: [None], lambda: [1] * 5000,
    lambda: float("nan"), lambda: float("inf"), lambda: 10**400, lambda: "1", lambda: "f32[3 5]", lambda: "-",
    lambda: _deep(80), lambda: _deep(900), lambda: {str(i): i for i in range(3000)},
]  # fmt: skip
_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|\w+|[^\w\s]|\s+")


def _deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


def mutations(sample: str | bytes, count: int, seed: int) -> Iterator[bytes]:
    """`count` changed samples: of text, of its tokens, of the bytes; where it is JSON two thirds are of its values."""
    random, data = Random(seed), sample if isinstance(sample, bytes) else sample.encode()
    plain = _json(data)
    ways = [of_bytes, of_tokens] if plain is None else [of_bytes, of_tokens, of_values, of_values, of_values, of_values]
    for _ in range(count):
        changed = data
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            changed = random.choice(ways)(changed, random)
        yield changed


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def of_bytes(data: bytes, random: Random) -> bytes:
    """A bit flipped, a byte changed, a span cut, doubled or lost, bytes put in, an end cut off."""
    at, other = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    near = min(len(data), at + random.randrange(1, 9))
    if not data:
        return random.randbytes(random.randrange(9))
    spot = min(at, len(data) - 1)
    way = random.randrange(8)
    if way == 0:
        return data[:spot] + bytes([data[spot] ^ (1 << random.randrange(8))]) + data[spot + 1 :]
    if way == 1:
        return data[:spot] + random.randbytes(1) + data[spot + 1 :]
    if way == 2:
        return data[:at]
    if way == 3:
        return data[:other] + data[at:]
    if way == 4:
        return data[:at] + data[near:]
    if way == 5:
        return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]
    if way == 6:
        return data[:at] + data[at:near] * random.randrange(2, 50) + data[near:]
    return data[at:]


def of_tokens(data: bytes, random: Random) -> bytes:
    """A number or word replaced by a hostile one, tokens swapped, lost, doubled or put in."""
    tokens = _TOKEN.findall(data.decode("utf-8", "surrogateescape")) or [""]
    at, other = random.randrange(len(tokens)), random.randrange(len(tokens))
    way = random.randrange(7)
    if way in (0, 1):
        numbers = [i for i, token in enumerate(tokens) if token[0].isdigit()] if tokens != [""] else []
        tokens[random.choice(numbers or [at])] = random.choice(NUMBERS)
    elif way in (2, 3):
        tokens[at] = random.choice(WORDS)
    elif way == 4:
        tokens[at], tokens[other] = tokens[other], tokens[at]
    elif way == 5:
        tokens[at] = tokens[at] * random.choice((0, 2))
    else:
        tokens.insert(at, random.choice(WORDS + NUMBERS))
    return "".join(tokens).encode("utf-8", "surrogateescape" if "\ud800" not in tokens else "surrogatepass")


def of_values(data: bytes, random: Random) -> bytes:
    """A value of JSON replaced by one of another type, lost, doubled or swapped with another; a key renamed."""
    plain = _json(data)
    places = list(_places(plain))
    if not places:
        return of_bytes(data, random)
    holder, key = random.choice(places)
    way = random.randrange(8)
    if way < 4:
        holder[key] = random.choice(VALUES)()
    elif way == 4:
        del holder[key]
    elif way == 5:
        other, its = random.choice(places)
        holder[key], other[its] = other[its], holder[key]
    elif way == 6 and isinstance(holder, dict):
        holder[random.choice((f"{key}x", "x" * 30_000, "../" + CANARY, "__class__", ""))] = holder.pop(key)
    elif isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[f"{key}.more"] = holder[key]
    try:
        return json.dumps(plain).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # swapped into itself
        return of_bytes(data, random)


def _places(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value: what holds it, and its key there."""
    left = [plain]
    while left:
        one = left.pop()
        keys: Any = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            yield one, key
            left.append(one[key])
