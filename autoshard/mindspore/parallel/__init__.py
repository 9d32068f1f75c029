"""Parallel training: layouts, `shard`, `AutoParallel`, and checkpoints from one split to another."""

from __future__ import annotations

from autoshard.mindspore.algo_parameters import (
    get_algo_parameters,
    reset_algo_parameters,
    set_algo_parameters,
)
from autoshard.mindspore.layout import Layout
from autoshard.mindspore.parallel.auto_parallel import AutoParallel
from autoshard.mindspore.parallel.checkpoint_transform import (
    load_distributed_checkpoint,
    merge_sliced_parameter,
    rank_list_for_transform,
    transform_checkpoint_by_rank,
    transform_checkpoints,
)
from autoshard.mindspore.sharding import shard

__all__ = [
    "AutoParallel",
    "Layout",
    "get_algo_parameters",
    "load_distributed_checkpoint",
    "merge_sliced_parameter",
    "rank_list_for_transform",
    "reset_algo_parameters",
    "set_algo_parameters",
    "shard",
    "transform_checkpoint_by_rank",
    "transform_checkpoints",
]
