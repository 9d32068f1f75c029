"""Masks of scores: what is the same for many dims as the small tensor that it is, and which hide by place alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from autoshard.ir.graph import Value
from autoshard.transform.attention_scores import HIDDEN, ScoreMask
from autoshard.transform.dim_atoms import DimAtom, Dims, leaves_of, sources_of
from autoshard.transform.elements import ConstantElements

MOST_ELEMENTS = 1 << 20
"""Elements that are looked at of a mask which is computed of places; of larger ones those of some rows, which tell all.
Arrays that are written out are looked at whole."""


@dataclass(frozen=True)
class SeenRange:
    """Keys that a query i sees: those from i - `most` to i - `least`; None: without an end."""

    least: int | None = None
    most: int | None = None

    def __and__(self, other: SeenRange) -> SeenRange:
        least = [one for one in (self.least, other.least) if one is not None]
        most = [one for one in (self.most, other.most) if one is not None]
        return SeenRange(max(least, default=None), min(most, default=None))

    @property
    def attributes(self) -> dict[str, int | bool] | None:
        """As attributes of Attention; None if these cannot say it."""
        if self.least is not None and self.least not in (0, None if self.most is None else -self.most):
            return None
        if self.least is None and self.most is not None:
            return None
        return {"causal": self.least == 0, "window": 0 if self.most is None else self.most + 1}


@dataclass(frozen=True)
class SpreadMask:
    """A tensor that is spread over the dims of scores: which of its own dims lies along each; None: it has one value
    along it."""

    value: Value
    dims: tuple[int | None, ...]


Part = tuple[ScoreMask, SpreadMask]


def parts_of(mask: ScoreMask, elements: ConstantElements) -> Iterator[Part]:
    """The masks that hide together what this one hides, each as the smallest tensor that it is spread from."""
    own, rank = mask.value.type, len(mask.dims)
    dims = [None] * (rank - own.rank) + [i if n > 1 else None for i, n in enumerate(own.shape)]
    yield from _parts(mask, SpreadMask(mask.value, tuple(dims)), elements)


def _parts(mask: ScoreMask, spread: SpreadMask, elements: ConstantElements) -> Iterator[Part]:
    spread = _source(spread, elements)
    node, _ = elements.producers.get(spread.value, (None, 0))
    if node is not None and (mask.kind, node.op.name) in _SPLITS and node.given_rule is None:
        kind = _SPLITS[mask.kind, node.op.name]
        for one in node.operands:
            yield from _parts(replace(mask, kind=kind), _of_operand(spread, one), elements)
    else:
        yield replace(mask, value=spread.value), spread


_SPLITS = {
    ("seen", "LogicalAnd"): "seen",
    ("seen", "And"): "seen",
    ("seen", "LogicalNot"): "hidden",
    ("seen", "Not"): "hidden",
    ("hidden", "LogicalOr"): "hidden",
    ("hidden", "Or"): "hidden",
    ("hidden", "LogicalNot"): "seen",
    ("hidden", "Not"): "seen",
}
"""What hides together with its operands, each of which then is a mask of this kind."""


def _of_operand(spread: SpreadMask, operand: Value) -> SpreadMask:
    """The spread of an operand that broadcasts, at the right, to the dims of a spread value."""
    missing, shape = spread.value.type.rank - operand.type.rank, operand.type.shape
    found = (i - missing if i is not None and i >= missing and shape[i - missing] > 1 else None for i in spread.dims)
    return SpreadMask(operand, tuple(found))


def _source(spread: SpreadMask, elements: ConstantElements) -> SpreadMask:
    value, dims = spread.value, spread.dims
    while value in elements.producers:
        node, _ = elements.producers[value]
        if node.op.name not in ("Transpose", "Reshape", "ExpandDims", "Squeeze", "BroadcastInDim", "BroadcastTo"):
            break
        before, after = node.operands[0].type.shape, node.results[0].type.shape
        back = sources_of(node.op.name, node.attrs, before, after)
        if back is None:
            break
        dims = tuple(None if i is None else back[i] for i in dims)
        value = node.operands[0]
    return SpreadMask(value, dims)


Known = dict[tuple, SeenRange | None]
"""What masks tell that were looked at before."""


def range_of(
    mask: ScoreMask, spread: SpreadMask, query: DimAtom, key: DimAtom, elements: ConstantElements, known: Known
) -> SeenRange | None:
    """Which keys each query sees, if that is told by places alone."""
    if not elements.is_constant(spread.value):
        return None
    places = tuple(leaves_of(dim) in ((query,), (key,)) for dim in mask.dims)
    name = spread, mask.kind, places, query.size, key.size
    if name not in known:
        known[name] = _range(mask, spread, query, key, elements)
    return known[name]


def _range(
    mask: ScoreMask, spread: SpreadMask, query: DimAtom, key: DimAtom, elements: ConstantElements
) -> SeenRange | None:
    places = {leaf: i for i, dim in enumerate(mask.dims) for leaf in leaves_of(dim)}
    if query not in places or key not in places:
        return None
    seen = _seen(mask, spread, places[query], places[key], query.size, key.size, elements)
    if seen is None:
        return None
    return range_of_matrices(*seen)


def range_of_matrices(rows: np.ndarray, matrices: np.ndarray) -> SeenRange | None:
    """What queries `rows` see by matrices [any, rows, keys] of truths, if all say the same, and by places alone."""
    behind = rows[:, None] - np.arange(matrices.shape[-1])
    if not all(np.array_equal(one, matrices[0]) for one in matrices[1:]) or not matrices[0].any():
        return None
    inside = behind[matrices[0]]
    least, most = int(inside.min()), int(inside.max())
    if not np.array_equal(matrices[0], (behind >= least) & (behind <= most)):
        return None
    return SeenRange(least if behind.min() < least else None, most if behind.max() > most else None)


def _seen(
    mask: ScoreMask, spread: SpreadMask, query: int, key: int, queries: int, keys: int, elements: ConstantElements
) -> tuple[np.ndarray, np.ndarray] | None:
    """Some queries, and which keys these see: matrices, one for each of the other dims' places."""
    others = [i for i, own in enumerate(spread.dims) if own is not None and i not in (query, key)]
    sizes = [spread.value.type.shape[spread.dims[i]] for i in others]  # type: ignore[index]
    if any(dim is not None and _whole(mask.dims, i) is None for i, dim in enumerate(spread.dims)):
        return None
    most = MOST_ELEMENTS if elements.is_computed(spread.value) else math.prod(sizes) * queries * keys
    if math.prod(sizes) * queries * keys > most:
        sizes = [min(size, 2) for size in sizes]
    steps = [spread.value.type.shape[spread.dims[i]] - 1 for i in others]  # type: ignore[index]
    count = math.prod(sizes)
    rows = _rows(queries, max(1, most // max(1, count * keys)))
    index: list[np.ndarray] = [np.zeros(1, np.int64)] * spread.value.type.rank
    others_at = (np.unique(np.linspace(0, last, size).astype(int)) for last, size in zip(steps, sizes, strict=True))
    grids = np.meshgrid(*others_at, rows, np.arange(keys), indexing="ij", sparse=True)
    for i, grid in zip((*others, query, key), grids, strict=True):
        if (own := spread.dims[i]) is not None:
            index[own] = grid
    found, added = elements.at(spread.value, tuple(index)), mask.kind in ("add", "less")
    found = -found if mask.kind == "less" else found
    seen = np.broadcast_to(_as_seen(found, mask.kind), (*sizes, len(rows), keys))
    if added and not np.all((found == 0) | (found <= HIDDEN)):
        return None
    return rows, seen.reshape(count, len(rows), keys)


def _as_seen(found: np.ndarray, kind: str) -> np.ndarray:
    if kind in ("add", "less"):
        return found == 0
    return found.astype(bool) if kind == "seen" else ~found.astype(bool)


def _whole(dims: Dims, i: int) -> DimAtom | None:
    """The single atom of a dim."""
    found = leaves_of(dims[i])
    return found[0] if len(found) == 1 else None


def _rows(queries: int, most: int) -> np.ndarray:
    """All queries, or some of them: the first and last ones, and others between."""
    if queries <= most:
        return np.arange(queries)
    return np.unique(np.concatenate([[0, 1, queries - 1], np.linspace(0, queries - 1, max(2, most - 3)).astype(int)]))


def together(ranges: Iterable[SeenRange | None]) -> SeenRange | None:
    """What is seen by all of these masks; None if one does not tell by places."""
    found = SeenRange()
    for one in ranges:
        if one is None:
            return None
        found = found & one
    return found
