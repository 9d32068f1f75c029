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

from autoshard.errors import ShapeError
from autoshard.ops.attention import BLOCK, RING, attention, block_numbers
from autoshard.ops.attributes import Place
from autoshard.ops.pointwise import mul
from autoshard.ops.reduce import reduce_sum
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange, Ring, common_parts
from autoshard.tensortype import DType

Shape = tuple[int, ...]
State = tuple[np.ndarray, ...]


@attention.gradient
def _(g, y, q, k, v, scale, causal, sequence, first):
    attrs = {"scale": scale, "causal": causal, "sequence": sequence}
    # Of each query: what the slopes of its weights come to, weighted.
    inner = reduce_sum(mul(g, y), axis=-1, keep_dims=True)
    slope, ends = attention_query_grad(g, inner, q, k, v, first=first, **attrs)
    return slope, *attention_key_grad(g, inner, q, ends, k, v, first=first, **attrs)


def _check(name: str, g: Shape, inner: Shape, q: Shape, k: Shape, v: Shape) -> None:
    fits = len(g) == len(q) == len(k) == len(v) >= 3 and g[:-1] == q[:-1] == inner[:-1]
    fits = fits and k[:-1] == v[:-1] and (q[-1], g[-1], inner[-1]) == (k[-1], v[-1], 1)
    if not fits:
        raise ShapeError(
            f"{name} takes slopes [..., q, v] with sums [..., q, 1], queries [..., q, d], keys [..., k, d] and values "
            f"[..., k, v], not {g}, {inner}, {q}, {k} and {v}"
        )


def _wide(*of: DType, **_: object) -> DType | str:
    return "f64" if of[0].name == "f64" else "f32"


def _scale(q: np.ndarray, scale: float) -> float:
    return scale or 1 / math.sqrt(q.shape[-1])


def _accumulator(q: np.ndarray) -> type:
    return np.float64 if q.dtype == np.float64 else np.float32


def _later(first: int, queries: int, first_key: int, keys: int) -> np.ndarray | None:
    """Which of these keys come after which of these queries; None if none do."""
    if first_key + keys - 1 <= first:
        return None
    return first_key + np.arange(keys) > (first + np.arange(queries))[:, None]


# -- of queries


def _query_rule(g: Shape, inner: Shape, q: Shape, k: Shape, v: Shape, *, sequence: str, **_: object) -> str:
    _check("AttentionQueryGrad", g, inner, q, k, v)
    mark = common_parts(q[-2], k[-2]) if sequence == RING else 0
    if mark < 2:
        return "... q [v], ... q 1, ... q [d], ... [k] [d], ... [k] [v] -> ... q [d], ... q 1"
    ring = f"... q^{mark}"
    return f"{ring} [v], {ring} 1, {ring} [d], ... [k]=q [d], ... [k]=q [v] -> {ring} [d], {ring} 1"


def _query_shapes(g: Shape, inner: Shape, q: Shape, *_: Shape, **__: object) -> tuple[Shape, Shape]:
    return q, inner


def _query_flops(g: Shape, inner: Shape, q: Shape, k: Shape, v: Shape, **_: object) -> float:
    """Three products and an exponential for each pair of a query and a key; per index combination."""
    return (4 * q[-1] + 2 * v[-1] + 10) / (q[-1] * v[-1])


def _query_scratch(operands: Sequence, results: Sequence, **_: object) -> int:
    """Weights and slopes of a block of keys, and the state."""
    _, _, q, k, _ = operands[:5]
    return max(4, q.dtype.itemsize) * math.prod(q.shape[:-1]) * (2 * min(BLOCK, k.shape[-2]) + 2 * q.shape[-1] + 4)


def _query_types(g: DType, inner: DType, q: DType, *_: DType, **__: object) -> tuple[DType | str, ...]:
    return q, _wide(q)


@operator(
    "AttentionQueryGrad",
    rule=_query_rule,
    dtype=_query_types,
    flops=_query_flops,
    scratch=_query_scratch,
)
def attention_query_grad(g, inner, q, k, v, *, scale=0.0, causal=False, sequence="auto", first=0):
    """The gradient of queries from that of the result, `g`; and the logarithm of each query's sum of exponentials.

    `inner` is what g and the result come to for each query, sum(g * y). Attributes are those of Attention.
    """
    state = _query_start(q)
    return _query_end(q, query_slopes(g, inner, q, k, v, state, scale, causal, first, 0, k.shape[-2]))


def _query_start(q: np.ndarray) -> State:
    """Weighted sum of slopes times keys, largest score, sum of exponentials: of no keys yet."""
    wide, rows = _accumulator(q), q.shape[:-1]
    return np.zeros(q.shape, wide), np.full((*rows, 1), -np.inf, wide), np.zeros((*rows, 1), wide)


