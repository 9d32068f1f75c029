"""Primitives with MindSpore's names and meaning for layers: products, norms, dropout, attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.mindspore.ops.entries import dims_of, refused, taken
from autoshard.mindspore.ops.math import along
from autoshard.mindspore.ops.primitive import PRIMITIVES, Named, as_tensors, plain, primitive
from autoshard.mindspore.ops.windows import check_format
from autoshard.trace.initializer import next_seed
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ShapeError, StrategyError

# -- products


@primitive("MatMul", core.matmul)
def MatMul(input, mat2, *, transpose_a=False, transpose_b=False):
    """The matrix product of [m, k] and [k, n]; a transposed operand has its dims the other way round."""
    return core.matmul(input, mat2, transpose_a=transpose_a, transpose_b=transpose_b)


@primitive("BatchMatMul", core.batch_matmul)
def BatchMatMul(x, y, *, transpose_a=False, transpose_b=False):
    """Matrix products of the last two dims; the dims before them are batches."""
    return core.batch_matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b)


def _bias_strategy(attrs: Any, given: Any, out: Any) -> tuple[Any, Any]:
    """The bias stretches over x as [C, 1, ...]."""
    ranks = [dims_of(one) for one in given] if isinstance(given, tuple) else []
    if len(ranks) != 2 or ranks[0] is None or ranks[0] < 2 or ranks[1] != 1:
        raise refused(given, "(parts of x, (parts of its channels,))")
    return (given[0], taken(given[1], (0, *(None,) * (ranks[0] - 2)))), out


@primitive("BiasAdd", core.add, _bias_strategy)
def BiasAdd(input_x, bias, *, data_format="NCHW"):
    """x plus a bias for each channel, which is dim 1."""
    check_format(data_format, "BiasAdd")
    if len(bias.shape) != 1 or len(input_x.shape) < 2 or bias.shape[0] != input_x.shape[1]:
        raise ShapeError(
            f"BiasAdd of {tuple(input_x.shape)}: bias is {tuple(bias.shape)}; it has one number per channel"
        )
    return core.add(input_x, bias if len(input_x.shape) == 2 else along(bias, input_x, 1))


@primitive("Einsum", core.einsum)
def Einsum(inputs, *, equation):
    """Sums of products of a tuple or list of tensors, by Einstein's notation."""
    return core.einsum(*inputs, equation=equation)


# -- softmax and norms


@primitive("Softmax", core.softmax)
def Softmax(input, *, axis=-1):
    """exp(x) divided by its sum along `axis`."""
    return core.softmax(input, axis=_only(axis, "Softmax"))


@primitive("LogSoftmax", core.log_softmax)
def LogSoftmax(logits, *, axis=-1):
    """The logarithm of Softmax along `axis`."""
    return core.log_softmax(logits, axis=_only(axis, "LogSoftmax"))


def _only(axis: Any, what: str) -> int:
    given = axis if isinstance(axis, tuple) else (axis,)
    if len(given) != 1:
        raise ShapeError(f"{what}: axis is {axis!r}; it is one dim")
    return given[0]


@primitive("LayerNorm", core.layer_norm)
def LayerNorm(input_x, gamma, beta, *, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7):
    """x without mean and scale over the dims from `begin_norm_axis` on, times gamma plus beta; mean; variance."""
    rank = len(input_x.shape)
    if begin_norm_axis % rank != begin_params_axis % rank:
        raise ShapeError(
            f"LayerNorm: begin_norm_axis {begin_norm_axis} and begin_params_axis {begin_params_axis} of {rank} dims; "
            "only where both are the same dim is offered here"
        )
    begin = begin_norm_axis % rank
    over = tuple(range(begin, rank))
    y = core.layer_norm(input_x, gamma, beta, begin_norm_axis=begin, epsilon=epsilon)
    mean = core.reduce_mean(input_x, axis=over, keep_dims=True)
    return y, mean, core.reduce_mean(core.square(core.sub(input_x, mean)), axis=over, keep_dims=True)


@primitive("RmsNorm", core.rms_norm)
def RmsNorm(x, gamma, *, epsilon=1e-6):
    """x divided by its root mean square over the dims of gamma, times gamma; and the factor that did it."""
    begin = len(x.shape) - len(gamma.shape)
    over = tuple(range(begin, len(x.shape)))
    y = core.rms_norm(x, gamma, begin_norm_axis=begin, epsilon=epsilon)
    return y, core.rsqrt(core.scalar_add(core.reduce_mean(core.square(x), axis=over, keep_dims=True), addend=epsilon))


