"""Manual computations in a normal form: manual axes in mesh order, and mentioned by every sharding at the border."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding, common_mesh
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation
from autoshard.propagate.passes.edit import named
from autoshard.util.errors import ShardingError


def clean_manual_axes(module: MutableModule) -> None:
    """Sort manual axes in mesh order; in- and out-shardings that lack one keep the tensor whole along it.

    This is sdy-manual-axes-cleanup.

    Raises:
        ShardingError: in- and out-shardings on several meshes.
    """
    for op in named(module.op, "ManualComputation"):
        asked = (*op.attrs["in_shardings"], *op.attrs["out_shardings"])
        if asked:
            found = common_mesh(asked)
            if found is None:
                raise ShardingError(
                    "a manual computation has in- and out-shardings on several meshes "
                    f"({', '.join(sorted({sharding.mesh_name for sharding in asked}))}); it needs one"
                )
            _clean(op, *found)


def _clean(op: Operation, mesh: Mesh, mesh_name: str) -> None:
    axes = tuple(sorted(op.attrs["manual_axes"], key=mesh.names.index))
    op.attrs["manual_axes"] = axes

    def whole(values: Iterable[MutableValue], shardings: Sequence[Sharding]) -> tuple[Sharding, ...]:
        pairs = zip(values, shardings, strict=True)
        return tuple(_mentioning(axes, sharding, mesh, mesh_name) if v.is_tensor else sharding for v, sharding in pairs)

    op.attrs["in_shardings"] = whole(op.operands, op.attrs["in_shardings"])
    op.attrs["out_shardings"] = whole(op.results, op.attrs["out_shardings"])
    for value, sharding in zip(op.results, op.attrs["out_shardings"], strict=True):
        value.sharding = sharding


def _mentioning(axes: tuple[str, ...], sharding: Sharding, mesh: Mesh, mesh_name: str) -> Sharding:
    used = {ref.name for ref in sharding.used}
    missing = [mesh.axis(name) for name in axes if name not in used]
    if not missing:
        return sharding
    replicated = tuple(sorted((*sharding.replicated, *missing), key=mesh.sort_key))
    if sharding.mesh.is_empty:
        return sharding.replace(mesh=mesh, mesh_name=mesh_name, replicated=replicated)
    return sharding.replace(replicated=replicated)
