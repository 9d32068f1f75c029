"""What attention and its gradients share: scores of a block of keys or queries at a time, and blocks that go round.

The largest score and the sum of exponentials so far are kept beside a weighted sum, which is measured anew as larger
scores come (online softmax, Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", algorithms 1 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.attention_dropout import Dropping, check_dropout, drop_factors, drop_marks, split_operands
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.options import UnequalFlops
from autoshard.ops.registry import Operator
from autoshard.ops.windows import Exchange, Ring, Varying, along, common_parts
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
Masks = tuple[np.ndarray, ...]
State = tuple[np.ndarray, np.ndarray, np.ndarray]
QUERY = {"Attention": 0, "AttentionQueryGrad": 2, "AttentionKeyGrad": 2, "AttentionMaskGrad": 2}
"""The operand of attention, and of its gradients, that has the queries."""
KEY = {"Attention": 1, "AttentionQueryGrad": 3, "AttentionKeyGrad": 4, "AttentionMaskGrad": 4}
BLOCK = 512
"""Keys, or queries, whose scores are held at once."""
LEAST = -30000.0
"""The least score that a mask makes: exp of it is 0 beside any score that can be seen, its steps in f32 are 0.002, and
a query that sees nothing weighs all keys alike."""
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


def no_keys(q: np.ndarray, width: int, sink: np.ndarray | None = None) -> State:
    """Weighted sum of rows of `width`, largest score, and sum of exponentials, of no keys yet; or of a sink alone,
    which is a score without a value."""
    wide, rows = accumulator(q), q.shape[:-1]
    total = np.zeros((*rows, width), wide)
    if sink is None:
        return total, np.full((*rows, 1), -np.inf, wide), np.zeros((*rows, 1), wide)
    return total, np.broadcast_to(sink.astype(wide), (*rows, 1)), np.ones((*rows, 1), wide)


def blocks(held: int) -> Iterator[slice]:
    """Slices of at most BLOCK, one after another, of `held` rows."""
    return (slice(at, min(at + BLOCK, held)) for at in range(0, held, BLOCK))


class Scoring(NamedTuple):
    """How scores are made of products of queries and keys; the attributes of Attention of these names."""

    scale: float = 0.0
    causal: bool = False
    window: int = 0
    softcap: float = 0.0


class BlockScores(NamedTuple):
    """Scores [..., rows, keys]; what a slope of them comes to for products of queries and keys is `slope` times it
    (None: 1), and for masks that add to them `kept` times it."""

    values: np.ndarray
    slope: np.ndarray | None
    kept: np.ndarray | None


def scores_of(
    queries: np.ndarray, keys: np.ndarray, masks: Masks, scoring: Scoring, first: int, first_key: int
) -> BlockScores:
    """Scores of scaled queries [..., q, d] and keys [..., k, d]; -inf where a key is hidden by its place.

    Products are capped, then masked: truths hide where they are False, numbers are added. `first` and `first_key` are
    the numbers of the first query and of the first key.
    """
    scores, slope, kept = queries @ keys.swapaxes(-1, -2), None, None
    if scoring.softcap:
        share = np.tanh(scores / scores.dtype.type(scoring.softcap))
        scores, slope = share * scores.dtype.type(scoring.softcap), 1 - share * share
    for mask in masks:
        if mask.dtype == bool:
            scores, seen = np.where(mask, scores, scores.dtype.type(LEAST)), mask.astype(scores.dtype)
            slope, kept = (seen if one is None else one * seen for one in (slope, kept))
        else:
            scores = scores + mask.astype(scores.dtype)
    scores = np.maximum(scores, scores.dtype.type(LEAST)) if masks else scores
    hidden = _hidden(scoring, first, queries.shape[-2], first_key, keys.shape[-2])
    if hidden is not None:
        scores[..., hidden] = -np.inf
    return BlockScores(scores, slope, kept)


def _hidden(scoring: Scoring, first: int, queries: int, first_key: int, keys: int) -> np.ndarray | None:
    """Which of these keys a query does not see by their places; None if it sees all of them."""
    last, last_key, hidden = first + queries - 1, first_key + keys - 1, None
    behind = (first + np.arange(queries))[:, None] - (first_key + np.arange(keys))
    if scoring.causal and last_key > first:
        hidden = behind < 0
    if scoring.window and last - first_key >= scoring.window:
        hidden = behind >= scoring.window if hidden is None else hidden | (behind >= scoring.window)
    if scoring.window and not scoring.causal and last_key - first >= scoring.window:
        hidden = behind <= -scoring.window if hidden is None else hidden | (behind <= -scoring.window)
    return hidden


def seeing(scoring: Scoring, first: int, queries: int, first_key: int, keys: int) -> slice:
    """Those of `queries` queries from number `first` on that see any of the keys from number `first_key` on."""
    start, stop = 0, queries
    if scoring.causal or scoring.window:
        start = first_key - (0 if scoring.causal else scoring.window - 1) - first
    if scoring.window:
        stop = first_key + keys - 1 + scoring.window - first
    return slice(min(max(0, start), queries), max(0, min(stop, queries)))


def seen_by(scoring: Scoring, first_key: int, keys: int, first: int, queries: int) -> slice:
    """Those of `keys` keys from number `first_key` on that any of the queries from number `first` on sees."""
    start, stop = 0, keys
    if scoring.causal or scoring.window:
        stop = first + queries + (0 if scoring.causal else scoring.window - 1) - first_key
    if scoring.window:
        start = first - scoring.window + 1 - first_key
    return slice(min(max(0, start), keys), max(0, min(stop, keys)))


def place_in(mask: np.ndarray, rows: slice, columns: slice) -> tuple:
    """The index of a part of a mask, whose dims of size 1 stand for all."""
    return ..., rows if mask.shape[-2] > 1 else slice(None), columns if mask.shape[-1] > 1 else slice(None)


def cut(mask: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
    return mask[place_in(mask, rows, columns)]


class ScoredBlock(NamedTuple):
    """Scores of some rows of queries and a block of keys, with these keys and values [..., block, d or v], and what
    weights are multiplied by where some are dropped."""

    rows: slice
    columns: slice
    scores: BlockScores
    keys: np.ndarray
    values: np.ndarray
    kept: np.ndarray | None


def scored_blocks(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    masks: Masks,
    scoring: Scoring,
    first: int,
    first_key: int,
    keys: int,
    dropping: Dropping | None = None,
) -> Iterator[ScoredBlock]:
    """Scores [..., rows, block] of the queries that see any key of a block, one block after another.

    The keys begin with number `first_key`; what comes after `keys` keys in all is padding, and not looked at.
    """
    queries = q.astype(accumulator(q)) * scale_of(q, scoring.scale)
    for block in blocks(min(k.shape[-2], keys - first_key)):
        at, held = first_key + block.start, block.stop - block.start
        rows = seeing(scoring, first, q.shape[-2], at, held)
        if rows.start >= rows.stop:
            continue
        looked_at, values = (one[..., block, :].astype(queries.dtype, copy=False) for one in (k, v))
        parts = tuple(cut(one, rows, block) for one in masks)
        scores = scores_of(queries[..., rows, :], looked_at, parts, scoring, first + rows.start, at)
        kept = drop_factors(dropping, scores.values, first + rows.start, at)
        yield ScoredBlock(rows, block, scores, looked_at, values, kept)


def with_rows(state: State, rows: slice, new: State) -> State:
    """The state with other numbers for some rows of queries."""
    held = state[0].shape[-2]
    if rows.start == 0 and rows.stop >= held:
        return new
    total, largest, weight = (
        np.concatenate((old[..., : rows.start, :], one, old[..., rows.stop :, :]), axis=-2)
        for old, one in zip(state, new, strict=True)
    )
    return total, largest, weight


def safe(weight: np.ndarray) -> np.ndarray:
    """Sums of exponentials to divide by: 1 where no key is seen."""
    return np.where(weight > 0, weight, weight.dtype.type(1))


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


def seen_share(q: Shape, k: Shape, causal: bool, window: int = 0, queries: int = 0) -> float:
    """Of all pairs of a query and a key, the share that is looked at.

    Args:
        queries: how many there are in all, where these are a part of them: then the last ones with the first keys,
            which see most of all.
    """
    own, keys, last = q[-2], k[-2], max(q[-2], queries)
    if not (causal or window) or not own or not keys:
        return 1.0
    first, ahead = last - own, 1 if causal else window
    seen = _up_to(last, keys, ahead) - _up_to(first, keys, ahead)
    passed = _up_to(last, keys, 1 - window) - _up_to(first, keys, 1 - window) if window else 0.0
    return (seen - passed) / (own * keys)


def _up_to(queries: int, keys: int, ahead: int) -> float:
    """Pairs of so many queries with keys, query i with the first i + ahead of them."""
    if ahead < 0:
        return _up_to(queries + ahead, keys, 0) if queries + ahead > 0 else 0.0
    return _steps(queries + ahead, keys) - _steps(ahead, keys)


def _steps(count: int, most: int) -> float:
    """0 + 1 + 2 + ... of so many terms, none above `most`."""
    below = min(count, most + 1)
    return below * (below - 1) / 2 + (count - below) * most


@dataclass(frozen=True)
class PairWork:
    """What an operator does for each pair of a query and a key that it sees.

    Args:
        places: of queries, keys and values among the operands.
        each: operations for a pair, from the sizes of a key and of a value.
    """

    places: tuple[int, int, int]
    each: Callable[[int, int], int]

    @property
    def flops(self) -> UnequalFlops:
        return UnequalFlops(self.count, self._imbalance)

    def count(self, *shapes: Shape, causal: bool, window: int, **_: object) -> float:
        """Operations per index combination."""
        q, k, v = (shapes[i] for i in self.places)
        return seen_share(q, k, causal, window) * self.each(q[-1], v[-1]) / (q[-1] * v[-1])

    def _imbalance(self, whole: Sequence, local: Sequence, /, *, causal: bool, window: int, **_: object) -> float:
        """How many times more pairs the last queries look at than their block's shape alone would say."""
        queries, keys, _values = self.places
        q, k = local[queries].shape, local[keys].shape
        most = seen_share(q, k, causal, window, whole[queries].shape[-2])
        return most / seen_share(q, k, causal, window)

    def begin(self, *shapes: Shape, causal: bool, window: int, **_: object) -> float:
        """All operations with a rank's own blocks."""
        q, k, _v = (shapes[i] for i in self.places)
        return seen_share(q, k, causal, window) * self._all_pairs(shapes)

    @property
    def turn(self) -> UnequalFlops:
        """What ranks do with a block that comes round a ring: of causal ones half of the ranks see all in the mean,
        half none, and these wait."""
        return UnequalFlops(self._turn, self._waiting)

    def _all_pairs(self, shapes: Sequence[Shape]) -> float:
        q, k, v = (shapes[i] for i in self.places)
        return math.prod(q[:-1]) * k[-2] * self.each(q[-1], v[-1])

    def _turn(self, *shapes: Shape, causal: bool, window: int, **_: object) -> float:
        return (0.5 if causal and not window else 1.0) * self._all_pairs(shapes)

    def _waiting(self, whole: Sequence, local: Sequence, /, *, causal: bool, window: int, **_: object) -> float:
        return 2.0 if causal and not window else 1.0