def query_slopes(
    g: np.ndarray,
    inner: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    state: State,
    scale: float,
    causal: bool,
    first: int,
    first_key: int,
    keys: int,
) -> State:
    """The state after these keys and values too; what comes after `keys` keys in all is padding."""
    (total, largest, weight), wide = state, state[0].dtype
    factor = wide.type(_scale(q, scale))
    queries, slopes = q.astype(wide) * factor, g.astype(wide, copy=False)
    held = min(k.shape[-2], keys - first_key)
    for at in range(0, held, BLOCK):
        if causal and first_key + at > first + q.shape[-2] - 1:
            break
        block = slice(at, min(at + BLOCK, held))
        looked_at, values = (one[..., block, :].astype(wide, copy=False) for one in (k, v))
        scores = queries @ looked_at.swapaxes(-1, -2)
        later = _later(first, q.shape[-2], first_key + at, scores.shape[-1]) if causal else None
        if later is not None:
            scores[..., later] = -np.inf
        top = np.maximum(largest, scores.max(-1, keepdims=True))
        # Of a query that has seen no key yet all is 0, whatever it is measured against.
        base = np.where(np.isneginf(top), wide.type(0), top)
        old = np.exp(largest - base)
        scores -= base
        np.exp(scores, out=scores)
        weight = weight * old + scores.sum(-1, keepdims=True)
        change = slopes @ values.swapaxes(-1, -2)
        change -= inner
        change *= scores
        total = total * old + (change @ looked_at) * factor
        largest = top
    return total, largest, weight


