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
    layout.check_fits(shape, "the tensor to draw")
    if layout.split > MAX_BLOCKS or layout.mesh.devices > MAX_BLOCKS:
        raise LayoutError(
            f"layout [{layout}] has {layout.split} blocks on {layout.mesh.devices} ranks; "
            f"a picture shows at most {MAX_BLOCKS}"
        )
    holders = _holders(shape, layout)
    spans = [_spans(shape, layout, dim, (size or shape)[dim]) for dim in range(layout.rank)]
    lead = layout.parts[:-2] if layout.rank > 2 else ()
    tables = []
    for place in itertools.product(*map(range, lead)):
        title = ", ".join(f"dim {i} {spans[i][k]}" for i, k in enumerate(place))
        tables.append((title + ":\n" if title else "") + _table(spans, layout, holders, place))
    if layout.partial:
        axes = ".".join(map(layout.mesh.show_ref, layout.partial))
        tables.append(f"each rank holds a term of a {layout.reduction} over {axes}")
    return "\n".join(tables)


def _holders(shape: Sequence[int], layout: Layout) -> dict[tuple[int, ...], list[int]]:
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.mesh.devices):
        place = tuple(layout.mesh.index(rank, refs) for refs in layout.dims)
        holders.setdefault(place, []).append(rank)
    return holders


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


def _table(spans: list[list[str]], layout: Layout, holders: dict, place: tuple[int, ...]) -> str:
    row_dim, column_dim = layout.rank - 2, layout.rank - 1
    rows = range(layout.parts[row_dim]) if row_dim >= 0 else [None]
    columns = range(layout.parts[column_dim]) if column_dim >= 0 else [None]
    cells = [
        [_ranks(holders[place + tuple(k for k in (row, column) if k is not None)]) for column in columns]
        for row in rows
    ]
    heads = [spans[column_dim][k] if k is not None else "" for k in columns]
    widths = [max(len(head), *(len(line[i]) for line in cells)) for i, head in enumerate(heads)]
    labels = [f"dim {row_dim} {spans[row_dim][k]}" if k is not None else "ranks" for k in rows]
    labels = [label if i == 0 else " " * len(f"dim {row_dim} ") + label.split()[-1] for i, label in enumerate(labels)]
    title = f"dim {column_dim}" if column_dim >= 0 else ""
    left = max(map(len, labels)) + 1 + len(title)
    lines = [title.rjust(left) + " " + "  ".join(head.rjust(width) for head, width in zip(heads, widths, strict=True))]
    for label, line in zip(labels, cells, strict=True):
        lines.append(
            label.ljust(left) + " " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        )
    return "\n".join(line.rstrip() for line in lines)