@primitive("L2Normalize", core.square)
def L2Normalize(input_x, *, axis=0, epsilon=1e-4):
    """x divided by the square root of the sum of squares along `axis`, or by that of epsilon if it is larger."""
    axis = axis if isinstance(axis, tuple) else (axis,)
    total = core.reduce_sum(core.square(input_x), axis=axis, keep_dims=True)
    least = core.fill(shape=(), value=epsilon, dtype=str(_element(input_x)))
    return core.mul(input_x, core.rsqrt(core.maximum(total, least)))


def _element(x: Any) -> Any:
    from autoshard.core.tensortype import dtype

    return dtype(x.dtype).name


def moved(old: Parameter, new: Any, momentum: float) -> None:
    """Assigns (1 - momentum) * old + momentum * new."""
    kept = core.scalar_mul(old, factor=1 - momentum)
    old.assign(core.add(kept, core.scalar_mul(core.stop_gradient(new), factor=momentum)))


def _training(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, momentum: float) -> Any:
    y, found, spread = core.batch_norm_training(x, scale, bias, epsilon=epsilon, feature=1)
    count = int(np.prod(x.shape)) // x.shape[1]
    for held, new in ((mean, found), (variance, core.unbiased(spread, count=count) if count > 1 else spread)):
        if isinstance(held, Parameter):
            moved(held, new, momentum)
    return y, found, spread, found, spread


@primitive("BatchNorm", core.batch_norm_inference)
def _batch_norm(
    input_x, scale, bias, mean, variance, *, is_training=False, epsilon=1e-5, momentum=0.1, data_format="NCHW"
):
    """x with mean and scale of each channel (dim 1) taken out, times scale plus bias; and mean and variance, twice.

    With `is_training` mean and variance are those of the batch, and the given ones, if parameters, move towards them.
    """
    check_format(data_format, "BatchNorm")
    if is_training:
        return _training(input_x, scale, bias, mean, variance, epsilon, momentum)
    y = core.batch_norm_inference(input_x, scale, bias, mean, variance, epsilon=epsilon, feature=1)
    return y, mean, variance, mean, variance


class BatchNorm(_batch_norm):  # type: ignore[misc, valid-type]
    __doc__ = _batch_norm.__doc__

    def _attributes(self, args: tuple, attrs: dict[str, Any]) -> dict[str, Any]:
        given = super()._attributes(args, attrs)
        if given["is_training"]:
            # What takes the strategy.
            self.operator = core.batch_norm_training  # type: ignore[misc]
        return given

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Any:
        """Fix the split by MindSpore's five tuples: of x, scale, bias, mean and variance."""
        if in_strategy is not None:
            if not isinstance(in_strategy, tuple) or len(in_strategy) != 5:
                raise refused(in_strategy, "five entries: of x, scale, bias, mean and variance")
            in_strategy = in_strategy[:3] if self.attrs["is_training"] else in_strategy
        return super().shard(in_strategy, out_strategy)


# -- dropout


def with_count(in_strategy: Any) -> Any:
    """MindSpore's strategy of a dropout, which is of x alone, with the entry of the number of its uses."""
    return (*in_strategy, ()) if isinstance(in_strategy, tuple) and len(in_strategy) == 1 else in_strategy


@primitive("Dropout", core.dropout)
def _dropout(x, *, keep_prob=0.5, Seed0=0, Seed1=0):
    """A share `keep_prob` of the elements divided by it, the others 0, anew at each use; and where they are kept."""


class Dropout(_dropout):  # type: ignore[misc, valid-type]
    __doc__ = _dropout.__doc__

    def _attributes(self, args: tuple, attrs: dict[str, Any]) -> dict[str, Any]:
        given = super()._attributes(args, attrs)
        if not 0 < given["keep_prob"] <= 1:
            raise ShapeError(f"Dropout: keep_prob is {given['keep_prob']}; it is above 0 and at most 1")
        self.counter = Parameter(np.zeros((), np.int32), requires_grad=False)
        seeds = given["Seed0"], given["Seed1"]
        return {**given, "seed": (seeds[0] << 32 | seeds[1]) if any(seeds) else next_seed()}

    @property
    def state(self) -> dict[str, Parameter]:
        """What the cell that holds it owns beside it: the number of its uses."""
        return {"counter": self.counter}

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Any:
        return super().shard(with_count(in_strategy), out_strategy)

    def _apply(self, args: tuple, attrs: dict[str, Any]) -> Any:
        (x,) = self.called_with.bind(*args, **attrs).arguments.values()
        rate, seed, count = 1 - self.attrs["keep_prob"], self.attrs["seed"], self.counter
        y = core.dropout(x, count, rate=rate, seed=seed)
        mask = core.scalar_mul(core.dropout(core.ones_like(x), count, rate=rate, seed=seed), factor=1 - rate)
        count.assign(core.scalar_add(count, addend=1))
        return as_tensors((y, mask))


