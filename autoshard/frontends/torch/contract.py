"""Overloads that multiply matrices, attention among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.pointwise import scaled
from autoshard.frontends.torch.shapes import numbers, reshaped, spread
from autoshard.frontends.torch.table import Call, cast, do, number, translates
from autoshard.transform.attention_masks import SeenRange, range_of_matrices
from autoshard.transform.attention_scores import HIDDEN

_PRODUCTS = {
    "mm": partial(do, ops.matmul),
    "bmm": partial(do, ops.batch_matmul),
    "mv": partial(do, ops.einsum, equation="mk,k->m"),
    "dot": partial(do, ops.einsum, equation="k,k->"),
}
_ADDED_PRODUCTS = {
    "addmm": _PRODUCTS["mm"],
    "addmv": _PRODUCTS["mv"],
    "baddbmm": _PRODUCTS["bmm"],
    "addbmm": partial(do, ops.einsum, equation="bmk,bkn->mn"),
}


def _product(name: str, product: Callable) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any, w: Any) -> Any:
        return product(x, w)


def _added_product(name: str, product: Callable) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, bias: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1) -> Any:
        return do(ops.add, scaled(product(x, w), alpha), scaled(bias, beta))


for _name, _op in _PRODUCTS.items():
    _product(_name, _op)
for _name, _op in _ADDED_PRODUCTS.items():
    _added_product(_name, _op)


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

    One operator; taken apart where dims broadcast.
    """
    mask, sees = attn_mask, None
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if mask is not None and dtype(mask.dtype).name != "bool":
        mask, sees = _added(call, mask)
    elif mask is not None:
        sees = _seeing(call, mask)
    if dropout_p < 1 and factor and _is_plain(query, key, value, enable_gqa) and _fits(mask, query, key):
        drops = {"dropout": dropout_p, "seed": call.seed, "counter": call.counter()} if dropout_p else {}
        found = _attention(query, key, value, mask, factor, is_causal, **drops)
        return found if sees is None else do(ops.select, sees, found, number(0, dtype(found.dtype)))
    if enable_gqa:
        key, value = (_as_many_heads(one, query.shape[-3]) for one in (key, value))
    scores = do(ops.batch_matmul, scaled(query, factor), key, transpose_b=True)
    mask = _causal(scores.shape) if is_causal else mask
    if mask is not None and dtype(mask.dtype).name != "bool":
        scores = do(ops.add, scores, cast(mask, call.dtype))
    elif mask is not None:
        least = float(np.finfo(np.float16 if call.dtype.name == "f16" else np.float32).min)
        scores = do(ops.masked_fill, scores, call.once(ops.logical_not, mask), value=least / 2)
    weights = do(ops.softmax, scores, axis=-1)
    if sees is not None and not is_causal:
        weights = do(ops.select, sees, weights, number(0, dtype(weights.dtype)))
    if dropout_p:
        weights = do(ops.dropout, weights, call.counter(), rate=dropout_p, seed=call.seed)
    return do(ops.batch_matmul, weights, value)


def _fits(mask: Any, query: Any, key: Any) -> bool:
    """Whether a mask has the dims of scores or broadcasts to them, with a dim for each head."""
    if mask is None:
        return True
    scores = (*query.shape[:-1], key.shape[-2])
    shape = (1,) * (len(scores) - len(mask.shape)) + tuple(mask.shape)
    return len(shape) == len(scores) and all(own in (1, of) for own, of in zip(shape, scores, strict=True))


def _is_plain(query: Any, key: Any, value: Any, grouped: bool) -> bool:
    """Whether the operands are those of the one operator, by their dims."""
    leads = [tuple(one.shape[:-2]) for one in (query, key, value)]
    if grouped:
        leads = [lead[:-1] for lead in leads]
    return len(query.shape) > 2 and leads[0] == leads[1] == leads[2] and min(*query.shape, *key.shape) > 0


def _attention(
    query: Any, key: Any, value: Any, mask: Any, scale: float, causal: bool, counter: Any = None, **drops: Any
) -> Any:
    """Attention; heads that share keys and values are a dim of their own, so that nothing is copied."""
    *lead, heads, length, _ = query.shape
    groups, attrs, masks = key.shape[-3], {"scale": scale, "causal": causal, **drops}, []
    last = () if counter is None else (counter,)
    if mask is not None:
        masks = [reshaped(mask, (1,) * (len(query.shape) - len(mask.shape)) + tuple(mask.shape))]
    known = _by_places(masks[0], length, key.shape[-2]) if masks and isinstance(masks[0], np.ndarray) else None
    if known is not None and not causal:
        attrs, masks = {**attrs, **known}, []
    if heads == groups:
        return do(ops.attention, query, key, value, *masks, *last, **attrs)
    asking = reshaped(query, (*lead, groups, heads // groups, length, query.shape[-1]))
    key, value = (reshaped(one, (*lead, groups, 1, *one.shape[-2:])) for one in (key, value))
    masks = [_of_groups(one, groups) for one in masks]
    found = do(ops.attention, asking, key, value, *masks, *last, **attrs)
    return reshaped(found, (*lead, heads, length, value.shape[-1]))


def _of_groups(mask: Any, groups: int) -> Any:
    """A mask with a dim for groups of heads and one for those of a group."""
    heads = mask.shape[-3]
    parts = (groups, heads // groups) if heads > 1 else (1, 1)
    return reshaped(mask, (*mask.shape[:-3], *parts, *mask.shape[-2:]))


def _by_places(mask: np.ndarray, queries: int, keys: int) -> dict[str, Any] | None:
    """Attributes that say what a mask hides, if each query sees the keys up to some places away from it."""
    seen = mask if mask.dtype == bool else mask == 0
    fits = mask.dtype == bool or np.all(seen | (mask <= HIDDEN))
    found = SeenRange() if fits and seen.all() else None
    if fits and found is None and seen.shape[-2:] == (queries, keys):
        found = range_of_matrices(np.arange(queries), seen.reshape(-1, queries, keys))
    return None if found is None else found.attributes


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
