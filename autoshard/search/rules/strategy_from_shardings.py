"""From the shardings of an operator's tensors to the strategy that follows them as far as ranks can run it.

Where tensors disagree, Shardy's choice decides (`find_common_axes`). A Strategy cuts without overlap, minor factors of
a dim evenly, and leaves whole what the operator needs whole; each split that is lost to that is told in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from autoshard.core.enumerate import divisors
from autoshard.core.rule import PASS, PERMUTATION, REDUCTION, REPLICATE, Factor, Rule
from autoshard.core.rule_sdy import completed
from autoshard.core.strategy import Strategy, is_legal, is_runnable
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of
from autoshard.layout.sharding import Sharding
from autoshard.propagate.passes.common_axes import find_common_axes
from autoshard.propagate.projection import TensorFactors, TensorFactorShardings, factor_map, to_factors
from autoshard.redistribute.planner import evened, plan_steps

# Axes that a factor cannot take move to another factor of the operator that can: all-to-alls in place of gathers.
#
# Where an operator needs all of a dim on each rank (a sort, a reduction of several tensors), its other dims can be
# split instead. A rank then receives (n-1)/n of a block for each tensor, where a gather brings n-1 blocks and n-fold
# work (Shardy does the same for factors that need replication: explicit_reshards_util.cc, batching factors).


Axes = tuple[Refs, ...]


def moved_axes(rule: Rule, axes: Axes, wanted: Sequence[Refs]) -> tuple[Axes, tuple[tuple[int, int, Refs], ...]]:
    """The axes of each factor, with those that were wanted of a factor which is left whole given to others.

    Args:
        axes: per factor, the axes that split it so far; they and what is added fit together.
        wanted: per factor, the axes that were asked for.

    Returns:
        The new axes, and what has moved: (from factor, to factor, axes), in order.
    """
    found, moves = list(axes), []
    for i, refs in enumerate(wanted):
        if found[i] or not refs:
            continue
        for j in _stand_ins(rule, i):
            taken = _taken(rule, found, j, refs)
            if taken:
                found[j] = merge_refs((*found[j], *taken))
                moves.append((i, j, taken))
                break
    return tuple(found), tuple(moves)


def _stand_ins(rule: Rule, lost: int) -> Iterator[int]:
    """The factors that split every tensor which the lost one is in, the largest first."""
    tensors = [{i for dim in dims for i in dim} for dims in (*rule.operands, *rule.results)]
    able = [
        j
        for j, factor in enumerate(rule.factors)
        if factor.kind == PASS and factor.splittable and not factor.exchange
        if j != lost and all(j in one for one in tensors if lost in one)
    ]
    return iter(sorted(able, key=lambda j: -rule.factors[j].size))


def _taken(rule: Rule, axes: Sequence[Refs], factor: int, refs: Refs) -> Refs:
    """The major part of `refs` that splits the factor further, evenly and apart from all axes in use."""
    used = [ref for one in axes for ref in one]
    taken: list[AxisRef] = []
    for ref in refs:
        room = rule.factors[factor].size // (size_of(axes[factor]) * size_of(taken))
        share = math.gcd(room, ref.size)
        piece = ref.split(share)[0] if share < ref.size else ref
        if share == 1 or any(piece.clashes(other) for other in used):
            break
        parts = [size_of(one) for one in axes]
        parts[factor] *= size_of(taken) * share
        if not is_legal(rule, parts, {i for i in range(len(parts)) if i != factor}):
            break
        taken.append(piece)
        if share < ref.size:
            break
    return tuple(taken)


ANY = "any"
"""Stands for the sharding of a tensor that can be had in any layout without communication, such as a constant."""
TensorSharding = Sharding | str | None
Lost = tuple[str, ...]


@lru_cache(maxsize=1 << 12)
def strategy_from_shardings(
    rule: Rule, mesh: Mesh, shardings: tuple[TensorSharding, ...], sizes: tuple[int, ...]
) -> tuple[Strategy, Lost]:
    """The strategy of an operator with that rule, and for each split that is left out why.

    Args:
        wishes: the shardings of the operands, then of the results; None says whole.
        sizes: numbers of elements of these tensors.
    """
    full = completed(_as_run(rule))
    rows = [_row(tensor, sharding) for tensor, sharding in zip(factor_map(full).tensors, shardings, strict=True)]
    wanted = find_common_axes(full, rows, sizes)
    for i, factor in enumerate(rule.factors):
        if not factor.splittable:  # its axes may have been given to others
            wanted[i] = next((row.axes[i] for row in rows if row.axes[i]), None) or wanted[i]
    for i, leader in enumerate(rule.leaders):
        if leader != i:
            wanted[leader], wanted[i] = wanted[leader] or wanted[i], ()
    _look_up(rule, wanted, sizes)
    wanted[: len(rule.factors)] = _fewest(rule, mesh, wanted[: len(rule.factors)], rows, shardings)
    axes, lost = _runnable(rule, mesh, wanted[: len(rule.factors)])
    axes, moves = moved_axes(rule, axes, wanted[: len(rule.factors)])
    names = [factor.name for factor in rule.factors]
    lost += tuple(f"{_shown(mesh, refs)} splits {names[j]} in place of {names[i]}" for i, j, refs in moves)
    stuck = dict.fromkeys((full.factors[i].name, refs) for row in rows for i, refs in row.overflow.items())
    lost += tuple(f"{_shown(mesh, refs)} cannot split {name} further" for name, refs in stuck)
    return Strategy(rule, mesh, axes), lost


def _fewest(
    rule: Rule,
    mesh: Mesh,
    wanted: list[Refs],
    rows: Sequence[TensorFactorShardings],
    shardings: Sequence[TensorSharding],
) -> list[Refs]:
    """Where tensors want the same axes for two factors: the choice by which fewer elements move.

    Shardy decides by the sizes of tensors alone; so tokens that go to their experts would take more than an all-to-all.
    """
    unreduced = any(sharding.unreduced for sharding in shardings if isinstance(sharding, Sharding))
    if unreduced or any(
        _apart(refs, [ref for one in wanted[:i] for ref in one]) != refs for i, refs in enumerate(wanted)
    ):
        return wanted
    best, fewest = wanted, None
    for i, factor in enumerate(rule.factors):
        asked = next((row.axes[i] for row in rows if row.axes[i]), None)
        if not asked or wanted[i] or not factor.splittable or factor.exchange or factor.size % size_of(asked):
            continue
        rivals = [j for j, refs in enumerate(wanted) if refs == asked]
        if len(rivals) != 1 or rule.factors[rivals[0]].exchange:
            continue
        tried = [asked if j == i else () if j == rivals[0] else refs for j, refs in enumerate(wanted)]
        if not is_runnable(rule, list(map(size_of, tried))):
            continue
        fewest = _moved(rule, mesh, best, shardings) if fewest is None else fewest
        moved = _moved(rule, mesh, tried, shardings)
        if moved < fewest:
            best, fewest = tried, moved
    return best


def _moved(rule: Rule, mesh: Mesh, axes: Sequence[Refs], shardings: Sequence[TensorSharding]) -> float:
    """Elements that a rank receives between the shardings around an operator and its strategy's."""
    strategy = Strategy(rule, mesh, tuple(axes))
    total, count = 0.0, len(rule.operands)
    layouts = (*strategy.operand_layouts, *strategy.result_layouts)
    for i, (layout, tensor) in enumerate(zip(layouts, (*rule.operands, *rule.results), strict=True)):
        sharding = shardings[i]
        if sharding is ANY:
            continue
        dims = [dim.axes for dim in sharding.dims] if isinstance(sharding, Sharding) else [()] * layout.rank
        around = Layout(mesh, dims)
        before, after = (around, layout) if i < count else (layout, around)
        shape = evened(before, after, [math.prod(rule.factors[j].size for j in dim) for dim in tensor])
        total += sum(step.elements_moved(shape) for step in plan_steps(before, after, shape))
    return total