# -- random numbers


@primitive("UniformReal", core.uniform_real)
def _uniform_real(shape, *, seed=0, seed2=0):
    """Numbers evenly spread between 0 and 1, anew at each use."""


@primitive("StandardNormal", core.uniform_real)
def _standard_normal(shape, *, seed=0, seed2=0):
    """Normally distributed numbers of mean 0 and deviation 1, anew at each use."""


class _Drawn(Named):
    """A primitive that draws numbers: it counts its uses, in a state of the cell that holds it."""

    def _attributes(self, args: tuple, attrs: dict[str, Any]) -> dict[str, Any]:
        given = super()._attributes(args, attrs)
        self.counter = Parameter(np.zeros((), np.int32), requires_grad=False)
        seeds = given["seed"], given["seed2"]
        return {**given, "key": (seeds[0] << 32 | seeds[1]) if any(seeds) else next_seed()}

    @property
    def state(self) -> dict[str, Parameter]:
        """What the cell that holds it owns beside it: the number of its uses."""
        return {"counter": self.counter}

    def _apply(self, args: tuple, attrs: dict[str, Any]) -> Any:
        (shape,) = self.called_with.bind(*args, **attrs).arguments.values()
        found = self._drawn(tuple(plain(shape)))
        self.counter.assign(core.scalar_add(self.counter, addend=1))
        return as_tensors(found)

    def _drawn(self, shape: tuple[int, ...], apart: int = 0) -> Any:
        return core.uniform_real(self.counter, shape=shape, seed=self.attrs["key"] ^ apart)


class UniformReal(_Drawn, _uniform_real):  # type: ignore[misc, valid-type]
    __doc__ = _uniform_real.__doc__


class StandardNormal(_Drawn, _standard_normal):  # type: ignore[misc, valid-type]
    __doc__ = _standard_normal.__doc__

    def _drawn(self, shape: tuple[int, ...], apart: int = 0) -> Any:
        # Box and Muller 1958.
        far, turn = (super(StandardNormal, self)._drawn(shape, one) for one in (0, _OTHER))
        radius = core.sqrt(core.scalar_mul(core.log(far), factor=-2.0))
        return core.mul(radius, core.cos(core.scalar_mul(turn, factor=2 * math.pi)))


_OTHER = 1 << 62
"""What sets a second stream of numbers apart from the first."""


# -- attention

_LAYOUTS = {"BNSD": "bnsd", "BSND": "bsnd", "BSH": "bs(nd)", "SBH": "sb(nd)"}


