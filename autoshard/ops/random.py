"""Random numbers by counting: a number depends on the seed, the step and its place in the whole tensor alone.

So it is the same however the tensor is split: a rank hashes (splitmix64) the global positions of its block.
Two calls with one seed and step draw the same numbers; give each operator of a model a seed of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from autoshard.core.rule import Rule, source_rule
from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.axes import letters, words
from autoshard.ops.options import Storage
from autoshard.ops.registry import operator
from autoshard.ops.source import sizes_of
from autoshard.util.errors import ShapeError

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _key(seed: int, step: int) -> int:
    """Where the sequence of one (seed, step) starts: mixed, so that sequences do not run into each other."""
    return _mixed((_mixed((seed + _GOLDEN) & _MASK) + step * _GOLDEN) & _MASK)


def _mixed(z: int) -> int:
    for bits, factor in _ROUNDS:
        z = ((z ^ (z >> bits)) * factor) & _MASK
    return z ^ (z >> 31)


def random_bits(
    shape: Sequence[int],
    start: Sequence[int],
    whole: Sequence[int],
    seed: int,
    step: int,
    rows: tuple[int, np.ndarray] | None = None,
) -> np.ndarray:
    """64 random bits per element of the block of `shape` at `start` of a tensor of shape `whole`.

    splitmix64 (Steele, Lea and Flood 2014): element i of the whole tensor, row by row, is the i-th output of
    the generator that starts at the key of (seed, step).

    Args:
        rows: a dim, and where along it the rows of the block stand in the whole tensor, if not one behind the other.
    """
    z = _positions(tuple(shape), tuple(start) or (0,) * len(shape), tuple(whole) or tuple(shape), rows)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(_key(seed, step))
    scratch = np.empty_like(z)
    for bits, factor in _ROUNDS:
        z ^= np.right_shift(z, np.uint64(bits), out=scratch)
        z *= np.uint64(factor)
    z ^= np.right_shift(z, np.uint64(31), out=scratch)
    return z


def _positions(
    shape: tuple[int, ...], start: tuple[int, ...], whole: tuple[int, ...], rows: tuple[int, np.ndarray] | None
) -> np.ndarray:
    """1 + row-major positions in the whole tensor, always an array of its own."""
    if shape == whole and rows is None:
        return np.arange(1, math.prod(shape) + 1, dtype=np.uint64).reshape(shape)
    strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
    places = [np.arange(first, first + size, dtype=np.uint64) for first, size in zip(start, shape, strict=True)]
    if rows is not None:
        places[rows[0]] = rows[1].astype(np.uint64)
    along = [place * np.uint64(stride) for place, stride in zip(places, strides, strict=True)]
    return reduce(lambda rows, column: rows[..., None] + column, along, np.ones((), np.uint64))


def _uniform(bits: np.ndarray) -> np.ndarray:
    """f64 strictly between 0 and 1, from the upper 53 bits."""
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


# -- dropout


def _dropout_rule(x: Sequence[int], counter: Sequence[int], *, rate: float, **_: object) -> str:
    if not 0 <= rate < 1:
        raise ShapeError(f"Dropout: rate is {rate}; it is the share of elements that become 0, at least 0 and below 1")
    text = words(letters(len(x)))
    return f"{text}, () -> {text}"


def _dropout_type(x: DType, counter: DType, **_: object) -> DType:
    if counter.is_float:
        raise ShapeError(f"Dropout: the counter is {counter}; it is a whole number, other ones for other draws")
    if not x.is_float:
        raise ShapeError(f"Dropout takes floats, not {x}; its result is scaled")
    return x


@operator(
    "Dropout",
    rule=_dropout_rule,
    dtype=_dropout_type,
    linear=((0,),),
    flops=10,
    storage=Storage(scratch=lambda operands, results, **_: 16 * results[0].elements - results[0].nbytes),
    numbers=("rate", "seed"),
)
def dropout(x, counter, *, rate=0.5, seed=0, start=(), whole=()):
    """x / (1 - rate) with a share `rate` of the elements set to 0: others for each scalar `counter`.

    `start` and `whole` tell where x, if a block, lies in which tensor. The gradient is the same operator.
    """
    return x if rate == 0 else _kept(x, random_bits(x.shape, start, whole, seed, int(counter)), rate)


def _kept(x: np.ndarray, bits: np.ndarray, rate: float) -> np.ndarray:
    result = x * x.dtype.type(1 / (1 - rate))
    result *= _is_kept(bits, rate)
    return result


def _is_kept(bits: np.ndarray, rate: float) -> np.ndarray:
    return bits >= np.uint64(min(round(rate * 2.0**64), _MASK))


def kept_share(bits: np.ndarray, rate: float, dtype: np.dtype) -> np.ndarray:
    """What elements with these bits are multiplied by where a share `rate` of them is dropped."""
    return _is_kept(bits, rate) * dtype.type(1 / (1 - rate))


@dropout.gradient
def _(g, y, x, counter, **attrs):
    return dropout(g, counter, **attrs), None


@dropout.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    shape = placement.operands[0].shape
    return {"start": tuple(placement.operand_offset(0, dim) for dim in range(len(shape))), "whole": shape}


def _dropout_rows_rule(
    x: Sequence[int],
    counter: Sequence[int],
    rows: Sequence[int],
    *,
    dim: int,
    whole: Sequence[int],
    rate: float,
    **_: object,
) -> str:
    if len(whole) != len(x) or not 0 <= dim < len(x):
        raise ShapeError(f"DropoutRows of {tuple(x)}: the whole tensor is {tuple(whole)} and the rows are dim {dim}")
    text = _dropout_rule(x, counter, rate=rate).partition(",")[0]
    return f"{text}, (), {letters(len(x))[dim]} -> {text}"


@operator(
    "DropoutRows",
    rule=_dropout_rows_rule,
    dtype=lambda x, counter, rows, **_: _dropout_type(x, counter if not rows.is_float else rows),
    linear=((0,),),
    flops=10,
    storage=Storage(scratch=lambda operands, results, **_: 16 * results[0].elements - results[0].nbytes),
    numbers=("rate", "seed"),
)
def dropout_rows(x, counter, rows, *, dim, whole, rate=0.5, seed=0, start=()):
    """Dropout of some rows of a larger tensor of shape `whole`: what it makes of these.

    `rows` says where along `dim` they stand in it; `start` is where x begins along other dims, if a block.
    """
    return x if rate == 0 else _kept(x, random_bits(x.shape, start, whole, seed, int(counter), (dim, rows)), rate)


@dropout_rows.gradient
def _(g, y, x, counter, rows, **attrs):
    return dropout_rows(g, counter, rows, **attrs), None, None


@dropout_rows.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    dims = range(len(placement.operands[0].shape))
    return {"start": tuple(0 if dim == attrs["dim"] else placement.operand_offset(0, dim) for dim in dims)}


# -- tensors of random numbers, drawn anew in each run


def _drawn_rule(counter: Sequence[int], *, shape: Sequence[int], **_: object) -> tuple[str, dict[str, int]]:
    names = letters(len(sizes_of(shape, "UniformReal")))
    return f"() -> {words(names)}", dict(zip(names, shape, strict=True))


@operator("UniformReal", rule=_drawn_rule, dtype="f32", flops=12, numbers=("seed",))
def uniform_real(counter, *, shape, seed=0, start=(), whole=()):
    """Numbers evenly spread strictly between 0 and 1: others for each scalar `counter`.

    They are odd multiples of 2^-25, so that no number becomes 0 or 1. `start` and `whole` choose a block of a larger
    tensor.
    """
    bits = random_bits(shape, start, whole, seed, int(counter))
    return ((bits >> np.uint64(40)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-24)


@uniform_real.gradient
def _(g, y, counter, **_):
    return None


# -- tensors of random numbers, for initial values


def _random_rule(*, shape: Sequence[int], **_: object) -> Rule:
    return source_rule(sizes_of(shape, "random numbers"))


def _random_type(*, dtype: DType | str, **_: object) -> DType:
    kind = element_type(dtype)
    if not kind.is_float:
        raise ShapeError(f"random numbers are of a float type, not {kind}")
    return kind


def _random_block(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    whole = placement.results[0].shape
    start = tuple(placement.result_offset(dim) for dim in range(len(whole)))
    return {"shape": placement.local_result(), "start": start, "whole": whole}


@operator("RandomUniform", rule=_random_rule, dtype=_random_type, flops=12, numbers=("seed",))
def random_uniform(*, shape, seed=0, step=0, low=0.0, high=1.0, dtype="f32", start=(), whole=()):
    """Numbers evenly spread between low and high; `start` and `whole` choose a block of a larger tensor."""
    numbers = _uniform(random_bits(shape, start, whole, seed, step))
    return (low + (high - low) * numbers).astype(element_type(dtype).numpy)


@operator("RandomNormal", rule=_random_rule, dtype=_random_type, flops=40, numbers=("seed",))
def random_normal(*, shape, seed=0, step=0, mean=0.0, std=1.0, dtype="f32", start=(), whole=()):
    """Normal numbers, by the inverse distribution function; `start` and `whole` choose a block."""
    # Imported here: scipy takes longer to import than all else together.
    from scipy.special import ndtri

    numbers = ndtri(_uniform(random_bits(shape, start, whole, seed, step)))
    return (mean + std * numbers).astype(element_type(dtype).numpy)


def _no_operands(g: Any, y: Any, **attrs: Any) -> tuple:
    return ()


for _operator in (random_uniform, random_normal):
    _operator.gradient(_no_operands)
    _operator.localize(_random_block)
uniform_real.localize(_random_block)
