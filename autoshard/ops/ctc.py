"""Connectionist temporal classification (Graves et al. 2006): how likely an output of labels is over all alignments.

A row of labels [y1, y2, ...] is read as states [blank, y1, blank, y2, ..., blank]; a path stays in its state from frame
to frame, goes on to the next one, or leaves out a blank between labels that differ. Frames follow each other, so that
each rank needs all frames and classes of its sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import operator
from autoshard.ops.unary import native
from autoshard.util.errors import ShapeError

Shape = Sequence[int]
_FLOPS_OF_STATE = 40
"""Three exponentials and a logarithm per state and frame."""


def _type(log_probs: DType, *others: DType, **_: object) -> DType:
    if not log_probs.is_float or any(one.numpy.kind not in "iu" for one in others):
        raise ShapeError(
            f"CtcLoss takes logarithms of probabilities in a float type, and labels and lengths as whole numbers, not "
            f"{', '.join(map(str, (log_probs, *others)))}"
        )
    return log_probs


def _check(log_probs: Shape, labels: Shape, frames: Shape, counts: Shape) -> None:
    batch = tuple(log_probs[1:2])
    if len(log_probs) != 3 or len(labels) != 2 or not batch == tuple(labels[:1]) == tuple(frames) == tuple(counts):
        raise ShapeError(
            f"CtcLoss takes log_probs [frames, batch, classes], labels [batch, most] and two lengths [batch], not "
            f"{tuple(log_probs)}, {tuple(labels)}, {tuple(frames)}, {tuple(counts)}"
        )


def _rule(log_probs: Shape, labels: Shape, frames: Shape, counts: Shape, **_: object) -> str:
    _check(log_probs, labels, frames, counts)
    return "[t] n [c], n [s], n, n -> n"


def _weight(log_probs: Shape, labels: Shape, *_: Shape, **__: object) -> float:
    """Of each frame, sequence, class and label: work is by state, however many classes there are."""
    states = 2 * labels[1] + 1
    return _FLOPS_OF_STATE * states / max(log_probs[2] * labels[1], 1)


def _scratch(operands: Any, results: Any, **_: object) -> int:
    """Three arrays of states per frame."""
    log_probs, labels = operands[0], operands[1]
    frames, batch, _classes = log_probs.shape
    return 3 * frames * batch * (2 * labels.shape[1] + 1) * 4


@operator(
    "CtcLoss", rule=_rule, dtype=_type, flops=_weight, storage=Storage(scratch=_scratch), filling=Filling(fills={1: 0})
)
def ctc_loss(log_probs, labels, frames, counts, *, blank=0, zero_infinity=False, normalized=False):
    """For each sequence the negative logarithm of the probability of its labels.

    log_probs is [frames, batch, classes], labels [batch, most]; of sequence n count the first frames[n] frames and
    counts[n] labels. No alignment has the loss inf, or with `zero_infinity` 0 and no gradient. `normalized` says that
    the classes' probabilities add up to 1, of which the gradient then takes their share, as that of torch does.
    """
    emitted, skips = _states(native(log_probs), labels, blank)
    return _finite(_losses(_forward(emitted, skips), frames, counts), zero_infinity)


@ctc_loss.gradient
def _(g, y, log_probs, labels, frames, counts, **attrs):
    return ctc_loss_grad(g, log_probs, labels, frames, counts, **attrs), None, None, None


def _grad_rule(g: Shape, log_probs: Shape, labels: Shape, frames: Shape, counts: Shape, **_: object) -> str:
    _check(log_probs, labels, frames, counts)
    return "n, [t] n [c], n [s], n, n -> [t] n [c]"


@operator(
    "CtcLossGrad",
    rule=_grad_rule,
    dtype=lambda g, *others, **_: _type(*others),
    linear=((0,),),
    flops=lambda g, *shapes, **_: 3 * _weight(*shapes),
    storage=Storage(scratch=lambda operands, results, **_: 2 * _scratch(operands[1:], results)),
    filling=Filling(fills={2: 0}),
)
def ctc_loss_grad(g, log_probs, labels, frames, counts, *, blank=0, zero_infinity=False, normalized=False):
    """Gradient of CtcLoss: how likely a path is in the states of a class at a frame, negative, times g."""
    x = native(log_probs)
    emitted, skips = _states(x, labels, blank)
    before = _forward(emitted, skips)
    losses = _losses(before, frames, counts)
    with np.errstate(invalid="ignore"):
        paths = before + _backward(emitted, skips, frames, counts)
        # Of each frame they are shares of all paths: dividing by their own sum, rounding of long sequences drops out.
        share = np.exp(paths - np.max(paths, 2, keepdims=True))
        share = share / np.sum(share, 2, keepdims=True)
    slope = -_by_class(share, _classes(labels, blank), x.shape[2])
    if normalized:
        slope = np.exp(x) + slope
    inside = np.arange(x.shape[0])[:, None] < frames
    if zero_infinity:
        inside = inside & np.isfinite(losses)
    return np.where(inside[:, :, None], slope * native(g)[:, None], np.zeros((), x.dtype))


def _finite(losses: np.ndarray, zero_infinity: bool) -> np.ndarray:
    return np.where(np.isinf(losses), np.zeros((), losses.dtype), losses) if zero_infinity else losses


def _classes(labels: np.ndarray, blank: int) -> np.ndarray:
    """The class of each state, [batch, states]."""
    batch, most = labels.shape
    wide = np.stack([np.full((batch, most), blank, np.int64), labels.astype(np.int64)], 2).reshape(batch, 2 * most)
    return np.concatenate([wide, np.full((batch, 1), blank, np.int64)], 1)


def _states(x: np.ndarray, labels: np.ndarray, blank: int) -> tuple[np.ndarray, np.ndarray]:
    """What each state emits in each frame, and as logarithms of 0 or 1 whether a path may leave out what is before it.

    Labels behind the last one may be no classes: they are read as some class, and no path ends there.
    """
    classes = np.clip(_classes(labels, blank), 0, x.shape[2] - 1)
    emitted = np.take_along_axis(x, np.broadcast_to(classes, (x.shape[0], *classes.shape)), 2)
    skips = (classes[:, 2:] != classes[:, :-2]) & (classes[:, 2:] != blank)
    skips = np.concatenate([np.zeros((len(classes), 2), bool), skips], 1)[:, : classes.shape[1]]
    return emitted, np.where(skips, np.zeros((), x.dtype), np.full((), -np.inf, x.dtype))


def recur(step: Callable[[Any, Any], Any], first: np.ndarray, count: int) -> np.ndarray:
    """[step(0, first), step(1, the one before), ...] as one array."""
    out = np.empty((count, *first.shape), first.dtype)
    for turn in range(count):
        out[turn] = first = step(turn, first)
    return out


def _shifted(states: np.ndarray, by: int) -> np.ndarray:
    """States of [batch, states] moved on by a number of states (negative: back); no path comes from beyond."""
    nothing = np.full((states.shape[0], abs(by)), -np.inf, states.dtype)
    if by > 0:
        return np.concatenate([nothing, states], 1)[:, : states.shape[1]]
    return np.concatenate([states, nothing], 1)[:, -by:]


def _forward(emitted: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """Logarithms of the probability that a path is in a state at the end of each frame, [frames, batch, states]."""
    begin = np.arange(emitted.shape[2])[None] == 0
    # Before the first frame a path is nowhere, and may begin in either of the first two states.
    start = np.broadcast_to(np.where(begin, 0, -np.inf).astype(emitted.dtype), emitted.shape[1:])

    def step(turn: Any, states: np.ndarray) -> np.ndarray:
        stays = np.logaddexp(states, _shifted(states, 1))
        return np.logaddexp(stays, _shifted(states, 2) + skips) + emitted[turn]

    return recur(step, start, emitted.shape[0])


def _ends(count: int, counts: np.ndarray) -> np.ndarray:
    """The states that a path may end in: the last label, or the blank behind it."""
    last, state = 2 * counts.astype(np.int64)[:, None], np.arange(count)[None]
    return (state == last) | (state == last - 1)


def _losses(before: np.ndarray, frames: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The negative logarithm for each sequence; of one without frames 0 where it has no labels either."""
    length, batch, count = before.shape
    at = np.clip(frames.astype(np.int64) - 1, 0, length - 1)
    last = np.take_along_axis(before, np.broadcast_to(at[None, :, None], (1, batch, count)), 0)[0]
    last = np.where(_ends(count, counts), last, np.full((), -np.inf, last.dtype))
    found = -np.logaddexp.reduce(last, 1)
    empty = np.where(counts == 0, np.zeros((), found.dtype), np.full((), np.inf, found.dtype))
    return np.where(frames > 0, found, empty)


