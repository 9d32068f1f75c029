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
    extra_marks,
    group_marks,
    mask_marks,
    place_in,
    scored_blocks,
)
from autoshard.ops.attention_dropout import drop_columns, placed_start, split_extras
from autoshard.ops.attributes import OperatorPlacement, Types
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import operator


def _mask_rule(
    g: Shape, inner: Shape, q: Shape, ends: Shape, k: Shape, v: Shape, *extras: Shape, mask: int, **attrs: Any
) -> str:
    check_slopes("AttentionMaskGrad", g, inner, q, k, v)
    asking, asked = group_marks(q, k)
    more, own = extra_marks("AttentionMaskGrad", q, k, extras, attrs, "[k]"), f"{asking} q"
    operands = f"{own} [v], {own} 1, {own} [d], {own} 1, {asked} [k] [d], {asked} [k] [v]{more}"
    return f"{operands} -> {mask_marks(q, k, extras[mask])}"


def _scratch(operands: Types, results: Types, *, dropout: float, **_: object) -> int:
    """Weights and slopes of a block of keys."""
    q, k, v = operands[2], operands[4], operands[5]
    return (
        max(4, q.dtype.itemsize)
        * math.prod(q.shape[:-1])
        * ((2 + drop_columns(dropout)) * min(BLOCK, k.shape[-2]) + v.shape[-1])
    )


@operator(
    "AttentionMaskGrad",
    rule=_mask_rule,
    shape=lambda g, inner, q, ends, k, v, *extras, mask, **_: (extras[mask],),
    dtype=lambda g, inner, q, ends, k, v, *extras, mask, **_: extras[mask],
    storage=Storage(scratch=_scratch),
    flops=PairWork((2, 4, 5), lambda d, v: 2 * d + 2 * v + 10).count,
    filling=Filling(neutral="yes"),
    numbers=("seed",),
)
def attention_mask_grad(
    g,
    inner,
    q,
    ends,
    k,
    v,
    *extras,
    mask,
    scale=0.0,
    causal=False,
    window=0,
    softcap=0.0,
    sinks=False,
    sequence="auto",
    first=0,
    dropout=0.0,
    seed=0,
    start=(),
    whole=(),
    rows=-1,
):
    """The gradient of mask number `mask`, whose numbers are added to scores, summed over the dims that it has not."""
    drop = {"sinks": sinks, "dropout": dropout, "seed": seed, "start": start, "whole": whole, "rows": rows}
    masks, _, dropping = split_extras(extras, q.shape, k.shape, drop)
    found, scoring = np.zeros(extras[mask].shape, accumulator(q)), Scoring(scale, causal, window, softcap)
    slopes = g.astype(found.dtype, copy=False)
    last = first, 0, k.shape[-2], dropping
    for places, columns, scores, _, values, kept in scored_blocks(q, k, v, masks, scoring, *last):
        change = slopes[..., places, :] @ values.swapaxes(-1, -2)
        change = change if kept is None else change * kept
        change -= inner[..., places, :]
        change *= np.exp(scores.values - ends[..., places, :])
        if scores.kept is not None:
            change *= scores.kept
        shared = tuple(i for i, size in enumerate(found.shape) if size == 1)
        found[place_in(found, places, columns)] += change.sum(shared, keepdims=True)
    return found.astype(extras[mask].dtype, copy=False)


@attention_mask_grad.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    first = placement.operand_offset(2, placement.operands[2].rank - 2)
    return {"first": first, **placed_start(attrs, placement, 2, 4)}
