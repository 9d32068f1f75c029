"""A text picture of which rank holds which block.

>>> print(show_layout((4, 6), Layout.parse("dp, tp", Mesh(dp=2, tp=2))))
          dim 1 0:3  3:6
dim 0 0:2         0    1
      2:4         2    3
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autoshard.layout.layout import Layout
from autoshard.util.errors import LayoutError

MAX_BLOCKS = 4096


def show_layout(shape: Sequence[int], layout: Layout, size: Sequence[int] | None = None) -> str:
    """Draw the blocks of a tensor of `shape`; each cell lists the ranks that hold it.

    The last two dims make a table; dims before them one table per block. Partial layouts say so below.

    Args:
        size: how much of the shape is there, if the rest is padding: blocks end where the tensor does.

    Raises:
        LayoutError: the layout has another number of dims, or more blocks than a picture can show.

    >>> from autoshard import Layout, Mesh, show_layout
    >>> print(show_layout((8, 4), Layout.parse("dp, tp", Mesh(dp=2, tp=2))))
              dim 1 0:2  2:4
    dim 0 0:4         0    1
          4:8         2    3
    """
    blocks = Blocks(shape, layout, size)
    tables = []
    for position in itertools.product(*map(range, blocks.leading)):
        title = ", ".join(f"dim {i} {blocks.spans[i][k]}" for i, k in enumerate(position))
        tables.append((title + ":\n" if title else "") + _table(blocks, position))
    if layout.partial:
        axes = ".".join(map(layout.mesh.show_ref, layout.partial))
        tables.append(f"each rank holds a term of a {layout.reduction} over {axes}")
    return "\n".join(tables)


BlockPosition = tuple[int, ...]


class Blocks:
    """The blocks of a tensor as tables: the last two dims are rows and columns, each block of the dims before a table.

    Attributes:
        spans: per dim the elements of each of its parts, e.g. "0:4".
        leading: into how many parts each dim before the last two is cut.
        rows, columns: the parts of the last dims; (None,) where there is no such dim.

    Raises:
        LayoutError: the layout has another number of dims, or more blocks than a picture can show.
    """

    def __init__(self, shape: Sequence[int], layout: Layout, size: Sequence[int] | None = None) -> None:
        layout.check_fits(shape, "the tensor to draw")
        if layout.split > MAX_BLOCKS or layout.mesh.devices > MAX_BLOCKS:
            raise LayoutError(
                f"layout [{layout}] has {layout.split} blocks on {layout.mesh.devices} ranks; "
                f"a picture shows at most {MAX_BLOCKS}"
            )
        self.layout, rank = layout, layout.rank
        self.spans = [_spans(shape, layout, dim, (size or shape)[dim]) for dim in range(rank)]
        self.leading: BlockPosition = layout.parts[:-2] if rank > 2 else ()
        self.rows: Sequence[int | None] = range(layout.parts[rank - 2]) if rank >= 2 else (None,)
        self.columns: Sequence[int | None] = range(layout.parts[rank - 1]) if rank >= 1 else (None,)
        self._holders: dict[BlockPosition, list[int]] = {}
        for one in range(layout.mesh.devices):
            position = tuple(layout.mesh.index(one, refs) for refs in layout.dims)
            self._holders.setdefault(position, []).append(one)
        self._number = {position: i for i, position in enumerate(sorted(self._holders))}

    def ranks(self, position: BlockPosition, row: int | None, column: int | None) -> str:
        """The ranks that hold a block, e.g. "0-3"."""
        return _ranks(self._holders[_block(position, row, column)])

    def number(self, position: BlockPosition, row: int | None, column: int | None) -> int:
        """Which block it is, of all."""
        return self._number[_block(position, row, column)]

    def row_label(self, row: int | None) -> str:
        return "ranks" if row is None else self.spans[-2][row]

    def column_label(self, column: int | None) -> str:
        return "" if column is None else self.spans[-1][column]


def _block(position: BlockPosition, row: int | None, column: int | None) -> BlockPosition:
    return position + tuple(k for k in (row, column) if k is not None)


def _spans(shape: Sequence[int], layout: Layout, dim: int, size: int) -> list[str]:
    chunk = layout.local_shape(shape)[dim]
    return [f"{min(size, part * chunk)}:{min(size, (part + 1) * chunk)}" for part in range(layout.parts[dim])]


def _ranks(ranks: list[int]) -> str:
    """Ranks as a short list, runs joined: 0-3 or 0,4."""
    runs = []
    for _, run in itertools.groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in run]
        runs.append(f"{members[0]}-{members[-1]}" if len(members) > 2 else ",".join(map(str, members)))
    return ",".join(runs)


def _table(blocks: Blocks, position: BlockPosition) -> str:
    row_dim, column_dim = blocks.layout.rank - 2, blocks.layout.rank - 1
    cells = [[blocks.ranks(position, row, column) for column in blocks.columns] for row in blocks.rows]
    heads = [blocks.column_label(column) for column in blocks.columns]
    widths = [max(len(head), *(len(line[i]) for line in cells)) for i, head in enumerate(heads)]
    first = f"dim {row_dim} " if row_dim >= 0 else ""
    labels = [(first if i == 0 else " " * len(first)) + blocks.row_label(row) for i, row in enumerate(blocks.rows)]
    title = f"dim {column_dim}" if column_dim >= 0 else ""
    left = max(map(len, labels)) + 1 + len(title)
    lines = [title.rjust(left) + " " + "  ".join(head.rjust(width) for head, width in zip(heads, widths, strict=True))]
    for label, line in zip(labels, cells, strict=True):
        lines.append(
            label.ljust(left) + " " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        )
    return "\n".join(line.rstrip() for line in lines)
