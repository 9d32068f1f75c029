"""What DTensor does with cases: a process for each rank, over gloo; its collectives, and its numbers.

The processes are forked from this one, which has torch already; each runs all cases of its number of ranks.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from case import Case, Side
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "all_gather_into_tensor": ("all-gather", lambda size, n: (n - 1) * size),
    "all_reduce": ("all-reduce", lambda size, n: 2 * (n - 1) / n * size),
    "reduce_scatter_tensor": ("reduce-scatter", lambda size, n: (n - 1) / n * size),
    "all_to_all_single": ("all-to-all", lambda size, n: (n - 1) / n * size),
    "shard_dim_alltoall": ("all-to-all", lambda size, n: (n - 1) / n * size),
    "broadcast": ("broadcast", lambda size, n: size),
}
"""The collectives that DTensor calls, and bytes that a rank sends under bandwidth-optimal algorithms."""
LIMIT = 240.0
"""Seconds for all cases of a number of ranks."""


class Sent(TorchDispatchMode):
    """Writes down the collectives that are called."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any("DTensor" in one.__name__ for one in types):
            return NotImplemented  # DTensor first says what it is made of
        found = KINDS.get(func._schema.name.partition("::")[2].removesuffix("_"))
        if found is not None and isinstance(args[0], torch.Tensor):
            group = args[-1] if isinstance(args[-1], str) else args[-1] if len(args) > 1 else ""
            count = _ranks(group)
            self.side.add(found[0], found[1](args[0].nbytes, count))
        return func(*args, **(kwargs or {}))


def _ranks(group: Any) -> int:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(group).size() if isinstance(group, str) and group else dist.get_world_size()


def axes_of(case: Case) -> dict[str, int]:
    return {name: int(size) for name, size in (one.split("=") for one in case.mesh.split())}


def measured(
    cases: Sequence[Case], arrays: dict[str, list[np.ndarray]], wholes: dict[str, np.ndarray]
) -> dict[str, Side]:
    """All cases, by their names."""
    found: dict[str, Side] = {}
    for world in sorted({math.prod(axes_of(one).values()) for one in cases}):
        own = [one for one in cases if math.prod(axes_of(one).values()) == world]
        with TemporaryDirectory() as folder:
            _run(own, arrays, wholes, world, Path(folder))
            for one in own:
                path = Path(folder) / f"{one.name}.json"
                found[one.name] = (
                    Side(**json.loads(path.read_text()))
                    if path.exists()
                    else Side(refused="it does not come to an end")
                )
    return found


def _run(cases: list[Case], arrays: dict, wholes: dict, world: int, folder: Path) -> None:
    """Start the ranks, and end those that have not ended in time."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, world, cases, arrays, wholes, folder)) for rank in range(world)]
    for one in ranks:
        one.start()
    until = time.monotonic() + LIMIT
    for one in ranks:
        one.join(max(0.1, until - time.monotonic()))
    for one in ranks:
        if one.is_alive():
            one.kill()
            one.join()


def _rank(rank: int, world: int, cases: list[Case], arrays: dict, wholes: dict, folder: Path) -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.ERROR)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for case in cases:
        side = _one(case, arrays[case.name], wholes[case.name])
        told: list[Any] = [None] * world
        dist.all_gather_object(told, side.__dict__)
        if rank == 0:
            (folder / f"{case.name}.json").write_text(json.dumps(_joined(told)))
    dist.destroy_process_group()


def _joined(sides: list[dict]) -> dict:
    """What ranks tell together: a refusal of any, the most bytes."""
    refused = next((one["refused"] for one in sides if one["refused"]), "")
    most = max(sides, key=lambda one: one["bytes"])
    return {**most, "refused": refused, "right": all(one["right"] for one in sides)}


def _one(case: Case, arrays: list[np.ndarray], whole: np.ndarray) -> Side:
    side, axes = Side(), axes_of(case)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        given = [_placed(torch.tensor(one), mesh, of) for one, of in zip(arrays, case.layouts, strict=False)]
        with Sent(side):
            found = case.program(*given)
            if len(case.layouts) > len(arrays):
                found = _redistributed(found, case.layouts[-1])
            else:
                found.full_tensor()  # how an output is left differs: both are counted with what makes it whole
        got = found.full_tensor().detach().numpy()
        side.right = got.shape == whole.shape and bool(np.allclose(got, whole, rtol=1e-4, atol=1e-4))
    except Exception as error:  # whatever a peer refuses with
        lines = [line for line in str(error).strip().splitlines() if line.strip()] or [traceback.format_exc(1)]
        side.refused = f"{type(error).__name__}: {lines[0]}"
    return side


def _dims(layout: str, mesh: Any) -> tuple[list[Any], tuple | None]:
    """A layout as placements, and the order of axes of a dim where it is not the mesh's."""
    names, placements, order = mesh.mesh_dim_names, [Replicate()] * mesh.ndim, []
    for dim, text in enumerate(one.strip() for one in layout.split(",") if layout):
        axes = [names.index(name) for name in text.split(".") if name != "-"]
        for axis in axes:
            placements[axis] = Shard(dim)
        if axes:
            order.append((dim, tuple(axes)))
    natural = all(list(axes) == sorted(axes) for _, axes in order)
    return placements, None if natural else tuple(order)


def _placed(whole: torch.Tensor, mesh: Any, layout: str) -> Any:
    placements, order = _dims(layout, mesh)
    if order is None:
        return distribute_tensor(whole, mesh, placements)
    return _ordered(distribute_tensor(whole, mesh, [Replicate()] * mesh.ndim), placements, order)


def _redistributed(found: Any, layout: str) -> Any:
    placements, order = _dims(layout, found.device_mesh)
    return found.redistribute(placements=placements) if order is None else _ordered(found, placements, order)


def _ordered(found: Any, placements: list[Any], order: tuple) -> Any:
    """A redistribution to a dim whose axes stand in another order than the mesh's."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry
    from torch.distributed.tensor._redistribute import redistribute_local_tensor

    entries = tuple(ShardOrderEntry(tensor_dim=dim, mesh_dims=axes) for dim, axes in order)
    before = found._spec
    after = DTensorSpec(before.mesh, tuple(placements), tensor_meta=before.tensor_meta, shard_order=entries)
    return DTensor(redistribute_local_tensor(found.to_local(), before, after), after, requires_grad=False)
