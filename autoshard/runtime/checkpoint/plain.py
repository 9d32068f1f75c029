"""Plain safetensors files, as frameworks write them: read as a checkpoint of one rank, written from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoshard.runtime.checkpoint.index import Index, StoredBlock, StoredFile, StoredTensor
from autoshard.runtime.checkpoint.safefile import Header, read_header
from autoshard.util.errors import CheckpointError


def plain_index(paths: Sequence[Path]) -> Index:
    """An index of plain files that lie in one folder; their contents have no checksums.

    Raises:
        CheckpointError: no safetensors file, or a tensor that two files have.
    """
    files: dict[str, StoredFile] = {}
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        header = read_header(path)
        files[path.name] = StoredFile(path.stat().st_size, header.length, header.checksum)
        for name, tensor in _tensors(path.name, header).items():
            if name in tensors:
                raise CheckpointError(f"{name} is both in {tensors[name].blocks[0].file} and in {path.name}")
            tensors[name] = tensor
    return Index(0, "1", 0, files, tensors)


def _tensors(file: str, header: Header) -> dict[str, StoredTensor]:
    found = {}
    for name, one in header.entries.items():
        of = one.type
        block = StoredBlock((0,) * of.rank, of.shape, file, one.start, one.stop, "")
        found[name] = StoredTensor(of, ", ".join("-" * of.rank) or "()", (block,) if of.elements else ())
    return found
