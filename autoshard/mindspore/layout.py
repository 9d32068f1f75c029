"""Layout as MindSpore writes it: a device matrix with named axes; called, it makes the layout of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autoshard.layout.layout import Layout as Laid
from autoshard.layout.mesh import Mesh
from autoshard.util.checks import positive
from autoshard.util.errors import LayoutError

_WITHIN = "interleaved_parallel"


class Layout:
    """Named devices, `Layout((2, 2, 2), ("dp", "sp", "mp"))`; called with an item per dim it gives a tensor's layout.

    Items are a name, "None" for a whole dim, or a tuple of names, the major one first. The last axis may be
    "interleaved_parallel", which is of no devices: MindSpore cuts a rank's block further along it, to compute one piece
    while another is sent. Here a rank computes its block whole, with the same numbers.

    Args:
        rank_list: the ranks in order; only 0, 1, 2, ... is offered.

    Raises:
        LayoutError: sizes that are no whole numbers, names twice or of another number, a name used twice.

    Example:
        >>> print(Layout((2, 4), ("dp", "mp"))("dp", "mp"))
        dp, mp
    """

    def __init__(
        self, device_matrix: Sequence[int], alias_name: Sequence[str], rank_list: Sequence[int] | None = None
    ) -> None:
        sizes, names = tuple(device_matrix), tuple(alias_name)
        if len(sizes) != len(names) or len(set(names)) < len(names) or any(positive(size) is None for size in sizes):
            raise LayoutError(
                f"Layout: device_matrix {sizes} and alias_name {names}; there is one name per number, each once"
            )
        if "None" in names:
            raise LayoutError(
                f"Layout: alias_name {names}: 'None' stands for a dim that is whole; name the axis otherwise"
            )
        if _WITHIN in names[:-1]:
            raise LayoutError(f"Layout: alias_name {names}: {_WITHIN!r} is the last one")
        if names[-1:] == (_WITHIN,):
            sizes, names = sizes[:-1], names[:-1]
        if rank_list is not None and list(rank_list) != list(range(math.prod(sizes))):
            raise LayoutError("Layout: rank_list is not 0, 1, 2, ...; another order of ranks is not offered here")
        self.device_matrix, self.alias_name = tuple(device_matrix), tuple(alias_name)
        self.mesh = Mesh(list(zip(names, sizes, strict=True)))

    def __call__(self, *tensor_map: str | tuple[str, ...]) -> Laid:
        text = ", ".join(self._dim(one) for one in tensor_map)
        used = [name for one in tensor_map for name in (one if isinstance(one, tuple) else (one,)) if name != "None"]
        if len(set(used)) < len(used):
            raise LayoutError(f"Layout{tensor_map}: an axis splits two dims; each one can be used once")
        return Laid.parse(text, self.mesh)

    def _dim(self, item: Any) -> str:
        names = item if isinstance(item, tuple) else () if item == "None" else (item,)
        unknown = [name for name in names if name not in self.alias_name]
        if unknown:
            raise LayoutError(f"Layout: there is no axis {unknown[0]!r}; axes are {', '.join(self.alias_name)}")
        return ".".join(name for name in names if name != _WITHIN) or "-"
