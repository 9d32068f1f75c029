"""Domains: all strategies of an operator that an exact search considers, as rows of small numbers.

The mesh is seen as `MeshUnits`, pieces that are used whole: its axes; the prime pieces of an axis that nothing in the
graph divides by; the prime pieces of a flat mesh, on which factors take pieces in their order as in a device matrix. A
row says for each unit what it does: nothing, splits a factor, or carries partial values through. Within a dim, units
lie in mesh order. Splits are even.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autoshard.core.rule import Dim, Rule
from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Graph, Node
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of

UNUSED, CARRIED, SPLITS = 0, 1, 2
"""What a unit does for an operator: UNUSED, CARRIED, or SPLITS + i for factor i. For a tensor: SPLITS + dim."""
Reach = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class MeshUnits:
    """The pieces of a mesh that strategies use whole.

    `ordered`: factors take units in factor order. `bundled` tells that axes were joined into larger units, so that not
    all strategies on whole axes are there.
    """

    mesh: Mesh
    pieces: tuple[Refs, ...]
    ordered: bool = False
    bundled: bool = False

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.array([size_of(refs) for refs in self.pieces], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def _whole(self) -> frozenset[AxisRef]:
        """The axes that are used whole."""
        return frozenset(refs[0] for refs in self.pieces if refs in [(axis,) for axis in self.mesh.all_axes])

    def make(self, used: Refs) -> bool:
        """Whether no part is among what is used of what is to be used whole."""
        return all([ref in self._whole for ref in used if ref.name in self.whole_names])

    @cached_property
    def whole_names(self) -> frozenset[str]:
        """The names of the axes that are used whole."""
        return frozenset(ref.name for ref in self._whole)

    def bundles(self, count: int) -> Iterable[MeshUnits]:
        """All ways to join neighbouring units into `count` ones."""
        return map(self.cut, itertools.combinations(range(1, len(self)), count - 1))

    def cut(self, cuts: Sequence[int]) -> MeshUnits:
        """Neighbouring units joined into larger ones, that end at these places."""
        ends = (0, *cuts, len(self))
        joined = (self.pieces[low:high] for low, high in itertools.pairwise(ends))
        pieces = tuple(merge_refs(ref for refs in group for ref in refs) for group in joined)
        return MeshUnits(self.mesh, pieces, self.ordered, True)


def mesh_units_of(mesh: Mesh, graph: Graph) -> MeshUnits:
    """The mesh's axes as units; one that divides no factor of the graph, or that of a flat mesh, in prime pieces."""
    axes = mesh.all_axes
    if mesh is Mesh.flat(mesh.devices):
        return MeshUnits(mesh, tuple((piece,) for axis in axes for piece in primes(axis)), ordered=True)
    sizes = {factor.size for node in graph.nodes for factor in node.rule.factors if factor.splittable}
    pieces: list[Refs] = []
    for axis in axes:
        fits = any(size % axis.size == 0 for size in sizes)
        pieces += [(axis,)] if fits else [(piece,) for piece in primes(axis)]
    return MeshUnits(mesh, tuple(pieces))


def primes(axis: AxisRef) -> list[AxisRef]:
    """An axis in pieces of prime sizes, major first."""
    pieces, rest = [], axis
    while rest.size > 1:
        prime = next(d for d in range(2, rest.size + 1) if rest.size % d == 0)
        piece, rest = rest.split(prime)
        pieces.append(piece)
    return pieces


