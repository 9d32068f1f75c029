"""User priority: dims of priority p take part from the round of p on (Shardy's user_priority_propagation.cc).

Before that they are closed and empty, and the axes that they will need stay unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.layout.sharding import CLOSED, Sharding
from autoshard.ops.control import function
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, is_rare
from autoshard.propagate.values import edge_op, set_sharding


@dataclass(frozen=True, eq=False)
class ShardingLocation:
    """Where a sharding stands: a value, or output `output` of a Function op."""

    at: MutableValue | Operation
    output: int = 0

    @property
    def sharding(self) -> Sharding | None:
        return self.at.sharding if isinstance(self.at, MutableValue) else self.at.attrs["outputs"][self.output]

    def set(self, sharding: Sharding) -> None:
        if isinstance(self.at, MutableValue):
            set_sharding(self.at, sharding)
        else:
            self.at.attrs["outputs"][self.output] = sharding


# Priority -> the places with dims of that priority, and the shardings that people gave them.
Waiting = dict[int, list[tuple[ShardingLocation, Sharding]]]


def start_with_priority_0(module: MutableModule) -> Waiting:
    """Start with priority 0: take back all dims of other priorities, and tell which wait for which round.

    Owners of data-flow edges that have an op are left alone, the op counts.
    """
    waiting: Waiting = {}
    # Distinct shardings are few.
    known: dict[Sharding | None, tuple[Sharding, tuple[int, ...]] | None] = {None: None}
    for location in _places(module):
        sharding = location.sharding
        if sharding is not None and sharding not in known:
            priorities = tuple(dict.fromkeys(dim.priority for dim in sharding.dims if dim.priority))
            first = _without_priorities(sharding)
            known[sharding] = (first, priorities) if priorities or first is not sharding else None
        found = known[sharding]
        if sharding is None or found is None:
            continue
        for priority in found[1]:
            waiting.setdefault(priority, []).append((location, sharding))
        if found[0] is not sharding:
            location.set(found[0])
    return dict(sorted(waiting.items()))


def release(locations: Iterable[tuple[ShardingLocation, Sharding]], priority: int) -> None:
    """Give the dims of that priority back what people asked of them."""
    for location, original in locations:
        now = location.sharding
        if now is not None:
            location.set(_released(now, original, priority))


def _places(module: MutableModule) -> Iterable[ShardingLocation]:
    for op in module.op.walk():
        if not is_rare(op.operator):
            for value in op.results:
                if value.sharding is not None:
                    yield ShardingLocation(value)
        elif op.operator is function:
            yield from map(ShardingLocation, op.blocks[0].args)
            yield from (ShardingLocation(op, i) for i in range(len(op.attrs["outputs"])))
        elif op.operator.edges is not None:
            owners = (op.at(edge.targets[0]) for edge in (*op.links.entering, *op.links.leaving))
            yield from (ShardingLocation(owner) for owner in owners if edge_op(owner) is None)
        else:
            yield from (ShardingLocation(value) for value in op.results if value.sharding is not None)


def _without_priorities(sharding: Sharding) -> Sharding:
    if all(dim.priority is None for dim in sharding.dims):
        return sharding
    later = [ref for dim in sharding.dims if dim.priority for ref in dim.axes]
    return sharding.replace(
        dims=tuple(CLOSED if dim.priority else dim._replace(priority=None) for dim in sharding.dims),
        replicated=_in_mesh_order((*sharding.replicated, *later), sharding.mesh),
    )


def _released(now: Sharding, original: Sharding, priority: int) -> Sharding:
    dims, freed = [], set()
    for dim, wanted in zip(now.dims, original.dims, strict=True):
        if (wanted.priority or 0) == priority:
            dim = wanted._replace(priority=None)
            freed.update(wanted.axes)
        dims.append(dim)
    return now.replace(dims=tuple(dims), replicated=tuple(ref for ref in now.replicated if ref not in freed))


def _in_mesh_order(refs: Refs, mesh: Mesh) -> Refs:
    order: Callable[[AxisRef], tuple] = lambda ref: (mesh.names.index(ref.name), ref.pre, ref.size)  # noqa: E731
    return tuple(sorted(refs, key=order))
