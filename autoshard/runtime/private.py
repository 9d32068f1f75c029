"""Folders where processes of one user meet, and of nobody else: `private_folder("job-17")`."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from autoshard.util.errors import RuntimeSetupError

_LONGEST_BASE = 50
"""Of a socket's path the system takes about a hundred bytes, and the folder's names take some forty."""


def private_folder(name: str) -> Path:
    """The folder of that name among this user's own; it is made if it is missing.

    Raises:
        RuntimeSetupError: the folder above it is another's, or others may write to it.
    """
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= _LONGEST_BASE else Path("/tmp")
    home = base / f"autoshard-{os.getuid()}"
    for folder in (home, home / name):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    seen = home.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise RuntimeSetupError(f"{home} should be a folder that is this user's alone (mode 700), and is not")
    return home / name
