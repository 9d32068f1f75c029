"""Meshes, axes and symbols in sdy's own text, as the sdy dialect prints them; `sdy_text` reads them."""

from __future__ import annotations

from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.layout.mlir_text import IDENTIFIER, quoted


def show_mesh(mesh: Mesh) -> str:
    """The text of a mesh that `parse_mesh` reads, as in `sdy.mesh @mesh = <["x"=2]>`."""
    axes = ", ".join(f"{quoted(name)}={size}" for name, size in mesh.axes)
    devices = f", device_ids=[{', '.join(map(str, mesh.order))}]" if mesh.order else ""
    return f"<[{axes}]{devices}>"


def show_axis(ref: AxisRef, mesh: Mesh) -> str:
    """`"x"` for a whole axis, `"x":(1)2` for a sub-axis."""
    whole = ref.pre == 1 and mesh.sizes.get(ref.name, ref.size) == ref.size
    return quoted(ref.name) if whole else f"{quoted(ref.name)}:({ref.pre}){ref.size}"


def show_symbol(name: str) -> str:
    """`@name`, in quotes where it is no identifier."""
    return "@" + (name if IDENTIFIER.fullmatch(name) else quoted(name))