# -- what else makes scores: masks, and a sink


def mask_marks(q: Shape, k: Shape, mask: Shape, columns: str = "[k]") -> str:
    """The dims of a mask in a rule: those of scores, or 1.

    Raises:
        ShapeError: dims that scores do not have.
    """
    scores = (*q[:-1], k[-2])
    if len(mask) != len(scores) or any(own not in (1, of) for own, of in zip(mask, scores, strict=True)):
        raise ShapeError(f"Attention: what is added to scores {scores}, or hides them, has these dims or 1, not {mask}")
    names = (*(f"h{i}" for i in range(len(q) - 2)), "q", columns)
    return " ".join("1" if own == 1 else name for own, name in zip(mask, names, strict=True))


def extra_marks(name: str, q: Shape, k: Shape, extras: Sequence[Shape], attrs: Mapping[str, Any], columns: str) -> str:
    """The operands behind queries, keys and values in a rule.

    Raises:
        ShapeError: they do not fit the attributes, or the dims of scores.
    """
    masks, sinks, drops = split_operands(extras, attrs)
    check_dropout(name, q, drops, **attrs)
    if attrs["sinks"] and (not sinks or sinks[0][-2:] != (1, 1)):
        raise ShapeError(f"Attention: a sink is [..., 1, 1], behind the masks, not {sinks[0] if sinks else 'none'}")
    marks = (mask_marks(q, k, one, columns) for one in (*masks, *sinks))
    return "".join(f", {one}" for one in marks) + drop_marks(drops, attrs["rows"])


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


