"""Which of two operations of a block stands first, without walking the block each time."""

from __future__ import annotations

from autoshard.propagate.mutable_ir import Block, Operation


class BlockPositions:
    """The places of operations in their blocks, counted once per block until something moves."""

    def __init__(self) -> None:
        self._known: dict[Block, dict[Operation, int]] = {}

    def before(self, first: Operation, second: Operation) -> bool:
        """Whether `first` stands before `second`, in the same block."""
        block = first.parent
        assert block is not None and block is second.parent
        positions = self._known.get(block)
        if positions is None:
            positions = self._known[block] = {op: i for i, op in enumerate(block)}
        return positions[first] < positions[second]

    def forget(self, block: Block) -> None:
        """The operations of the block have moved."""
        self._known.pop(block, None)
