"""How an operator is to be split when its operands and results disagree: one list of axes per factor.

The choice is Shardy's (explicit_reshards_util.cc): tensors are then moved to it before and after the operator. It looks
at sizes of tensors alone, not at what moving costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.core.rule import PASS, PERMUTATION, REDUCTION, REPLICATE, Rule
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, size_of
from autoshard.propagate.projection import TensorFactorShardings

# Of two factors that want the same axis with equal sizes of tensors, the one of the greater kind gets it.
_PRECEDENCE = {PASS: 3, REDUCTION: 2, PERMUTATION: 1, REPLICATE: 0}


def find_common_axes(rule: Rule, rows: Sequence[TensorFactorShardings], sizes: Sequence[int]) -> list[Refs]:
    """The axes that each factor of a completed rule is to be split by.

    Args:
        rows: what splits each factor in the operands, then in the results.
        sizes: number of elements of each of these tensors.
    """
    found = _agreed(rule, rows)
    if found is not None:
        return found
    large = [t for t, dims in enumerate((*rule.operands, *rule.results)) if dims]
    if len(large) == 2 and not _replicated(rule) and not any(len(dim) > 1 for t in large for dim in _dims(rule, t)):
        return _of_one(rule, rows, sizes, large)
    chosen = _Choice(rule, rows, sizes).run()
    _make_room(rule, chosen, large)
    return chosen


def _dims(rule: Rule, tensor: int) -> tuple[tuple[int, ...], ...]:
    return (*rule.operands, *rule.results)[tensor]


def _replicated(rule: Rule) -> list[int]:
    return [f for f, factor in enumerate(rule.factors) if factor.kind == REPLICATE]


def _agreed(rule: Rule, rows: Sequence[TensorFactorShardings]) -> list[Refs] | None:
    """What all tensors agree on, if no axis splits two factors, and no factor is split that must be whole."""
    found: list[Refs | None] = [None] * len(rule.factors)
    for row in rows:
        for f, axes in enumerate(row.axes):
            if axes is None:
                continue
            if found[f] is None:
                found[f] = axes
            if found[f] != axes or (axes and rule.factors[f].kind == REPLICATE):
                return None
    used = [axis for axes in found for axis in axes or ()]
    if any(a.overlaps(b) for i, a in enumerate(used) for b in used[:i]):
        return None
    return [axes or () for axes in found]


def _of_one(rule: Rule, rows: Sequence[TensorFactorShardings], sizes: Sequence[int], large: list[int]) -> list[Refs]:
    """Of two tensors one stays as it is: rather without split permuted factors, rather larger, rather split more."""

    def preference(t: int) -> tuple[bool, int, int]:
        split = [f for f, axes in enumerate(rows[t].axes) if axes]
        permuted = any(rule.factors[f].kind == PERMUTATION for f in split)
        return not permuted, sizes[t], math.prod(size_of(rows[t].axes[f] or ()) for f in split)

    first, second = large
    kept, other = (first, second) if preference(first) >= preference(second) else (second, first)
    taken = [axis for axes in rows[kept].axes for axis in axes or ()]
    return [
        mine if mine is not None else _clear(theirs or (), taken)
        for mine, theirs in zip(rows[kept].axes, rows[other].axes, strict=True)
    ]


def _clear(axes: Refs, taken: Sequence[AxisRef]) -> Refs:
    """The axes up to the first that overlaps with `taken`, and of that one the part before the overlap."""
    clear: list[AxisRef] = []
    for axis in axes:
        part: AxisRef | None = axis
        for other in taken:
            part = part and part.prefix_without_overlap(other)
        if part is not None:
            clear.append(part)
        if part != axis:
            break
    return tuple(clear)


@dataclass
class _Candidate:
    """A factor split by some axes, which at least one tensor has it split by, or by more.

    `elements` are those of all such tensors; `size` is how many parts it has, and right after the factor itself got
    axes how many it adds to these (Shardy forgets about them with the next choice of another factor's).
    """

    factor: int
    axes: Refs
    elements: int
    precedence: int
    size: int

    @property
    def weight(self) -> tuple:
        names = tuple((axis.name, axis.pre, axis.size) for axis in self.axes)
        return self.elements, self.precedence, self.size, self.factor, len(self.axes), names


class _Choice:
    """Give axes to factors one after the other, each time those that most elements already lie by."""

    def __init__(self, rule: Rule, rows: Sequence[TensorFactorShardings], sizes: Sequence[int]) -> None:
        self.rule = rule
        self.chosen: list[Refs] = [()] * len(rule.factors)
        self.candidates = _candidates(rule, rows, sizes)
        # A minor factor cannot be split before the one before it in a dim is split fully: that would be a stride.
        self.before: dict[int, set[int]] = {}
        for dims in (*rule.operands, *rule.results):
            for dim in dims:
                for major, minor in zip(dim, dim[1:], strict=False):
                    self.before.setdefault(minor, set()).add(major)

    def run(self) -> list[Refs]:
        while ready := [one for one in self.candidates if not self.before.get(one.factor)]:
            self.choose(max(ready, key=lambda one: one.weight))
        return self.chosen

    def choose(self, best: _Candidate) -> None:
        factor, axes = best.factor, best.axes
        self.chosen[factor] = axes
        if size_of(axes) == self.rule.factors[factor].size:
            for waiting in self.before.values():
                waiting.discard(factor)
        self.candidates = [one for one in self.candidates if self.stays(one, factor, axes)]

    def stays(self, one: _Candidate, factor: int, axes: Refs) -> bool:
        """Whether a candidate still has something to add; what now splits another factor is cut off."""
        if one.factor == factor:
            one.size = size_of(one.axes) // size_of(axes)
            return _extends(one.axes, axes)
        one.axes = _clear(one.axes, axes)
        one.size = size_of(one.axes)
        return one.axes != self.chosen[one.factor]


def _candidates(rule: Rule, rows: Sequence[TensorFactorShardings], sizes: Sequence[int]) -> list[_Candidate]:
    found: dict[tuple[int, Refs], _Candidate] = {}
    for row in rows:
        for f, axes in enumerate(row.axes):
            for count in range(1, len(axes or ()) + 1):
                part, precedence = (axes or ())[:count], _PRECEDENCE[rule.factors[f].kind]
                found.setdefault((f, part), _Candidate(f, part, 0, precedence, size_of(part)))
    for (f, part), one in found.items():
        splits = ((row.axes[f], elements) for row, elements in zip(rows, sizes, strict=True))
        one.elements = sum(elements for axes, elements in splits if axes and (axes == part or _extends(axes, part)))
    return list(found.values())


def _extends(axes: Refs, start: Refs) -> bool:
    """Whether `axes` begin with `start`, the last of which may be a major part of theirs, and go on."""
    if axes == start or len(axes) < len(start):
        return False
    if not start:
        return True
    last = len(start) - 1
    return axes[:last] == start[:last] and (axes[last] == start[last] or start[last].prefix_of(axes[last]))


def _make_room(rule: Rule, chosen: list[Refs], large: list[int]) -> None:
    """Factors that must be whole give their axes to those that pass through everywhere, as far as these divide."""
    batch = [
        f
        for f, factor in enumerate(rule.factors)
        if factor.kind == PASS and factor.size and _everywhere(rule, f, large)
    ]
    for f in _replicated(rule):
        axes, chosen[f] = chosen[f], ()
        if _everywhere(rule, f, large):
            for other in batch:
                axes = _take(rule.factors[other].size, chosen, other, axes)


def _take(size: int, chosen: list[Refs], factor: int, axes: Refs) -> Refs:
    """Let a factor take the first of the axes, while they divide what is left of it; returns those that are left."""
    if size % size_of(chosen[factor]):
        return axes
    room = size // size_of(chosen[factor])
    taken = list(chosen[factor])
    while axes and room % axes[0].size == 0:
        room //= axes[0].size
        if taken and taken[-1].can_merge(axes[0]):
            taken[-1] = taken[-1].merge(axes[0])
        else:
            taken.append(axes[0])
        axes = axes[1:]
    chosen[factor] = tuple(taken)
    return axes


def _everywhere(rule: Rule, factor: int, large: list[int]) -> bool:
    """Whether a factor is in all tensors that are no scalars."""
    return all(any(factor in dim for dim in _dims(rule, t)) for t in large)
