"""StableHLO's random numbers: rng_bit_generator by Threefry and Philox as XLA draws them, and rng.

Both generators hash a counter (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), so that a rank draws
its block of a larger tensor alone. Which element takes which counter is XLA's (ThreeFryBitGenerator and
PhiloxBitGenerator of its prng library). `start` and `whole` tell where a block lies in which tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from autoshard.core.rule import REPLICATE, Rule
from autoshard.core.tensortype import DType, dtype
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.options import Spreading
from autoshard.ops.random import random_bits
from autoshard.ops.registry import operator
from autoshard.ops.source import sizes_of
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
_U32, _U64 = np.uint32, np.uint64
_WORD = _U64(32)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = _U32(0x1BD11BDA)
_PHILOX_FACTORS = (_U64(0xD2511F53), _U64(0xCD9E8D57))
_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


# -- the generators: words of 32 bits from a key and counters


def threefry(key: int, counters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 with 20 rounds: two words for each 64-bit counter, under a 64-bit key."""
    keys = [_U32(key & _LOW), _U32(key >> 32)]
    keys.append(keys[0] ^ keys[1] ^ _PARITY)
    x, y = counters.astype(_U32) + keys[0], (counters >> _WORD).astype(_U32) + keys[1]
    for part in range(5):
        for bits in _ROTATIONS[part % 2]:
            x += y
            y = ((y << _U32(bits)) | (y >> _U32(32 - bits))) ^ x
        x += keys[(part + 1) % 3]
        y += keys[(part + 2) % 3] + _U32(part + 1)
    return x, y


def philox(key: int, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, ...]:
    """Philox-4x32 with 10 rounds: four words for each 128-bit counter, given as two of 64 bits, under a 64-bit key."""
    words = [low.astype(_U32), (low >> _WORD).astype(_U32), high.astype(_U32), (high >> _WORD).astype(_U32)]
    keys = [key & _LOW, key >> 32]
    for _ in range(10):
        first, second = (words[2 * i].astype(_U64) * factor for i, factor in enumerate(_PHILOX_FACTORS))
        words = [
            (second >> _WORD).astype(_U32) ^ words[1] ^ _U32(keys[0]),
            second.astype(_U32),
            (first >> _WORD).astype(_U32) ^ words[3] ^ _U32(keys[1]),
            first.astype(_U32),
        ]
        keys = [(one + step) & _LOW for one, step in zip(keys, _PHILOX_STEPS, strict=True)]
    return tuple(words)


# -- which element takes which word


def _positions(start: Sequence[int], shape: Sequence[int], whole: Sequence[int]) -> np.ndarray:
    """Row-major positions in a tensor of shape `whole` of the block of `shape` at `start`."""
    strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
    along = [
        np.arange(first, first + size, dtype=_U64) * _U64(stride)
        for first, size, stride in zip(start, shape, strides, strict=True)
    ]
    return reduce(lambda rows, column: rows[..., None] + column, along, np.zeros((), _U64))


def _paired_dim(whole: Sequence[int]) -> int:
    """The dim in which neighbours share a counter: the first of even size, else the largest."""
    even = [dim for dim, size in enumerate(whole) if size % 2 == 0]
    return even[0] if even else max(range(len(whole)), key=lambda dim: (whole[dim], -dim))


