"""Load tensors onto any mesh and number of ranks: each rank reads only the blocks that its own overlap.

    found = load("checkpoints", {"w": Placed(TensorType.of((6, 4)), Layout.parse("dp, -", mesh))}, comm)

Of the blocks that are read, the chunks that hold wanted bytes are compared with their checksums.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.runtime.agree import from_all
from autoshard.runtime.array import array_dtype
from autoshard.runtime.checkpoint.agree import together
from autoshard.runtime.checkpoint.folder import find
from autoshard.runtime.checkpoint.index import Index, StoredBlock, read_index
from autoshard.runtime.checkpoint.placed import Placed, Region, extent, overlap, touched, within
from autoshard.runtime.checkpoint.plain import plain_index
from autoshard.runtime.checkpoint.safefile import checksum
from autoshard.runtime.comm import Comm
from autoshard.util.errors import CheckpointError

_MOST_OPEN = 64
"""Files that a reader has open at once: systems allow a process no more than some hundreds."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """What `load` found: by name a block for each rank of this process, and what the checkpoint tells of itself."""

    arrays: Mapping[str, list[np.ndarray]]
    index: Index
    folder: Path

    @property
    def step(self) -> int:
        return self.index.step

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.index.metadata


def load(
    directory: str | os.PathLike,
    wanted: Mapping[str, Placed],
    comm: Comm,
    step: int | None = None,
    optional: Iterable[str] | None = (),
) -> Loaded:
    """The blocks of tensors from a checkpoint. Over all ranks together; nothing is changed that the caller holds.

    Args:
        directory: of checkpoints, whose newest is taken (or that of `step`); or one checkpoint's folder; or a plain
            safetensors file.
        wanted: which tensors, and how they shall lie; blocks are padded with zeros.
        optional: names that the checkpoint may have and nobody wants; None: any others.

    Raises:
        CheckpointError: on every rank, should any fail: no checkpoint, other names, shapes or types, files that are
            missing or damaged.
    """
    what = f"cannot load from {directory}"
    reader = open_source(directory, comm, step, lambda found: _check(found, wanted, comm, optional))
    arrays = together(comm, what, lambda: {name: reader.blocks(name, one, comm) for name, one in wanted.items()})
    return Loaded(arrays, reader.index, reader.folder)


def open_source(directory: str | os.PathLike, comm: Comm, step: int | None, check: Callable[[Reader], None]) -> Reader:
    """Open the checkpoint that rank 0 finds on all ranks, once `check` has raised on none.

    Raises:
        CheckpointError: on every rank, as `load` does.
    """
    what = f"cannot load from {directory}"
    chosen = together(comm, what, lambda: str(find_source(directory, step)) if 0 in comm.ranks else "")
    found = Path(from_all(comm, chosen)[0])

    def opened() -> Reader:
        reader = Reader.open(found)
        check(reader)
        return reader

    return together(comm, what, opened)


def find_source(directory: str | os.PathLike, step: int | None = None) -> Path:
    """The checkpoint's folder, or the plain file, that `directory` means."""
    path = Path(directory)
    return path if path.is_file() and step is None else find(path, step)


def _check(reader: Reader, wanted: Mapping[str, Placed], comm: Comm, optional: Iterable[str] | None) -> None:
    for name, one in wanted.items():
        if one.layout.mesh.devices != comm.world:
            raise CheckpointError(f"{name} is to lie on mesh '{one.layout.mesh}', but there are {comm.world} ranks")
    check_names(reader.index, wanted, optional)
    for name, one in wanted.items():
        saved = reader.index.tensors[name].type
        if saved != one.type:
            raise CheckpointError(f"{name} is {saved} in the checkpoint, and should be {one.type}")


def check_names(index: Index, wanted: Iterable[str], optional: Iterable[str] | None) -> None:
    """Raise CheckpointError unless the checkpoint has what is wanted and, but for `optional`, nothing else."""
    names = set(wanted)
    missing = [name for name in sorted(names) if name not in index.tensors]
    allowed = set(index.tensors if optional is None else optional)
    other = [name for name in index.tensors if name not in names and name not in allowed]
    parts = [("it has not", missing), ("nobody wants its", other)]
    told = "; ".join(f"{words} {_some(those)}" for words, those in parts if those)
    if told:
        raise CheckpointError(f"the checkpoint is of another model: {told}")


def _some(names: list[str], most: int = 6) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


