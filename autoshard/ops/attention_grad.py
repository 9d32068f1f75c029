"""The gradient of attention, by blocks too: scores are made again, and never held all at once.

Two operators, since what queries get is summed over keys, and what keys and values get over queries. Both hold on to
their own side and let the other one pass by, so each may run in a ring: blocks of keys and values go round for the
gradient of queries, blocks of queries with their slopes for those of keys and values. The formulas are those of Dao et
al. 2022, "FlashAttention", algorithm 4; the first operator finds the exponentials' sums on its way, so that they need
not be kept from the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.attention import attention
from autoshard.ops.attention_blocks import (
    BLOCK,
    Masks,
    PairWork,
    Scoring,
    Shape,
    State,
    accumulator,
    block_ring,
    blocks,
    check_slopes,
    cut,
    extra_marks,
    group_marks,
    no_keys,
    rebase,
    ring_parts,
    safe,
    scale_of,
    scored_blocks,
    scores_of,
    seen_by,
    state_type,
    with_rows,
)
from autoshard.ops.attention_dropout import (
    Dropping,
    drop_columns,
    drop_factors,
    placed_start,
    split_extras,
    split_operands,
)
from autoshard.ops.attention_mask_grad import attention_mask_grad
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.options import Filling, Storage
from autoshard.ops.pointwise import mul, sub
from autoshard.ops.reduce import reduce_sum, sum_to
from autoshard.ops.registry import operator
from autoshard.ops.unary import cast, exp, neg, wants
from autoshard.ops.windows import Exchange

Pair = tuple[np.ndarray, np.ndarray]


@attention.gradient
def _(g, y, q, k, v, *extras, first, **attrs):
    # Of each query: what the slopes of its weights come to, weighted.
    inner = reduce_sum(mul(g, y), axis=-1, keep_dims=True)
    slope, ends = attention_query_grad(g, inner, q, k, v, *extras, first=first, **attrs)
    keys, values = attention_key_grad(g, inner, q, ends, k, v, *extras, first=first, **attrs)
    masks, sinks, drops = split_operands(extras, attrs)
    found = [_of_mask(i, one, (g, inner, q, ends, k, v, *extras), attrs) for i, one in enumerate(masks)]
    found += [_of_sink(inner, ends, sink) for sink in sinks]
    return slope, keys, values, *found, *(None for _ in drops)


def _of_mask(i: int, mask: Any, operands: tuple, attrs: Mapping[str, Any]) -> Any:
    """What a mask of numbers gets: all that scores get, in the dims that it has."""
    return attention_mask_grad(*operands, mask=i, **attrs) if wants(mask) else None


def _of_sink(inner: Any, ends: Any, sink: Any) -> Any:
    """What a sink gets: its weights, which have no value, miss the mean of the others by `inner`."""
    weights = exp(sub(_like(sink, ends), ends))
    return _like(neg(sum_to(mul(weights, _like(inner, ends)), tuple(sink.shape))), sink)


def _like(x: Any, other: Any) -> Any:
    """x with the element type of another tensor."""
    return x if element_type(x.dtype) == element_type(other.dtype) else cast(x, dtype=element_type(other.dtype).name)


# -- of queries


def _query_rule(
    g: Shape, inner: Shape, q: Shape, k: Shape, v: Shape, *extras: Shape, sequence: str, **attrs: Any
) -> str:
    check_slopes("AttentionQueryGrad", g, inner, q, k, v)
    mark, (asking, asked) = ring_parts(q, k, extras, sequence), group_marks(q, k)
    own = f"{asking} q^{mark}" if mark else f"{asking} q"
    other = f"{asked} [k]=q" if mark else f"{asked} [k]"
    more = extra_marks("AttentionQueryGrad", q, k, extras, attrs, "[k]")
    return f"{own} [v], {own} 1, {own} [d], {other} [d], {other} [v]{more} -> {own} [d], {own} 1"


def _query_shapes(g: Shape, inner: Shape, q: Shape, *_: Shape, **__: object) -> tuple[Shape, Shape]:
    return q, inner


_QUERY_WORK = PairWork((2, 3, 4), lambda d, v: 4 * d + 2 * v + 10)
"""Three products and an exponential."""


def _query_scratch(operands: Sequence, results: Sequence, *, dropout: float = 0.0, **_: object) -> int:
    """Weights and slopes of a block of keys, and the state."""
    _, _, q, k = operands[:4]
    columns = (2 + drop_columns(dropout)) * min(BLOCK, k.shape[-2]) + 2 * q.shape[-1] + 4
    return max(4, q.dtype.itemsize) * math.prod(q.shape[:-1]) * columns


def _query_types(g: DType, inner: DType, q: DType, *_: DType, **__: object) -> tuple[DType | str, ...]:
    return q, state_type(q)


@operator(
    "AttentionQueryGrad",
    rule=_query_rule,
    dtype=_query_types,
    flops=_QUERY_WORK.flops,
    storage=Storage(scratch=_query_scratch),
    numbers=("seed",),
)
def attention_query_grad(
    g,
    inner,
    q,
    k,
    v,
    *extras,
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
    """The gradient of queries from that of the result, `g`; and the logarithm of each query's sum of exponentials.

    `inner` is what g and the result come to for each query, sum(g * y). Attributes are those of Attention.
    """
    drop = {"sinks": sinks, "dropout": dropout, "seed": seed, "start": start, "whole": whole, "rows": rows}
    masks, sink, dropping = split_extras(extras, q.shape, k.shape, drop)
    scoring, state = Scoring(scale, causal, window, softcap), no_keys(q, q.shape[-1], sink)
    return _query_end(q, query_slopes(g, inner, q, k, v, state, masks, scoring, first, 0, k.shape[-2], dropping))


def query_slopes(
    g: np.ndarray,
    inner: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    state: State,
    masks: Masks,
    scoring: Scoring,
    *of: Any,
) -> State:
    """The state, whose sum is one of slopes times keys, after these keys and values too; `of` is what `scored_blocks`
    takes besides."""
    factor, slopes = scale_of(q, scoring.scale), g.astype(state[0].dtype, copy=False)
    for rows, _, (scores, slope, _), looked_at, values, kept in scored_blocks(q, k, v, masks, scoring, *of):
        total, largest, weight = (one[..., rows, :] for one in state)
        old, largest, weight = rebase(scores, largest, weight)
        change = slopes[..., rows, :] @ values.swapaxes(-1, -2)
        change = change if kept is None else change * kept
        change -= inner[..., rows, :]
        change *= scores
        if slope is not None:
            change *= slope
        state = with_rows(state, rows, (total * old + (change @ looked_at) * factor, largest, weight))
    return state


def _query_end(q: np.ndarray, state: State) -> Pair:
    total, largest, weight = state
    ends = np.where(weight > 0, largest, largest.dtype.type(0)) + np.log(safe(weight))
    return (total / safe(weight)).astype(q.dtype, copy=False), ends


@attention_query_grad.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    first = placement.operand_offset(2, placement.operands[2].rank - 2)
    return {"first": first, **placed_start(attrs, placement, 2, 3)}


def _query_state(g: Shape, inner: Shape, q: Shape, *_: Shape, **__: object) -> tuple[Shape, ...]:
    return q, inner, inner


def _state_type(g: DType, inner: DType, q: DType, *_: DType, **__: object) -> str:
    return state_type(q)


@operator(
    "AttentionQueryGradBegin",
    rule=None,
    shape=_query_state,
    dtype=_state_type,
    storage=Storage(scratch=_query_scratch),
    flops=_QUERY_WORK.begin,
)
def attention_query_grad_begin(g, inner, q, k, v, *, scale, causal, window, softcap, first, first_key, keys):
    """The state after the rank's own block of keys."""
    scoring, start = Scoring(scale, causal, window, softcap), no_keys(q, q.shape[-1])
    return query_slopes(g, inner, q, k, v, start, (), scoring, first, first_key, keys)


