"""Strategies that somebody gives, as parts per dim (MindSpore's tuples) or as layouts, placed on the axes of a mesh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.rule import Dim, Rule
from autoshard.core.strategy import Strategy, is_legal, is_runnable, project, show_parts
from autoshard.layout.layout import Layout, Refs, free_refs
from autoshard.layout.mesh import AxisRef, Mesh, size_of
from autoshard.layout.tensor_map import matrix_axes, onto
from autoshard.util.errors import LayoutError, StrategyError


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

    def fill(position: int, left: tuple[Refs, ...]) -> tuple[Refs, ...] | None:
        if position == len(parts):
            return ()
        pool = left[0]
        for count in range(len(pool) + 1):
            for chosen in itertools.combinations(pool, count):
                if size_of(chosen) != parts[position]:
                    continue
                tail = fill(position + 1, (tuple(ref for ref in pool if ref not in chosen),))
                if tail is not None:
                    return (chosen, *tail)
        return None

    return fill(0, (mesh.all_axes,))


def place_with(strategy: Strategy, operand: int, layout: Layout) -> Strategy | None:
    """The same parts with an operand in another layout of as many parts per dim; None where they cannot be placed so.

    Factors that it has not stay on their axes where these are free still, else they go to the first axis that is.
    """
    rule, mesh, parts = strategy.rule, strategy.mesh, strategy.parts
    axes = list(project(rule, rule.operands[operand], layout))
    away = []
    for i, refs in enumerate(strategy.axes):
        if size_of(axes[i]) == parts[i]:
            continue
        if axes[i] or any(one.overlaps(other) for one in refs for other in layout.used):
            away.append(i)
        else:
            axes[i] = refs
    for i in away:
        fits = [ref for ref in free_refs(mesh, itertools.chain(*axes)) if ref.size % parts[i] == 0]
        if axes[i] or not fits:
            return None
        axes[i] = (AxisRef(fits[0].name, fits[0].pre, parts[i]),)
    placed = Strategy(rule, mesh, tuple(axes))
    return placed if placed.operand_layouts[operand] is layout and is_runnable(rule, placed.parts) else None


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
        of = ", ".join(str(tuple(shape)) for shape in shapes)
        raise StrategyError(f"{shown}: it has {len(given)} tuples, but the operator has {len(shapes)} operands, {of}")
    for i, (one, shape) in enumerate(zip(given, shapes, strict=True)):
        count = one.rank if isinstance(one, Layout) else len(one)
        if count != len(shape):
            raise StrategyError(
                f"{shown}: tuple {i} has {count} entries, but operand {i} has {len(shape)} dims {tuple(shape)}"
            )
    if any(isinstance(one, Layout) for one in given):
        return _from_layouts(rule, given, mesh, shown, out or ())
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
            count = _checked_count(count, size, rule.operands[i][dim], f"{shown}: {where}", mesh)
            for factor, share in _share(rule, rule.operands[i][dim], count, where, shown):
                known = parts.setdefault(factor, (share, where))
                if known[0] != share:
                    raise StrategyError(
                        f"{shown}: {where} has {share} parts, but {known[1]} has {known[0]}; "
                        f"both are the factor {rule.factors[factor].name} of {rule}"
                    )
    for factor, share in _made_here(rule, out, shown, mesh):
        parts.setdefault(factor, (share, "a result"))
    counts = [parts.get(i, (1, ""))[0] for i in range(len(rule.factors))]
    _check_devices(math.prod(counts), mesh, shown)
    if not is_legal(rule, counts):
        raise StrategyError(f"{shown}: the operator cannot be split this way under its rule {rule}")
    try:
        return place_parts(rule, counts, mesh)
    except LayoutError as error:
        raise StrategyError(f"{shown}: {error}") from None


def _made_here(rule: Rule, out: Sequence, shown: str, mesh: Mesh) -> Iterator[tuple[int, int]]:
    """The parts of factors that results have and operands have not."""
    own = {i for dims in rule.operands for dim in dims for i in dim}
    for i, (counts, dims) in enumerate(zip(out, rule.results, strict=False)):
        shape = rule.result_shape(i)
        for at, dim in enumerate(dims if isinstance(counts, tuple) and len(counts) == len(dims) else ()):
            if not own.issuperset(dim):
                where = f"dim {at} of result {i}"
                count = _checked_count(counts[at], shape[at], dim, f"{shown}: {where}", mesh)
                yield from _share(rule, dim, count, where, shown)


def _checked_count(count: object, size: int, dim: Dim, where: str, mesh: Mesh) -> int:
    if not isinstance(count, int | np.integer) or count < 1:
        raise StrategyError(f"{where} has {count!r} parts; it needs a whole number of at least 1")
    if count > 1 and not dim:
        raise StrategyError(f"{where} is broadcast and cannot be split")
    if size % count:
        fitting = [n for n in range(1, mesh.devices + 1) if mesh.devices % n == 0 == size % n]
        raise StrategyError(
            f"{where} has size {size}, which {count} parts do not divide; {', '.join(map(str, fitting[-4:]))} "
            f"{'do' if fitting[1:] else 'does'}"
        )
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


def _from_layouts(rule: Rule, given: Sequence, mesh: Mesh, shown: str, out: Sequence) -> Strategy:
    if not all(isinstance(one, Layout) or not one for one in given):
        raise StrategyError(f"{shown}: give either tuples or Layouts for all operands")
    try:
        wanted = [onto(one, mesh) if isinstance(one, Layout) else Layout(mesh, []) for one in given]
        made = [(i, onto(one, mesh)) for i, one in enumerate(out) if isinstance(one, Layout)]
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
    for i, layout in made:
        for factor, refs in _of_made(rule, i, layout):
            axes[factor] = refs
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


def _of_made(rule: Rule, i: int, layout: Layout) -> Iterator[tuple[int, Refs]]:
    """The axes that the layout of result i puts on factors which no operand has."""
    dims = rule.results[i] if i < len(rule.results) else ()
    if len(dims) == layout.rank:
        own = {factor for of in rule.operands for dim in of for factor in dim}
        yield from ((factor, refs) for factor, refs in enumerate(project(rule, dims, layout)) if factor not in own)


def _show_refs(mesh: Mesh, refs: Refs) -> str:
    return ".".join(map(mesh.show_ref, refs))


def _check_disjoint(strategy: Strategy, shown: str) -> None:
    """An axis that splits two factors would leave blocks of the results that no rank makes."""
    for (i, refs), (j, others) in itertools.combinations(enumerate(strategy.axes), 2):
        for ref, other in itertools.product(refs, others):
            if ref.clashes(other):
                names = [strategy.rule.factors[k].name for k in (i, j)]
                raise StrategyError(
                    f"{shown}: axis {strategy.mesh.show_ref(ref)} splits factor {names[0]} and "
                    f"{strategy.mesh.show_ref(other)} factor {names[1]} of {strategy.rule}; it can split one"
                )
