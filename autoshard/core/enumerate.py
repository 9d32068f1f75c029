"""All strategies of an operator's rule on a mesh, or the part of them that a search can look at.

>>> from autoshard.core.rule import bind
>>> rule = bind("m k, k n -> m n", [(4, 6), (6, 8)])
>>> [strategy.in_strategy for strategy in enumerate_strategies(rule, Mesh(tp=2))]
[((2, 1), (1, 1)), ((1, 2), (2, 1)), ((1, 1), (1, 2)), ((1, 1), (1, 1))]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from autoshard.core.rule import Rule
from autoshard.core.strategy import Strategy, evenly_split, legal_rows
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of
from autoshard.util.memo import remembered

_MOST_WAYS, _FEW_AXES, _MOST_WHOLE_WAYS = 10_000, 4, 1 << 10
"""Combinations that are looked at one by one at most."""


Laid = Mapping[int, Refs]
"""What some mesh axes split: per factor the axes, for those that they split."""


@dataclass(frozen=True, eq=False)
class Listing:
    """Strategies of a rule, one a row; each is made when it is asked for.

    Attributes:
        choices: per mesh axis, or group of axes that are used as one, all that it may split.
        rows: [strategies, axes], which of its choices each axis takes.
        parts: [strategies, factors], into how many parts each factor is split.
    """

    rule: Rule
    mesh: Mesh
    choices: tuple[tuple[Laid, ...], ...]
    rows: np.ndarray
    parts: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def axes(self, row: int) -> tuple[Refs, ...]:
        """The axes that split each factor."""
        laid: list[Refs] = [()] * len(self.rule.factors)
        for choices, which in zip(self.choices, self.rows[row].tolist(), strict=True):
            for i, refs in choices[which].items():
                laid[i] += refs
        return tuple(map(merge_refs, laid))

    def strategy(self, row: int) -> Strategy:
        return Strategy(self.rule, self.mesh, self.axes(row))

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        return tuple(map(self.strategy, range(len(self))))

    def ways(self, factors: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Rows that split these factors in all ways that there are, and [strategies] like which of them each does."""
        code = np.zeros(len(self), dtype=np.int64)
        for column, choices in enumerate(self.choices):
            known: dict[tuple[Refs, ...], int] = {}
            laid = [tuple([choice.get(i, ()) for i in factors]) for choice in choices]
            kinds = np.array([known.setdefault(one, len(known)) for one in laid], dtype=np.int64)
            code = code * len(known) + kinds[self.rows[:, column]]
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return first.tolist(), which.reshape(-1)


@remembered()
def enumerate_strategies(rule: Rule, mesh: Mesh) -> tuple[Strategy, ...]:
    """All strategies in a fixed order: for every mesh axis a device matrix over the factors, of any divisors.

    On a flat mesh these are MindSpore's (a.2): parts per factor whose product divides the device count,
    placed in factor order, the rest repeating the calculation. On named axes each axis has such a matrix of
    its own and the candidates are all combinations. Axes are major to minor in mesh order within a factor.
    """
    return _combined(rule, mesh, _choices(rule, mesh)).strategies


def some_strategies(rule: Rule, mesh: Mesh, whole: frozenset[str] = frozenset()) -> tuple[Strategy, ...]:
    """The strategies of `listing`."""
    return listing(rule, mesh, whole).strategies


@remembered()
def listing(rule: Rule, mesh: Mesh, whole: frozenset[str] = frozenset()) -> Listing:
    """All strategies where few can be combined (up to 10,000 ways on up to four axes); on larger meshes a part of them.

    Then an axis splits one factor as a whole, or none; where even these are many (over 1,024 ways), the neighbouring
    axes of which both are smallest are used as one, and so on.

    Args:
        whole: axes that split one factor as a whole, or none, on any mesh.
    """
    choices = _choices(rule, mesh, whole)
    if math.prod(map(len, choices)) > (_MOST_WAYS if len(choices) <= _FEW_AXES else _MOST_WHOLE_WAYS):
        groups = [[mesh.axis(name)] for name, size in mesh.axes if size > 1]
        choices = _whole_choices(rule, groups)
        while math.prod(map(len, choices)) > _MOST_WHOLE_WAYS and len(groups) > 1:
            at = min(range(len(groups) - 1), key=lambda i: size_of((*groups[i], *groups[i + 1])))
            groups[at : at + 2] = [groups[at] + groups[at + 1]]
            choices = _whole_choices(rule, groups)
    return _combined(rule, mesh, choices)