@operator(
    "AttentionQueryGradTurn",
    rule=None,
    shape=_query_state,
    dtype=_state_type,
    storage=Storage(scratch=_query_scratch),
    flops=_QUERY_WORK.turn,
)
def attention_query_grad_turn(
    g, inner, q, k, v, total, largest, weight, *, scale, causal, window, softcap, first, first_key, keys
):  # fmt: skip
    """The state after one block of keys and values more."""
    scoring = Scoring(scale, causal, window, softcap)
    return query_slopes(g, inner, q, k, v, (total, largest, weight), (), scoring, first, first_key, keys)


@operator(
    "AttentionQueryGradEnd",
    rule=None,
    shape=_query_shapes,
    dtype=lambda g, inner, q, *_, **__: _query_types(g, inner, q),
)
def attention_query_grad_end(g, inner, q, k, v, total, largest, weight):
    """What queries get of all keys, and the logarithms of their sums."""
    return _query_end(q, (total, largest, weight))


@attention_query_grad.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    turns = attention_query_grad_begin, attention_query_grad_turn, attention_query_grad_end
    return block_ring(attrs, placement, 2, (3, 4), turns, ("first", "first_key", "keys"))


# -- of keys and values


def _key_rule(
    g: Shape, inner: Shape, q: Shape, ends: Shape, k: Shape, v: Shape, *extras: Shape, sequence: str, **attrs: Any
) -> str:
    check_slopes("AttentionKeyGrad", g, inner, q, k, v)
    mark, (asking, asked) = ring_parts(q, k, extras, sequence), group_marks(q, k)
    own = f"{asked} k^{mark}" if mark else f"{asked} k"
    other = f"{asking} [q]=k" if mark else f"{asking} q"
    more = extra_marks("AttentionKeyGrad", q, k, extras, attrs, "k")
    return f"{other} [v], {other} 1, {other} [d], {other} 1, {own} [d], {own} [v]{more} -> {own} [d], {own} [v]"


