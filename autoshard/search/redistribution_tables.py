"""Redistribution costs as tables: seconds from each of some layouts to each of others, for one type.

Layouts are numbers (`encode`); those that units do not express are numbered downwards from -1. What a redistribution
does depends on the shape only through which parts divide it, and not on which dim is which: pairs of layouts fall into
few classes. One pair of each is planned, with the tensor's size left open. First for a shape that everything divides:
where a smaller one allows these steps, they are the best ones for it, too, for it allows no others.

Of two kinds of redistribution the best steps take long to find: of a dim between numbers of parts of which neither
divides the other, which goes through layouts in between; and from terms along some units to terms along others, some of
which end while some begin. A search may do without the second (`PARTS`), or both (`NONE`): they count as impossible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.cost.links import copied_share
from autoshard.cost.prices import Prices
from autoshard.layout.layout import Layout
from autoshard.redistribute.planner import plan_steps
from autoshard.redistribute.step import Step
from autoshard.search.domains import CARRIED, SPLITS, MeshUnits, decode, encode, to_digits, to_layout
from autoshard.util.errors import RedistributeError
from autoshard.util.memo import Memo

Steps = tuple[Step, ...]
Terms = tuple[tuple[int, float, float], ...]
"""A class's steps: which kind of step, and the shares of the tensor's elements that it is priced by, and that a buffer
shared with other collectives would copy."""
SIZES = 256
"""Of how many sizes of tensors the seconds are remembered."""
Detours = Literal["all", "parts", "none"]
"""Which detours are possible: between layouts that do not fit each other; only for unfit numbers of parts; none."""
ALL: Detours = "all"
PARTS: Detours = "parts"
NONE: Detours = "none"
WIDE = 4
"""How many dims the shape has, at least, that everything divides."""


class RedistributionTables:
    """Redistribution costs on one mesh, with all that was worked out before."""

    def __init__(self, prices: Prices, units: MeshUnits) -> None:
        self.prices, self.units = prices, units
        self._foreign: list[Layout] = []
        self._foreign_code: dict[Layout, int] = {}
        self._layouts: Memo[tuple[int, int], Layout] = Memo()
        self._classes: Memo[tuple[int, ...], int] = Memo()
        self._terms: list[Terms | None] = []
        self._numbers: dict[Terms | None, int] = {}
        self._steps: dict[tuple, int] = {}
        self._samples: list[Step] = []
        self._seconds: Memo[tuple[int, float], np.ndarray] = Memo(SIZES)
        self._planned_for: Memo[tuple[int, ...], list[_Planned]] = Memo()

    def code(self, layout: Layout) -> int:
        """The number of a layout."""
        digits = to_digits(layout, self.units)
        if digits is not None and layout.reduction == "sum":
            return int(encode(np.array([digits], dtype=np.int64), layout.rank)[0])
        if layout not in self._foreign_code:
            self._foreign.append(layout)
            self._foreign_code[layout] = -len(self._foreign)
        return self._foreign_code[layout]

    def layout(self, code: int, rank: int) -> Layout:
        """The layout of a number, for a tensor of that many dims."""
        if code < 0:
            return self._foreign[-1 - code]
        known = self._layouts.get((code, rank))
        if known is None:
            digits = decode(np.array([code]), rank, len(self.units))[0].tolist()
            known = self._layouts[code, rank] = to_layout(digits, rank, self.units)
        return known

    def final(self, codes: np.ndarray, rank: int) -> np.ndarray:
        """The same layouts with all terms summed."""
        digits = decode(np.maximum(codes, 0), rank, len(self.units))
        done = encode(np.where(digits == CARRIED, 0, digits), rank)
        for i in np.flatnonzero(codes < 0):
            done[i] = self.code(self.layout(int(codes[i]), rank).final())
        return done

    def table(
        self, of: TensorType, before: np.ndarray, after: np.ndarray, share: float = 1.0, detours: Detours = ALL
    ) -> np.ndarray:
        """[before, after], seconds for a tensor of that type; inf where no steps exist, or none without detours.
        `share` as for `Prices.redistribution`."""
        costs = np.empty((len(before), len(after)))
        even_before, even_after = self._divides(of, before), self._divides(of, after)
        plain, wanted = np.flatnonzero(even_before), np.flatnonzero(even_after)
        if len(plain) and len(wanted):
            which = self._class_of(of, before[plain], after[wanted], detours)
            costs[np.ix_(plain, wanted)] = self._of_class(of, share)[which]
        rest = np.argwhere(~even_before[:, None] | ~even_after[None, :])
        costs[rest[:, 0], rest[:, 1]] = self._padded(of, before[rest[:, 0]], after[rest[:, 1]], share)
        return costs

    def _padded(self, of: TensorType, before: np.ndarray, after: np.ndarray, share: float) -> np.ndarray:
        """[pairs], seconds between layouts that need not divide the tensor: those of the least one that both divide."""
        own = (before >= 0) & (after >= 0)
        costs = np.zeros(len(before))
        for i in np.flatnonzero(~own):
            costs[i] = self._planned(of, int(before[i]), int(after[i]), share)
        if not own.any():
            return costs
        first, last = (decode(codes[own], of.rank, len(self.units)) for codes in (before, after))
        pairs = np.stack([first, last], axis=2).reshape(len(first), -1)
        parts = [np.lcm(self._parts(first, dim), self._parts(last, dim)) for dim in range(of.rank)]
        divided, which = _distinct(np.stack(parts, axis=1))
        for number, common in enumerate(divided):
            even = of.with_shape(-(-size // both) * both for size, both in zip(of.shape, common, strict=True))
            rows = np.flatnonzero(which == number)
            costs[np.flatnonzero(own)[rows]] = self._of_pairs(even, pairs[rows], share)
        return costs

    def _of_pairs(self, of: TensorType, pairs: np.ndarray, share: float) -> np.ndarray:
        which = self._class_of_pairs(of, pairs)
        return self._of_class(of, share)[which]

    def _parts(self, digits: np.ndarray, dim: int) -> np.ndarray:
        """In how many parts each of some layouts splits a dim."""
        return np.where(digits == SPLITS + dim, self.units.sizes, 1).prod(axis=1)

    def _divides(self, of: TensorType, codes: np.ndarray) -> np.ndarray:
        """[codes], whether it is a layout made of units that divides the tensor."""
        digits = decode(np.maximum(codes, 0), of.rank, len(self.units))
        even = codes >= 0
        for dim, size in enumerate(of.shape):
            even &= size % self._parts(digits, dim) == 0
        return even

    def _planned(self, of: TensorType, before: int, after: int, share: float) -> float:
        try:
            return self.prices.redistribution(self.layout(before, of.rank), self.layout(after, of.rank), of, share)
        except RedistributeError:
            return math.inf

    # -- classes of pairs

    def _class_of(self, of: TensorType, before: np.ndarray, after: np.ndarray, detours: Detours) -> np.ndarray:
        """[before, after], the class of each pair."""
        rank, units = of.rank, len(self.units)
        first, last = decode(before, rank, units), decode(after, rank, units)
        found = np.full((len(before), len(after)), self._class_of_terms(None), dtype=np.int64)
        possible = self._possible(first, last, rank, detours)
        pairs = np.empty((*found.shape, 2 * units), dtype=np.int64)
        pairs[..., 0::2], pairs[..., 1::2] = first[:, None], last[None]
        found[possible] = self._class_of_pairs(of, pairs[possible])
        return found

    def _possible(self, first: np.ndarray, last: np.ndarray, rank: int, detours: Detours) -> np.ndarray:
        """[before, after], whether a redistribution needs no other detours than these."""
        missing = np.zeros((len(first), len(last)), dtype=bool)
        if detours != ALL:
            ending, beginning = ((one == CARRIED).astype(np.int64) for one in (first, last))
            missing |= (ending @ (1 - beginning).T > 0) & ((1 - ending) @ beginning.T > 0)
        for dim in range(rank) if detours == NONE else ():
            old, new = self._parts(first, dim), self._parts(last, dim)
            missing |= (old[:, None] % new > 0) & (new % old[:, None] > 0)
        return ~missing

    def _class_of_pairs(self, of: TensorType, pairs: np.ndarray) -> np.ndarray:
        """[pairs], the class of each; the digits of the two layouts alternate."""
        if not pairs.size:  # none, or all on one device
            return np.full(len(pairs), self._class_of_terms(()))
        # Parts are products of pieces of the mesh: a size counts only by what it has in common with the devices.
        sizes = np.gcd(np.array(of.shape, dtype=np.int64), self.units.mesh.devices)
        named, kept = _renamed(pairs, sizes)
        digits, which = _distinct(named)
        even = [self._planned_even(row, len(sizes)) for row in digits]
        needed = np.array([one.needed[: len(sizes)] for one in even], dtype=np.int64)
        wider = np.array([one.least > len(sizes) for one in even])
        found = np.array([self._class_of_terms(one.terms) for one in even], dtype=np.int64)[which]
        rest = np.flatnonzero(wider[which] | (kept % needed[which] > 0).any(axis=1))
        if len(rest):
            rows, which = _distinct(np.concatenate([named[rest], kept[rest]], axis=1))
            found[rest] = np.array([self._class(row, named.shape[1]) for row in rows], dtype=np.int64)[which]
        return found

    def _class(self, row: tuple[int, ...], ends: int) -> int:
        """The class of the pairs with so many digits, then sizes."""
        found = self._classes.get(row)
        if found is None:
            found = self._classes[row] = self._class_of_terms(self._plan(row[:ends], row[ends:]))
        return found

    def _class_of_terms(self, terms: Terms | None) -> int:
        if terms not in self._numbers:
            self._numbers[terms] = len(self._terms)
            self._terms.append(terms)
        return self._numbers[terms]

    def _plan(self, digits: tuple[int, ...], shape: tuple[int, ...]) -> Terms | None:
        """The steps between layouts, the digits of which alternate."""
        self._planned_even(digits, len(shape))
        known = self._planned_for[digits]
        for one in known:
            if one.serves(shape):
                return one.terms
        known.append(self._between(digits, shape))
        return known[-1].terms

    def _planned_even(self, digits: tuple[int, ...], rank: int) -> _Planned:
        """The steps for a shape of at least so many dims that everything divides."""
        known = self._planned_for.get(digits)
        if known is None:
            known = self._planned_for[digits] = []
        found = next((one for one in known if one.is_even and len(one.shape) >= rank), None)
        if found is None:
            found = self._between(digits, (self.units.mesh.devices,) * max(WIDE, rank))
            known.append(replace(found, is_even=True))
        return found

    def _between(self, digits: tuple[int, ...], shape: tuple[int, ...]) -> _Planned:
        steps = self._steps_between(digits, shape)
        return _Planned(shape, steps, self._terms_of(steps))

    def _terms_of(self, steps: Steps | None) -> Terms | None:
        if steps is None:
            return None
        return tuple((self._step(step), _share(step), copied_share(step)) for step in steps if step.communicates)

    def _steps_between(self, digits: tuple[int, ...], shape: tuple[int, ...]) -> Steps | None:
        before, after = (to_layout(digits[start::2], len(shape), self.units) for start in (0, 1))
        try:
            return plan_steps(before, after, shape)
        except RedistributeError:
            return None

    def _step(self, step: Step) -> int:
        key = (step.kind, step.groups, step.rounds, step.messages)
        if key not in self._steps:
            self._steps[key] = len(self._samples)
            self._samples.append(step)
        return self._steps[key]

    def _of_class(self, of: TensorType, share: float) -> np.ndarray:
        """Seconds of each class for tensors of that many bytes."""
        key = of.nbytes, share
        known = self._seconds.get(key, np.empty(0))
        new = [self._priced(terms, of.nbytes, share) for terms in self._terms[len(known) :]]
        self._seconds[key] = np.concatenate([known, new])
        return self._seconds[key]

    def _priced(self, terms: Terms | None, nbytes: int, share: float) -> float:
        if terms is None:
            return math.inf
        steps = [(self._samples[step], part * nbytes, copied * nbytes) for step, part, copied in terms]
        if share < 1.0:
            return sum(self.prices.shared_step(*one, share) for one in steps)
        return sum(self.prices.sized_step(step, sent) for step, sent, _ in steps)


@dataclass(frozen=True)
class _Planned:
    """The best steps for a shape, that everything divides where it `is_even`; None where none exist."""

    shape: tuple[int, ...]
    steps: Steps | None
    terms: Terms | None
    is_even: bool = False

    def serves(self, shape: tuple[int, ...]) -> bool:
        """Whether these are the best steps for another shape, too: it allows them, and nothing that this one does not.

        The shape may have fewer dims, for dims that both layouts leave whole stand last.
        """
        if not self.least <= len(shape) <= len(self.shape):
            return False
        pairs = zip(shape, self.shape, self.needed, strict=False)
        return all(own % size == 0 == size % needed for size, own, needed in pairs)

    @cached_property
    def _ends(self) -> tuple[Layout, ...]:
        return tuple(end for step in self.steps or () for end in (step.before, step.after))

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """What all sizes have to be a multiple of."""
        of_ends = [end.parts for end in self._ends] or [(1,) * len(self.shape)]
        return tuple(math.lcm(*parts) for parts in zip(*of_ends, strict=True))

    @cached_property
    def least(self) -> int:
        """As many dims, at least, has a shape that allows them: no later one is split."""
        return max((i + 1 for end in self._ends for i, refs in enumerate(end.dims) if refs), default=0)


def _distinct(rows: np.ndarray) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """The rows without repetition, and which of them each is."""
    rows = np.ascontiguousarray(rows, np.int32)
    _, first, which = np.unique(rows.view((np.void, rows[0].nbytes)), return_index=True, return_inverse=True)
    return list(map(tuple, rows[first].tolist())), which.reshape(-1)


def _share(step: Step) -> float:
    """Of a tensor's elements, those that a step is priced by; for shapes that its layouts divide."""
    whole = tuple(math.lcm(old, new) for old, new in zip(step.before.parts, step.after.parts, strict=True))
    return step.nbytes_priced(whole, 1) / math.prod(whole)


def _renamed(pairs: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of layouts with their dims numbered as `redistribute.planner.canonical` does, and their sizes."""
    count, rank = len(pairs), len(sizes)
    rows = np.arange(count)
    name = np.zeros((count, SPLITS + rank), dtype=np.int64)
    name[:, CARRIED] = CARRIED
    following = np.full(count, SPLITS)
    named = np.empty_like(pairs)
    width = pairs.shape[1]
    for column in (2 * (width // 2 - 1 - i // 2) + i % 2 for i in range(width)):
        digit = pairs[:, column]
        new = (digit >= SPLITS) & (name[rows, digit] == 0)
        name[rows[new], digit[new]] = following[new]
        following[new] += 1
        named[:, column] = name[rows, digit]
    kept = np.empty((count, rank), dtype=np.int64)
    for dim in np.argsort(sizes, kind="stable"):
        new = name[:, SPLITS + dim] == 0
        name[new, SPLITS + dim] = following[new]
        following[new] += 1
        kept[rows, name[:, SPLITS + dim] - SPLITS] = sizes[dim]
    return named, kept