@dataclass(frozen=True, eq=False)
class Domain:
    """Strategies of one operator, one a row.

    Attributes:
        slots: [strategies, units], what each unit does.
        passing: [strategies], which of `linear` carries; -1 for none.
        linear: the sets of operands that may carry terms together.
        fixed: strategies that a person or another part has settled, instead of rows.
    """

    rule: Rule
    units: MeshUnits
    slots: np.ndarray
    passing: np.ndarray
    linear: tuple[tuple[int, ...], ...]
    fixed: tuple[Strategy, ...] = ()
    _made: dict[int, Strategy] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.fixed) or len(self.slots)

    @cached_property
    def parts(self) -> np.ndarray:
        """[strategies, factors], into how many parts each factor is split."""
        return _parts(self.slots, len(self.rule.factors), self.units)

    @cached_property
    def work_split(self) -> np.ndarray:
        return self.parts.prod(axis=1)

    def operand_digits(self, operand: int) -> np.ndarray:
        """[strategies, units]: what each unit does for an operand."""
        digits = self._digits(self.rule.operands[operand], ())
        for which, members in enumerate(self.linear):
            if operand in members:
                digits[(self.passing == which)[:, None] & (self.slots == CARRIED)] = CARRIED
        return digits

    def result_digits(self, result: int) -> np.ndarray:
        """[strategies, units]: what each unit does for a result."""
        digits = self._digits(self.rule.results[result], self.rule.summed)
        digits[self.slots == CARRIED] = CARRIED
        return digits

    def _digits(self, dims: Sequence[Dim], terms: Iterable[int]) -> np.ndarray:
        table = np.zeros(SPLITS + len(self.rule.factors), dtype=np.int64)
        for factor in terms:
            table[SPLITS + factor] = CARRIED
        for place, dim in enumerate(dims):
            for factor in dim:
                table[SPLITS + factor] = SPLITS + place
        return table[self.slots]

    def strategy(self, row: int) -> Strategy:
        """One row as a Strategy."""
        if self.fixed:
            return self.fixed[row]
        if row not in self._made:
            slots, pieces = self.slots[row], self.units.pieces
            axes = tuple(
                merge_refs(ref for k in np.flatnonzero(slots == SPLITS + i) for ref in pieces[k])
                for i in range(len(self.rule.factors))
            )
            carried = tuple(ref for k in np.flatnonzero(slots == CARRIED) for ref in pieces[k])
            carriers = self.linear[self.passing[row]] if carried else ()
            self._made[row] = Strategy(self.rule, self.units.mesh, axes, merge_refs(carried), carriers)
        return self._made[row]


class DomainBuilder:
    """Makes domains; equal operators share one."""

    def __init__(self, units: MeshUnits) -> None:
        self.units = units
        self._known: dict[tuple, Domain] = {}

    def menu(self, node: Node, reach: Reach) -> Domain:
        """The domain of a node.

        Args:
            reach: per operand, the units along which it can come as terms of a sum. Where none can, nothing is carried:
                a finished operand serves at least as well.
        """
        key = (node.key, reach)
        if key not in self._known:
            self._known[key] = _menu(node, self.units, reach)
        return self._known[key]

    def fixed(self, node: Node, strategy: Strategy) -> Domain:
        """The domain with a single strategy."""
        key = (node.key, strategy)
        if key not in self._known:
            none = np.zeros((0, len(self.units)), dtype=np.int64)
            self._known[key] = Domain(node.rule, self.units, none, np.zeros(0, np.int64), (), (strategy,))
        return self._known[key]


def partials_reached(menu: Domain, result: int) -> frozenset[int]:
    """The units along which a result can be left as terms of a sum."""
    if menu.rule.reduction != "sum" or menu.fixed:
        return frozenset()
    return frozenset(np.flatnonzero((menu.result_digits(result) == CARRIED).any(axis=0)).tolist())


def _menu(node: Node, units: MeshUnits, reach: Reach) -> Domain:
    rule = node.rule
    linear = node.op.linear_in(len(rule.operands)) if rule.reduction == "sum" else ()
    plain = [_fitting(rule, int(size)) for size in units.sizes]
    slots = [_product(plain, rule, units)]
    passing = [np.full(len(slots[0]), -1)]
    for which, members in enumerate(linear):
        open_atoms = frozenset().union(*(reach[i] for i in members)) if members else frozenset()
        if open_atoms:
            wider = [[*fits, CARRIED] if k in open_atoms else fits for k, fits in enumerate(plain)]
            rows = _product(wider, rule, units)
            rows = rows[(rows == CARRIED).any(axis=1)]
            slots.append(rows)
            passing.append(np.full(len(rows), which))
    return Domain(rule, units, np.concatenate(slots), np.concatenate(passing), linear)


def _fitting(rule: Rule, size: int) -> list[int]:
    """What a unit of that size can do: nothing, or split a factor evenly."""
    return [UNUSED] + [SPLITS + i for i, one in enumerate(rule.factors) if one.splittable and one.size % size == 0]


