"""Files in and out, with autoshard's errors: JSON by the door of `costmodel.json_door`, text within limits, and files
that are written whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from autoshard.util.errors import AutoshardError, ParseError
from costmodel.json_door import MOST_BYTES, JsonError, contents, convert, decode
from costmodel.whole_file import replacing as _replacing

T = TypeVar("T")
FilePath = str | os.PathLike


def read_bytes(path: FilePath, what: str, error: type[AutoshardError] = ParseError) -> bytes:
    """The contents of a file that is a `what` ("plan", "rank table").

    Raises:
        error: it cannot be read, or has more than MOST_BYTES bytes.
    """
    try:
        data = contents(path)
    except (OSError, ValueError) as fault:  # a name with a zero byte is a ValueError
        raise error(f"cannot read the {what} {path}: {_why(fault)}") from None
    if len(data) > MOST_BYTES:
        raise error(f"cannot read the {what} {path}: it has more than {MOST_BYTES} bytes")
    return data


def read_text(path: FilePath, what: str, error: type[AutoshardError] = ParseError) -> str:
    """The same as text in UTF-8, its line ends as they are.

    Raises:
        error: as for `read_bytes`, or it is no such text.
    """
    data = read_bytes(path, what, error)
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        raise error(f"cannot read the {what} {path}: it is no text in UTF-8 ({fault.reason})") from None


def read_json(path: FilePath, kind: type[T] | Any, what: str, error: type[AutoshardError] = ParseError) -> T:
    """What a JSON file says, checked to be of a `kind` of the door.

    Raises:
        error: as for `read_bytes`; or it is no JSON, or of another kind: the message has the place.
    """
    return parse_json(read_bytes(path, what, error), kind, f"the {what} {path}", error)


def parse_json(data: bytes | str, kind: type[T] | Any, where: str, error: type[AutoshardError] = ParseError) -> T:
    """What JSON text says; `where` is it from.

    Raises:
        error: as for `read_json`.
    """
    try:
        return decode(data, kind)
    except JsonError as fault:
        raise error(f"cannot read {where}: {fault}") from None


def checked(data: Any, kind: type[T] | Any, where: str, error: type[AutoshardError] = ParseError) -> T:
    """Plain data of a caller, checked to be of a kind.

    Raises:
        error: it is of another.
    """
    try:
        return convert(data, kind)
    except JsonError as fault:
        raise error(f"cannot read {where}: {fault}") from None


def write_atomically(
    path: FilePath, data: str | bytes, error: type[AutoshardError], *, durable: bool = True, folders: bool = False
) -> Path:
    """Write a file whole or not at all; the path.

    Args:
        durable: wait until it is on the disk.
        folders: make the folders that it lies in.

    Raises:
        error: it cannot be written.
    """
    with replacing(path, error, durable=durable, folders=folders) as draft:
        draft.write_bytes(data.encode() if isinstance(data, str) else data)
    return Path(path)


@contextmanager
def replacing(
    path: FilePath, error: type[AutoshardError], *, durable: bool = True, folders: bool = False
) -> Iterator[Path]:
    """The path of a draft in the same folder, which takes the place of `path` once the block has ended well.

    Raises:
        error: it cannot be written; what the block itself raises but for OSError is passed on.
    """
    if "\0" in str(path):
        raise error(f"cannot write {path!r}: a file's name has no zero bytes")
    try:
        if folders:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path, durable=durable) as draft:
            yield draft
    except OSError as fault:
        raise error(f"cannot write {path}: {_why(fault)}") from fault


def check_writable(path: FilePath, error: type[AutoshardError], making: bool = False) -> None:
    """That a file can be written, before work that takes long is begun for it.

    Args:
        making: whether its own directory will be made if it is not there.

    Raises:
        error: it is a directory, its own directory is not there, or one of both must not be written.
    """
    path = Path(path)
    parent = path.absolute().parent
    if path.is_dir():
        raise error(f"cannot write {path}: it is a directory; name a file")
    if making:
        check_folder_writable(parent, error)
    elif not parent.is_dir():
        raise error(f"cannot write {path}: there is no directory {path.parent}")
    if parent.exists() and not os.access(path if path.exists() else parent, os.W_OK):
        raise error(f"cannot write {path}: permission denied")


def check_folder_writable(path: FilePath, error: type[AutoshardError]) -> None:
    """That files can be written into a folder, which is made if it is not there.

    Raises:
        error: it, or what it would be made in, is a file or must not be written.
    """
    path = Path(path)
    near = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if not near.is_dir():
        raise error(f"cannot write into {path}: {near} is a file")
    if not os.access(near, os.W_OK):
        raise error(f"cannot write into {path}: permission denied")


def _why(fault: Exception) -> str:
    return str(getattr(fault, "strerror", None) or fault)