def _query_end(q: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
    total, largest, weight = state
    return (total / weight).astype(q.dtype, copy=False), largest + np.log(weight)


@attention_query_grad.localize
def _(attrs: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {"first": place.operand_offset(2, place.operands[2].rank - 2)}


def _query_state(g: Shape, inner: Shape, q: Shape, *_: Shape, **__: object) -> tuple[Shape, ...]:
    return q, inner, inner


def _state_type(g: DType, inner: DType, q: DType, *_: DType, **__: object) -> DType | str:
    return _wide(q)


@operator("AttentionQueryGradBegin", rule=None, shape=_query_state, dtype=_state_type, scratch=_query_scratch)
def attention_query_grad_begin(g, inner, q, k, v, *, scale, causal, first, first_key, keys):
    """The state after the rank's own block of keys."""
    return query_slopes(g, inner, q, k, v, _query_start(q), scale, causal, first, first_key, keys)


@operator("AttentionQueryGradTurn", rule=None, shape=_query_state, dtype=_state_type, scratch=_query_scratch)
def attention_query_grad_turn(
    g, inner, q, k, v, total, largest, weight, *, scale, causal, first, first_key, keys
):  # fmt: skip
    """The state after one block of keys and values more."""
    return query_slopes(g, inner, q, k, v, (total, largest, weight), scale, causal, first, first_key, keys)


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
def _(attrs: Mapping[str, Any], place: Place) -> Exchange:
    dim = place.operands[2].rank - 2
    own, others = block_numbers(place, 2, 3, dim)
    given = {"scale": attrs["scale"], "causal": attrs["causal"], "keys": place.operands[3].shape[dim], "first": own}
    turns = tuple({**given, "first_key": one} for one in others)
    begin, turn, end = attention_query_grad_begin, attention_query_grad_turn, attention_query_grad_end
    return Exchange(ring=Ring((3, 4), dim, begin, turn, end, turns))


# -- of keys and values


def _key_rule(g: Shape, inner: Shape, q: Shape, ends: Shape, k: Shape, v: Shape, *, sequence: str, **_: object) -> str:
    _check("AttentionKeyGrad", g, inner, q, k, v)
    mark = common_parts(q[-2], k[-2]) if sequence == RING else 0
    if mark < 2:
        return "... q [v], ... q 1, ... q [d], ... q 1, ... k [d], ... k [v] -> ... k [d], ... k [v]"
    ring = f"... k^{mark}"
    return f"... [q]=k [v], ... [q]=k 1, ... [q]=k [d], ... [q]=k 1, {ring} [d], {ring} [v] -> {ring} [d], {ring} [v]"


def _key_shapes(g: Shape, inner: Shape, q: Shape, ends: Shape, k: Shape, v: Shape, *_: Shape, **__: object) -> tuple:
    return k, v


def _key_types(g: DType, inner: DType, q: DType, ends: DType, k: DType, v: DType, *_: DType, **__: object) -> tuple:
    return k, v


def _key_flops(g: Shape, inner: Shape, q: Shape, ends: Shape, k: Shape, v: Shape, **_: object) -> float:
    """Four products and an exponential for each pair of a query and a key; per index combination."""
    return (4 * q[-1] + 4 * v[-1] + 10) / (q[-1] * v[-1])


def _key_scratch(operands: Sequence, results: Sequence, **_: object) -> int:
    """Weights and slopes of a block of queries, and the state."""
    _, _, q, _, k, v = operands[:6]
    columns = 2 * min(BLOCK, q.shape[-2]) + 2 * (q.shape[-1] + v.shape[-1])
    return max(4, q.dtype.itemsize) * math.prod(k.shape[:-1]) * columns


@operator(
    "AttentionKeyGrad",
    rule=_key_rule,
    dtype=_key_types,
    flops=_key_flops,
    scratch=_key_scratch,
    neutral="yes",
)
def attention_key_grad(g, inner, q, ends, k, v, *, scale=0.0, causal=False, sequence="auto", first=0, first_key=0):
    """The gradients of keys and values; `ends` are the logarithms that AttentionQueryGrad gives.

    A query of zeros without slope adds nothing, so padding may stand behind the last one. `first_key` is the number of
    the first key, where k and v are only a block.
    """
    queries = first + q.shape[-2]
    made = key_slopes(g, inner, q, ends, k, v, _key_start(q, k, v), scale, causal, first, first_key, queries)
    return _key_end(k, v, made)


def _key_start(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> State:
    return tuple(np.zeros(one.shape, _accumulator(q)) for one in (k, v))


def key_slopes(
    g: np.ndarray,
    inner: np.ndarray,
    q: np.ndarray,
    ends: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    state: State,
    scale: float,
    causal: bool,
    first: int,
    first_key: int,
    queries: int,
) -> State:
    """The gradients with what these queries add, of which the first has number `first`; what comes after `queries`
    queries in all is padding."""
    (keys, values), wide = state, state[0].dtype
    factor = wide.type(_scale(q, scale))
    looked_at, read = (one.astype(wide, copy=False).swapaxes(-1, -2) for one in (k, v))
    held = min(q.shape[-2], queries - first)
    for at in range(0, held, BLOCK):
        number, block = first + at, slice(at, min(at + BLOCK, held))
        count = block.stop - at
        if causal and first_key > number + count - 1:
            continue
        asking, slopes = (one[..., block, :].astype(wide, copy=False) for one in (q, g))
        asking = asking * factor
        weights = asking @ looked_at
        weights -= ends[..., block, :]
        np.exp(weights, out=weights)
        later = _later(number, count, first_key, k.shape[-2]) if causal else None
        if later is not None:
            weights[..., later] = 0
        values = values + weights.swapaxes(-1, -2) @ slopes
        change = slopes @ read
        change -= inner[..., block, :]
        change *= weights
        keys = keys + change.swapaxes(-1, -2) @ asking
    return keys, values


def _key_end(k: np.ndarray, v: np.ndarray, state: State) -> State:
    return state[0].astype(k.dtype, copy=False), state[1].astype(v.dtype, copy=False)


@attention_key_grad.localize
def _(attrs: Mapping[str, Any], place: Place) -> dict[str, Any]:
    dim = place.operands[2].rank - 2
    return {"first": place.operand_offset(2, dim), "first_key": place.operand_offset(4, dim)}


def _key_state_type(g: DType, inner: DType, q: DType, *_: DType, **__: object) -> DType | str:
    return _wide(q)


@operator("AttentionKeyGradBegin", rule=None, shape=_key_shapes, dtype=_key_state_type, scratch=_key_scratch)
def attention_key_grad_begin(g, inner, q, ends, k, v, *, scale, causal, first, first_key, queries):
    """The gradients by the rank's own queries."""
    return key_slopes(g, inner, q, ends, k, v, _key_start(q, k, v), scale, causal, first, first_key, queries)


@operator("AttentionKeyGradTurn", rule=None, shape=_key_shapes, dtype=_key_state_type, scratch=_key_scratch)
def attention_key_grad_turn(
    g, inner, q, ends, k, v, keys, values, *, scale, causal, first, first_key, queries
):  # fmt: skip
    """The gradients by one block of queries more."""
    return key_slopes(g, inner, q, ends, k, v, (keys, values), scale, causal, first, first_key, queries)


@operator("AttentionKeyGradEnd", rule=None, shape=_key_shapes, dtype=_key_types)
def attention_key_grad_end(g, inner, q, ends, k, v, keys, values):
    """What keys and values get of all queries."""
    return _key_end(k, v, (keys, values))


@attention_key_grad.exchange
def _(attrs: Mapping[str, Any], place: Place) -> Exchange:
    dim = place.operands[4].rank - 2
    own, others = block_numbers(place, 4, 2, dim)
    given = {"scale": attrs["scale"], "causal": attrs["causal"]}
    given |= {"queries": place.operands[2].shape[dim], "first_key": own}
    turns = tuple({**given, "first": one} for one in others)
    begin, turn, end = attention_key_grad_begin, attention_key_grad_turn, attention_key_grad_end
    return Exchange(ring=Ring((0, 1, 2, 3), dim, begin, turn, end, turns))
