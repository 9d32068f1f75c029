"""Values of parameters that lie in a checkpoint: read when they are asked for, whole or in blocks."""

from __future__ import annotations

import numpy as np

from autoshard.runtime.array import array_dtype
from autoshard.runtime.checkpoint import Placed, Reader
from autoshard.runtime.checkpoint.agree import together
from autoshard.runtime.comm import Comm
from autoshard.trace.initializer import Deferred


class Stored(Deferred):
    """A tensor of a checkpoint, which has to stay until it is read.

    A session takes its blocks alone; `array` gives the whole tensor to whoever asks for a parameter's values.
    """

    def __init__(self, reader: Reader, name: str) -> None:
        super().__init__(reader.index.tensors[name].type, self._whole)
        self.reader, self.name = reader, name

    def _whole(self) -> np.ndarray:
        array = np.empty(self.type.shape, array_dtype(self.type.dtype))
        self.reader.read(self.name, tuple(map(slice, [0] * array.ndim, array.shape)), array)
        return array

    def blocks(self, placed: Placed, comm: Comm) -> list[np.ndarray]:
        """The blocks of the hosted ranks; over all ranks together.

        Raises:
            CheckpointError: on every rank, should any have found bytes that are damaged.
        """
        return together(comm, f"cannot load {self.name}", lambda: self.reader.blocks(self.name, placed, comm))
