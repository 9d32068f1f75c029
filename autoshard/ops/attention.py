"""Attention as one operator, which never holds all scores at once, and runs over a sequence split on several ranks.

BlockScores are made for a block of keys at a time; see `attention_blocks`. Blocks may come from other ranks: with
`sequence="ring"`, queries, keys and values of a sequence lie along the same axes, and the blocks of keys and values go
round (Liu et al. 2023, "Ring Attention with Blockwise Transformers", algorithm 1). Else a rank needs all keys and
values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.attention_blocks import (
    AUTO,
    BLOCK,
    WAYS,
    PairWork,
    Scoring,
    Shape,
    State,
    block_ring,
    extra_marks,
    fits_groups,
    group_marks,
    no_keys,
    rebase,
    ring_parts,
    safe,
    scored_blocks,
    state_type,
    with_rows,
)
from autoshard.ops.attention_dropout import check_counter, drop_columns, placed_start, split_extras, split_operands
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.options import Storage
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange
from autoshard.util.errors import ShapeError


def _rule(q: Shape, k: Shape, v: Shape, *extras: Shape, sequence: str, **attrs: Any) -> str:
    if sequence not in WAYS:
        raise ShapeError(f"Attention: sequence is one of {', '.join(WAYS)}, not {sequence!r}")
    if min(len(q), len(k), len(v)) < 3 or k[:-1] != v[:-1] or not fits_groups(q, k) or q[-1] != k[-1]:
        raise ShapeError(
            "Attention takes queries [..., q, d], keys [..., k, d] and values [..., k, v], where leading dims of keys "
            f"may be 1, not {q}, {k} and {v}"
        )
    mark, (asking, asked) = ring_parts(q, k, extras, sequence), group_marks(q, k)
    if mark:
        return f"{asking} q^{mark} [d], {asked} [k]=q [d], {asked} [k]=q v -> {asking} q^{mark} v"
    more = extra_marks("Attention", q, k, extras, attrs, "[k]")
    return f"{asking} q [d], {asked} [k] [d], {asked} [k] v{more} -> {asking} q v"


def _type(q: DType, k: DType, v: DType, *extras: DType, **attrs: Any) -> DType:
    if not (q.is_float and k.is_float and v.is_float):
        raise ShapeError(f"Attention takes floats, not {q}, {k} and {v}")
    check_counter("Attention", split_operands(extras, attrs)[2])
    return v


_WORK = PairWork((0, 1, 2), lambda d, v: 2 * (d + v) + 8)
"""Both products, and a few for the exponential."""


def _scratch(operands: Sequence, results: Sequence, *, dropout: float = 0.0, **_: object) -> int:
    """Scores and their exponentials of a block of keys, and the state."""
    (q, k, v), wide = operands[:3], max(4, operands[0].dtype.itemsize)
    rows = math.prod(q.shape[:-1])
    return wide * rows * ((2 + drop_columns(dropout)) * min(BLOCK, k.shape[-2]) + 2 * v.shape[-1] + 4)


@operator(
    "Attention",
    rule=_rule,
    dtype=_type,
    flops=_WORK.flops,
    storage=Storage(scratch=_scratch),
    numbers=("seed",),
)
def attention(
    q,
    k,
    v,
    *extras,
    scale=0.0,
    causal=False,
    window=0,
    softcap=0.0,
    sinks=False,
    sequence=AUTO,
    first=0,
    dropout=0.0,
    seed=0,
    start=(),
    whole=(),
    rows=-1,
):
    """softmax(q k^T * scale + masks) v over the last dims; `scale` 0 stands for 1 / sqrt(d).

    A leading dim of keys and values may be 1 where that of queries is larger: these queries share them, as the heads of
    a group do. `causal` lets query i see the keys 0 to i; `window` those less than so many places away from it (0: all
    of them). `softcap` c > 0 makes c * tanh(score / c) of scaled products (Gemma 2).

    Args:
        extras: masks with the dims of scores [..., q, k], or 1: truths hide scores where they are False, numbers are
            added to them. With `sinks` a score [..., 1, 1] of a key without a value follows, which takes its share of
            the weights (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"). With `dropout`
            a scalar counter is last: a share `dropout` of the weights is 0, as `Dropout` of all of them with this
            counter and `seed` has it.
        sequence: how it runs where the queries are split in their sequence: 'gather' takes all keys and values to each
            rank, 'ring' splits them alike, and their blocks go round; of 'auto' a plan decides by cost.
        first: the number of the first query, where q is only a block.
        start: where the leading dims of q begin in which tensor of weights, `whole`, where q is only a block.
        rows: the leading dim, if not -1, whose rows stand in that tensor where a last operand says.
    """
    drop = {"sinks": sinks, "dropout": dropout, "seed": seed, "start": start, "whole": whole, "rows": rows}
    masks, sink, dropping = split_extras(extras, q.shape, k.shape, drop)
    scoring, state = Scoring(scale, causal, window, softcap), no_keys(q, v.shape[-1], sink)
    return _finished(v, attend(q, k, v, state, masks, scoring, first, 0, k.shape[-2], dropping))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, state: State, *of: Any) -> State:
    """The state after these keys and values too; `of` is what `scored_blocks` takes besides."""
    for rows, _, (scores, *_), _, values, kept in scored_blocks(q, k, v, *of):
        total, largest, weight = (one[..., rows, :] for one in state)
        old, largest, weight = rebase(scores, largest, weight)
        scores = scores if kept is None else scores * kept
        state = with_rows(state, rows, (total * old + scores @ values, largest, weight))
    return state


def _finished(v: np.ndarray, state: State) -> np.ndarray:
    return (state[0] / safe(state[2])).astype(v.dtype, copy=False)


@attention.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return {
        "first": placement.operand_offset(0, placement.operands[0].rank - 2),
        **placed_start(attrs, placement, 0, 1),
    }


# -- in turns, with blocks of keys and values that go round


def _state_shapes(q: Shape, k: Shape, v: Shape, *_: Shape, **__: object) -> tuple[Shape, ...]:
    return (*q[:-1], v[-1]), (*q[:-1], 1), (*q[:-1], 1)


def _state_type(q: DType, *_: DType, **__: object) -> str:
    return state_type(q)


def _turn_scratch(operands: Sequence, results: Sequence, **_: object) -> int:
    return _scratch(operands[:3], results)


@operator(
    "AttentionBegin",
    rule=None,
    shape=_state_shapes,
    dtype=_state_type,
    storage=Storage(scratch=_turn_scratch),
    flops=_WORK.begin,
)
def attention_begin(q, k, v, *, scale, causal, window, softcap, first, first_key, keys):
    """The state of the queries after the first block of keys: the rank's own."""
    scoring = Scoring(scale, causal, window, softcap)
    return attend(q, k, v, no_keys(q, v.shape[-1]), (), scoring, first, first_key, keys)


@operator(
    "AttentionTurn",
    rule=None,
    shape=_state_shapes,
    dtype=_state_type,
    storage=Storage(scratch=_turn_scratch),
    flops=_WORK.turn,
)
def attention_turn(q, k, v, total, largest, weight, *, scale, causal, window, softcap, first, first_key, keys):
    """The state after one block of keys and values more."""
    scoring = Scoring(scale, causal, window, softcap)
    return attend(q, k, v, (total, largest, weight), (), scoring, first, first_key, keys)


@operator(
    "AttentionEnd",
    rule=None,
    shape=lambda q, k, v, total, *_, **__: (total,),
    dtype=lambda q, k, v, *_, **__: v,
)
def attention_end(q, k, v, total, largest, weight):
    """What queries have found in all keys."""
    return _finished(v, (total, largest, weight))


@attention.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    turns = attention_begin, attention_turn, attention_end
    return block_ring(attrs, placement, 0, (1, 2), turns, ("first", "first_key", "keys"))