def _backward(emitted: np.ndarray, skips: np.ndarray, frames: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Logarithms of the probability of all that follows a state at a frame, [frames, batch, states]."""
    length, batch, count = emitted.shape
    ends = np.where(_ends(count, counts), 0, -np.inf).astype(emitted.dtype)
    onto = _shifted(skips, -2)

    def step(turn: Any, states: np.ndarray) -> np.ndarray:
        frame = length - 1 - turn
        then = states + emitted[np.minimum(frame + 1, length - 1)]
        stays = np.logaddexp(then, _shifted(then, -1))
        goes = np.logaddexp(stays, _shifted(then, -2) + onto)
        return np.where((frame == frames - 1)[:, None], ends, goes)

    start = np.full((batch, count), -np.inf, emitted.dtype)
    return np.flip(recur(step, start, length), 0)


def _by_class(share: np.ndarray, classes: np.ndarray, size: int) -> np.ndarray:
    """Shares of states summed over those of a class, [frames, batch, classes]."""
    length, batch, count = share.shape
    rows = (np.arange(batch)[:, None] * size + np.clip(classes, 0, size - 1)).reshape(-1)
    out = np.zeros((batch * size, length), share.dtype)
    np.add.at(out, rows, share.reshape(length, -1).T)
    return out.T.reshape(length, batch, size)
