"""What passes do to every sharding of a module: name its mesh, drop axes of size 1, close it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding, closed_all, without_size_one_axes
from autoshard.ops.control import function
from autoshard.ops.registry import Operator
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, is_rare
from autoshard.propagate.passes.edit import outside_in
from autoshard.propagate.passes.functions import Symbols

Change = Callable[[Sharding], Sharding]


def change_shardings(module: MutableModule, change: Change) -> None:
    """Replace every sharding of the module, in the order in which its text has them."""
    change = cache(change)
    for op in outside_in(module.op.blocks[0]):
        if not is_rare(op.operator):
            _change_values(op.results, change)
            continue
        if op.operator is function:
            _change_values(op.blocks[0].args, change)
            op.attrs["outputs"] = [sharding and change(sharding) for sharding in op.attrs["outputs"]]
            continue
        for name in _asking(op.operator):
            op.attrs[name] = _changed(op.attrs[name], change)
        if op.devices is not None:
            op.devices = change(op.devices)
        for block in op.blocks:
            _change_values(block.args, change)
        _change_values(op.results, change)


@lru_cache(maxsize=4096)
def _asking(operator: Operator) -> tuple[str, ...]:
    """The attributes of an operator that hold shardings."""
    return tuple(name for name in ("sharding", "in_shardings", "out_shardings") if name in operator.attributes)


def _changed(asked: Any, change: Change) -> Any:
    if isinstance(asked, Sharding):
        return change(asked)
    return tuple(change(sharding) for sharding in asked) if isinstance(asked, tuple) else asked


def _change_values(values: list[MutableValue], change: Change) -> None:
    for value in values:
        sharding = value.sharding
        if sharding is not None:
            value.sharding = change(sharding)


def lift_meshes(module: MutableModule) -> None:
    """Give each mesh one name: of equal meshes the first stays, those written out in place become named ones.

    They are called `mesh`, `empty_mesh` or `maximal_mesh_<device>`, or with a number (sdy-lift-inlined-meshes).
    """
    names: dict[Mesh, str] = {}
    renamed: dict[str, str] = {}
    for name, mesh in list(module.meshes.items()):
        renamed[name] = names.setdefault(mesh, name)
        if renamed[name] != name:
            del module.meshes[name]
    symbols = Symbols(module)

    def lift(sharding: Sharding) -> Sharding:
        name = renamed.get(sharding.mesh_name) or names.get(sharding.mesh)
        if name is None:
            name = symbols.free(_name_for(sharding.mesh))
            names[sharding.mesh] = name
            module.meshes[name] = sharding.mesh
        return sharding if name == sharding.mesh_name else sharding.replace(mesh_name=name)

    change_shardings(module, lift)


def _name_for(mesh: Mesh) -> str:
    if mesh.is_maximal and mesh.order:
        return f"maximal_mesh_{mesh.order[0]}"
    return "empty_mesh" if mesh.is_empty else "mesh"


def remove_size_one_axes(module: MutableModule) -> None:
    """Take the axes of size 1, which split nothing, out of all shardings (sdy-remove-size-one-axes).

    The meshes keep them, and so do the manual axes of manual computations.
    """
    if any(size == 1 for mesh in module.meshes.values() for _, size in mesh.axes):
        change_shardings(module, without_size_one_axes)


def close_shardings(module: MutableModule) -> None:
    """Close all dims and forget which axes were to stay whole (sdy-close-shardings)."""
    change_shardings(module, closed_all)
