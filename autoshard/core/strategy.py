"""Strategy: how one operator uses the mesh. The axes that split each factor of its rule; all else is a view.

MindSpore's tuple of tuples ((2, 1), (1, 4)), the device matrix, and the layouts of all operands and results
follow from the rule. `parse_strategy` reads what a user gave to `shard()`; `enumerate_strategies` lists what
is possible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from autoshard.core.rule import Dim, Rule
from autoshard.layout.layout import Layout, Refs, free_refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of
from autoshard.layout.tensor_map import matrix_axes, onto
from autoshard.util.errors import LayoutError, StrategyError
from autoshard.util.memo import remembered

Parts = tuple[tuple[int, ...], ...]
_MOST_WAYS = 10_000


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
    def told(self) -> str:
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


def is_runnable(rule: Rule, parts: Sequence[int]) -> bool:
    """The same where every factor may be split unevenly: what a user asks for."""
    return is_legal(rule, parts, range(len(parts)))


def whole(rule: Rule, mesh: Mesh) -> Strategy:
    """Every rank runs the whole operator."""
    return Strategy(rule, mesh, ((),) * len(rule.factors))


@remembered()
def enumerate_strategies(rule: Rule, mesh: Mesh) -> tuple[Strategy, ...]:
    """All strategies in a fixed order: for every mesh axis a device matrix over the factors, of any divisors.

    On a flat mesh these are MindSpore's (a.2): parts per factor whose product divides the device count,
    placed in factor order, the rest repeating the calculation. On named axes each axis has such a matrix of
    its own and the candidates are all combinations. Axes are major to minor in mesh order within a factor.
    """
    return _combined(rule, mesh, _choices(rule, mesh))


@remembered()
def some_strategies(rule: Rule, mesh: Mesh) -> tuple[Strategy, ...]:
    """All strategies where few can be combined (up to 10,000 ways); on larger meshes a part of them.

    Then an axis splits one factor as a whole, or none; where even these are too many, the neighbouring axes of which
    both are smallest are used as one, and so on.
    """
    choices = _choices(rule, mesh)
    if math.prod(map(len, choices)) > _MOST_WAYS:
        groups = [[mesh.axis(name)] for name, size in mesh.axes if size > 1]
        choices = _whole_choices(rule, groups)
        while math.prod(map(len, choices)) > _MOST_WAYS and len(groups) > 1:
            at = min(range(len(groups) - 1), key=lambda i: size_of((*groups[i], *groups[i + 1])))
            groups[at : at + 2] = [groups[at] + groups[at + 1]]
            choices = _whole_choices(rule, groups)
    return _combined(rule, mesh, choices)


Laid = Mapping[int, Refs]
"""What some mesh axes split: per factor the axes, for those that they split."""


def _choices(rule: Rule, mesh: Mesh) -> list[tuple[Laid, ...]]:
    """Per mesh axis all ways to lay the factors over it."""
    free = [i for i, factor in enumerate(rule.factors) if factor.splittable]
    return [tuple(_axis_choices(mesh, name, size, rule, free)) for name, size in mesh.axes if size > 1]


def _whole_choices(rule: Rule, groups: Sequence[Sequence[AxisRef]]) -> list[tuple[Laid, ...]]:
    """Per group of axes: each factor that it can split all together, and none."""
    free = [i for i, factor in enumerate(rule.factors) if factor.splittable]
    return [(*({i: tuple(group)} for i in free if rule.factors[i].even % size_of(group) == 0), {}) for group in groups]


def _combined(rule: Rule, mesh: Mesh, choices: Sequence[Sequence[Laid]]) -> tuple[Strategy, ...]:
    found, numbers = [], range(len(rule.factors))
    for combination in itertools.product(*choices):
        laid: dict[int, Refs] = {}
        for choice in combination:
            for i, refs in choice.items():
                laid[i] = laid[i] + refs if i in laid else refs
        axes = tuple([merge_refs(laid[i]) if i in laid else () for i in numbers])
        if is_legal(rule, list(map(size_of, axes))):
            found.append(Strategy(rule, mesh, axes))
    return tuple(found)


def _axis_choices(mesh: Mesh, name: str, size: int, rule: Rule, free: list[int]) -> Iterator[dict[int, Refs]]:
    """Ways to lay the factors over one axis, in factor order, larger leading splits first, rest unused."""
    whole_axis = mesh.axis(name)

    def lay(place: int, rest: tuple, chosen: dict[int, Refs]) -> Iterator[dict[int, Refs]]:
        if place == len(free) or rest[0] is None:
            yield chosen
            return
        axis = rest[0]
        extent = rule.factors[free[place]].even
        for parts in divisors(axis.size):
            if extent % parts:
                continue
            if parts == 1:
                yield from lay(place + 1, rest, chosen)
                continue
            major, minor = axis.split(parts)
            yield from lay(place + 1, (minor if minor.size > 1 else None,), {**chosen, free[place]: (major,)})

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


def place_parts(rule: Rule, parts: Sequence[int], mesh: Mesh) -> Strategy:
    """The strategy with these parts per factor.

    On whole mesh axes where their sizes allow it, in mesh order; else as a device matrix in factor order over
    the flattened mesh, repeated calculation last (MindSpore's placement); else on pieces of each axis.

    Raises:
        LayoutError: the mesh cannot express the parts.
    """
    axes = _whole_axes(tuple(parts), mesh)
    if axes is not None:
        return Strategy(rule, mesh, axes)
    try:
        return Strategy(rule, mesh, tuple(matrix_axes(mesh, parts)))
    except LayoutError:
        for strategy in enumerate_strategies(rule, mesh):
            if strategy.parts == tuple(parts):
                return strategy
        raise


@lru_cache(maxsize=1 << 12)
def _whole_axes(parts: tuple[int, ...], mesh: Mesh) -> tuple[Refs, ...] | None:
    """Whole mesh axes whose sizes multiply to the parts, first fit in factor order; None if none do."""

    def fill(place: int, left: tuple[Refs, ...]) -> tuple[Refs, ...] | None:
        if place == len(parts):
            return ()
        pool = left[0]
        for count in range(len(pool) + 1):
            for chosen in itertools.combinations(pool, count):
                if size_of(chosen) != parts[place]:
                    continue
                tail = fill(place + 1, (tuple(ref for ref in pool if ref not in chosen),))
                if tail is not None:
                    return (chosen, *tail)
        return None

    return fill(0, (mesh.all_axes,))


def parse_strategy(
    rule: Rule, given: Sequence, mesh: Mesh, shapes: Sequence[Sequence[int]], what: str, out: Sequence | None = None
) -> Strategy:
    """The strategy that a user's `shard(in_strategy)` means: a tuple of parts or a Layout per operand.

    Args:
        given: tuples of ints, or Layouts (on this mesh or on one of as many devices).
        shapes: shapes of the operands.
        what: the operator in an error's words, e.g. "dense1.matmul (MatMul) at train.py:31".
        out: the parts of the results; those of dims that no operand has (OneHot's depth) are taken from here.

    Raises:
        StrategyError: wrong arity or rank, sizes that parts do not divide (layouts may be uneven), splits that
            disagree, too many parts.
    """
    if not isinstance(given, Sequence) or not all(isinstance(one, Layout | tuple | list) for one in given):
        raise StrategyError(
            f"strategy {given!r} of {what}: it needs a tuple or a Layout for each of the {len(shapes)} "
            f"operands, e.g. {show_parts(tuple((1,) * len(shape) for shape in shapes))}"
        )
    shown = f"strategy {show_given(given)} of {what}"
    if len(given) != len(shapes):
        raise StrategyError(f"{shown}: it has {len(given)} tuples, but the operator has {len(shapes)} operands")
    for i, (one, shape) in enumerate(zip(given, shapes, strict=True)):
        count = one.rank if isinstance(one, Layout) else len(one)
        if count != len(shape):
            raise StrategyError(
                f"{shown}: tuple {i} has {count} entries, but operand {i} has {len(shape)} dims {tuple(shape)}"
            )
    if any(isinstance(one, Layout) for one in given):
        return _from_layouts(rule, given, mesh, shown)
    return _from_tuples(rule, given, mesh, shapes, shown, out or ())


def show_given(given: Sequence) -> str:
    """A strategy as its user wrote it: tuples as MindSpore prints them, layouts in brackets."""

    def show(one: Layout | Sequence[int]) -> str:
        return f"[{one}]" if isinstance(one, Layout) else f"({', '.join(map(str, one))})"

    return f"({', '.join(map(show, given))})"


def _from_tuples(rule: Rule, given: Sequence, mesh: Mesh, shapes: Sequence, shown: str, out: Sequence) -> Strategy:
    parts: dict[int, tuple[int, str]] = {}
    for i, (counts, shape) in enumerate(zip(given, shapes, strict=True)):
        for dim, (count, size) in enumerate(zip(counts, shape, strict=True)):
            where = f"dim {dim} of operand {i}"
            count = _checked_count(count, size, rule.operands[i][dim], f"{shown}: {where}")
            for factor, share in _share(rule, rule.operands[i][dim], count, where, shown):
                known = parts.setdefault(factor, (share, where))
                if known[0] != share:
                    raise StrategyError(
                        f"{shown}: {where} has {share} parts, but {known[1]} has {known[0]}; "
                        f"both are the factor {rule.factors[factor].name} of {rule}"
                    )
    for factor, share in _made_here(rule, out, shown):
        parts.setdefault(factor, (share, "a result"))
    counts = [parts.get(i, (1, ""))[0] for i in range(len(rule.factors))]
    _check_devices(math.prod(counts), mesh, shown)
    if not is_legal(rule, counts):
        raise StrategyError(f"{shown}: the operator cannot be split this way under its rule {rule}")
    try:
        return place_parts(rule, counts, mesh)
    except LayoutError as error:
        raise StrategyError(f"{shown}: {error}") from None


def _made_here(rule: Rule, out: Sequence, shown: str) -> Iterator[tuple[int, int]]:
    """The parts of factors that results have and operands have not."""
    own = {i for dims in rule.operands for dim in dims for i in dim}
    for i, (counts, dims) in enumerate(zip(out, rule.results, strict=False)):
        shape = rule.result_shape(i)
        for at, dim in enumerate(dims if isinstance(counts, tuple) and len(counts) == len(dims) else ()):
            if dim and own.isdisjoint(dim):
                where = f"dim {at} of result {i}"
                count = _checked_count(counts[at], shape[at], dim, f"{shown}: {where}")
                yield from _share(rule, dim, count, where, shown)


def _checked_count(count: object, size: int, dim: Dim, where: str) -> int:
    if not isinstance(count, int | np.integer) or count < 1:
        raise StrategyError(f"{where} has {count!r} parts; it needs a whole number of at least 1")
    if count > 1 and not dim:
        raise StrategyError(f"{where} is broadcast and cannot be split")
    if size % count:
        raise StrategyError(f"{where} has size {size}, which {count} parts do not divide")
    return int(count)


def _check_devices(total: int, mesh: Mesh, shown: str) -> None:
    if total > mesh.devices:
        raise StrategyError(f"{shown}: it makes {total} parts, but there are {mesh.devices} devices")
    if mesh.devices % total:
        raise StrategyError(f"{shown}: it makes {total} parts, which do not divide the {mesh.devices} devices")


def _share(rule: Rule, dim: Dim, count: int, where: str, shown: str) -> Iterator[tuple[int, int]]:
    """Divide the parts of one dim among its factors, major first."""
    left = count
    for i in dim:
        factor, leader = rule.factors[i], rule.leaders[i]
        share = math.gcd(left, factor.size)
        if share > 1 and not rule.factors[leader].splittable:
            raise StrategyError(f"{shown}: {where} (factor {factor.name}) must be whole on every rank: rule {rule}")
        if leader == i or share > 1:  # one that follows another need not be told
            yield leader, share
        left //= share
    if left > 1:
        raise StrategyError(f"{shown}: {where} cannot have {count} parts under the rule {rule}")


def _from_layouts(rule: Rule, given: Sequence, mesh: Mesh, shown: str) -> Strategy:
    if not all(isinstance(one, Layout) for one in given):
        raise StrategyError(f"{shown}: give either tuples or Layouts for all operands")
    try:
        wanted = [onto(one, mesh) for one in given]
    except LayoutError as error:
        raise StrategyError(f"{shown}: {error}") from None
    axes: list[Refs] = [()] * len(rule.factors)
    for i, layout in enumerate(wanted):
        if layout.partial:
            raise StrategyError(f"{shown}: layout [{layout}] of operand {i} is partial; give a final one")
        for factor, refs in enumerate(project(rule, rule.operands[i], layout)):
            if refs and axes[factor] and axes[factor] != refs:
                raise StrategyError(
                    f"{shown}: factor {rule.factors[factor].name} of {rule} is split by different axes: "
                    f"{_show_refs(mesh, axes[factor])} and, in operand {i}, {_show_refs(mesh, refs)}"
                )
            axes[factor] = axes[factor] or refs
    strategy = Strategy(rule, mesh, tuple(axes))
    _check_disjoint(strategy, shown)
    for i, (layout, needed) in enumerate(zip(wanted, strategy.operand_layouts, strict=True)):
        if layout is not needed:
            raise StrategyError(
                f"{shown}: operand {i} has layout [{layout}], but with the other operands' layouts "
                f"and the rule {rule} it needs [{needed}]"
            )
    if not is_runnable(rule, strategy.parts):
        raise StrategyError(f"{shown}: the operator cannot be split this way under its rule {rule}")
    return strategy


def _show_refs(mesh: Mesh, refs: Refs) -> str:
    return ".".join(map(mesh.show_ref, refs))


def _check_disjoint(strategy: Strategy, shown: str) -> None:
    """An axis that splits two factors would leave blocks of the results that no rank makes."""
    for (i, refs), (j, others) in itertools.combinations(enumerate(strategy.axes), 2):
        for ref, other in itertools.product(refs, others):
            if ref.overlaps(other) or not ref.can_coexist(other):
                names = [strategy.rule.factors[k].name for k in (i, j)]
                raise StrategyError(
                    f"{shown}: axis {strategy.mesh.show_ref(ref)} splits factor {names[0]} and "
                    f"{strategy.mesh.show_ref(other)} factor {names[1]} of {strategy.rule}; it can split one"
                )