def _look_up(rule: Rule, wanted: list[Refs], sizes: Sequence[int]) -> None:
    """Let a look-up run on blocks only where its terms are fewer bytes than the tensor it looks up in, gathered.

    Completing terms takes two elements for each of the result, or one where the result is split the same way.
    """
    for i, factor in enumerate(rule.factors):
        if not factor.joins:
            continue
        source = rule.names[factor.joins]
        held = next(size for size, dims in zip(sizes, rule.operands, strict=False) if _has(dims, source))
        made = next(size for size, dims in zip(sizes[len(rule.operands) :], rule.results, strict=True) if _has(dims, i))
        scattered, is_sum = wanted[i] == wanted[source], rule.factors[source].kind == REDUCTION
        if is_sum and wanted[source] and (1 if scattered else 2) * made > held:
            wanted[source] = ()
        elif scattered:
            wanted[i] = ()


def _has(dims: Sequence[Sequence[int]], factor: int) -> bool:
    return any(factor in dim for dim in dims)


def _as_run(rule: Rule) -> Rule:
    """The rule where factors along which ranks exchange elements are among those that may be split."""
    factors = (
        replace(one, kind=PERMUTATION) if one.kind == REPLICATE and one.exchange else one for one in rule.factors
    )
    return replace(rule, factors=tuple(factors))


