"""The directory of checkpoints: a folder per step, made aside and renamed, and the file `latest` that names the newest.

    checkpoints/latest               the newest one's name, then those of the older ones, newest first
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
from autoshard.runtime.checkpoint.safefile import flush
from autoshard.util.errors import CheckpointError

LATEST = "latest"
_SAVING, _REMOVING, _LOCK, _NEXT = ".saving-", ".removing-", ".lock", ".latest-next"
_NAME = re.compile(r"step-(\d+)(?:-(\d+))?")


def checkpoints(directory: Path) -> list[str]:
    """The names of the complete checkpoints of a directory, in the order they were saved."""
    try:
        found = {one.name for one in os.scandir(directory) if _NAME.fullmatch(one.name)}
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoints in {directory}: {error.strerror or error}") from error
    listed = [name for name in _listed(directory) if name in found]
    # What `latest` does not tell was renamed just before its save was killed, or put here by hand.
    return [*sorted(found - set(listed), key=_order), *listed]


def _listed(directory: Path) -> list[str]:
    path = directory / LATEST
    return path.read_text(encoding="utf-8").split()[::-1] if path.exists() else []


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
    if (directory / INDEX).is_file() and step is None:
        return directory
    names = checkpoints(directory)
    if not names:
        raise CheckpointError(f"there is no checkpoint in {directory}")
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
        (directory / _NEXT).unlink(missing_ok=True)
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
    _sync(stage)
    os.rename(stage, directory / name)
    _sync(directory)
    kept = [one for one in before if one not in same]
    kept = [*kept, name][-keep:] if keep else [*kept, name]
    _point(directory, kept[::-1])
    for one in before:
        if one not in kept:
            _remove(directory, one)
    return directory / name


def _point(directory: Path, names: list[str]) -> None:
    with open(directory / _NEXT, "w", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in names)
        flush(file)
    os.replace(directory / _NEXT, directory / LATEST)
    _sync(directory)


def _remove(directory: Path, name: str) -> None:
    aside = directory / f"{_REMOVING}{name}"
    os.rename(directory / name, aside)
    shutil.rmtree(aside)


def _sync(folder: Path) -> None:
    """See to it that the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
