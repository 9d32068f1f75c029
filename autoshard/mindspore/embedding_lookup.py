"""EmbeddingLookup: a table of rows that says itself how it is split."""

from __future__ import annotations

from typing import Any

from autoshard.core.tensortype import dtype as element
from autoshard.mindspore import ops
from autoshard.mindspore.context import parallel_settings
from autoshard.mindspore.planning import planned_devices
from autoshard.trace.cell import Cell
from autoshard.trace.initializer import deferred
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ShapeError


class EmbeddingLookup(Cell):
    """The rows of `embedding_table` [vocab_size, embedding_size] by whole-number ids of any shape.

    In semi_auto_parallel and auto_parallel all devices (of a stage) split, as `slice_mode` says: "batch_slice" the
    first dim of the ids, "table_row_slice" the rows of the table, "table_column_slice" its columns.

    Args:
        target, sparse: MindSpore's; they make no difference.
        manual_shapes, max_norm: MindSpore's; None only.

    Raises:
        ShapeError: another slice_mode ("field_slice" is not offered).
    """

    BATCH_SLICE = "batch_slice"
    TABLE_ROW_SLICE = "table_row_slice"
    TABLE_COLUMN_SLICE = "table_column_slice"

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        param_init: Any = "normal",
        target: str = "CPU",
        slice_mode: str = "batch_slice",
        manual_shapes: Any = None,
        max_norm: float | None = None,
        sparse: bool = True,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        modes = (self.BATCH_SLICE, self.TABLE_ROW_SLICE, self.TABLE_COLUMN_SLICE)
        if slice_mode not in modes or (manual_shapes, max_norm) != (None, None):
            raise ShapeError(
                f"EmbeddingLookup: slice_mode is {slice_mode!r}, manual_shapes {manual_shapes!r}, max_norm "
                f"{max_norm!r}; slice_mode is one of {', '.join(modes)}, the others are None"
            )
        self.vocab_size, self.embedding_size, self.slice_mode = vocab_size, embedding_size, slice_mode
        self.embedding_table = Parameter(deferred(param_init, (vocab_size, embedding_size), element(dtype)))
        self.gather = ops.Gather()

    def construct(self, indices: Any) -> Any:
        if self.gather.in_strategy is None and parallel_settings().parallel_mode in (
            "semi_auto_parallel",
            "auto_parallel",
        ):
            self.gather.shard(self._strategy(len(indices.shape)))
        return self.gather(self.embedding_table, indices, 0)

    def _strategy(self, rank: int) -> tuple[tuple[int, ...], ...]:
        devices = planned_devices(parallel_settings()) // parallel_settings().pipeline_stages
        whole = (1,) * rank
        if self.slice_mode == self.BATCH_SLICE:
            return (1, 1), (devices, *whole[1:])
        return (devices, 1) if self.slice_mode == self.TABLE_ROW_SLICE else (1, devices), whole
