"""Rows in parts whose sizes depend on the data, as of experts that sorted tokens are split among; see `selected`.

parts = x.split(counts.tolist())          each part is x, of which the places from its begin to its end count
torch.cat([f(p) for p in parts])          x's rows again: at each place what the part has that counts there
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from autoshard.frontends.torch.selected import NotSaid, Rows, RowsWriter, Selection, shape_of

PART = "part"
"""What the key of a part's selection begins with: then how many places there are, where it begins and where it ends."""


def split_in_parts(w: RowsWriter) -> list[Rows]:
    """What `split_with_sizes` makes, of sizes that depend on the data."""
    x, sizes = w.node.args[:2]
    if w.rows(x) is not None:
        raise NotSaid("it splits rows that are selected already")
    dim = (w.node.args[2] if len(w.node.args) > 2 else 0) % len(shape_of(x))
    ends: list[Any] = [0]
    for size in sizes[:-1]:
        ends.append(_sum(w, ends[-1], w.number(size)))
    ends.append(shape_of(x)[dim])  # sizes add up to it
    return [_part(w, x, dim, *ends[i : i + 2]) for i in range(len(sizes))]


def sliced_part(w: RowsWriter) -> Rows:
    """What `slice` takes, from or to a place that depends on the data."""
    given: tuple[Any, ...] = (*w.node.args, *(0, None, None, 1)[len(w.node.args) - 1 :])
    x, dim, begin, end, step = given
    size = shape_of(x)[dim]
    begin, end = (0 if begin is None else begin), (size if end is None else end)
    if step != 1 or any(not w.is_count(one) and one < 0 for one in (begin, end)):
        raise NotSaid("it takes every so manieth row, or counts from the end")
    begin, end = (w.number(one) if w.is_count(one) else min(one, size) for one in (begin, end))
    return _part(w, x, dim % len(shape_of(x)), begin, end)


def _part(w: RowsWriter, x: Any, dim: int, begin: Any, end: Any) -> Rows:
    """The places of a tensor along a dim from one number to another; both are numbers, or nodes of one number."""
    import torch

    size = shape_of(x)[dim]
    places = w.emit("arange.start_step", 0, size, 1, dtype=torch.int64)
    from_begin = w.emit(f"ge.{_kind(begin)}", places, begin)
    holds = w.emit("logical_and.default", from_begin, w.emit(f"lt.{_kind(end)}", places, end))
    key = PART, size, _named(w, begin), _named(w, end)
    return Rows(x, Selection(key, (size,), (0,), holds), dim)


def _are(count: Any, size: int) -> bool:
    """Whether what follows in the program says that so many rows are all."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(count == size)


def _kind(number: Any) -> str:
    return "Tensor" if hasattr(number, "users") else "Scalar"


def _named(w: RowsWriter, number: Any) -> Any:
    return w.key(number) if hasattr(number, "users") else number


def _sum(w: RowsWriter, one: Any, other: Any) -> Any:
    if not hasattr(one, "users") and not hasattr(other, "users"):
        return one + other
    return w.arithmetic("add.Tensor", (one, other))


def joined_again(w: RowsWriter, tensors: Sequence[Any], dim: int) -> Any:
    """Parts of so many rows that follow one another, as rows: all of them, or those up to where the last one ends.

    None where they are no such parts.
    """
    parts = [one for one in map(w.rows, tensors) if one is not None]
    keys = [one.selection.key for one in parts]
    if len(parts) != len(tensors) or not all(isinstance(key, tuple) and key[0] == PART for key in keys):
        return None
    follow = all(ahead[3] == behind[2] for ahead, behind in zip(keys, keys[1:], strict=False))
    if (
        not follow
        or keys[0][2] != 0
        or any((one.dim, key[1]) != (dim, keys[0][1]) for one, key in zip(parts, keys, strict=True))
    ):
        return None
    node = parts[-1].node
    for one in reversed(parts[:-1]):
        node = w.emit("where.self", w.holding(one), one.node, node)
    size = keys[0][1]
    if keys[-1][3] == size or _are(w.node.meta["val"].shape[dim], size):
        return node
    holds = reduce(lambda one, other: w.emit("logical_or.default", one, other), (one.selection.holds for one in parts))
    return Rows(node, Selection((PART, size, 0, keys[-1][3]), (size,), (0,), holds), dim)
