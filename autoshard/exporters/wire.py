"""Protocol buffers on the wire: just what a writer of messages needs, so that none of their packages is.

A message is the bytes of its fields one after the other: a key (number and kind), then a varint or a length and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """A whole number of at least 0, seven bits to a byte, the least first.

    >>> varint(300).hex()
    'ac02'
    """
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int | bool) -> bytes:
    """A field that is a number or a truth value."""
    return varint(field << 3 | _VARINT) + varint(int(value))


def text(field: int, value: str | bytes) -> bytes:
    """A field that is text, or a message of its own.

    >>> text(2, "testing").hex()
    '120774657374696e67'
    """
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def numbers(field: int, values: Iterable[int]) -> bytes:
    """A field that is repeated, its numbers packed; nothing where there are none."""
    data = b"".join(map(varint, values))
    return text(field, data) if data else b""


def framed(message: bytes) -> bytes:
    """A message behind its length, as files have several."""
    return varint(len(message)) + message
