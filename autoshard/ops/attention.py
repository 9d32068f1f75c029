"""Attention as one operator, which never holds all scores at once, and runs over a sequence split on several ranks.

Scores are made for a block of keys at a time, with the largest score and the sum of exponentials so far (online
softmax, Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", algorithm 1). Blocks may come from other ranks:
with `sequence="ring"`, queries, keys and values of a sequence lie along the same axes, and the blocks of keys and
values go round (Liu et al. 2023, "Ring Attention with Blockwise Transformers", algorithm 1). Else a rank needs all
keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.errors import ShapeError
from autoshard.ops.attributes import Place
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange, Ring, Varying, along, common_parts
from autoshard.tensortype import DType

Shape = tuple[int, ...]
State = tuple[np.ndarray, np.ndarray, np.ndarray]
BLOCK = 512
"""Keys whose scores are held at once."""
AUTO, GATHER, RING = WAYS = ("auto", "gather", "ring")


def _rule(q: Shape, k: Shape, v: Shape, *, sequence: str, **_: object) -> str:
    if sequence not in WAYS:
        raise ShapeError(f"Attention: sequence is one of {', '.join(WAYS)}, not {sequence!r}")
    if min(len(q), len(k), len(v)) < 3 or k[:-1] != v[:-1] or q[:-2] != k[:-2] or q[-1] != k[-1]:
        raise ShapeError(
            f"Attention takes queries [..., q, d], keys [..., k, d] and values [..., k, v], not {q}, {k} and {v}"
        )
    mark = common_parts(q[-2], k[-2]) if sequence == RING else 0
    if mark < 2:
        return "... q [d], ... [k] [d], ... [k] v -> ... q v"
    return f"... q^{mark} [d], ... [k]=q [d], ... [k]=q v -> ... q^{mark} v"


def _type(q: DType, k: DType, v: DType, **_: object) -> DType:
    if not (q.is_float and k.is_float and v.is_float):
        raise ShapeError(f"Attention takes floats, not {q}, {k} and {v}")
    return v


def _flops(q: Shape, k: Shape, v: Shape, **_: object) -> float:
    """For each pair of a query and a key: both products, and a few for the exponential; per index combination."""
    return (2 * (q[-1] + v[-1]) + 8) / (q[-1] * v[-1])


def _scratch(operands: Sequence, results: Sequence, **_: object) -> int:
    """Scores and their exponentials of a block of keys, and the state."""
    (q, k, v), wide = operands, max(4, operands[0].dtype.itemsize)
    rows = math.prod(q.shape[:-1])
    return wide * rows * (2 * min(BLOCK, k.shape[-2]) + 2 * v.shape[-1] + 4)


@operator("Attention", rule=_rule, dtype=_type, flops=_flops, scratch=_scratch)
def attention(q, k, v, *, scale=0.0, causal=False, sequence=AUTO, first=0):
    """softmax(q k^T * scale) v over the last dims; `scale` 0 stands for 1 / sqrt(d).

    `causal` lets query i see the keys 0 to i. `sequence` says how it runs where the queries are split in their
    sequence: 'gather' takes all keys and values to each rank, 'ring' splits them alike, and their blocks go round; of
    'auto' a plan decides by cost. `first` is the number of the first query, where q is only a block.
    """
    state = attend(q, k, v, _start(q, v), scale, causal, first, 0, k.shape[-2])
    return _finished(state).astype(v.dtype, copy=False)


def _start(q: np.ndarray, v: np.ndarray) -> State:
    """Weighted sum of values, largest score, sum of exponentials: of no keys yet."""
    wide = np.float64 if q.dtype == np.float64 else np.float32
    rows = q.shape[:-1]
    return np.zeros((*rows, v.shape[-1]), wide), np.full((*rows, 1), -np.inf, wide), np.zeros((*rows, 1), wide)


def attend(
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
    """The state after these keys and values too, of which the first has number `first_key`. What comes after `keys`
    keys in all is padding, and not looked at."""
    wide, count = state[0].dtype, q.shape[-2]
    queries = q.astype(wide) * wide.type(scale or 1 / math.sqrt(q.shape[-1]))
    held = min(k.shape[-2], keys - first_key)
    for at in range(0, held, BLOCK):
        number = first_key + at
        if causal and number > first + count - 1:
            break
        block = slice(at, min(at + BLOCK, held))
        looked_at, values = (one[..., block, :].astype(wide, copy=False) for one in (k, v))
        scores = queries @ looked_at.swapaxes(-1, -2)
        if causal and number + scores.shape[-1] - 1 > first:
            later = number + np.arange(scores.shape[-1]) > (first + np.arange(count))[:, None]
            scores[..., later] = -np.inf
        state = _joined(state, scores, values)
    return state


def _joined(state: State, scores: np.ndarray, values: np.ndarray) -> State:
    total, largest, weight = state
    top = np.maximum(largest, scores.max(-1, keepdims=True))
    # Of a query that has seen no key yet all is 0, whatever it is measured against.
    base = np.where(np.isneginf(top), top.dtype.type(0), top)
    old = np.exp(largest - base)
    scores -= base
    np.exp(scores, out=scores)
    return total * old + scores @ values, top, weight * old + scores.sum(-1, keepdims=True)


def _finished(state: State) -> np.ndarray:
    return state[0] / state[2]


@attention.localize
def _(attrs: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {"first": place.operand_offset(0, place.operands[0].rank - 2)}


# -- in turns, with blocks of keys and values that go round


def _state_shapes(q: Shape, k: Shape, v: Shape, *_: Shape, **__: object) -> tuple[Shape, ...]:
    return (*q[:-1], v[-1]), (*q[:-1], 1), (*q[:-1], 1)


def _state_type(q: DType, *_: DType, **__: object) -> str:
    return "f64" if q.name == "f64" else "f32"


def _turn_scratch(operands: Sequence, results: Sequence, **_: object) -> int:
    return _scratch(operands[:3], results)


@operator("AttentionBegin", rule=None, shape=_state_shapes, dtype=_state_type, scratch=_turn_scratch)
def attention_begin(q, k, v, *, scale, causal, first, first_key, keys):
    """The state of the queries after the first block of keys: the rank's own."""
    return attend(q, k, v, _start(q, v), scale, causal, first, first_key, keys)


@operator("AttentionTurn", rule=None, shape=_state_shapes, dtype=_state_type, scratch=_turn_scratch)
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
    return _finished((total, largest, weight)).astype(v.dtype, copy=False)


def block_numbers(place: Place, held: int, moving: int, dim: int) -> tuple[Varying, tuple[Varying, ...]]:
    """Where a rank's block of operand `held` begins; and that of `moving` that it has in each turn."""
    layout = place.operand_layouts[held]
    parts, own, other = layout.parts[dim], place.local_operand(held)[dim], place.local_operand(moving)[dim]
    numbers = [[(p + turn) % parts * other for p in range(parts)] for turn in range(parts)]
    return along(layout, dim, [p * own for p in range(parts)]), tuple(along(layout, dim, one) for one in numbers)


@attention.exchange
def _(attrs: Mapping[str, Any], place: Place) -> Exchange:
    dim = place.operands[0].rank - 2
    own, others = block_numbers(place, 0, 1, dim)
    given = {"scale": attrs["scale"], "causal": attrs["causal"], "keys": place.operands[1].shape[dim], "first": own}
    turns = tuple({**given, "first_key": one} for one in others)
    return Exchange(ring=Ring((1, 2), dim, attention_begin, attention_turn, attention_end, turns))
