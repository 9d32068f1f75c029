"""What collectives of a text are told, as plain numbers: boxes of blocks; and the arguments of a bundle's parts.

This file needs nothing: exported code carries it.
"""

from __future__ import annotations

Box = tuple[tuple[int, int, int], ...]
"""For each dim: start, count, stride."""
Piece = tuple[int, Box, Box, bool]
"""Whose box it is, where it lies there and here, and whether it is added to what lies here."""
Table = tuple[tuple[Piece, ...], ...]


def arguments(kind: str, dims: tuple[int, int], op: str) -> tuple:
    """What a collective takes after its operand and axes."""
    dim, to_dim = dims
    return {
        "all_reduce": (op,),
        "all_gather": (dim,),
        "reduce_scatter": (dim, op),
        "all_to_all": (dim, to_dim),
    }[kind]


def slices(box: Box) -> tuple[slice, ...]:
    """The index of a box."""
    ends = (start + count * stride for start, count, stride in box)
    return tuple(
        slice(start, end if end >= 0 else None, stride) for (start, _, stride), end in zip(box, ends, strict=True)
    )
