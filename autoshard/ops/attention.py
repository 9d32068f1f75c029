"""Attention as one operator, which never holds all scores at once, and runs over a sequence split on several ranks.

Scores are made for a block of keys at a time; see `attention_blocks`. Blocks may come from other ranks: with
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
    Shape,
    State,
    block_ring,
    fits_groups,
    group_marks,
    most_seen,
    no_keys,
    rebase,
    ring_parts,
    scored_blocks,
    seen_share,
    state_type,
    with_rows,
)
from autoshard.ops.attributes import Place
from autoshard.ops.options import Storage, UnequalFlops
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange
from autoshard.util.errors import ShapeError


def _rule(q: Shape, k: Shape, v: Shape, *, sequence: str, **_: object) -> str:
    if sequence not in WAYS:
        raise ShapeError(f"Attention: sequence is one of {', '.join(WAYS)}, not {sequence!r}")
    if min(len(q), len(k), len(v)) < 3 or k[:-1] != v[:-1] or not fits_groups(q, k) or q[-1] != k[-1]:
        raise ShapeError(
            "Attention takes queries [..., q, d], keys [..., k, d] and values [..., k, v], where leading dims of keys "
            f"may be 1, not {q}, {k} and {v}"
        )
    mark, (asking, asked) = ring_parts(q, k, sequence), group_marks(q, k)
    if not mark:
        return f"{asking} q [d], {asked} [k] [d], {asked} [k] v -> {asking} q v"
    return f"{asking} q^{mark} [d], {asked} [k]=q [d], {asked} [k]=q v -> {asking} q^{mark} v"


def _type(q: DType, k: DType, v: DType, **_: object) -> DType:
    if not (q.is_float and k.is_float and v.is_float):
        raise ShapeError(f"Attention takes floats, not {q}, {k} and {v}")
    return v


def _flops(q: Shape, k: Shape, v: Shape, *, causal: bool, **_: object) -> float:
    """For each pair of a query and a key that it sees: both products, and a few for the exponential; per index
    combination."""
    return seen_share(q, k, causal) * _pair_flops(q, v) / (q[-1] * v[-1])


def _imbalance(whole: Sequence, local: Sequence, *, causal: bool, **_: object) -> float:
    return most_seen(local[0].shape, local[1].shape, whole[0].shape[-2], causal)


def _pair_flops(q: Shape, v: Shape) -> int:
    return 2 * (q[-1] + v[-1]) + 8


def _turn_flops(q: Shape, k: Shape, v: Shape, *_: Shape, **__: object) -> float:
    """Of all pairs: whatever is causal, some rank sees all of the block that has come, and the others wait for it."""
    return math.prod(q[:-1]) * k[-2] * _pair_flops(q, v)


def _begin_flops(q: Shape, k: Shape, v: Shape, *_: Shape, causal: bool, **__: object) -> float:
    return seen_share(q, k, causal) * _turn_flops(q, k, v)


def _scratch(operands: Sequence, results: Sequence, **_: object) -> int:
    """Scores and their exponentials of a block of keys, and the state."""
    (q, k, v), wide = operands, max(4, operands[0].dtype.itemsize)
    rows = math.prod(q.shape[:-1])
    return wide * rows * (2 * min(BLOCK, k.shape[-2]) + 2 * v.shape[-1] + 4)


@operator(
    "Attention",
    rule=_rule,
    dtype=_type,
    flops=UnequalFlops(count=_flops, imbalance=_imbalance),
    storage=Storage(scratch=_scratch),
)
def attention(q, k, v, *, scale=0.0, causal=False, sequence=AUTO, first=0):
    """softmax(q k^T * scale) v over the last dims; `scale` 0 stands for 1 / sqrt(d).

    A leading dim of keys and values may be 1 where that of queries is larger: these queries share them, as the heads of
    a group do. `causal` lets query i see the keys 0 to i. `sequence` says how it runs where the queries are split in
    their sequence: 'gather' takes all keys and values to each rank, 'ring' splits them alike, and their blocks go
    round; of 'auto' a plan decides by cost. `first` is the number of the first query, where q is only a block.
    """
    return _finished(v, attend(q, k, v, no_keys(q, v.shape[-1]), scale, causal, first, 0, k.shape[-2]))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, state: State, *of: Any) -> State:
    """The state after these keys and values too; `of` is what `scored_blocks` takes besides."""
    for rows, scores, _, values in scored_blocks(q, k, v, *of):
        total, largest, weight = (one[..., rows, :] for one in state)
        old, largest, weight = rebase(scores, largest, weight)
        state = with_rows(state, rows, (total * old + scores @ values, largest, weight))
    return state


def _finished(v: np.ndarray, state: State) -> np.ndarray:
    return (state[0] / state[2]).astype(v.dtype, copy=False)


@attention.localize
def _(attrs: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {"first": place.operand_offset(0, place.operands[0].rank - 2)}


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
    flops=_begin_flops,
)
def attention_begin(q, k, v, *, scale, causal, first, first_key, keys):
    """The state of the queries after the first block of keys: the rank's own."""
    return attend(q, k, v, no_keys(q, v.shape[-1]), scale, causal, first, first_key, keys)


@operator(
    "AttentionTurn",
    rule=None,
    shape=_state_shapes,
    dtype=_state_type,
    storage=Storage(scratch=_turn_scratch),
    flops=_turn_flops,
)
def attention_turn(q, k, v, total, largest, weight, *, scale, causal, first, first_key, keys):
    """The state after one block of keys and values more."""
    return attend(q, k, v, (total, largest, weight), scale, causal, first, first_key, keys)


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
def _(attrs: Mapping[str, Any], place: Place) -> Exchange:
    turns = attention_begin, attention_turn, attention_end
    return block_ring(attrs, place, 0, (1, 2), turns, ("first", "first_key", "keys"))
