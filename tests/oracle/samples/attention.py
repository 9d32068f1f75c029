"""Samples of attention: keys as many as queries and not, all ways to run it."""

from __future__ import annotations

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.ops.attention import attention
from autoshard.ops.attention_grad import attention_key_grad, attention_query_grad
from autoshard.ops.attention_mask_grad import attention_mask_grad
from autoshard.ops.registry import Operator

from .sample import Sample


def _with_ends(scale: float, causal: bool, *sizes: int):
    """Slopes, queries, keys and values, with the sums that belong to them."""

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        batch, queries, keys, width, values = sizes
        g, q = rng.normal(size=(batch, queries, values)), rng.normal(size=(batch, queries, width))
        k, v = rng.normal(size=(batch, keys, width)), rng.normal(size=(batch, keys, values))
        inner = (g * attention(q, k, v, scale=scale, causal=causal)).sum(-1, keepdims=True)
        ends = attention_query_grad(g, inner, q, k, v, scale=scale, causal=causal)[1]
        return [g, inner, q, ends, k, v]

    return make


def _types(batch: int, queries: int, keys: int, width: int, values: int, *of_queries: int) -> tuple[str, ...]:
    asking = (f"f32[{batch}, {queries}, {size}]" for size in of_queries)
    return *asking, *(f"f32[{batch}, {keys}, {size}]" for size in (width, values))


def _key_sample(*sizes: int, scale: float = 0.0, causal: bool = False, **attrs: object) -> Sample:
    *_, width, values = sizes
    make = _with_ends(scale, causal, *sizes)
    types = _types(*sizes, values, 1, width, 1)
    return Sample(attention_key_grad, types, {"scale": scale, "causal": causal, **attrs}, False, make)


def _query_sample(*sizes: int, **attrs: object) -> Sample:
    *_, width, values = sizes
    return Sample(attention_query_grad, _types(*sizes, values, 1, width), attrs, False)


_EXTRAS = ("bool[2, 1, 1, 6]", "f32[1, 4, 8, 6]", "f32[1, 4, 1, 1]")
"""Keys to be hidden, a bias of heads, and sinks, for queries [2, 4, 8, ...] and keys [2, 4, 6, ...]."""
_SIZES = (
    "f32[2, 4, 8, 5]",
    "f32[2, 4, 8, 1]",
    "f32[2, 4, 8, 3]",
    "f32[2, 4, 8, 1]",
    "f32[2, 4, 6, 3]",
    "f32[2, 4, 6, 5]",
)
_ATTRS = {"causal": True, "window": 5, "softcap": 1.5, "sinks": True}


_DROPS = {"dropout": 0.3, "seed": 5}


def _masked(op: Operator, *which: int, drops: bool = False, **attrs: object) -> Sample:
    """An operator with masks, of these tensors: slopes, their sums, queries, ends, keys and values; where it drops
    weights, with a counter."""
    own = {**_ATTRS, **(_DROPS if drops else {})}

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        g, inner, q, _, k, v = (rng.normal(size=TensorType.parse(one).shape) for one in _SIZES)
        extras = [rng.random((2, 1, 1, 6)) > 0.3, rng.normal(size=(1, 4, 8, 6)), rng.normal(size=(1, 4, 1, 1))]
        extras += [np.array(11, np.int32)] if drops else []
        inner = (g * attention(q, k, v, *extras, **own)).sum(-1, keepdims=True)
        ends = attention_query_grad(g, inner, q, k, v, *extras, **own)[1]
        return [*([g, inner, q, ends, k, v][i] for i in which), *extras]

    extras = (*_EXTRAS, "i32[]") if drops else _EXTRAS
    return Sample(op, (*(_SIZES[i] for i in which), *extras), {**own, **attrs}, False, make)


SAMPLES = (
    _masked(attention, 2, 4, 5),
    _masked(attention_query_grad, 0, 1, 2, 4, 5),
    _masked(attention_key_grad, 0, 1, 2, 3, 4, 5),
    _masked(attention_mask_grad, 0, 1, 2, 3, 4, 5, mask=1),
    _masked(attention, 2, 4, 5, drops=True),
    _masked(attention_query_grad, 0, 1, 2, 4, 5, drops=True),
    _masked(attention_key_grad, 0, 1, 2, 3, 4, 5, drops=True),
    _masked(attention_mask_grad, 0, 1, 2, 3, 4, 5, drops=True, mask=1),
    Sample(attention, ("f32[4, 24, 6]", "f32[4, 24, 6]", "f32[4, 24, 4]"), {"window": 7, "sequence": "ring"}, False),
    _query_sample(4, 24, 24, 6, 4, causal=True, window=9, softcap=0.7, sequence="ring"),
    Sample(attention, ("f32[4, 8, 6]", "f32[4, 12, 6]", "f32[4, 12, 10]"), {}),
    Sample(attention, ("f32[4, 24, 6]", "f32[4, 24, 6]", "f32[4, 24, 4]"), {"causal": True, "sequence": "ring"}, False),
    Sample(attention, ("f32[2, 16, 6]", "f32[2, 8, 6]", "f32[2, 8, 4]"), {"scale": 0.5, "sequence": "ring"}, False),
    _query_sample(4, 8, 12, 6, 10),
    _query_sample(4, 24, 24, 6, 4, causal=True, sequence="ring"),
    _query_sample(2, 16, 8, 6, 4, scale=0.5, sequence="ring"),
    _key_sample(4, 8, 12, 6, 10, scale=0.5),
    _key_sample(4, 12, 12, 6, 5, causal=True),
    _key_sample(4, 24, 24, 6, 4, causal=True, sequence="ring"),
    _key_sample(2, 16, 8, 6, 4, scale=0.5, sequence="ring"),
)
