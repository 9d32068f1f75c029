"""Seconds and bytes as people write them.

Times print in decimal units and sizes in binary ones, to three digits; sizes are also read back.

>>> format_seconds(9.8e-6), format_bytes(49152), parse_bytes("80 GiB")
('9.8 us', '48 KiB', 85899345920)
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import SupportsIndex

_SECONDS = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_BYTES = (
    ("B", 1.0),
    ("KiB", 2.0**10),
    ("MiB", 2.0**20),
    ("GiB", 2.0**30),
    ("TiB", 2.0**40),
    ("PiB", 2.0**50),
)

_SCALES = {
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)},
    "kB": 1000,
}
# "80 gib" is clear; "80 Gb" is not (eight times less to a network engineer), so only whole lower case is
# added.
_SCALES |= {unit.lower(): scale for unit, scale in _SCALES.items()}
_LONGEST = 64
"""Characters of a size at most."""
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)


def format_seconds(s: float) -> str:
    """A time in seconds to three digits in ns, us, ms or s: `9.8e-6` is "9.8 us"."""
    return _scaled(float(s), _SECONDS, 1000.0, "s")


def format_count(count: int, noun: str) -> str:
    """A number of things in words: `1 collective`, `3 collectives`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_bytes(n: float) -> str:
    """A size in bytes to three digits in B, KiB, ... PiB (powers of 1024): `49152` is "48 KiB"."""
    return _scaled(float(n), _BYTES, 1024.0, "B")


def parse_bytes(size: SupportsIndex | str) -> int:
    """Bytes from a whole number, or from text such as "80 GiB" (powers of 1024) or "80GB" (powers of 1000).

    Text without a unit counts bytes; a fraction of a byte is dropped. Anything else is a ValueError.
    """
    if isinstance(size, str):
        return _parse_text(size)
    try:
        count = operator.index(size)
    except TypeError:
        raise ValueError(f"cannot read {size!r} as a size: give whole bytes or text like '80 GiB'") from None
    if isinstance(size, bool) or count < 0:
        raise ValueError(f"cannot read {size!r} as a size: bytes are counted from 0 up")
    return count


def _parse_text(text: str) -> int:
    if len(text) > _LONGEST:
        raise ValueError(f"cannot read {text[:_LONGEST]!r}... as a size: it has {len(text)} characters")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read {text!r} as a size: write a number and a unit, like '80 GiB'")
    number, unit = match.groups()
    if unit and unit not in _SCALES:
        raise ValueError(
            f"cannot read {text!r} as a size: unknown unit {unit!r}; use B, "
            "KiB MiB GiB TiB PiB (powers of 1024) or KB MB GB TB PB (powers of 1000)"
        )
    return int(Decimal(number) * _SCALES[unit or "B"])


def _scaled(value: float, units: Sequence[tuple[str, float]], step: float, base: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{abs(value) if value == 0 else value:g} {base}"
    # The rounded text decides, so that 999.9 us becomes "1 ms" and never "1000 us".
    for unit, scale in units[:-1]:
        text = _three_digits(value / scale)
        if abs(float(text)) < step:
            return f"{text} {unit}"
    unit, scale = units[-1]
    return f"{_three_digits(value / scale)} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


_POWERS = {
    "ns": "e-9",
    "us": "e-6",
    "\u00b5s": "e-6",
    "\u03bcs": "e-6",
    "ms": "e-3",
    "s": "",
}  # with the micro sign, too
_TIME = re.compile(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(_POWERS)})?\s*", re.ASCII)
_WATTS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(k?)W\s*")
_BITS = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT])(?:b/s|bps|bit/s|bits/s)\s*", re.ASCII)


def parse_seconds(time: float | str, what: str = "a time") -> float:
    """Seconds from a number, or from text such as "4 us", "1.5 ms".

    Raises:
        ValueError: anything else; the message begins with `what`.

    >>> parse_seconds("4 us"), parse_seconds(0.25)
    (4e-06, 0.25)
    """
    if isinstance(time, str):
        match = _TIME.fullmatch(time) if len(time) <= _LONGEST else None
        if match is None:
            raise ValueError(f"{what}: {time[:_LONGEST]!r} is no time; write seconds, or text such as '4 us'")
        return float(match[1] + _POWERS[match[2] or "s"])
    return float(time)


def parse_watts(power: float | str, what: str = "a power") -> float:
    """Watts from a number, or from text such as "500 W" or "0.7 kW".

    Raises:
        ValueError: anything else; the message begins with `what`.

    >>> parse_watts("500 W"), parse_watts("0.7 kW")
    (500.0, 700.0)
    """
    if not isinstance(power, str):
        return float(power)
    found = _WATTS.fullmatch(power[:_LONGEST])
    if found is None:
        raise ValueError(f"{what}: {power[:_LONGEST]!r} is no power; write watts, or text such as '500 W'")
    return float(found[1]) * (1000.0 if found[2] else 1.0)


def parse_rate(rate: float | str, what: str = "a rate") -> float:
    """Bytes per second from a number, or from text such as "450 GB/s".

    Raises:
        ValueError: anything else; the message begins with `what`.

    >>> parse_rate("50 GB/s")
    50000000000.0
    """
    if not isinstance(rate, str):
        return float(rate)
    if bits := _BITS.fullmatch(rate[:_LONGEST]):
        told = f"{what}: {rate.strip()!r} counts bits, and bandwidths are in bytes"
        raise ValueError(f"{told}: write '{float(bits[1]) / 8:.10g} {bits[2]}B/s'")
    size, _, per = rate.partition("/")
    wrong = f"{what}: {rate[:_LONGEST]!r} is no rate; write bytes per second, or text such as '50 GB/s'"
    if per.strip() != "s":
        raise ValueError(wrong)
    try:
        return float(parse_bytes(size))
    except ValueError as error:
        raise ValueError(f"{wrong}: {error}") from None
