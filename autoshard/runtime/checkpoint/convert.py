"""Checkpoints to and from plain safetensors files with the names that frameworks use, a tensor at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.runtime.array import array_dtype
from autoshard.runtime.checkpoint.index import Index
from autoshard.runtime.checkpoint.load import Reader, find_source
from autoshard.runtime.checkpoint.placed import LocalBlocks, Placed
from autoshard.runtime.checkpoint.plain import plain_index
from autoshard.runtime.checkpoint.safefile import write_file
from autoshard.runtime.checkpoint.save import save
from autoshard.runtime.local import LocalComm
from autoshard.util.errors import CheckpointError
from autoshard.util.files import replacing

Rename = Callable[[str], str | None]
STATES = "states"
"""The metadata's list of the tensors that are states of training, not of the model."""


def model_names(index: Index) -> list[str]:
    """The names of a checkpoint's tensors but those that only training needs."""
    states = set(index.metadata.get(STATES, ()))
    return [name for name in index.tensors if name not in states]


def export_file(
    directory: str | os.PathLike,
    path: str | os.PathLike,
    step: int | None = None,
    rename: Rename | None = None,
    states: bool = False,
) -> list[str]:
    """Write a checkpoint's tensors, whole, into one plain safetensors file; their names there, in order.

    The file appears when it is complete; one tensor at a time is held in memory.

    Args:
        rename: the name in the file for a name of the checkpoint; None leaves the tensor out.
        states: whether states of the optimizer are written too.

    Raises:
        CheckpointError: no checkpoint or a damaged one, two tensors of one new name, or the file cannot be written.
    """
    reader, path = Reader.open(find_source(directory, step)), Path(path)
    index = reader.index
    source = _renamed(list(index.tensors) if states else model_names(index), rename)
    types = {new: index.tensors[old].type for new, old in source.items()}

    def array(name: str) -> np.ndarray:
        of = types[name]
        # As bytes of the right number: element types that numpy has not need no package to be copied.
        whole = np.empty(of.shape, np.dtype((np.void, of.dtype.itemsize)))
        reader.read(source[name], tuple(map(slice, [0] * of.rank, of.shape)), whole)
        return whole

    with replacing(path, CheckpointError, folders=True) as draft:
        write_file(draft, types, array, {"format": "pt"})
    return list(types)


def import_files(
    paths: Sequence[str | os.PathLike],
    directory: str | os.PathLike,
    step: int = 0,
    rename: Rename | None = None,
    metadata: Mapping[str, Any] | None = None,
    keep: int = 0,
) -> Path:
    """Make a checkpoint of plain safetensors files, which may share the tensors of one model; its folder.

    Args:
        rename: the name in the checkpoint for a name in the files; None leaves the tensor out.

    Raises:
        CheckpointError: no safetensors file, a tensor that two files have, or the checkpoint cannot be written.
    """
    mesh, held = Mesh.flat(1), {}
    for path in map(Path, paths):
        index = plain_index([path])
        reader = Reader(path.parent, index)
        for new, old in _renamed(list(index.tensors), rename).items():
            if new in held:
                raise CheckpointError(f"cannot import {path}: {new} is in another of the files, too")
            placed = Placed(index.tensors[old].type, Layout.replicated(mesh, index.tensors[old].type.rank))
            held[new] = LocalBlocks([reader.view(old, array_dtype(placed.type.dtype))], placed)
    return save(directory, held, LocalComm(1), step, metadata, keep)


def _renamed(names: list[str], rename: Rename | None) -> dict[str, str]:
    """New name -> old name."""
    found: dict[str, str] = {}
    for old in names:
        new = old if rename is None else rename(old)
        if new is None:
            continue
        if new in found:
            raise CheckpointError(f"{found[new]} and {old} would both be called {new}")
        found[new] = old
    if not found:
        raise CheckpointError("no tensors are left")
    return found
