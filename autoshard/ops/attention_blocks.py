"""What attention and its gradients share: scores of a block of keys or queries at a time, and blocks that go round.

The largest score and the sum of exponentials so far are kept beside a weighted sum, which is measured anew as larger
scores come (online softmax, Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", algorithms 1 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.attributes import Place
from autoshard.ops.registry import Operator
from autoshard.ops.windows import Exchange, Ring, Varying, along, common_parts

Shape = tuple[int, ...]
State = tuple[np.ndarray, np.ndarray, np.ndarray]
BLOCK = 512
"""Keys, or queries, whose scores are held at once."""
AUTO, GATHER, RING = WAYS = ("auto", "gather", "ring")


def state_type(of: DType) -> str:
    """The element type that sums over keys or queries are made in, for queries of this one."""
    return "f64" if of.name == "f64" else "f32"


def accumulator(q: np.ndarray) -> np.dtype:
    """numpy's type of the sums; see `state_type`."""
    return np.dtype(np.float64 if q.dtype == np.float64 else np.float32)


def scale_of(q: np.ndarray, scale: float) -> np.floating:
    """What scores are multiplied by: `scale`, or 1 / sqrt(d) where it is 0."""
    return accumulator(q).type(scale or 1 / math.sqrt(q.shape[-1]))


def no_keys(q: np.ndarray, width: int) -> State:
    """Weighted sum of rows of `width`, largest score, and sum of exponentials, of no keys yet."""
    wide, rows = accumulator(q), q.shape[:-1]
    return np.zeros((*rows, width), wide), np.full((*rows, 1), -np.inf, wide), np.zeros((*rows, 1), wide)


def blocks(held: int) -> Iterator[slice]:
    """Slices of at most BLOCK, one after another, of `held` rows."""
    return (slice(at, min(at + BLOCK, held)) for at in range(0, held, BLOCK))


def scores_of(queries: np.ndarray, keys: np.ndarray, causal: bool, first: int, first_key: int) -> np.ndarray:
    """Products of scaled queries [..., q, d] and keys [..., k, d]; -inf where `causal` hides the key from the query.

    `first` and `first_key` are the numbers of the first query and of the first key.
    """
    scores = queries @ keys.swapaxes(-1, -2)
    if causal and first_key + keys.shape[-2] - 1 > first:
        later = first_key + np.arange(keys.shape[-2]) > (first + np.arange(queries.shape[-2]))[:, None]
        scores[..., later] = -np.inf
    return scores