class Reader:
    """Reads regions of a checkpoint's tensors by memory maps of its files."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index = folder, index
        self._maps: dict[str, np.ndarray] = {}
        self._good: dict[StoredBlock, np.ndarray] = {}

    @staticmethod
    def open(folder: Path) -> Reader:
        """Read the index, and make sure that the files are there in their size.

        Raises:
            CheckpointError: they are not.
        """
        if folder.is_file():
            return Reader(folder.parent, plain_index([folder]))
        reader = Reader(folder, read_index(folder))
        for name, file in reader.index.files.items():
            try:
                size = (folder / name).stat().st_size
            except OSError as error:
                raise CheckpointError(f"cannot read {folder / name}: {error.strerror or error}") from error
            if size != file.nbytes:
                raise CheckpointError(f"{folder / name} is {size} bytes long, the index says {file.nbytes}")
        return reader

    def blocks(self, name: str, placed: Placed, comm: Comm) -> list[np.ndarray]:
        """The block of a tensor for each hosted rank, zeros where it is padded."""
        made: dict[tuple, np.ndarray] = {}
        parts = []
        for rank in comm.ranks:
            region = placed.region(rank)
            key = tuple((one.start, one.stop) for one in region)
            if key in made:
                parts.append(made[key].copy())
                continue
            part = np.zeros(placed.local, array_dtype(placed.type.dtype))
            self.read(name, region, part[(*map(slice, extent(region)), ...)])
            made[key] = part
            parts.append(part)
        return parts

    def read(self, name: str, region: Region, into: np.ndarray) -> None:
        """Fill `into`, of the tensor's dtype or one as wide, with a region of a tensor.

        Raises:
            CheckpointError: bytes that do not have their checksum.
        """
        for block in self.index.tensors[name].blocks:
            common = overlap(region, block.region)
            if common is None:
                continue
            inside = within(common, block.at)
            data = self._map(block.file)[block.start : block.stop]
            self._verify(name, block, data, touched(inside, block.shape, into.itemsize, self.index.chunk))
            place = within(common, [part.start for part in region])
            into[place] = data.view(into.dtype).reshape(block.shape)[inside]

    def view(self, name: str, of: np.dtype) -> np.ndarray:
        """A whole tensor of a plain file as a view of the file: its bytes are read when they are used."""
        tensor = self.index.tensors[name]
        if not tensor.blocks:
            return np.empty(tensor.type.shape, of)
        (block,) = tensor.blocks
        return self._map(block.file)[block.start : block.stop].view(of).reshape(block.shape)

    def verify(self, name: str, block: StoredBlock) -> None:
        """Raise CheckpointError unless all of a block has its checksums."""
        data = self._map(block.file)[block.start : block.stop]
        self._verify(name, block, data, np.arange(len(block.sums) // 8))

    def _verify(self, name: str, block: StoredBlock, data: np.ndarray, chunks: np.ndarray) -> None:
        if not block.sums:
            return
        good = self._good.setdefault(block, np.zeros(len(block.sums) // 8, bool))
        size = self.index.chunk
        for number in chunks[~good[chunks]].tolist():
            found, told = checksum(data[number * size : (number + 1) * size].data), block.sums[8 * number :][:8]
            if found != told:
                first = block.start + number * size
                raise CheckpointError(
                    f"{self.folder / block.file} is damaged: tensor {name!r}, bytes {first} to "
                    f"{min(first + size, block.stop)} have the checksum {found}, the index says {told}"
                )
        good[chunks] = True

    def _map(self, file: str) -> np.ndarray:
        if file not in self._maps:
            try:
                found = np.memmap(self.folder / file, np.uint8, mode="r").view(np.ndarray)
            except (OSError, ValueError) as error:
                raise CheckpointError(f"cannot read {self.folder / file}: {error}") from error
            self.check_header(file, found)
            while len(self._maps) >= _MOST_OPEN:
                del self._maps[next(iter(self._maps))]
            self._maps[file] = found
        return self._maps[file]

    def check_header(self, file: str, data: np.ndarray) -> None:
        """Raise CheckpointError if the header of a file is not the one that was written."""
        told = self.index.files[file]
        found = checksum(data[: told.header].data)
        if found != told.checksum:
            raise CheckpointError(
                f"{self.folder / file} is damaged: its header has the checksum {found}, the index says {told.checksum}"
            )
