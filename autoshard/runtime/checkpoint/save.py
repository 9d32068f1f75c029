"""Save tensors from the ranks that hold them: each rank writes the blocks that it is the first owner of.

All ranks call `save` together, on a file system that all of them see. Replicas are written once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.runtime.agree import from_all
from autoshard.runtime.array import array_dtype
from autoshard.runtime.checkpoint.agree import together
from autoshard.runtime.checkpoint.folder import commit, saving
from autoshard.runtime.checkpoint.index import (
    INDEX,
    Index,
    StoredBlock,
    StoredFile,
    StoredTensor,
    block_of,
    check_index,
)
from autoshard.runtime.checkpoint.placed import LocalBlocks, Placed, extent, first_owners
from autoshard.runtime.checkpoint.safefile import stored_name, write_file
from autoshard.runtime.comm import Comm
from autoshard.util.errors import CheckpointError
from autoshard.util.files import write_atomically
from costmodel.json_door import decode

Records = list[tuple[str, StoredFile, dict[str, Any]]]


def save(
    directory: str | os.PathLike,
    arrays: Mapping[str, LocalBlocks],
    comm: Comm,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    keep: int = 0,
) -> Path:
    """Write a checkpoint into a directory of checkpoints; its folder. Over all ranks together.

    The checkpoints before it are whole and readable at every moment, should processes be killed.

    Args:
        arrays: by name, alike on all ranks but for the blocks.
        metadata: anything that JSON can say; rank 0's counts.
        keep: how many checkpoints stay, this one included; 0: all.

    Raises:
        CheckpointError: on every rank, should any fail: blocks that do not fit, a full disk, another save under way.
    """
    directory, what = Path(directory), f"cannot save into {directory}"
    texts = together(comm, what, lambda: (_checked(arrays, comm, step, keep), _json(metadata)))
    told = from_all(comm, texts[0])
    if len(set(told)) > 1:
        odd = next(rank for rank, text in enumerate(told) if text != told[0])
        raise CheckpointError(f"{what}: ranks 0 and {odd} were given different tensors, layouts or steps to save")
    first = 0 in comm.ranks
    with ExitStack() as stack:
        begun = together(comm, what, lambda: stack.enter_context(saving(directory)).name if first else "")
        stage = directory / from_all(comm, begun)[0]
        records = together(comm, what, lambda: _write(stage, arrays, comm))
        told = from_all(comm, json.dumps([(name, vars(file), blocks) for name, file, blocks in records]))
        done = together(
            comm, what, lambda: _finish(stage, arrays, told, (step, comm.world), metadata, keep) if first else ""
        )
        return directory / from_all(comm, done)[0]


def _checked(arrays: Mapping[str, LocalBlocks], comm: Comm, step: int, keep: int) -> str:
    """A digest of what is saved, the same on all ranks that were given the same."""
    if not arrays:
        raise CheckpointError("there are no tensors to save")
    for what, number in (("step", step), ("keep", keep)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise CheckpointError(f"{what} is {number!r}; it must be a whole number of at least 0")
    for name, held in arrays.items():
        _check_held(name, held, comm)
    meshes = {held.placed.layout.mesh for held in arrays.values() if held.placed.ranks is None}
    if len(meshes) > 1:
        raise CheckpointError(f"the tensors lie on different meshes: {', '.join(sorted(map(str, meshes)))}")
    told = [f"{name} {held.placed} {held.placed.padded} {held.placed.where}" for name, held in arrays.items()]
    return hashlib.blake2b("\n".join([*told, f"{step} {keep}"]).encode(), digest_size=16).hexdigest()


def _check_held(name: str, held: LocalBlocks, comm: Comm) -> None:
    placed = held.placed
    fits = placed.layout.mesh.devices == comm.world if placed.ranks is None else max(placed.ranks) < comm.world
    if not fits:
        raise CheckpointError(f"{name} lies on mesh '{placed.where}', but there are {comm.world} ranks")
    stored_name(placed.type.dtype, name)
    ranks = placed.hosted(comm.ranks)
    if len(held.parts) != len(ranks):
        raise CheckpointError(f"{name} has {len(held.parts)} blocks for {len(ranks)} ranks")
    for rank, part in zip(ranks, held.parts, strict=True):
        fitting = (placed.local, extent(placed.region(rank)))
        if part.shape not in fitting or part.dtype != array_dtype(placed.type.dtype):
            raise CheckpointError(
                f"rank {rank} holds {part.dtype}{list(part.shape)} of {name}, {placed}; its block is "
                f"{placed.type.dtype}{list(placed.local)}"
            )


def _json(metadata: Mapping[str, Any] | None) -> None:
    try:
        # What is read again, too: no NaN, nothing very deep.
        decode(json.dumps(dict(metadata or {}), allow_nan=False), dict[str, Any])
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"metadata {metadata!r} cannot be written as JSON: {error}") from error


def _write(stage: Path, arrays: Mapping[str, LocalBlocks], comm: Comm) -> Records:
    """Write the files of the hosted ranks."""
    if not stage.is_dir():
        raise CheckpointError(f"rank 0 made the folder {stage}, which this rank does not see; use a shared file system")
    parts = {name: dict(zip(held.placed.hosted(comm.ranks), held.parts, strict=True)) for name, held in arrays.items()}
    records = []
    for rank in comm.ranks:
        here = {name: (held.placed, parts[name][rank]) for name, held in arrays.items() if rank in parts[name]}
        records.append(_write_rank(stage, here, rank, comm.world))
    return [record for record in records if record is not None]


def _write_rank(
    stage: Path, held: Mapping[str, tuple[Placed, np.ndarray]], rank: int, world: int
) -> tuple[str, StoredFile, dict[str, Any]] | None:
    """Write what a rank is the first owner of; None if that is nothing."""
    placed = {name: one for name, (one, _) in held.items()}
    regions = {name: one.region(rank) for name, one in placed.items()}
    own = {
        name: one.type.with_shape(extent(regions[name]))
        for name, one in placed.items()
        if one.place(rank) in first_owners(one.layout) and 0 not in extent(regions[name])
    }
    if not own:
        return None

    def array(name: str) -> np.ndarray:
        return held[name][1][tuple(map(slice, own[name].shape))]

    file = f"rank-{rank:05d}-of-{world:05d}.safetensors"
    header, sums = write_file(stage / file, own, array, {"format": "np"})
    blocks = {
        name: {
            "at": [part.start for part in regions[name]],
            "shape": one.type.shape,
            "file": file,
            "bytes": [one.start, one.stop],
            "checksums": sums[name],
        }
        for name, one in header.entries.items()
    }
    return file, StoredFile((stage / file).stat().st_size, header.length, header.checksum), blocks


def _finish(
    stage: Path,
    arrays: Mapping[str, LocalBlocks],
    told: list[str],
    of: tuple[int, int],
    metadata: Mapping[str, Any] | None,
    keep: int,
) -> str:
    """Write the index from what all ranks wrote, and make the checkpoint the newest; its name.

    Args:
        of: the step, and how many ranks there are.
    """
    records = [record for text in told for record in json.loads(text)]
    blocks: dict[str, list[StoredBlock]] = {name: [] for name in arrays}
    for _, _, own in records:
        for name, given in own.items():
            blocks[name].append(block_of(given))
    placed = {name: held.placed for name, held in arrays.items()}
    meshes = dict.fromkeys(one.where for one in placed.values())
    tensors = {
        name: StoredTensor(one.type, str(one.layout), tuple(sorted(blocks[name], key=lambda block: block.at)))
        for name, one in placed.items()
    }
    files = {file: StoredFile(**given) for file, given, _ in records}
    index = Index(of[0], "; ".join(meshes), of[1], files, tensors, dict(metadata or {}))
    check_index(index)
    write_atomically(stage / INDEX, index.to_text(), CheckpointError)
    return commit(stage.parent, stage, of[0], keep).name
