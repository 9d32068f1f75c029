"""All strategies of a rule as arrays, so that bounds of what their layouts take are worked out for all of them at once.

Per tensor and dim the axes that strategies split it by are few: what each of these leaves of a dim, and how much of it
another layout has, is worked out once, and multiplied over the dims (`Prices.at_least` is the same for one strategy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from autoshard.core.enumerate import Listing, listing
from autoshard.core.rule import Dim, Rule
from autoshard.core.tensortype import TensorType
from autoshard.cost.prices import Prices, lost
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Mesh, merge_refs, size_of
from autoshard.util.memo import remembered


@dataclass(frozen=True, eq=False)
class Split:
    """The ways in which strategies split one dim, each once, and which of them each strategy has."""

    ways: tuple[Refs, ...]
    which: np.ndarray


@dataclass(frozen=True, eq=False)
class StrategyArrays:
    """The strategies of a listing, in its order; per operand and result how they split its dims; `complete`
    [strategies] tells which leave no terms of a sum."""

    listing: Listing
    operands: tuple[tuple[Split, ...], ...]
    results: tuple[tuple[Split, ...], ...]
    complete: np.ndarray

    def __len__(self) -> int:
        return len(self.listing)

    def entering(self, i: int, before: Layout, of: TensorType, prices: Prices) -> np.ndarray:
        """[strategies], at least so many seconds until operand i lies as each wants it."""
        splits = self.operands[i]
        missing = np.ones(len(self), np.int64)
        for split, size in zip(splits, of.shape, strict=True):
            missing *= np.asarray([-(-size // size_of(refs)) for refs in split.ways], np.int64)[split.which]
        if not before.partial:
            missing -= missing // self._lost(
                splits, [[lost(old, new) for new in split.ways] for split, old in zip(splits, before.dims, strict=True)]
            )
        return prices.receiving(missing, of)

    def leaving(self, i: int, after: Layout, of: TensorType, prices: Prices) -> np.ndarray:
        """[strategies], at least so many seconds from result i as each leaves it to another layout."""
        if after.partial:
            layouts = [one.result_layouts[i] for one in self.listing.strategies]
            return np.asarray([prices.at_least(layout, after, of) for layout in layouts])
        splits, whole = self.results[i], np.prod(after.local_shape(of.shape), dtype=np.int64)
        held = whole // self._lost(
            splits, [[lost(old, new) for old in split.ways] for split, new in zip(splits, after.dims, strict=True)]
        )
        return prices.receiving(np.where(self.complete, whole - held, whole), of)

    def _lost(self, splits: Sequence[Split], each: Sequence[Sequence[int]]) -> np.ndarray:
        """The product over dims of what `each` has for the ways of a dim."""
        total = np.ones(len(self), np.int64)
        for split, numbers in zip(splits, each, strict=True):
            total *= np.asarray(numbers, np.int64)[split.which]
        return total


@remembered(len)
def strategy_arrays(rule: Rule, mesh: Mesh) -> StrategyArrays:
    """The arrays of a rule's listing."""
    listed, known = listing(rule, mesh), dict[Dim, Split]()
    operands, results = (
        tuple([tuple([_split(listed, dim, known) for dim in dims]) for dims in tensors])
        for tensors in (rule.operands, rule.results)
    )
    return StrategyArrays(listed, operands, results, (listed.parts[:, list(rule.summed)] == 1).all(axis=1))


def _split(listed: Listing, dim: Dim, known: dict[Dim, Split]) -> Split:
    factors = tuple(listed.rule.leaders[i] for i in dim)
    if factors not in known:
        rows, which = listed.ways(factors)
        laid = [[listed.axes(row)[i] for i in factors] for row in rows]
        known[factors] = Split(tuple(merge_refs(tuple(chain(*way))) for way in laid), which)
    return known[factors]