def _threefry_bits(state: np.ndarray, bits: int, start: Shape, shape: Shape, whole: Shape) -> tuple[np.ndarray, int]:
    """Words for the block, and how many counters the whole tensor uses."""
    key, counter = int(state[0]), _U64(state[1])
    if bits == 64:
        low, high = threefry(key, counter + _positions(start, shape, whole))
        return _joined(low, high), math.prod(whole)
    if not whole:
        return threefry(key, np.asarray(counter))[0], 1
    dim = _paired_dim(whole)
    halves = _replaced(whole, dim, -(-whole[dim] // 2))
    first, last = start[dim] // 2, -(-(start[dim] + shape[dim]) // 2)
    at, size = _replaced(start, dim, first), _replaced(shape, dim, last - first)
    words = threefry(key, counter + _positions(at, size, halves))
    both = np.stack(words, dim + 1).reshape(_replaced(size, dim, 2 * size[dim]))
    taken = slice(start[dim] - 2 * first, start[dim] - 2 * first + shape[dim])
    return both[(*(slice(None),) * dim, taken)], math.prod(halves)


def _replaced(values: Sequence[int], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(_U64) | (high.astype(_U64) << _WORD)


def _philox_bits(state: np.ndarray, bits: int, start: Shape, shape: Shape, whole: Shape) -> tuple[np.ndarray, int]:
    """Words for the block, and how many counters the whole tensor uses; each gives 128 bits, in row-major order."""
    per_counter = 2 if bits == 64 else 4
    used = -(-math.prod(whole) // per_counter)
    at = _positions(start, shape, whole).astype(np.int64)
    if not at.size:
        return at.astype(_U64), used
    first, last = int(at.min()) // per_counter, int(at.max()) // per_counter + 1
    low, high = _philox_counter(state)
    counters = low + np.arange(first, last, dtype=_U64)
    words = philox(int(state[0]), counters, np.where(counters < low, high + _U64(1), high))
    if bits == 64:
        words = (_joined(*words[:2]), _joined(*words[2:]))
    return np.stack(words, -1).reshape(-1)[at - first * per_counter], used


def _philox_counter(state: np.ndarray) -> tuple[np.uint64, np.uint64]:
    """The counter's low and high half: a state of two numbers has the key for its high half."""
    return _U64(state[1]), _U64(state[2 if len(state) == 3 else 0])


# -- rng_bit_generator

_STATES = {"THREE_FRY": (2,), "PHILOX": (2, 3), "DEFAULT": (2, 3)}


def _bits_rule(state: Shape, *, shape: Sequence[int], algorithm: str, **_: object) -> Rule:
    """Both states whole on every rank and apart from each other; the numbers may be split at will."""
    if algorithm not in _STATES:
        raise ShapeError(f"RngBitGenerator knows the algorithms {', '.join(_STATES)}, not {algorithm!r}")
    builder = FactorBuilder([len(state)], [len(state), len(shape)])
    for dim, size in enumerate(state):
        builder.factor({0: dim, 1: dim}, size, REPLICATE, blocked=True)
    for dim, size in enumerate(sizes_of(shape, "RngBitGenerator")):
        builder.factor({2: dim}, size)
    return builder.build()


def _bits_types(state: DType, *, dtype: str, **_: object) -> tuple:
    return state, dtype


@operator(
    "RngBitGenerator",
    rule=_bits_rule,
    shape=lambda state, *, shape, **_: (state, tuple(shape)),
    dtype=_bits_types,
    flops=100,
)
def rng_bit_generator(state, *, algorithm, shape, dtype="u32", start=(), whole=()):
    """The next state and uniform random bits; on CPU, XLA's DEFAULT is Philox.

    The state is two 64-bit numbers, key and counter; for Philox the counter may be two numbers, low half first.
    """
    if state.dtype != _U64 or state.shape not in [(size,) for size in _STATES[algorithm]]:
        sizes = " or ".join(map(str, _STATES[algorithm]))
        raise ShapeError(f"{algorithm} takes a state of {sizes} numbers u64, not {state.dtype}{state.shape}")
    of = _element(dtype)
    shape, whole = tuple(shape), tuple(whole) or tuple(shape)
    start = tuple(start) or (0,) * len(shape)
    with np.errstate(over="ignore"):
        draw = _threefry_bits if algorithm == "THREE_FRY" else _philox_bits
        words, used = draw(state, of.bits, start, shape, whole)
        return _advanced(state, used), _as_type(words, of)


def _element(name: str) -> DType:
    of = dtype(name)
    if of.numpy.kind not in "iu" or of.bits < 8:
        raise ShapeError(f"random bits come as whole numbers of 8 to 64 bits, not as {of}")
    return of


def _as_type(words: np.ndarray, of: DType) -> np.ndarray:
    """The low bits of each word."""
    return words.astype(f"u{of.itemsize}").view(of.numpy)


def _advanced(state: np.ndarray, used: int) -> np.ndarray:
    """The state after `used` counters; only a state of three numbers keeps the carry."""
    after = state.copy()
    after[1] += _U64(used)
    if len(state) == 3 and after[1] < state[1]:
        after[2] += _U64(1)
    return after


def _block(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    """The block of the last result that a rank draws."""
    last = len(placement.results) - 1
    whole = placement.results[last].shape
    start = tuple(placement.result_offset(dim, last) for dim in range(len(whole)))
    return {"shape": placement.local_result(last), "start": start, "whole": whole}


rng_bit_generator.localize(_block)


# -- rng


def _rng_rule(a: Shape, b: Shape, sizes: Shape, *, shape: Sequence[int], **_: object) -> Rule:
    builder = FactorBuilder([len(a), len(b), len(sizes)], [len(shape)])
    for dim, size in enumerate(sizes_of(shape, "Rng")):
        builder.factor({3: dim}, size)
    return builder.build()


@operator(
    "Rng",
    rule=_rng_rule,
    shape=lambda *_, shape, **__: (tuple(shape),),
    dtype=lambda a, *_, **__: a,
    flops=12,
    effects=True,
    spread=Spreading(foreign=True),
    numbers=("seed",),
)
def rng(a, b, sizes, *, distribution, shape, seed=0, start=(), whole=()):
    """UNIFORM numbers from a up to b, or NORMAL ones of mean a and deviation b.

    Drawing counts as an effect, and StableHLO leaves open which numbers; these come by `random_bits` from `seed`, the
    same in every run. The operand `sizes` repeats the attribute `shape`.
    """
    numbers = random_bits(shape, start, whole, seed, 0)
    if distribution == "UNIFORM" and a.dtype.kind in "iub":
        span = max(int(b) - int(a), 1)
        return (int(a) + (numbers % _U64(span)).astype(np.int64)).astype(a.dtype)
    fractions = ((numbers >> _U64(11)).astype(np.float64) + 0.5) * 2.0**-53
    if distribution == "UNIFORM":
        return (float(a) + (float(b) - float(a)) * fractions).astype(a.dtype)
    if distribution == "NORMAL":
        # Imported here: scipy takes longer to import than all else together.
        from scipy.special import ndtri

        return (float(a) + float(b) * ndtri(fractions)).astype(a.dtype)
    raise ShapeError(f"Rng draws UNIFORM or NORMAL numbers, not {distribution!r}")


rng.localize(_block)
