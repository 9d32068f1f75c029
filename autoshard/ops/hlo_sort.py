"""StableHLO's sort: any number of tensors ordered together along one dim by any comparator, without a loop of elements.

The order is stable. An order by the first tensor alone, up or down, is tried first and checked with the comparator;
what fails the check is merge-sorted, all rows and all runs of a pass at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.core.rule import REPLICATE, Rule
from autoshard.ops.axes import axis_index
from autoshard.ops.body import Body
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import each, widened
from autoshard.ops.known import surely
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
# Whether the elements of each row at the first indices come before those at the second; indices are [place, row].
Before = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _sort_rule(*shapes: Shape, dimension: int, **_: object) -> Rule:
    if not shapes or any(shape != shapes[0] for shape in shapes):
        raise ShapeError(f"Sort takes operands of one shape, not {', '.join(map(str, shapes)) or 'none'}")
    at = axis_index(dimension, len(shapes[0]), "Sort")
    builder = FactorBuilder([len(shapes[0])] * len(shapes), [len(shapes[0])] * len(shapes))
    alone = all(size == 1 for dim, size in enumerate(shapes[0]) if dim != at)
    for dim, size in enumerate(shapes[0]):
        if dim == at:
            builder.along(dim, size, REPLICATE, blocked=alone)
        else:
            builder.along(dim, size)
    return builder.build()


@operator("Sort", rule=_sort_rule, shape=each, dtype=each)
def sort_along(*xs, dimension, body, stable=True, compared=0):
    """The operands, all reordered along `dimension` so that `body` holds of no element and one before it.

    The body compares one element of each operand with another: it takes a, b of the first, then of the second, ...
    With `compared` it takes those of that many operands, the first ones, and the others go along.
    """
    if xs[0].size == 0:
        return xs
    rows = [np.moveaxis(x, dimension, 0).reshape(x.shape[dimension], -1) for x in xs]
    order = _order(rows[: compared or len(rows)], body)
    moved = np.moveaxis(xs[0], dimension, 0).shape
    return tuple(np.moveaxis(np.take_along_axis(one, order, 0).reshape(moved), 0, dimension) for one in rows)


def _order(rows: Sequence[np.ndarray], body: Body) -> np.ndarray:
    columns = np.arange(rows[0].shape[1])

    def before(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        pairs = (one[at, columns] for one in rows for at in (i, j))
        return np.broadcast_to(np.asarray(body(*pairs)[0], bool), i.shape)

    key = widened(rows[0])
    for candidate in (_ascending(key), _descending(key)):
        if _is_sorted(candidate, before):
            return candidate
    return merged_order(before, *rows[0].shape)


def _ascending(key: np.ndarray) -> np.ndarray:
    return np.argsort(key, axis=0, kind="stable")


def _descending(key: np.ndarray) -> np.ndarray:
    """Downwards, equal elements in the order they had."""
    return len(key) - 1 - np.argsort(key[::-1], axis=0, kind="stable")[::-1]


def _is_sorted(order: np.ndarray, before: Before) -> bool:
    """Whether neighbours are in order, and in their old order where neither comes before the other."""
    here, after = order[:-1], order[1:]
    return surely(~np.any(before(after, here) | ~before(here, after) & (here > after)))


def merged_order(before: Before, count: int, rows: int) -> np.ndarray:
    """The stable order of `count` elements in each of `rows` rows, by merging runs of 1, 2, 4, ... elements."""
    places = 1 << (count - 1).bit_length()

    def less(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Before, where places beyond the count come after all else, in order."""
        known = before(np.minimum(i, count - 1), np.minimum(j, count - 1))
        return np.where(j < count, (i < count) & known, i < j)

    order = np.broadcast_to(np.arange(places)[:, None], (places, rows))
    width = 1
    while width < places:
        runs = order.reshape(-1, 2, width, rows)
        order = _merged(runs[:, 0], runs[:, 1], less).reshape(places, rows)
        width *= 2
    return order[:count]


def _merged(left: np.ndarray, right: np.ndarray, less: Before) -> np.ndarray:
    """Pairs of sorted runs [run, place, row] merged: elements move on by those of the other run before them."""
    own = np.arange(left.shape[1])[:, None]
    places = (own + _count(right, left, less), own + _count(left, right, lambda i, j: ~less(j, i)))
    merged = np.empty((len(left), 2 * left.shape[1], left.shape[2]), np.int64)
    for position, run in zip(places, (left, right), strict=True):
        np.put_along_axis(merged, position, run, axis=1)
    return merged


def _count(run: np.ndarray, items: np.ndarray, before: Before) -> np.ndarray:
    """For each item how many elements of the sorted run come before it, by bisection."""
    width = run.shape[1]
    found = np.zeros_like(items)
    step = width
    while step:
        probe = found + step
        element = np.take_along_axis(run, np.minimum(probe, width) - 1, axis=1)
        found = np.where((probe <= width) & before(element, items), probe, found)
        step //= 2
    return found
