"""Which of two operations of a block stands first, without walking the block each time."""

from __future__ import annotations

from autoshard.propagate.work import Block, Op


class BlockPositions:
    """The places of operations in their blocks, counted once per block until something moves."""

    def __init__(self) -> None:
        self._known: dict[Block, dict[Op, int]] = {}

    def before(self, first: Op, second: Op) -> bool:
        """Whether `first` stands before `second`, in the same block."""
        block = first.parent
        assert block is not None and block is second.parent
        places = self._known.get(block)
        if places is None:
            places = self._known[block] = {op: i for i, op in enumerate(block)}
        return places[first] < places[second]

    def forget(self, block: Block) -> None:
        """The operations of the block have moved."""
        self._known.pop(block, None)
