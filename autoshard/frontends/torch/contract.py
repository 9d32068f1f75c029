"""Overloads that multiply matrices, attention among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.pointwise import scaled
from autoshard.frontends.torch.shapes import numbers, reshaped, spread
from autoshard.frontends.torch.table import Call, cast, do, number, translates


@translates("aten.mm.default")
def _(call: Call, x: Any, w: Any) -> Any:
    return do(ops.matmul, x, w)


@translates("aten.bmm.default")
def _(call: Call, x: Any, w: Any) -> Any:
    return do(ops.batch_matmul, x, w)


@translates("aten.addmm.default")
def _(call: Call, bias: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return do(ops.add, scaled(do(ops.matmul, x, w), alpha), scaled(bias, beta))


@translates("aten.addmv.default")
def _(call: Call, bias: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return do(ops.add, scaled(do(ops.einsum, x, w, equation="mk,k->m"), alpha), scaled(bias, beta))


@translates("aten.baddbmm.default")
def _(call: Call, bias: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return do(ops.add, scaled(do(ops.batch_matmul, x, w), alpha), scaled(bias, beta))


@translates("aten.mv.default")
def _(call: Call, x: Any, w: Any) -> Any:
    return do(ops.einsum, x, w, equation="mk,k->m")


@translates("aten.dot.default")
def _(call: Call, x: Any, w: Any) -> Any:
    return do(ops.einsum, x, w, equation="k,k->")


@translates("aten.linear.default")
def _(call: Call, x: Any, weight: Any, bias: Any = None) -> Any:
    rows = x if len(x.shape) > 1 else reshaped(x, (1, *x.shape))
    y = do(ops.matmul, rows, weight, transpose_b=True)
    y = y if bias is None else do(ops.add, y, bias)
    return reshaped(y, call.shape)


@translates("aten.matmul.default")
def _(call: Call, x: Any, w: Any) -> Any:
    left = x if len(x.shape) > 1 else reshaped(x, (1, *x.shape))
    right = w if len(w.shape) > 1 else reshaped(w, (*w.shape, 1))
    product = ops.matmul if len(right.shape) == 2 else ops.batch_matmul
    return reshaped(do(product, left, right), call.shape)


@translates("aten.einsum.default")
def _(call: Call, equation: str, tensors: Any, **options: Any) -> Any:
    return do(ops.einsum, *tensors, equation=_spelled(equation, [len(one.shape) for one in tensors]))


def _spelled(equation: str, ranks: Sequence[int]) -> str:
    """The equation with letters for '...', which stands for the leading dims that are not named, and a result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    words = left.split(",")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in equation]
    more = max((rank - len(word) + 3 for word, rank in zip(words, ranks, strict=True) if "..." in word), default=0)
    names = "".join(free[:more])
    counts = [rank - len(word) + 3 for word, rank in zip(words, ranks, strict=True)]
    words = [word.replace("...", names[more - n :] if n else "") for word, n in zip(words, counts, strict=True)]
    if not arrow:
        once = [c for c in sorted(set(left) - set(",.")) if left.count(c) == 1]
        right = ("..." if "..." in left else "") + "".join(once)
    return f"{','.join(words)}->{right.replace('...', names)}"


# -- grouped products, as mixtures of experts use them