def _row(tensor: TensorFactors, sharding: TensorSharding) -> TensorFactorShardings:
    if sharding is ANY:
        none = (None,) * len(tensor.sizes)
        return TensorFactorShardings(none, {}, (False,) * len(tensor.sizes), ())
    if isinstance(sharding, Sharding):
        return to_factors(tensor, sharding)
    own = {factor for dim in tensor.dims for factor in dim}
    axes = tuple(() if i in own else None for i in range(len(tensor.sizes)))
    return TensorFactorShardings(axes, {}, tuple(i in own for i in range(len(tensor.sizes))), ())


def _runnable(rule: Rule, mesh: Mesh, wanted: Sequence[Refs]) -> tuple[Axes, Lost]:
    """The wanted axes, each factor's cut where it cannot run further split."""
    taken: list[Refs] = [()] * len(rule.factors)
    lost = []
    for i, (factor, refs) in enumerate(zip(rule.factors, wanted, strict=True)):
        kept = fitting(factor.size, refs, not _leads(rule, i)) if factor.splittable else ()
        why = _why(factor, refs, rule)
        clear = _apart(kept, [ref for other in taken for ref in other])
        if clear != kept:
            kept, why = clear, "the same axes split another factor"
        taken[i] = merge_refs(kept)
        if not is_runnable(rule, list(map(size_of, taken))):
            taken[i], why = (), "the factor before it in a dim is not split fully"
        if size_of(taken[i]) != size_of(refs):
            lost.append(f"{_shown(mesh, refs)} cannot split {factor.name} of size {factor.size}: {why}")
    return tuple(taken), tuple(lost)


def _why(factor: Factor, refs: Refs, rule: Rule) -> str:
    if factor.size < size_of(refs):
        return f"it has fewer elements than {size_of(refs)}"
    if factor.splittable:
        return f"it does not divide into {size_of(refs)} parts"
    if factor.kind == PERMUTATION:
        return f"its neighbours would have to be exchanged (rule {rule})"
    return f"every rank needs all of it (rule {rule})"


def _shown(mesh: Mesh, refs: Refs) -> str:
    return ".".join(map(mesh.show_ref, refs))


def _leads(rule: Rule, factor: int) -> bool:
    """Whether the factor is the major one of every dim that it is in, so that it may be split unevenly."""
    dims = (dim for dims in (*rule.operands, *rule.results) for dim in dims if factor in dim)
    return all(next(i for i in dim if rule.factors[i].size > 1 or i == factor) == factor for dim in dims)


def fitting(size: int, refs: Refs, even: bool = False) -> Refs:
    """The longest major part of the axes that makes no more parts than elements; `even`: one that divides them."""
    kept: list[AxisRef] = []
    for ref in refs:
        common = math.gcd(size, ref.size) if even else max(n for n in divisors(ref.size) if n <= max(size, 1))
        if common < ref.size:
            kept += [ref.split(common)[0]] if common > 1 else []
            break
        kept.append(ref)
        size //= ref.size
    return tuple(kept)


def _apart(refs: Refs, taken: Sequence[AxisRef]) -> Refs:
    """The axes up to the first that cannot stand beside those taken."""
    for place, ref in enumerate(refs):
        if any(ref.clashes(other) for other in taken):
            return refs[:place]
    return refs
