"""Verify a checkpoint: every byte of it against the index, and all that is wrong told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from autoshard.runtime.checkpoint.index import Index, StoredFile, read_index
from autoshard.runtime.checkpoint.load import Reader
from autoshard.runtime.checkpoint.safefile import read_header
from autoshard.util.errors import CheckpointError


def damage(folder: Path) -> Iterator[str]:
    """What is wrong with a checkpoint, a line each: files missing or cut, damaged headers and blocks.

    Raises:
        CheckpointError: the index itself cannot be followed.
    """
    index = read_index(folder)
    for name, file in index.files.items():
        wrong = _wrong(_check_file, folder, index, name, file)
        yield from wrong or _damaged_blocks(Reader(folder, index), name)


def _damaged_blocks(reader: Reader, file: str) -> Iterator[str]:
    for name, tensor in reader.index.tensors.items():
        for block in tensor.blocks:
            if block.file == file:
                yield from _wrong(reader.verify, name, block)


def _wrong(check: Callable[..., None], *given: object) -> list[str]:
    try:
        check(*given)
    except CheckpointError as error:
        return [str(error)]
    return []


def _check_file(folder: Path, index: Index, name: str, file: StoredFile) -> None:
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    size = path.stat().st_size
    if size != file.nbytes:
        raise CheckpointError(f"{path} is {size} bytes long, the index says {file.nbytes}")
    Reader(folder, index).check_header(name, np.fromfile(path, np.uint8, file.header))
    header = read_header(path)
    for tensor, one in index.tensors.items():
        for block in one.blocks:
            entry = header.entries.get(tensor)
            if block.file == name and (entry is None or (entry.start, entry.stop) != (block.start, block.stop)):
                raise CheckpointError(f"{path}: its header places tensor {tensor!r} elsewhere than the index does")
