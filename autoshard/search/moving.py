"""Axes that a factor cannot take move to another factor of the operator that can: all-to-alls in place of gathers.

Where an operator needs all of a dim on each rank (a sort, a reduction of several tensors), its other dims can be split
instead. A rank then receives (n-1)/n of a block for each tensor, where a gather brings n-1 blocks and n-fold work
(Shardy does the same for factors that need replication: explicit_reshards_util.cc, batching factors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autoshard.core.rule import PASS, Rule
from autoshard.core.strategy import is_legal
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of

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
        if share == 1 or any(piece.overlaps(other) or not piece.can_coexist(other) for other in used):
            break
        parts = [size_of(one) for one in axes]
        parts[factor] *= size_of(taken) * share
        if not is_legal(rule, parts, {i for i in range(len(parts)) if i != factor}):
            break
        taken.append(piece)
        if share < ref.size:
            break
    return tuple(taken)
