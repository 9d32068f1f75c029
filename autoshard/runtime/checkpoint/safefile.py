"""The safetensors file: 8 bytes of header length, a JSON header of names, types and byte ranges, then the arrays.

Files are written as a stream and read by memory maps, so that nobody holds more than the part at work. The format is
that of https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from autoshard.core.tensortype import DType, TensorType, dtype
from autoshard.util.errors import AutoshardError, CheckpointError
from autoshard.util.files import checked
from costmodel.json_door import Natural, Record, convert, decode

CHUNK = 1 << 20
"""Bytes that one checksum is of."""
_LENGTH = 8
_MOST = 100_000_000
_SHOWN = 200
"""Characters of a name that a message has at most."""
_NAMES = {
    "bool": "BOOL",
    "f8e4m3fn": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
    "f8e8m0fnu": "F8_E8M0",
    **{f"{kind}{bits}": f"{kind.upper()}{bits}" for kind in "iu" for bits in (64, 32, 16, 8)},
    **{name: name.upper() for name in ("f64", "f32", "f16", "bf16", "c64")},
}
_KINDS = {stored: name for name, stored in _NAMES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its type, and the bytes from `start` to `stop`, counted from the file's begin."""

    type: TensorType
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself: its tensors, free texts, and the length and checksum of all before the arrays."""

    entries: Mapping[str, Entry]
    texts: Mapping[str, str]
    length: int
    checksum: str


def stored_name(of: DType, tensor: str) -> str:
    """The file format's name of an element type.

    Raises:
        CheckpointError: the format has none.
    """
    if of.name not in _NAMES:
        known = ", ".join(_NAMES)
        raise CheckpointError(f"{tensor}: the file format has no elements of type {of}; it has {known}")
    return _NAMES[of.name]


def make_header(types: Mapping[str, TensorType], texts: Mapping[str, str] | None = None) -> tuple[bytes, Header]:
    """The bytes of a header, and what it says; wide elements come first, so that all are aligned.

    Raises:
        CheckpointError: an element type that the format has not, or a name that it keeps for itself.
    """
    listed: dict[str, Any] = {"__metadata__": dict(texts)} if texts else {}
    places, at = {}, 0
    for name, of in sorted(types.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        if name == "__metadata__":
            raise CheckpointError("a tensor cannot be called '__metadata__': the file format keeps this name")
        places[name] = at, at + of.nbytes
        listed[name] = {"dtype": stored_name(of.dtype, name), "shape": of.shape, "data_offsets": places[name]}
        at += of.nbytes
    text = json.dumps(listed, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    head = len(text).to_bytes(_LENGTH, "little") + text
    entries = {name: Entry(types[name], len(head) + a, len(head) + b) for name, (a, b) in places.items()}
    return head, Header(entries, dict(texts or {}), len(head), checksum(head))


def checksum(data: Any) -> str:
    """CRC-32 of bytes as 8 hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


def write_file(
    path: Path, types: Mapping[str, TensorType], array: Callable[[str], np.ndarray], texts: Mapping[str, str]
) -> tuple[Header, dict[str, str]]:
    """Write tensors one after the other, and on to the disk; the header, and per tensor the checksums of its chunks.

    Args:
        array: gives the contents of a tensor by its name, asked for when it is its turn.
    """
    head, header = make_header(types, texts)
    sums = {}
    with open(path, "wb") as file:
        file.write(head)
        for name in header.entries:
            sums[name] = _write_array(file, array(name))
        flush(file)
    return header, sums


def _write_array(file: BinaryIO, array: np.ndarray) -> str:
    data = raw(array)
    sums = []
    for low in range(0, data.size, CHUNK):
        piece = data[low : low + CHUNK].data
        sums.append(checksum(piece))
        file.write(piece)
    return "".join(sums)


def raw(array: np.ndarray) -> np.ndarray:
    """The bytes of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def flush(file: Any) -> None:
    """See to it that what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def read_header(path: Path) -> Header:
    """What a file says of itself; its arrays are not read.

    Raises:
        CheckpointError: it is no safetensors file, or a cut one.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(_LENGTH)
            length = int.from_bytes(first, "little")
            if len(first) < _LENGTH or length > min(size - _LENGTH, _MOST):
                raise ValueError(f"its header would be {length} bytes long, the file is {size}")
            text = file.read(length)
        return _parsed(decode(text, dict[str, Any]), len(first) + length, checksum(first + text), size)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (AutoshardError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: it is no safetensors file, or is damaged ({error})") from error


class EntryRecord(Record, frozen=True):
    """A tensor of the header: its bytes are counted from the header's end."""

    dtype: str
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]


def _parsed(listed: dict[str, Any], begin: int, check: str, size: int) -> Header:
    texts = convert(listed.pop("__metadata__", {}), dict[str, str])
    entries = {name: _entry(name, given, begin) for name, given in listed.items()}
    ends = max((one.stop for one in entries.values()), default=begin)
    if ends != size:
        raise ValueError(f"its arrays end at byte {ends}, the file at {size}")
    _check_order(entries.items(), begin)
    return Header(entries, texts, begin, check)


def _entry(name: str, given: Any, begin: int) -> Entry:
    one = checked(given, EntryRecord, f"tensor {name[:_SHOWN]!r}", CheckpointError)
    if one.dtype not in _KINDS:
        raise CheckpointError(f"{name}: elements of type {one.dtype!r} cannot be read; known are {', '.join(_KINDS)}")
    of = TensorType.of(one.shape, dtype(_KINDS[one.dtype]))
    start, stop = one.data_offsets
    if stop - start != math.prod(of.shape) * of.dtype.itemsize:
        raise ValueError(f"tensor {name!r}, {of}, cannot lie in bytes {start} to {stop}")
    return Entry(of, begin + start, begin + stop)


def _check_order(entries: Iterable[tuple[str, Entry]], begin: int) -> None:
    at = begin
    for name, one in sorted(entries, key=lambda item: (item[1].start, item[1].stop)):
        if one.start != at:
            raise ValueError(f"tensor {name!r} begins at byte {one.start}, what is before it ends at {at}")
        at = one.stop