def _key_shapes(g: Shape, inner: Shape, q: Shape, ends: Shape, k: Shape, v: Shape, *_: Shape, **__: object) -> tuple:
    return k, v


_KEY_WORK = PairWork((2, 4, 5), lambda d, v: 4 * d + 4 * v + 10)
"""Four products and an exponential."""


def _key_scratch(operands: Sequence, results: Sequence, *, dropout: float = 0.0, **_: object) -> int:
    """Weights and slopes of a block of queries, and the state."""
    _, _, q, _, k, v = operands[:6]
    columns = (2 + drop_columns(dropout)) * min(BLOCK, q.shape[-2]) + 2 * (q.shape[-1] + v.shape[-1])
    return max(4, q.dtype.itemsize) * math.prod(k.shape[:-1]) * columns


@operator(
    "AttentionKeyGrad",
    rule=_key_rule,
    dtype=lambda g, inner, q, ends, k, v, *_, **__: (k, v),
    flops=_KEY_WORK.flops,
    storage=Storage(scratch=_key_scratch),
    filling=Filling(neutral="yes"),
    numbers=("seed",),
)
def attention_key_grad(
    g,
    inner,
    q,
    ends,
    k,
    v,
    *extras,
    scale=0.0,
    causal=False,
    window=0,
    softcap=0.0,
    sinks=False,
    sequence="auto",
    first=0,
    first_key=0,
    dropout=0.0,
    seed=0,
    start=(),
    whole=(),
    rows=-1,
):
    """The gradients of keys and values; `ends` are the logarithms that AttentionQueryGrad gives.

    A query of zeros without slope adds nothing, so padding may stand behind the last one. `first_key` is the number of
    the first key, where k and v are only a block.
    """
    drop = {"sinks": sinks, "dropout": dropout, "seed": seed, "start": start, "whole": whole, "rows": rows}
    masks, _, dropping = split_extras(extras, q.shape, k.shape, drop)
    scoring, queries = Scoring(scale, causal, window, softcap), first + q.shape[-2]
    state, of = _key_start(q, k, v), (masks, scoring, first, first_key, queries, dropping)
    return _key_end(k, v, key_slopes(g, inner, q, ends, k, v, state, *of))


