"""The directory of checkpoints: a folder per step, made aside and renamed, and the file `latest` that names the newest.

    checkpoints/latest               a checksum; then the newest one's name and those of the older ones, newest first
    checkpoints/step-00000012/       index.json and a file for each rank that had something to write
    checkpoints/.saving-*            a save under way, or one that died

A save has happened when `latest` is replaced. Each change is a rename, after what it shows is on the disk: whenever
processes are killed, the checkpoint before is whole.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoshard.runtime.checkpoint.index import INDEX
from autoshard.runtime.checkpoint.safefile import checksum
from autoshard.util.errors import CheckpointError
from autoshard.util.files import read_text, write_atomically
from costmodel.whole_file import sync

LATEST = "latest"
_SAVING, _REMOVING, _LOCK, _CHECKSUM = ".saving-", ".removing-", ".lock", "checksum "
# Digits in such numbers that they can be read: steps are 64-bit numbers.
_NAME = re.compile(r"step-([0-9]{1,18})(?:-([0-9]{1,18}))?")


def checkpoints(directory: Path) -> list[str]:
    """The names of the complete checkpoints of a directory, in the order they were saved."""
    try:
        found = {one.name for one in os.scandir(directory) if _NAME.fullmatch(one.name)}
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot read checkpoints in {directory}: {why}") from error
    listed = [name for name in _listed(directory) if name in found]
    # What `latest` does not tell was renamed just before its save was killed, or put here by hand.
    return [*sorted(found - set(listed), key=_order), *listed]


def _listed(directory: Path) -> list[str]:
    """The names that `latest` tells, oldest first; releases before 0.2 wrote it without a checksum.

    Raises:
        CheckpointError: it is damaged.
    """
    path = directory / LATEST
    if not path.exists():
        return []
    first, _, rest = read_text(path, "list of checkpoints", CheckpointError).partition("\n")
    names = rest if first.startswith(_CHECKSUM) else f"{first}\n{rest}"
    sound = first in (_CHECKSUM + checksum(names.encode()), names.partition("\n")[0])
    if not sound or not names.endswith("\n") or not all(map(_NAME.fullmatch, names.splitlines())):
        raise CheckpointError(
            f"{path} is damaged; without it the checkpoint of the highest step is the newest: look, and remove the file"
        )
    return names.split()[::-1]


def _order(name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(name)
    assert match is not None, "names that are no checkpoint's are left out"
    return int(match[1]), int(match[2] or 1)


def find(directory: str | os.PathLike, step: int | None = None) -> Path:
    """The folder of a directory's newest checkpoint, or of that of a step; a checkpoint's own folder is taken as it is.

    Raises:
        CheckpointError: there is none, or none of this step.
    """
    directory = Path(directory)
    if step is None and os.path.isfile(directory / INDEX):
        return directory
    names = checkpoints(directory)
    if not names:
        files = sorted(path.name for path in directory.glob("*.safetensors"))
        instead = f"; {files[-1]} is a file of parameters, which load_checkpoint reads" if files else ""
        raise CheckpointError(f"there is no checkpoint in {directory}{instead}")
    fitting = [name for name in names if step is None or _order(name)[0] == step]
    if not fitting:
        raise CheckpointError(f"there is no checkpoint of step {step} in {directory}; there are {', '.join(names)}")
    return directory / fitting[-1]


@contextmanager
def saving(directory: Path) -> Iterator[Path]:
    """An empty folder to write a checkpoint into, then to be passed to `commit`; removed where that does not happen.

    Raises:
        CheckpointError: another process is saving into the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        for left in [*directory.glob(f"{_SAVING}*"), *directory.glob(f"{_REMOVING}*")]:
            shutil.rmtree(left)
        for left in directory.glob(f".{LATEST}*"):
            left.unlink()
        stage = directory / f"{_SAVING}{os.getpid()}"
        stage.mkdir()
        try:
            yield stage
        finally:
            shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock; the system lets it go when the process ends, however it ends."""
    import fcntl

    with open(directory / _LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"another process is saving into {directory}; one at a time can") from None
        yield


def commit(directory: Path, stage: Path, step: int, keep: int) -> Path:
    """Make a complete stage the newest checkpoint, and remove all but the newest `keep` (0: none is removed).

    An older checkpoint of the same step is replaced.
    """
    before = checkpoints(directory)
    same = [name for name in before if _order(name)[0] == step]
    name = f"step-{step:08d}"
    if same:
        name += f"-{max(_order(one)[1] for one in same) + 1}"
    sync(stage)
    os.rename(stage, directory / name)
    sync(directory)
    kept = [one for one in before if one not in same]
    kept = [*kept, name][-keep:] if keep else [*kept, name]
    _point(directory, kept[::-1])
    for one in before:
        if one not in kept:
            _remove(directory, one)
    return directory / name


def _point(directory: Path, names: list[str]) -> None:
    text = "".join(f"{name}\n" for name in names)
    write_atomically(directory / LATEST, f"{_CHECKSUM}{checksum(text.encode())}\n{text}", CheckpointError)


def _remove(directory: Path, name: str) -> None:
    aside = directory / f"{_REMOVING}{name}"
    os.rename(directory / name, aside)
    shutil.rmtree(aside)
