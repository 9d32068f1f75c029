"""From the shardings of an operator's tensors to the strategy that follows them as far as ranks can run it.

Where tensors disagree, Shardy's choice decides (`find_common_axes`). A Strategy cuts evenly and without overlap, and
leaves whole what the operator needs whole; each split that is lost to that is told in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of
from autoshard.layout.sharding import Sharding
from autoshard.propagate.passes.common_axes import find_common_axes
from autoshard.propagate.project import Row, TensorFactors, to_factors, wiring
from autoshard.rule import PERMUTATION, Factor, Rule
from autoshard.rule_sdy import completed
from autoshard.strategy import Strategy, is_legal

ANY = "any"
"""Stands for the sharding of a tensor that can be had in any layout without communication, such as a constant."""
Wish = Sharding | str | None
Axes = tuple[Refs, ...]
Lost = tuple[str, ...]


@lru_cache(maxsize=65536)
def follow(rule: Rule, mesh: Mesh, wishes: tuple[Wish, ...], sizes: tuple[int, ...]) -> tuple[Strategy, Lost]:
    """The strategy of an operator with that rule, and for each split that is left out why.

    Args:
        wishes: the shardings of the operands, then of the results; None says whole.
        sizes: numbers of elements of these tensors.
    """
    full = completed(rule)
    rows = [_row(tensor, wish) for tensor, wish in zip(wiring(full).tensors, wishes, strict=True)]
    wanted = find_common_axes(full, rows, sizes)
    for i, factor in enumerate(rule.factors):
        if not factor.splittable:  # its axes may have been given to others
            wanted[i] = next((row.axes[i] for row in rows if row.axes[i]), None) or wanted[i]
    axes, lost = _runnable(rule, mesh, wanted[: len(rule.factors)])
    stuck = dict.fromkeys((full.factors[i].name, refs) for row in rows for i, refs in row.overflow.items())
    lost += tuple(f"{_shown(mesh, refs)} cannot split {name} further" for name, refs in stuck)
    return Strategy(rule, mesh, axes), lost


def _row(tensor: TensorFactors, wish: Wish) -> Row:
    if wish is ANY:
        none = (None,) * len(tensor.sizes)
        return Row(none, {}, (False,) * len(tensor.sizes), ())
    if isinstance(wish, Sharding):
        return to_factors(tensor, wish)
    own = {factor for dim in tensor.dims for factor in dim}
    axes = tuple(() if i in own else None for i in range(len(tensor.sizes)))
    return Row(axes, {}, tuple(i in own for i in range(len(tensor.sizes))), ())


def _runnable(rule: Rule, mesh: Mesh, wanted: Sequence[Refs]) -> tuple[Axes, Lost]:
    """The wanted axes, each factor's cut where it cannot run further split."""
    taken: list[Refs] = [()] * len(rule.factors)
    lost = []
    for i, (factor, refs) in enumerate(zip(rule.factors, wanted, strict=True)):
        kept = fitting(factor.size, refs) if factor.splittable else ()
        why = _why(factor, refs, rule)
        clear = _apart(kept, [ref for other in taken for ref in other])
        if clear != kept:
            kept, why = clear, "the same axes split another factor"
        taken[i] = merge_refs(kept)
        if not is_legal(rule, list(map(size_of, taken))):
            taken[i], why = (), "the factor before it in a dim is not split fully"
        if size_of(taken[i]) != size_of(refs):
            lost.append(f"{_shown(mesh, refs)} cannot split {factor.name} of size {factor.size}: {why}")
    return tuple(taken), tuple(lost)


def _why(factor: Factor, refs: Refs, rule: Rule) -> str:
    if factor.splittable or factor.size == 1:
        return f"it does not divide into {size_of(refs)} parts"
    if factor.kind == PERMUTATION:
        return f"its neighbours would have to be exchanged (rule {rule})"
    return f"every rank needs all of it (rule {rule})"


def _shown(mesh: Mesh, refs: Refs) -> str:
    return ".".join(map(mesh.show_ref, refs))


def fitting(size: int, refs: Refs) -> Refs:
    """The longest major part of the axes that divides the size."""
    kept: list[AxisRef] = []
    for ref in refs:
        common = math.gcd(size, ref.size)
        if common < ref.size:
            kept += [ref.split(common)[0]] if common > 1 else []
            break
        kept.append(ref)
        size //= ref.size
    return tuple(kept)


def _apart(refs: Refs, taken: Sequence[AxisRef]) -> Refs:
    """The axes up to the first that cannot stand beside those taken."""
    for place, ref in enumerate(refs):
        if any(ref.overlaps(other) or not ref.can_coexist(other) for other in taken):
            return refs[:place]
    return refs