def check_slopes(name: str, g: Shape, inner: Shape, q: Shape, k: Shape, v: Shape) -> None:
    """Raise ShapeError unless these are operands of a gradient of attention."""
    fits = len(g) == len(q) == len(k) == len(v) >= 3 and g[:-1] == q[:-1] == inner[:-1] and fits_groups(q, k)
    fits = fits and k[:-1] == v[:-1] and (q[-1], g[-1], inner[-1]) == (k[-1], v[-1], 1)
    if not fits:
        raise ShapeError(
            f"{name} takes slopes [..., q, v] with sums [..., q, 1], queries [..., q, d], keys [..., k, d] and values "
            f"[..., k, v], not {g}, {inner}, {q}, {k} and {v}"
        )


# -- in turns, with blocks that go round


def ring_parts(q: Shape, k: Shape, extras: Sequence[Shape], sequence: str) -> int:
    """Into how many parts a ring may split queries and keys alike; 0 if attention is not to run in a ring.

    Masks and sinks do not go round: with them all keys are gathered.
    """
    parts = common_parts(q[-2], k[-2]) if sequence == RING and not extras else 0
    return parts if parts > 1 else 0


def block_ring(
    attrs: Mapping[str, Any],
    placement: OperatorPlacement,
    held: int,
    moving: tuple[int, ...],
    turns: tuple[Operator, Operator, Operator],
    numbers: tuple[str, str, str],
) -> Exchange:
    """The ring in which blocks of the operands `moving` pass the rank's own block of operand `held`.

    `turns` are the operators that begin, go on and end. `numbers` names their attributes for the number of the first
    row that is held, of the first that has come, and for how many of those that move there are in all.
    """
    dim, (own, other, count) = placement.operands[held].rank - 2, numbers
    held_at, moving_at = _block_numbers(placement, held, moving[0], dim)
    given = {name: attrs[name] for name in Scoring._fields}
    given[count] = placement.operands[moving[0]].shape[dim]
    each = tuple({**given, own: held_at, other: one} for one in moving_at)
    return Exchange(ring=Ring(moving, dim, *turns, each))


def _block_numbers(
    placement: OperatorPlacement, held: int, moving: int, dim: int
) -> tuple[Varying, tuple[Varying, ...]]:
    """Where a rank's block of operand `held` begins; and that of `moving` that it has in each turn."""
    layout = placement.operand_layouts[held]
    parts, own, other = layout.parts[dim], placement.local_operand(held)[dim], placement.local_operand(moving)[dim]
    numbers = [[(p + turn) % parts * other for p in range(parts)] for turn in range(parts)]
    return along(layout, dim, [p * own for p in range(parts)]), tuple(along(layout, dim, one) for one in numbers)
