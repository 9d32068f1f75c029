"""The gradient of masks that are added to the scores of attention: learned biases of relative positions, for one.

It is made by blocks, and summed at once over the dims in which a mask has size 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard.ops.attention_blocks import (
    BLOCK,
    PairWork,
    Scoring,
    Shape,
    accumulator,
    check_slopes,
    group_marks,
    mask_marks,
    parted,
    place_in,
    scored_blocks,
)
from autoshard.ops.attributes import OperatorPlacement, Types
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import operator


def _mask_rule(
    g: Shape, inner: Shape, q: Shape, ends: Shape, k: Shape, v: Shape, *extras: Shape, of: int, **_: object
) -> str:
    check_slopes("AttentionMaskGrad", g, inner, q, k, v)
    (asking, asked), marks = group_marks(q, k), [mask_marks(q, k, one) for one in extras]
    own = f"{asking} q"
    more = "".join(f", {one}" for one in marks)
    return f"{own} [v], {own} 1, {own} [d], {own} 1, {asked} [k] [d], {asked} [k] [v]{more} -> {marks[of]}"


def _scratch(operands: Types, results: Types, **_: object) -> int:
    """Weights and slopes of a block of keys."""
    q, k, v = operands[2], operands[4], operands[5]
    return max(4, q.dtype.itemsize) * math.prod(q.shape[:-1]) * (2 * min(BLOCK, k.shape[-2]) + v.shape[-1])


@operator(
    "AttentionMaskGrad",
    rule=_mask_rule,
    shape=lambda g, inner, q, ends, k, v, *extras, of, **_: (extras[of],),
    dtype=lambda g, inner, q, ends, k, v, *extras, of, **_: extras[of],
    storage=Storage(scratch=_scratch),
    flops=PairWork((2, 4, 5), lambda d, v: 2 * d + 2 * v + 10).count,
    filling=Filling(neutral="yes"),
)
def attention_mask_grad(
    g,
    inner,
    q,
    ends,
    k,
    v,
    *extras,
    of,
    scale=0.0,
    causal=False,
    window=0,
    softcap=0.0,
    sinks=False,
    sequence="auto",
    first=0,
):
    """The gradient of mask number `of`, whose numbers are added to scores: in its own dims, summed over the others."""
    masks, _ = parted(extras, sinks)
    found, scoring = np.zeros(extras[of].shape, accumulator(q)), Scoring(scale, causal, window, softcap)
    slopes = g.astype(found.dtype, copy=False)
    for rows, columns, scores, _, values in scored_blocks(q, k, v, masks, scoring, first, 0, k.shape[-2]):
        change = slopes[..., rows, :] @ values.swapaxes(-1, -2)
        change -= inner[..., rows, :]
        change *= np.exp(scores.values - ends[..., rows, :])
        if scores.kept is not None:
            change *= scores.kept
        shared = tuple(i for i, size in enumerate(found.shape) if size == 1)
        found[place_in(found, rows, columns)] += change.sum(shared, keepdims=True)
    return found.astype(extras[of].dtype, copy=False)


@attention_mask_grad.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {"first": placement.operand_offset(2, placement.operands[2].rank - 2)}
