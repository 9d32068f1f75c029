"""Checkpoints from one split to another, by the strategy files of both.

A rank's checkpoint has its parts of parameters, in `rank_<r>/` below a folder. A strategy file, as
`strategy_ckpt_save_file` writes it, says how each parameter lies: device matrix, tensor map, shape. None stands for
parameters that lie whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.exporters.mindspore import from_checkpoint
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.tensor_map import TensorMap
from autoshard.mindspore.checkpoint import load_checkpoint, load_param_into_net, save_checkpoint
from autoshard.runtime.array import cut
from autoshard.util.errors import CheckpointError

Views = Mapping[str, TensorMap]


def _views(strategy_file: Any) -> Views:
    """How parameters lie, by name; nothing of None."""
    return {} if strategy_file is None else from_checkpoint(Path(strategy_file)).parameters


def _devices(views: Views) -> int:
    return max((math.prod(view.device_matrix) for view in views.values()), default=1)


def _layout(name: str, views: Views, rank: int, devices: int) -> Layout:
    mesh = Mesh.flat(devices)
    return views[name].layout(mesh) if name in views else Layout.replicated(mesh, rank)


def rank_list_for_transform(rank_id: int, src_strategy_file: Any = None, dst_strategy_file: Any = None) -> list[int]:
    """The ranks of the source whose checkpoints a rank of the destination needs.

    Raises:
        CheckpointError: the destination has no such rank.
    """
    source, target = _views(src_strategy_file), _views(dst_strategy_file)
    if not 0 <= rank_id < _devices(target):
        raise CheckpointError(f"rank_list_for_transform: rank_id is {rank_id}; there are {_devices(target)} ranks")
    return list(range(_devices(source)))


def transform_checkpoint_by_rank(
    rank_id: int,
    checkpoint_files_map: Mapping[int, str],
    save_checkpoint_file_name: str,
    src_strategy_file: Any = None,
    dst_strategy_file: Any = None,
) -> None:
    """Write the checkpoint of one rank of the destination, out of those of the source's ranks.

    Raises:
        CheckpointError: ranks whose checkpoints are missing, or parts that do not fit.
    """
    source, target = _views(src_strategy_file), _views(dst_strategy_file)
    missing = set(rank_list_for_transform(rank_id, src_strategy_file, dst_strategy_file)) - set(checkpoint_files_map)
    if missing:
        raise CheckpointError(f"transform_checkpoint_by_rank: no checkpoint of ranks {sorted(missing)} is given")
    parts = {rank: load_checkpoint(path) for rank, path in checkpoint_files_map.items()}
    whole = _merged(parts, source)
    _save(_parts_of(whole, target, [rank_id])[rank_id], save_checkpoint_file_name)


def transform_checkpoints(
    src_checkpoints_dir: str,
    dst_checkpoints_dir: str,
    ckpt_prefix: str,
    src_strategy_file: Any = None,
    dst_strategy_file: Any = None,
    process_num: int = 1,
    output_format: str = "ckpt",
) -> None:
    """Write `rank_<r>/<ckpt_prefix><r>.safetensors` of each rank of the destination, out of the source's folders.

    Of a rank's folder the file that is newest by name is taken. `process_num` makes no difference, and `output_format`
    has to be "safetensors".

    Raises:
        CheckpointError: another format, no folders of ranks, or parts that do not fit.
    """
    if output_format != "safetensors":
        raise CheckpointError(
            f"transform_checkpoints: output_format is {output_format!r}; give 'safetensors', the one that is offered"
        )
    parts = {rank: load_checkpoint(path) for rank, path in _files(Path(src_checkpoints_dir)).items()}
    target = _views(dst_strategy_file)
    made = _parts_of(_merged(parts, _views(src_strategy_file)), target, range(_devices(target)))
    for rank, arrays in made.items():
        _save(arrays, Path(dst_checkpoints_dir) / f"rank_{rank}" / f"{ckpt_prefix}{rank}.safetensors")


def merge_sliced_parameter(sliced_parameters: Sequence[Any], strategy: Any = None) -> np.ndarray:
    """The whole of a parameter out of its parts, in rank order; without a strategy one behind the other along dim 0.

    Args:
        sliced_parameters: parameters or arrays.
        strategy: what maps the parameter's name to its TensorMap, as a strategy file is read; needs parameters.

    Raises:
        CheckpointError: no parts, or parts that do not fit.
    """
    if not sliced_parameters:
        raise CheckpointError("merge_sliced_parameter: there are no parts")
    arrays = [np.asarray(one.asnumpy() if hasattr(one, "asnumpy") else one) for one in sliced_parameters]
    if strategy is None:
        return np.concatenate(arrays) if arrays[0].ndim else arrays[0]
    name = getattr(sliced_parameters[0], "name", "")
    if name not in strategy:
        raise CheckpointError(f"merge_sliced_parameter: the strategy does not name {name!r}")
    return _joined(name, arrays, strategy[name].layout(Mesh.flat(len(arrays))))


def load_distributed_checkpoint(
    network: Any,
    checkpoint_filenames: Sequence[str] | None = None,
    predict_strategy: Any = None,
    train_strategy_filename: Any = None,
    strict_load: bool = False,
) -> None:
    """Load the ranks' checkpoints, in rank order, into a network, which then holds whole parameters.

    Args:
        predict_strategy: makes no difference: whoever runs the network cuts what it needs.
        train_strategy_filename: the strategy file of the training that saved them.

    Raises:
        CheckpointError: no files, or parts that do not fit.
    """
    if not checkpoint_filenames:
        raise CheckpointError("load_distributed_checkpoint: checkpoint_filenames names no files")
    parts = {rank: load_checkpoint(path) for rank, path in enumerate(checkpoint_filenames)}
    load_param_into_net(network, _merged(parts, _views(train_strategy_filename)), strict_load)


# -- parts and wholes


def _files(folder: Path) -> dict[int, Path]:
    found = {}
    for one in folder.glob("rank_*"):
        match = re.fullmatch(r"rank_(\d+)", one.name)
        files = sorted(one.glob("*.safetensors"))
        if match and files:
            found[int(match[1])] = files[-1]
    if not found or sorted(found) != list(range(len(found))):
        raise CheckpointError(
            f"{folder} has no folders rank_0, rank_1, ... with .safetensors files; found {sorted(found)}"
        )
    return found


def _merged(parts: Mapping[int, Mapping[str, np.ndarray]], views: Views) -> dict[str, np.ndarray]:
    """Whole arrays by name, out of those of ranks 0, 1, ..."""
    devices = _devices(views)
    if len(parts) < devices:
        raise CheckpointError(f"checkpoints of {len(parts)} ranks, but the strategy file is for {devices}")
    first = parts[min(parts)]
    whole = {}
    for name in first:
        if name not in views:
            whole[name] = first[name]
            continue
        missing = [rank for rank in range(devices) if name not in parts[rank]]
        if missing:
            raise CheckpointError(f"{name} is missing in the checkpoints of ranks {missing}")
        layout = _layout(name, views, first[name].ndim, devices)
        whole[name] = _joined(name, [parts[rank][name] for rank in range(devices)], layout)
    return whole


def _joined(name: str, arrays: Sequence[np.ndarray], layout: Layout) -> np.ndarray:
    if layout.rank != arrays[0].ndim or any(one.shape != arrays[0].shape for one in arrays):
        raise CheckpointError(f"{name}: parts of shapes {sorted({one.shape for one in arrays})} do not fit [{layout}]")
    shape = tuple(size * count for size, count in zip(arrays[0].shape, layout.parts, strict=True))
    whole = np.zeros(shape, arrays[0].dtype)
    for place, part in zip(cut(_places(shape), layout, range(len(arrays)), shape), arrays, strict=True):
        whole.reshape(-1)[np.asarray(place).reshape(-1)] = part.reshape(-1)
    return whole


def _places(shape: Sequence[int]) -> np.ndarray:
    """For each element its number in row-major order."""
    return np.arange(math.prod(shape)).reshape(tuple(shape))


def _parts_of(whole: Mapping[str, np.ndarray], views: Views, ranks: Any) -> dict[int, dict[str, np.ndarray]]:
    devices = _devices(views)
    made: dict[int, dict[str, np.ndarray]] = {rank: {} for rank in ranks}
    for name, array in whole.items():
        layout = _layout(name, views, array.ndim, devices)
        if not layout.divides(array.shape):
            raise CheckpointError(f"{name}: [{layout}] does not divide {array.shape}; blocks must be even")
        for rank, part in zip(made, cut(array, layout, list(made), array.shape), strict=True):
            made[rank][name] = np.ascontiguousarray(part)
    return made


def _save(arrays: Mapping[str, np.ndarray], path: Any) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(dict(arrays), path)
