"""The index of a checkpoint: for each tensor its blocks, and of each block the file, the bytes and their checksums.

It is JSON, protected by a checksum of its own; all that it says is checked before anything is read by it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoshard.core.tensortype import TensorType
from autoshard.runtime.checkpoint.placed import Region
from autoshard.runtime.checkpoint.safefile import CHUNK, checksum
from autoshard.util.errors import AutoshardError, CheckpointError
from autoshard.util.files import read_text
from costmodel.json_door import JsonError, Natural, Positive, Record, convert, decode

FORMAT, VERSION = "autoshard checkpoint", 1
INDEX = "index.json"


@dataclass(frozen=True)
class StoredBlock:
    """A block of a tensor: where it begins, its shape, and where its bytes are; `sums` has 8 digits per chunk.

    `sums` is empty for files that came without checksums.
    """

    at: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int
    sums: str

    @property
    def region(self) -> Region:
        return tuple(slice(at, at + size) for at, size in zip(self.at, self.shape, strict=True))


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: its type, the layout it had (text), its blocks in order."""

    type: TensorType
    layout: str
    blocks: tuple[StoredBlock, ...]


@dataclass(frozen=True)
class StoredFile:
    """A file of a checkpoint: its bytes, and the length and checksum of its header."""

    nbytes: int
    header: int
    checksum: str


@dataclass(frozen=True)
class Index:
    """What a checkpoint holds; `mesh` and `ranks` tell what saved it."""

    step: int
    mesh: str
    ranks: int
    files: Mapping[str, StoredFile]
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    chunk: int = CHUNK

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(one.type.nbytes for one in self.tensors.values())

    def to_text(self) -> str:
        """The index as JSON."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "mesh": self.mesh,
            "ranks": self.ranks,
            "chunk": self.chunk,
            "metadata": dict(self.metadata),
            "files": {name: [one.nbytes, one.header, one.checksum] for name, one in self.files.items()},
            "tensors": {name: _tensor_data(one) for name, one in self.tensors.items()},
        }
        return json.dumps({**body, "checksum": _digest(body)}, indent=1, allow_nan=False) + "\n"


def _digest(body: Mapping[str, Any]) -> str:
    return checksum(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _tensor_data(one: StoredTensor) -> dict[str, Any]:
    return {
        "type": str(one.type),
        "layout": one.layout,
        "blocks": [
            {"at": b.at, "shape": b.shape, "file": b.file, "bytes": [b.start, b.stop], "checksums": b.sums}
            for b in one.blocks
        ],
    }


def read_index(folder: Path) -> Index:
    """The index of a checkpoint, checked.

    Raises:
        CheckpointError: no such file, damaged, of another version, or it contradicts itself.
    """
    text = read_text(folder / INDEX, "checkpoint", CheckpointError)
    try:
        return parse_index(text)
    except AutoshardError as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {INDEX}: {error}") from error


def parse_index(text: str) -> Index:
    """Read what `Index.to_text` writes.

    Raises:
        CheckpointError: as for `read_index`.
    """
    try:
        body = decode(text, dict[str, Any])
    except JsonError as error:
        raise CheckpointError(f"it is not JSON of an index ({error}); the file is damaged") from None
    if body.get("format") != FORMAT:
        raise CheckpointError(f"it is no {FORMAT}")
    if body.get("version") != VERSION:
        raise CheckpointError(f"it has version {body.get('version')!r}; this release reads version {VERSION}")
    if body.pop("checksum", None) != _digest(body):
        raise CheckpointError("its contents do not have the checksum that it tells; the file is damaged")
    try:
        found = _index(convert(body, IndexRecord))
    except JsonError as error:
        raise CheckpointError(f"it is incomplete ({error})") from None
    check_index(found)
    return found


class BlockRecord(Record, frozen=True):
    """A StoredBlock."""

    at: tuple[Natural, ...]
    shape: tuple[Natural, ...]
    file: str
    bytes: tuple[Natural, Natural]
    checksums: str

    def block(self) -> StoredBlock:
        """The StoredBlock that it says."""
        return StoredBlock(self.at, self.shape, self.file, *self.bytes, self.checksums)


class TensorRecord(Record, frozen=True):
    """A StoredTensor, its type as text."""

    type: str
    layout: str
    blocks: tuple[BlockRecord, ...]


class IndexRecord(Record, frozen=True):
    """An Index, without its checksum; of each file its bytes, and the bytes and the checksum of its header."""

    format: str
    version: int
    step: Natural
    mesh: str
    ranks: Natural
    chunk: Positive
    metadata: dict[str, Any]
    files: dict[str, tuple[Natural, Natural, str]]
    tensors: dict[str, TensorRecord]


def _index(body: IndexRecord) -> Index:
    tensors = {
        name: StoredTensor(TensorType.parse(one.type), one.layout, tuple(each.block() for each in one.blocks))
        for name, one in body.tensors.items()
    }
    files = {name: StoredFile(*one) for name, one in body.files.items()}
    return Index(body.step, body.mesh, body.ranks, files, tensors, body.metadata, body.chunk)


def block_of(given: Mapping[str, Any]) -> StoredBlock:
    """The StoredBlock of plain data, as ranks tell each other."""
    return convert(given, BlockRecord).block()


def check_index(index: Index) -> None:
    """Make sure that an index can be followed: plain file names, bytes that lie in the files, blocks that tile.

    Raises:
        CheckpointError: with what is wrong.
    """
    if index.chunk < 1:
        raise CheckpointError(f"it tells chunks of {index.chunk} bytes")
    for name in index.files:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise CheckpointError(f"it names the file {name!r}, which is not in the checkpoint's own folder")
    for name, tensor in index.tensors.items():
        for block in tensor.blocks:
            _check_block(name, tensor, block, index)
        if not tiles(tensor.type.shape, tensor.blocks):
            raise CheckpointError(f"the blocks of {name!r} do not make up {tensor.type}, each element once")


def _check_block(name: str, tensor: StoredTensor, block: StoredBlock, index: Index) -> None:
    file = index.files.get(block.file)
    if file is None:
        raise CheckpointError(f"a block of {name!r} is in {block.file!r}, which is not among its files")
    length = math.prod(block.shape) * tensor.type.dtype.itemsize
    if block.stop - block.start != length or not file.header <= block.start <= block.stop <= file.nbytes:
        raise CheckpointError(
            f"a block of {name!r}, {tensor.type.dtype}{list(block.shape)}, cannot lie in bytes {block.start} to "
            f"{block.stop} of {block.file}"
        )
    if len(block.sums) != 8 * -(-length // index.chunk) and (block.sums or index.ranks):
        raise CheckpointError(f"a block of {name!r} in {block.file} has {len(block.sums) // 8} checksums")


def tiles(shape: Sequence[int], blocks: Sequence[StoredBlock]) -> bool:
    """Whether blocks cover a tensor of `shape`, each element once; blocks form a grid, as those of layouts do."""
    if not math.prod(shape):
        return not blocks
    if any(len(block.at) != len(shape) or len(block.shape) != len(shape) for block in blocks):
        return False
    edges = [[*sorted({block.at[d] for block in blocks}), size] for d, size in enumerate(shape)]
    ends = [dict(zip(row, row[1:], strict=False)) for row in edges]
    cells = {block.at for block in blocks}
    if len(cells) != len(blocks) or len(cells) != math.prod(len(row) - 1 for row in edges):
        return False
    if any(row[0] != 0 for row in edges):
        return False
    places = ((d, at, size) for block in blocks for d, (at, size) in enumerate(zip(block.at, block.shape, strict=True)))
    return all(ends[d].get(at) == at + size for d, at, size in places)