def _heads_apart(x: Any, heads: int, layout: str) -> Any:
    """[batch, heads, sequence, size] of one of MindSpore's layouts."""
    if layout == "BNSD":
        return x
    if layout in ("BSH", "SBH"):
        x = core.reshape(x, shape=(*x.shape[:2], heads, x.shape[2] // heads))
    return core.transpose(x, perm=(1, 2, 0, 3) if layout == "SBH" else (0, 2, 1, 3))


def _heads_together(x: Any, layout: str) -> Any:
    if layout == "BNSD":
        return x
    x = core.transpose(x, perm=(2, 0, 1, 3) if layout == "SBH" else (0, 2, 1, 3))
    return x if layout == "BSND" else core.reshape(x, shape=(*x.shape[:2], x.shape[2] * x.shape[3]))


def _repeated(x: Any, heads: int) -> Any:
    """Each head of keys or values as often as queries share it."""
    batch, own, rows, size = x.shape
    if own == heads:
        return x
    if heads % own:
        raise ShapeError(f"FlashAttentionScore: {own} heads of keys do not divide {heads} heads of queries")
    apart = core.broadcast_to(core.expand_dims(x, axis=2), shape=(batch, own, heads // own, rows, size))
    return core.reshape(apart, shape=(batch, heads, rows, size))


_EVER = 2147483647


@primitive("FlashAttentionScore", core.attention)
def _flash_attention(
    query,
    key,
    value,
    real_shift=None,
    drop_mask=None,
    padding_mask=None,
    attn_mask=None,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    *,
    head_num,
    keep_prob=1.0,
    scale_value=1.0,
    pre_tokens=_EVER,
    next_tokens=_EVER,
    inner_precise=0,
    input_layout="BSH",
    sparse_mode=0,
):
    """softmax(scale_value * query key^T + real_shift) value by heads, without scores where attn_mask is 1.

    Returns four things, the last one is the attention; of the first three, which MindSpore keeps for its own gradient,
    there are none here (None). `sparse_mode` 0 takes the mask as it is, 2 (and 3, where both sequences are as long)
    lets no query see a later key.
    """
    unknown = (drop_mask, padding_mask, prefix, actual_seq_qlen, actual_seq_kvlen)
    if input_layout not in _LAYOUTS or any(one is not None for one in unknown) or keep_prob != 1:
        raise ShapeError(
            f"FlashAttentionScore: input_layout {input_layout!r} and keep_prob {keep_prob}: layouts are "
            f"{', '.join(_LAYOUTS)}, keep_prob 1.0, and of the optional operands real_shift and attn_mask are offered"
        )
    if (pre_tokens, next_tokens) != (_EVER, _EVER) and sparse_mode == 0 and attn_mask is not None:
        raise ShapeError(
            "FlashAttentionScore: pre_tokens and next_tokens are not offered here; put them into attn_mask"
        )
    q = _heads_apart(query, head_num, input_layout)
    own = head_num if input_layout == "BNSD" else key.shape[2] // q.shape[3] if input_layout != "BSND" else key.shape[2]
    k, v = (_repeated(_heads_apart(one, own, input_layout), head_num) for one in (key, value))
    causal = sparse_mode == 2 or sparse_mode == 3 and q.shape[2] == k.shape[2]
    if sparse_mode not in (0, 2, 3) or sparse_mode == 3 and not causal:
        raise ShapeError(
            f"FlashAttentionScore: sparse_mode {sparse_mode} is not offered here; 0 and 2 are, 3 of equal lengths"
        )
    masks = _flash_masks(real_shift, attn_mask if sparse_mode == 0 else None, (*q.shape[:3], k.shape[2]))
    found = core.attention(q, k, v, *masks, scale=float(scale_value), causal=causal)
    return None, None, None, _heads_together(found, input_layout)


def _flash_masks(shift: Any, mask: Any, scores: tuple[int, ...]) -> list[Any]:
    """What is added to scores, and where they are seen, with their dims."""
    given = [("real_shift", shift), ("attn_mask", mask)]
    for name, one in given:
        if one is not None and not _spreads(tuple(one.shape), scores):
            raise ShapeError(
                f"FlashAttentionScore: {name} is {tuple(one.shape)}; scores are {scores} (batch, heads, queries, "
                "keys), and each of its dims is as large, or 1; those in front may be missing"
            )
    if mask is not None:
        hidden = str(_element(mask)) == "bool"
        mask = core.logical_not(mask) if hidden else core.equal(mask, core.zeros_like(mask))
    return [core.reshape(one, shape=_as_scores(one)) for one in (shift, mask) if one is not None]


def _as_scores(mask: Any) -> tuple[int, ...]:
    return (1,) * (4 - len(mask.shape)) + tuple(mask.shape)


def _spreads(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(scores), strict=False)
    return len(shape) <= len(scores) and all(own in (1, of) for own, of in pairs)


class FlashAttentionScore(_flash_attention):  # type: ignore[misc, valid-type]
    __doc__ = _flash_attention.__doc__

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Any:
        """Fix the split by MindSpore's tuples of query, key and value in the input layout: batch and heads, and the
        sequence of the queries. Masks are split as these are; tuples for them may follow.
        """
        if in_strategy is not None:
            in_strategy = tuple(self._by_heads(one) for one in in_strategy[:3])
        return super().shard(in_strategy, out_strategy)

    @contextmanager
    def _strategy_for(self, given: Mapping[str, Any]) -> Iterator[None]:
        before = self.in_strategy
        if before is not None:
            masks = given["real_shift"], given["attn_mask"] if self.attrs["sparse_mode"] == 0 else None
            shapes = (_as_scores(one) for one in masks if one is not None)
            order = (tuple(i if size > 1 and i < 3 else None for i, size in enumerate(shape)) for shape in shapes)
            self.in_strategy = (*before, *(taken(before[0], dims) for dims in order))
        try:
            yield
        finally:
            self.in_strategy = before

    def _by_heads(self, parts: Any) -> Any:
        layout = self.attrs["input_layout"]
        rank = 4 if layout in ("BNSD", "BSND") else 3
        if dims_of(parts) != rank:
            raise StrategyError(f"{self._sharded()}: {parts!r}; layout {layout} has {rank} dims")
        at = {"BNSD": (0, 1, 2), "BSND": (0, 2, 1), "BSH": (0, 2, 1), "SBH": (1, 2, 0)}[layout]
        return taken(parts, (*at, 3 if rank == 4 else None))


PRIMITIVES.update(
    BatchNorm=BatchNorm,
    Dropout=Dropout,
    FlashAttentionScore=FlashAttentionScore,
    StandardNormal=StandardNormal,
    UniformReal=UniformReal,
)