@translates("transformers.grouped_mm_fallback.default", "aten._grouped_mm.default")
def _(call: Call, x: Any, w: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    if offs is None or len(x.shape) != 2 or len(w.shape) != 3 or bias is not None:
        call.refuse("grouped_mm of other than rows [S, K] with weights [E, K, N] and offsets [E]")
    return call.cast(do(ops.grouped_matmul, x, w, offs))


# -- attention


@translates("aten.scaled_dot_product_attention.default")
def _(
    call: Call,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(query key^T scale + mask) value; queries that see no key at all give zeros, as in torch.

    One operator without a mask or with the causal one, also where the mask is written out; else taken apart.
    """
    mask = attn_mask
    if isinstance(mask, np.ndarray) and mask.dtype == bool and not is_causal:
        is_causal = _is_causal(mask, query.shape[-2], key.shape[-2])
        mask = None if is_causal or mask.all() else mask
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if mask is None and not dropout_p and factor and _is_plain(query, key, value, enable_gqa):
        return _attention(query, key, value, factor, is_causal)
    if enable_gqa:
        key, value = (_as_many_heads(one, query.shape[-3]) for one in (key, value))
    scores = do(ops.batch_matmul, scaled(query, factor), key, transpose_b=True)
    mask = _causal(scores.shape) if is_causal else mask
    sees = None
    if mask is not None and dtype(mask.dtype).name != "bool":
        added, sees = _added(call, mask)
        scores = do(ops.add, scores, cast(added, call.dtype))
    elif mask is not None:
        least = float(np.finfo(np.float16 if call.dtype.name == "f16" else np.float32).min)
        scores = do(ops.masked_fill, scores, call.once(ops.logical_not, mask), value=least / 2)
        sees = None if is_causal else _seeing(call, mask)
    weights = do(ops.softmax, scores, axis=-1)
    if sees is not None:
        weights = do(ops.select, sees, weights, number(0, dtype(weights.dtype)))
    if dropout_p:
        weights = do(ops.dropout, weights, call.counter(), rate=dropout_p, seed=call.seed)
    return do(ops.batch_matmul, weights, value)


def _is_plain(query: Any, key: Any, value: Any, grouped: bool) -> bool:
    """Whether the operands are those of the one operator, by their dims."""
    leads = [tuple(one.shape[:-2]) for one in (query, key, value)]
    if grouped:
        leads = [lead[:-1] for lead in leads]
    return len(query.shape) > 2 and leads[0] == leads[1] == leads[2] and min(*query.shape, *key.shape) > 0


def _attention(query: Any, key: Any, value: Any, scale: float, causal: bool) -> Any:
    """Attention; heads that share keys and values are a dim of their own, so that nothing is copied."""
    *lead, heads, length, _ = query.shape
    groups = key.shape[-3]
    if heads == groups:
        return do(ops.attention, query, key, value, scale=scale, causal=causal)
    asking = reshaped(query, (*lead, groups, heads // groups, length, query.shape[-1]))
    key, value = (reshaped(one, (*lead, groups, 1, *one.shape[-2:])) for one in (key, value))
    found = do(ops.attention, asking, key, value, scale=scale, causal=causal)
    return reshaped(found, (*lead, heads, length, value.shape[-1]))


def _is_causal(mask: np.ndarray, queries: int, keys: int) -> bool:
    """Whether a mask lets query i see just the keys 0 to i, in each of its matrices."""
    if mask.ndim < 2 or mask.shape[-2:] != (queries, keys):
        return False
    return all(np.array_equal(one, np.tri(queries, keys, dtype=bool)) for one in mask.reshape(-1, queries, keys))


def _as_many_heads(x: Any, heads: int) -> Any:
    """[..., heads, s, d] of [..., groups, s, d]: every head of a group has the same."""
    *lead, groups, size, width = x.shape
    if groups == heads:
        return x
    apart = reshaped(x, (*lead, groups, 1, size, width))
    return reshaped(spread(apart, (*lead, groups, heads // groups, size, width)), (*lead, heads, size, width))


def _causal(scores: tuple[int, ...]) -> Any:
    """Where a query may look: at keys up to its own place."""
    rows, columns = (numbers(size, of="i32") for size in scores[-2:])
    return do(ops.greater_equal, do(ops.expand_dims, rows, axis=1), columns)


def _seeing(call: Call, mask: Any) -> Any:
    """Which queries see a key by a mask of truths; None: all of them."""
    sees = call.once(ops.reduce_any, mask, axis=-1, keep_dims=True)
    return None if isinstance(sees, np.ndarray) and sees.all() else sees


def _added(call: Call, mask: Any) -> tuple[Any, Any]:
    """What a mask of numbers adds to the scores, and which queries see a key; None: all of them.

    Minus infinity for all keys of a query would make a softmax that is no number. There nothing is added. One for all
    calls with the same mask.
    """
    key = ("added", id(mask))
    if key not in call.memo:
        most = do(ops.reduce_max, mask, axis=-1, keep_dims=True)
        sees = do(ops.greater, most, number(-math.inf, dtype(mask.dtype)))
        if isinstance(sees, np.ndarray) and sees.all():
            call.memo[key] = mask, (mask, None)
        else:
            call.memo[key] = mask, (do(ops.masked_fill, mask, do(ops.logical_not, sees), value=0.0), sees)
    return call.memo[key][1]


@translates("aten.addbmm.default")
def _(call: Call, bias: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return do(ops.add, scaled(do(ops.einsum, x, w, equation="bmk,bkn->mn"), alpha), scaled(bias, beta))


@translates("aten._trilinear.default")
def _(
    call: Call,
    x: Any,
    y: Any,
    z: Any,
    expand1: Any,
    expand2: Any,
    expand3: Any,
    summed: Any,
    unroll_dim: int = 1,
) -> Any:
    """The product of three tensors, each with new dims of size 1, summed over some dims."""
    parts = []
    for one, new in ((x, expand1), (y, expand2), (z, expand3)):
        for dim in sorted(new):
            one = do(ops.expand_dims, one, axis=dim)
        parts.append(one)
    shape = np.broadcast_shapes(*(tuple(one.shape) for one in parts))
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(shape)]
    words = ["".join(c for c, n, m in zip(letters, one.shape, shape, strict=True) if n == m) for one in parts]
    parts = [reshaped(one, [n for n, m in zip(one.shape, shape, strict=True) if n == m]) for one in parts]
    kept = "".join(c for i, c in enumerate(letters) if i not in summed)
    return do(ops.einsum, *parts, equation=f"{','.join(words)}->{kept}")
