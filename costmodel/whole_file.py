"""Files for others, whole or not at all: `write_whole(path, text)`, or `with replacing(path) as draft` for long ones.

What is written lies beside its place until it is on the disk, then it is renamed: whenever the process is killed or the
power fails, the file is the old one or the new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_NAME = 100
"""Characters of the target's name that the draft's has: systems allow 255 bytes."""


def write_whole(path: str | os.PathLike, data: str | bytes, *, durable: bool = True) -> Path:
    """Write a file whole or not at all; text as UTF-8. The path.

    Args:
        durable: wait until it is on the disk.

    Raises:
        OSError: it cannot be written; what was there before is as it was.
    """
    with replacing(path, durable=durable) as draft, open(draft, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
    return Path(path)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, *, durable: bool = True) -> Iterator[Path]:
    """The path of a draft in the same folder, which takes the place of `path` once the block has ended well.

    Links are followed. What is no file (a pipe, a terminal) is written to itself. An old file's permissions stay.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    before = _status(target)
    if before is not None and not stat.S_ISREG(before.st_mode):
        yield target
        return
    draft = target.with_name(f".{target.name[:_NAME]}.{secrets.token_hex(4)}.part")
    try:
        yield draft
        if before is not None:
            os.chmod(draft, stat.S_IMODE(before.st_mode))
        if durable:
            sync(draft)
        os.replace(draft, target)
        if durable:
            sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def sync(path: Path) -> None:
    """See to it that a file's bytes, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
