"""Strategy: how one operator uses the mesh. The axes that split each factor of its rule; all else is a view.

MindSpore's tuple of tuples ((2, 1), (1, 4)), the device matrix, and the layouts of all operands and results
follow from the rule. `place.parse_strategy` reads what a user gave to `shard()`; `enumerate` lists what is possible.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from autoshard.core.rule import Dim, Rule
from autoshard.layout.layout import Layout, Refs, free_refs
from autoshard.layout.mesh import Mesh, merge_refs, size_of
from autoshard.util.moved import former

Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Strategy:
    """The axes that split each factor of `rule`, in factor order, and the partial axes that pass through.

    `carried` are axes along which the operands listed in `carriers` come in as terms of a sum and leave as
    terms of a sum: legal for operands in which the operator is linear.
    """

    rule: Rule
    mesh: Mesh
    axes: tuple[Refs, ...]
    carried: Refs = ()
    carriers: tuple[int, ...] = field(default=())

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.rule, self.axes, self.carried, self.carriers))

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash, which names of axes make another one in another process."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def _layout(self, dims: tuple[Dim, ...], partial: Refs = (), reduction: str = "sum") -> Layout:
        leaders, axes, split = self.rule.leaders, self.axes, []
        for dim in dims:
            refs = axes[leaders[dim[0]]] if dim else ()
            for i in dim[1:]:
                refs += axes[leaders[i]]
            split.append(refs)
        return Layout(self.mesh, split, partial, reduction)

    @cached_property
    def operand_layouts(self) -> tuple[Layout, ...]:
        """What each operand must have while the operator runs."""
        return tuple(
            self._layout(dims, self.carried if i in self.carriers else ()) for i, dims in enumerate(self.rule.operands)
        )

    @cached_property
    def reduced(self) -> Refs:
        """Axes that split factors missing from the results: the results are partial along them."""
        return tuple(ref for i in self.rule.summed for ref in self.axes[i])

    @cached_property
    def result_layouts(self) -> tuple[Layout, ...]:
        """What the operator leaves behind, partial results included."""
        partial = self.reduced + self.carried
        return tuple(self._layout(dims, partial, self.rule.reduction) for dims in self.rule.results)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each factor is split."""
        return tuple(size_of(refs) for refs in self.axes)

    @cached_property
    def work_split(self) -> int:
        """By how much each rank's share of the work is smaller than the whole."""
        return math.prod(self.parts)

    @cached_property
    def work_ratio(self) -> float:
        """The same for the rank with most work, which is more where parts do not divide a factor."""
        pairs = zip(self.rule.factors, self.parts, strict=True)
        return math.prod(factor.size / -(-factor.size // parts) for factor, parts in pairs if factor.size)

    @cached_property
    def exchanges(self) -> bool:
        """Whether a factor is split whose blocks need elements of other ranks."""
        return any(refs and factor.exchange for refs, factor in zip(self.axes, self.rule.factors, strict=True))

    @cached_property
    def in_strategy(self) -> Parts:
        """MindSpore's strategy: per operand, per dim, the number of parts."""
        return tuple(layout.parts for layout in self.operand_layouts)

    @cached_property
    def out_strategy(self) -> Parts:
        return tuple(layout.parts for layout in self.result_layouts)

    @property
    def device_matrix(self) -> tuple[int, ...]:
        """Parts of the factors in order, and the repeated calculation as the last axis, as in MindSpore."""
        repeats = self.mesh.devices // self.work_split
        return (*self.parts, repeats) if repeats > 1 else self.parts

    @cached_property
    def used(self) -> Refs:
        return tuple(ref for refs in self.axes for ref in refs) + self.carried

    def free(self) -> Refs:
        return free_refs(self.mesh, self.used)

    def __str__(self) -> str:
        text = show_parts(self.in_strategy)
        carried = ".".join(map(self.mesh.show_ref, self.carried))
        return f"{text} carrying +{carried}" if carried else text

    @property
    def label(self) -> str:
        """What tells it from other strategies: its operands' parts; of an operator without any, what it leaves."""
        if self.operand_layouts:
            return str(self)
        return "; ".join(f"[{layout}]" for layout in self.result_layouts)


def show_parts(parts: Parts) -> str:
    """MindSpore's way to print a strategy: ((2, 4), (4)) - a single entry without a trailing comma."""
    return "(" + ", ".join("(" + ", ".join(map(str, one)) + ")" for one in parts) + ")"


def is_legal(rule: Rule, parts: Sequence[int], uneven: Container[int] = ()) -> bool:
    """Whether ranks can run the operator with these parts per factor.

    Only splittable factors are split, evenly; inside one dim a minor factor only when all major ones are
    split fully (otherwise a rank's elements would not be one block of the dim).

    Args:
        uneven: factors that may be split into parts which do not divide them, but no more parts than elements: blocks
            are padded then. Minor factors may not.
    """
    limits, shared = _limits(rule)
    for i, count in enumerate(parts):
        if count == 1:
            continue
        most, even = limits[i]
        if count > most or even % count and i not in uneven:
            return False
    return all([_is_block(rule, dim, parts) for dim in shared])


@lru_cache(maxsize=4096)
def _limits(rule: Rule) -> tuple[tuple[tuple[int, int], ...], tuple[Dim, ...]]:
    """Per factor into how many parts it can be split at most, and which number they divide; and the dims of several
    factors."""
    limits = tuple((factor.size if factor.splittable else 1, factor.even) for factor in rule.factors)
    dims = (dim for dims in (*rule.operands, *rule.results) for dim in dims if len(dim) > 1)
    return limits, tuple(dict.fromkeys(dims))


def _is_block(rule: Rule, dim: Dim, parts: Sequence[int]) -> bool:
    full, leads = True, True
    for i in dim:
        size = rule.factors[i].size
        if parts[i] > 1 and (not full or not leads and size % parts[i]):
            return False
        full = full and parts[i] == size
        leads = leads and size == 1
    return True


def legal_rows(rule: Rule, parts: np.ndarray) -> np.ndarray:
    """[rows], `is_legal` of each row of parts [rows, factors].

    >>> from autoshard.core.rule import bind
    >>> rule = bind("m k, k n -> m n", [(4, 6), (6, 8)])
    >>> legal_rows(rule, np.array([[2, 3, 1], [3, 1, 1], [1, 1, 8]])).tolist()
    [True, False, True]
    """
    good = evenly_split(rule, parts)
    for dim in _limits(rule)[1]:
        full, leads = np.ones(len(parts), dtype=bool), True
        for i in dim:
            size, count = rule.factors[i].size, parts[:, i]
            good &= (count == 1) | full & (leads | (size % count == 0))
            full &= count == size
            leads = leads and size == 1
    return good


def evenly_split(rule: Rule, parts: np.ndarray) -> np.ndarray:
    """[rows], whether each row of parts splits only splittable factors, and these evenly; one that does not does so no
    more with any factor in more parts."""
    most, even = np.array(_limits(rule)[0], dtype=np.int64).reshape(-1, 2).T
    return ((parts == 1) | (parts <= most) & (even % parts == 0)).all(axis=1)


def is_runnable(rule: Rule, parts: Sequence[int]) -> bool:
    """The same where every factor may be split unevenly: what a user asks for."""
    return is_legal(rule, parts, range(len(parts)))


def replicated_strategy(rule: Rule, mesh: Mesh) -> Strategy:
    """Every rank runs the whole operator."""
    return Strategy(rule, mesh, ((),) * len(rule.factors))


def project(rule: Rule, dims: tuple[Dim, ...], layout: Layout) -> tuple[Refs, ...]:
    """Which axes a tensor's layout puts on each factor; what cannot be split that way is left out.

    The inverse of a strategy's layouts where the layout came from one (Shardy's projection). A factor is split unevenly
    just where the layout does not divide the dim.
    """
    axes: list[Refs] = [()] * len(rule.factors)
    for dim, refs in zip(dims, layout.dims, strict=True):
        uneven = _uneven_lead(rule, dim, size_of(refs)) if refs else None
        if uneven is not None:
            axes[uneven] = refs
            continue
        rest = list(refs)
        for i in dim:
            factor = rule.factors[rule.leaders[i]]
            room = factor.even if factor.splittable else 1
            taken = []
            while rest and room > 1:
                common = math.gcd(room, rest[0].size)
                if common == 1:
                    break
                if common < rest[0].size:
                    rest[0:1] = rest[0].split(common)
                taken.append(rest.pop(0))
                room //= common
            axes[rule.leaders[i]] = merge_refs(taken)
            if room > 1 or not factor.splittable and factor.size > 1:
                break
    return tuple(axes)


def _uneven_lead(rule: Rule, dim: Dim, parts: int) -> int | None:
    """The major factor of a dim that these parts do not divide, if it can be split into so many; else None."""
    if math.prod(rule.factors[i].size for i in dim) % parts == 0:
        return None
    lead = next((i for i in dim if rule.factors[i].size > 1), None)
    if lead is None or rule.factors[lead].exchange or not rule.factors[lead].splittable:
        return None
    return lead if parts <= rule.factors[lead].size else None


def __getattr__(name: str) -> Any:
    return former(__name__, name)