def scored_blocks(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    causal: bool,
    first: int,
    first_key: int,
    keys: int,
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Scores [..., rows, block] of the queries that see any key of a block, with the keys and values [..., block, d or
    v], one block after another; and which rows of queries these are.

    The keys begin with number `first_key`; what comes after `keys` keys in all is padding, and not looked at.
    """
    queries = q.astype(accumulator(q)) * scale_of(q, scale)
    for block in blocks(min(k.shape[-2], keys - first_key)):
        rows = slice(max(0, first_key + block.start - first) if causal else 0, q.shape[-2])
        if rows.start >= rows.stop:
            return
        looked_at, values = (one[..., block, :].astype(queries.dtype, copy=False) for one in (k, v))
        scores = scores_of(queries[..., rows, :], looked_at, causal, first + rows.start, first_key + block.start)
        yield rows, scores, looked_at, values


def with_rows(state: State, rows: slice, new: State) -> State:
    """The state with other numbers for some rows of queries."""
    if rows.start == 0:
        return new
    total, largest, weight = (
        np.concatenate((old[..., : rows.start, :], one), axis=-2) for old, one in zip(state, new, strict=True)
    )
    return total, largest, weight


def rebase(scores: np.ndarray, largest: np.ndarray, weight: np.ndarray) -> State:
    """Turn the scores, in place, into exponentials measured against the largest score yet.

    Gives what a sum of earlier blocks is to be multiplied by, and the largest score and the sum of exponentials with
    this block.
    """
    top = np.maximum(largest, scores.max(-1, keepdims=True))
    # Of a query that has seen no key yet all is 0, whatever it is measured against.
    base = np.where(np.isneginf(top), top.dtype.type(0), top)
    old = np.exp(largest - base)
    scores -= base
    np.exp(scores, out=scores)
    return old, top, weight * old + scores.sum(-1, keepdims=True)


# -- what all kinds of work are counted by


def seen_share(q: Shape, k: Shape, causal: bool, queries: int = 0) -> float:
    """Of all pairs of a query and a key, the share that is looked at.

    Args:
        queries: how many there are in all, where these are a part of them: then the last ones with the first keys,
            which see most of all.
    """
    own, keys, last = q[-2], k[-2], max(q[-2], queries)
    if not causal or not own or not keys:
        return 1.0
    return (_seen_by(last, keys) - _seen_by(last - own, keys)) / (own * keys)


def _seen_by(queries: int, keys: int) -> float:
    """Pairs that so many causal queries look at, query i at the keys 0 to i."""
    both = min(queries, keys)
    return both * (both + 1) / 2 + (queries - both) * keys


def most_seen(q: Shape, k: Shape, queries: int, causal: bool) -> float:
    """How many times more pairs the last of `queries` queries look at than the shapes q and k would alone."""
    return seen_share(q, k, causal, queries) / seen_share(q, k, causal)


def group_marks(q: Shape, k: Shape) -> tuple[str, str]:
    """The leading dims of queries and of keys in a rule.

    A dim of size 1 in the keys alone is one along which queries share them (Ainslie et al. 2023, "GQA").
    """
    names = [f"h{i}" for i in range(len(q) - 2)]
    shared = (few == 1 < many for many, few in zip(q[:-2], k[:-2], strict=True))
    return " ".join(names), " ".join("1" if one else name for name, one in zip(names, shared, strict=True))


def fits_groups(q: Shape, k: Shape) -> bool:
    """Whether the leading dims of keys are those of queries, or 1 where queries share keys."""
    return len(q) == len(k) and all(few in (1, many) for many, few in zip(q[:-2], k[:-2], strict=True))


# -- in turns, with blocks that go round


def ring_parts(q: Shape, k: Shape, sequence: str) -> int:
    """Into how many parts a ring may split queries and keys alike; 0 if attention is not to run in a ring."""
    parts = common_parts(q[-2], k[-2]) if sequence == RING else 0
    return parts if parts > 1 else 0


def block_ring(
    attrs: Mapping[str, Any],
    place: Place,
    held: int,
    moving: tuple[int, ...],
    turns: tuple[Operator, Operator, Operator],
    numbers: tuple[str, str, str],
) -> Exchange:
    """The ring in which blocks of the operands `moving` pass the rank's own block of operand `held`.

    `turns` are the operators that begin, go on and end. `numbers` names their attributes for the number of the first
    row that is held, of the first that has come, and for how many of those that move there are in all.
    """
    dim, (own, other, count) = place.operands[held].rank - 2, numbers
    held_at, moving_at = _block_numbers(place, held, moving[0], dim)
    given = {"scale": attrs["scale"], "causal": attrs["causal"], count: place.operands[moving[0]].shape[dim]}
    each = tuple({**given, own: held_at, other: one} for one in moving_at)
    return Exchange(ring=Ring(moving, dim, *turns, each))


def _block_numbers(place: Place, held: int, moving: int, dim: int) -> tuple[Varying, tuple[Varying, ...]]:
    """Where a rank's block of operand `held` begins; and that of `moving` that it has in each turn."""
    layout = place.operand_layouts[held]
    parts, own, other = layout.parts[dim], place.local_operand(held)[dim], place.local_operand(moving)[dim]
    numbers = [[(p + turn) % parts * other for p in range(parts)] for turn in range(parts)]
    return along(layout, dim, [p * own for p in range(parts)]), tuple(along(layout, dim, one) for one in numbers)