def _key_start(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Pair:
    return np.zeros(k.shape, accumulator(q)), np.zeros(v.shape, accumulator(q))


def key_slopes(
    g: np.ndarray,
    inner: np.ndarray,
    q: np.ndarray,
    ends: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    state: Pair,
    masks: Masks,
    scoring: Scoring,
    first: int,
    first_key: int,
    queries: int,
    dropping: Dropping | None = None,
) -> Pair:
    """The gradients with what these queries add, of which the first has number `first`; what comes after `queries`
    queries in all is padding."""
    (keys, values), wide = (one.copy() for one in state), state[0].dtype
    looked_at, read = k.astype(wide, copy=False), v.astype(wide, copy=False).swapaxes(-1, -2)
    for block in blocks(min(q.shape[-2], queries - first)):
        asking, slopes = (one[..., block, :].astype(wide, copy=False) for one in (q, g))
        asking = asking * scale_of(q, scoring.scale)
        at = first + block.start
        seen = seen_by(scoring, first_key, k.shape[-2], at, asking.shape[-2])
        if seen.start >= seen.stop:
            continue
        parts = tuple(cut(one, block, seen) for one in masks)
        weights, slope, _ = scores_of(asking, looked_at[..., seen, :], parts, scoring, at, first_key + seen.start)
        weights -= ends[..., block, :]
        np.exp(weights, out=weights)
        kept = drop_factors(dropping, weights, at, first_key + seen.start)
        used = weights if kept is None else weights * kept
        values[..., seen, :] += _of_groups(used.swapaxes(-1, -2) @ slopes, values)
        change = slopes @ read[..., seen]
        change = change if kept is None else change * kept
        change -= inner[..., block, :]
        change *= weights
        if slope is not None:
            change *= slope
        keys[..., seen, :] += _of_groups(change.swapaxes(-1, -2) @ asking, keys)
    return keys, values


def _of_groups(made: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """What keys get of all queries that share them: the sum along leading dims in which there is one of them."""
    pairs = enumerate(zip(made.shape[:-2], keys.shape[:-2], strict=True))
    return made.sum(tuple(i for i, (many, few) in pairs if few < many), keepdims=True)


def _key_end(k: np.ndarray, v: np.ndarray, state: Pair) -> Pair:
    return state[0].astype(k.dtype, copy=False), state[1].astype(v.dtype, copy=False)


@attention_key_grad.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    dim = placement.operands[2].rank - 2
    first, first_key = placement.operand_offset(2, dim), placement.operand_offset(4, dim)
    return {"first": first, "first_key": first_key, **placed_start(attrs, placement, 2, 4)}


@operator(
    "AttentionKeyGradBegin",
    rule=None,
    shape=_key_shapes,
    dtype=_state_type,
    storage=Storage(scratch=_key_scratch),
    flops=_KEY_WORK.begin,
)
def attention_key_grad_begin(g, inner, q, ends, k, v, *, scale, causal, window, softcap, first, first_key, queries):
    """The gradients by the rank's own queries."""
    scoring = Scoring(scale, causal, window, softcap)
    return key_slopes(g, inner, q, ends, k, v, _key_start(q, k, v), (), scoring, first, first_key, queries)


@operator(
    "AttentionKeyGradTurn",
    rule=None,
    shape=_key_shapes,
    dtype=_state_type,
    storage=Storage(scratch=_key_scratch),
    flops=_KEY_WORK.turn,
)
def attention_key_grad_turn(
    g, inner, q, ends, k, v, keys, values, *, scale, causal, window, softcap, first, first_key, queries
):  # fmt: skip
    """The gradients by one block of queries more."""
    scoring = Scoring(scale, causal, window, softcap)
    return key_slopes(g, inner, q, ends, k, v, (keys, values), (), scoring, first, first_key, queries)


@operator("AttentionKeyGradEnd", rule=None, shape=_key_shapes, dtype=lambda g, inner, q, ends, k, v, *_, **__: (k, v))
def attention_key_grad_end(g, inner, q, ends, k, v, keys, values):
    """What keys and values get of all queries."""
    return _key_end(k, v, (keys, values))


@attention_key_grad.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    turns = attention_key_grad_begin, attention_key_grad_turn, attention_key_grad_end
    return block_ring(attrs, placement, 4, (0, 1, 2, 3), turns, ("first_key", "first", "queries"))