def _choices(rule: Rule, mesh: Mesh, whole: frozenset[str] = frozenset()) -> list[tuple[Laid, ...]]:
    """Per mesh axis all ways to lay the factors over it, or over it as a whole."""
    free = [i for i, factor in enumerate(rule.factors) if factor.splittable]
    return [
        _group_choices(rule, free, (mesh.axis(name),)) if name in whole
        else tuple(_axis_choices(mesh.axis(name), rule, free))
        for name, size in mesh.axes if size > 1
    ]  # fmt: skip


def _whole_choices(rule: Rule, groups: Sequence[Sequence[AxisRef]]) -> list[tuple[Laid, ...]]:
    """Per group of axes: each factor that it can split all together, and none."""
    free = [i for i, factor in enumerate(rule.factors) if factor.splittable]
    return [_group_choices(rule, free, tuple(group)) for group in groups]


def _group_choices(rule: Rule, free: Sequence[int], group: Refs) -> tuple[Laid, ...]:
    size = size_of(group)
    return (*({i: group} for i in free if rule.factors[i].even % size == 0), {})


def _combined(rule: Rule, mesh: Mesh, choices: Sequence[Sequence[Laid]]) -> Listing:
    """All legal combinations of a choice for each axis, in the order of the choices."""
    factors = range(len(rule.factors))
    rows, parts = np.zeros((1, 0), dtype=np.int64), np.ones((1, len(factors)), dtype=np.int64)
    for axis in choices:
        sizes = np.array([[size_of(laid.get(i, ())) for i in factors] for laid in axis], dtype=np.int64)
        before, now = np.repeat(np.arange(len(rows)), len(axis)), np.tile(np.arange(len(axis)), len(rows))
        parts = parts[before] * sizes[now]
        kept = evenly_split(rule, parts)
        rows, parts = np.column_stack([rows[before], now])[kept], parts[kept]
    kept = legal_rows(rule, parts)
    return Listing(rule, mesh, tuple(map(tuple, choices)), rows[kept], parts[kept])


def _axis_choices(whole_axis: AxisRef, rule: Rule, free: list[int]) -> Iterator[dict[int, Refs]]:
    """Ways to lay the factors over one axis, in factor order, larger leading splits first, rest unused."""

    def lay(position: int, rest: tuple, chosen: dict[int, Refs]) -> Iterator[dict[int, Refs]]:
        if position == len(free) or rest[0] is None:
            yield chosen
            return
        axis = rest[0]
        extent = rule.factors[free[position]].even
        for parts in divisors(axis.size):
            if extent % parts:
                continue
            if parts == 1:
                yield from lay(position + 1, rest, chosen)
                continue
            major, minor = axis.split(parts)
            yield from lay(position + 1, (minor if minor.size > 1 else None,), {**chosen, free[position]: (major,)})

    return lay(0, (whole_axis,), {})


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors, largest first.

    >>> divisors(12)
    (12, 6, 4, 3, 2, 1)
    """
    found, left, prime = [1] if number > 0 else [], number, 2
    while left > 1:
        # What has no divisor up to its root is prime.
        prime = prime if prime * prime <= left else left
        powers = [1]
        while left % prime == 0:
            left //= prime
            powers.append(powers[-1] * prime)
        found = [one * power for one in found for power in powers]
        prime += 1
    return tuple(sorted(found, reverse=True))
