"""Layouts and meshes as pictures (SVG): which ranks hold which block of a tensor, and how ranks stand in a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.show import BlockPosition, Blocks
from autoshard.util.errors import MeshError
from autoshard.util.svg import CHARACTER, SIZE, Svg, colour

MOST_DEVICES = 1024
"""Devices of a mesh that a picture shows at most."""
_ROW, _GAP = 30, 14


def layout_svg(shape: Sequence[int], layout: Layout, title: str = "") -> str:
    """The blocks of a tensor, each with the ranks that hold it; equal colours are equal blocks.

    The last two dims are a table, dims before them one table per block, from left to right.

    Args:
        shape: of the whole tensor, e.g. (8, 4).
        title: above the picture; by default the type with its layout.

    Raises:
        LayoutError: the layout has another number of dims, or more blocks than a picture can show.

    >>> from autoshard import Layout, Mesh
    >>> picture = layout_svg((8, 4), Layout.parse("dp, tp", Mesh(dp=2, tp=2)))
    >>> picture.count("<rect")
    4
    """
    picture, blocks = Svg(), Blocks(shape, layout)
    names = [f"dim {i} " for i in range(layout.rank)]
    caption = title or f"[{', '.join(map(str, shape))}] as [{layout}] on mesh {layout.mesh}"
    below = _drawn(picture, blocks, caption, names)
    if layout.partial:
        axes = ".".join(map(layout.mesh.show_ref, layout.partial))
        picture.words(0, below + 20, f"each rank holds a term of a {layout.reduction} over {axes}", kind="faint")
    return picture.text()


def _drawn(picture: Svg, blocks: Blocks, title: str, names: Sequence[str]) -> float:
    """All tables from left to right; where the lowest ends."""
    top = SIZE + 2
    picture.words(0, top, title)
    x, below = 0.0, float(top)
    for position in itertools.product(*map(range, blocks.leading)):
        head = ", ".join(f"{names[i]}{blocks.spans[i][k]}" for i, k in enumerate(position))
        x, end = _table(picture, blocks, position, head, x, top + _GAP)
        below = max(below, end)
    return below


def _table(picture: Svg, blocks: Blocks, position: BlockPosition, head: str, x: float, y: float) -> tuple[float, float]:
    """A table of blocks; where the next one begins, and the lowest line."""
    rows, columns = blocks.rows, blocks.columns
    labels = [blocks.row_label(row) for row in rows]
    heads = [blocks.column_label(column) for column in columns]
    cells = {(row, column): blocks.ranks(position, row, column) for row in rows for column in columns}
    left = x + (max(map(len, labels)) + 1) * CHARACTER
    wide = (max(map(len, (*cells.values(), *heads))) + 2) * CHARACTER
    if head:
        picture.words(x, y + SIZE, head, kind="faint")
        y += SIZE + 6
    for i, label in enumerate(heads):
        picture.words(left + (i + 0.5) * wide, y + SIZE, label, anchor="middle", kind="faint")
    y += SIZE + 6 if any(heads) else 0
    for j, row in enumerate(rows):
        picture.words(left - CHARACTER / 2, y + j * _ROW + _ROW / 2 + 4, labels[j], anchor="end", kind="faint")
        for i, column in enumerate(columns):
            at, ranks = (left + i * wide, y + j * _ROW), cells[row, column]
            fill = colour(blocks.number(position, row, column), blocks.layout.split)
            picture.box(*at, wide, _ROW, fill=fill, title=f"ranks {ranks}")
            picture.words(at[0] + wide / 2, at[1] + _ROW / 2 + 4, ranks, anchor="middle", kind="ink")
    return left + len(columns) * wide + 2 * _GAP, y + len(rows) * _ROW


def mesh_svg(mesh: Mesh) -> str:
    """The ranks of a mesh: the last axis from left to right, the one before from top to bottom, all others as tables.

    Raises:
        MeshError: more devices than a picture can show.

    >>> from autoshard import Mesh
    >>> mesh_svg(Mesh(dp=2, tp=4)).count("<rect")
    8
    """
    if mesh.devices > MOST_DEVICES:
        raise MeshError(f"a picture shows {MOST_DEVICES} devices at most, and mesh {mesh} has {mesh.devices}")
    sizes = [size for _, size in mesh.axes]
    layout = Layout(mesh, [(mesh.axis(name),) for name in mesh.names])
    picture, blocks = Svg(), Blocks(sizes, layout)
    blocks.spans = [[f"{name} {k}" for k in range(size)] for name, size in mesh.axes]
    _drawn(picture, blocks, f"mesh {mesh}: {mesh.devices} devices", ["" for _ in sizes])
    return picture.text()
