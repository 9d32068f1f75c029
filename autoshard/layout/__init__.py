"""How tensors lie on devices: meshes with sub-axes, layouts, and MindSpore's view of them."""

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, Groups, Mesh
from autoshard.layout.pictures import layout_svg, mesh_svg
from autoshard.layout.show import show_layout
from autoshard.layout.tensor_map import TensorMap

__all__ = ["AxisRef", "Groups", "Layout", "Mesh", "TensorMap", "layout_svg", "mesh_svg", "show_layout"]