def _product(choices: list[list[int]], rule: Rule, units: MeshUnits) -> np.ndarray:
    """All legal rows with each unit's slot out of its choices."""
    rows = np.zeros((1, 0), dtype=np.int64)
    for fits in choices:
        rows = np.concatenate([np.repeat(rows, len(fits), axis=0), np.tile(fits, len(rows))[:, None]], axis=1)
        rows = rows[_legal(rows, rule, units)]
    return rows


def _legal(rows: np.ndarray, rule: Rule, units: MeshUnits) -> np.ndarray:
    """Which rows split every factor evenly, and (once all units are laid) every dim into blocks in mesh order."""
    parts, sizes = _parts(rows, len(rule.factors), units), np.array([factor.size for factor in rule.factors])
    good = (sizes % parts == 0).all(axis=1) if len(sizes) else np.ones(len(rows), dtype=bool)
    if units.ordered:
        highest = np.maximum.accumulate(rows, axis=1)
        good &= ((rows < SPLITS) | (rows == highest)).all(axis=1)
    if rows.shape[1] < len(units):
        return good
    for dim in {dim for dims in (*rule.operands, *rule.results) for dim in dims if len(dim) > 1}:
        for major, minor in itertools.combinations(dim, 2):
            good &= (parts[:, minor] == 1) | (parts[:, major] == sizes[major])
            good &= _last(rows == SPLITS + major) <= _first(rows == SPLITS + minor)
    return good


def _parts(rows: np.ndarray, factors: int, units: MeshUnits) -> np.ndarray:
    sizes = units.sizes[: rows.shape[1]]
    split = [np.where(rows == SPLITS + i, sizes, 1).prod(axis=1) for i in range(factors)]
    return np.stack(split, axis=1) if split else np.ones((len(rows), 0), dtype=np.int64)


def _last(used: np.ndarray) -> np.ndarray:
    places = np.arange(used.shape[1])
    return np.where(used, places, -1).max(axis=1, initial=-1)


def _first(used: np.ndarray) -> np.ndarray:
    width = used.shape[1]
    return np.where(used, np.arange(width), width).min(axis=1, initial=width)


# -- layouts as numbers


def encode(digits: np.ndarray, rank: int) -> np.ndarray:
    """One number per row of digits; `decode` is its inverse."""
    weights = (rank + SPLITS) ** np.arange(digits.shape[1], dtype=np.int64)
    return digits @ weights


def decode(codes: np.ndarray, rank: int, units: int) -> np.ndarray:
    weights = (rank + SPLITS) ** np.arange(units, dtype=np.int64)
    return codes[:, None] // weights % (rank + SPLITS)


def to_layout(digits: Sequence[int], rank: int, units: MeshUnits, reduction: str = "sum") -> Layout:
    """The layout in which each unit does what its digit says."""
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    terms: list[AxisRef] = []
    for digit, refs in zip(digits, units.pieces, strict=True):
        if digit != UNUSED:
            (terms if digit == CARRIED else dims[digit - SPLITS]).extend(refs)
    return Layout(units.mesh, dims, terms, reduction)


def to_digits(layout: Layout, units: MeshUnits) -> tuple[int, ...] | None:
    """The inverse of `to_layout`; None if units do not say it."""
    places = [(SPLITS + dim, refs) for dim, refs in enumerate(layout.dims)] + [(CARRIED, layout.partial)]
    digits = [
        next((digit for digit, refs in places if all(any(ref.contains(one) for ref in refs) for one in piece)), UNUSED)
        for piece in units.pieces
    ]
    same = to_layout(digits, layout.rank, units, layout.reduction) is layout
    return tuple(digits) if same else None


def domain_size_bound(graph: Graph, units: MeshUnits) -> int:
    """At most how many strategies an operator of the graph has, before any is made."""
    counts = {}
    for node in graph.nodes:
        if node.key not in counts:
            linear = node.op.linear_in(len(node.operands))
            choices = [len(_fitting(node.rule, int(size))) + bool(linear) for size in units.sizes]
            counts[node.key] = math.prod(choices) * max(1, len(linear))
    return max(counts.values(), default=1)
