"""Samples of StableHLO's operators on whole dims, windows, matrices, random numbers, and of custom calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import TensorType
from autoshard.ops import hlo_batch_norm as norm
from autoshard.ops import hlo_custom as custom
from autoshard.ops import hlo_linalg as linalg
from autoshard.ops import hlo_random as random
from autoshard.ops import hlo_reduce as reduce
from autoshard.ops import hlo_window as window
from autoshard.ops.body import Body
from autoshard.ops.hlo_convolution import convolution
from autoshard.ops.hlo_sort import sort_along
from autoshard.ops.registry import Operator

from .sample import Sample, scalar_function

Rng = np.random.Generator
Arrays = Sequence[np.ndarray]
LESS = scalar_function(lambda a, b: a < b, "f32", "f32")
LESS_FIRST = scalar_function(lambda a, b, x, y: a < b, "i32", "i32", "f32", "f32")
MORE = scalar_function(lambda a, b: a >= b, "f32", "f32")
FARTHEST = scalar_function(lambda a, b, x, y: (ops.maximum(a, x), ops.minimum(b, y)), "f32", "f32", "f32", "f32")


def _sample(op: Operator, types: Sequence[str], make: Callable | None = None, **attrs: Any) -> Sample:
    return Sample(op, tuple(types), attrs, differentiable=False, make=make)


def _near_one(rng: Rng) -> Arrays:
    return [rng.uniform(0.8, 1.25, (8, 6, 12)), np.array(1.5)]


def _definite(rng: Rng) -> Arrays:
    a = rng.normal(size=(8, 6, 5, 5))
    return [a @ a.swapaxes(-1, -2) + 3 * np.eye(5)]


def _triangle(rng: Rng) -> Arrays:
    return [rng.normal(size=(24, 5, 5)) + 4 * np.eye(5), rng.normal(size=(24, 5, 3))]


def _statistics(rng: Rng) -> Arrays:
    x, vectors = rng.normal(size=(8, 24, 6)), rng.normal(size=(3, 24))
    return [x, *vectors, rng.uniform(0.5, 2, 24)]


def _statistics_of_batch(rng: Rng) -> Arrays:
    x, g = rng.normal(size=(2, 8, 24, 6))
    return [x, rng.normal(size=24), rng.normal(size=24), rng.uniform(0.5, 2, 24), g]


def _distinct(rng: Rng) -> Arrays:
    values = rng.permutation(8 * 24 * 9).reshape(8, 24, 9)
    return [values, rng.normal(size=(8, 24, 4)), np.array(0.25)]


def _state(rng: Rng) -> Arrays:
    return [np.array([12345, 678], np.uint64)]


def _bounds(rng: Rng) -> Arrays:
    return [np.array(-1), np.array(2), np.array([24, 6])]


_IMAGE: dict[str, Any] = {"lhs_dims": (0, 3, 1, 2), "rhs_dims": (2, 3, 0, 1), "out_dims": (0, 3, 1, 2)}


def _called(op: Operator, target: str, types: Sequence[str], results: Sequence[str], **config: object) -> Sample:
    attrs = {"target": target, "types": tuple(map(TensorType.parse, results)), "config": tuple(config.items())}
    return Sample(op, tuple(types), attrs, differentiable=False)


SAMPLES = (
    _sample(reduce.reduce_add, ("f32[8, 6, 12]", "f32[]"), dimensions=(0, 2)),
    _sample(reduce.reduce_add, ("i32[24, 8]", "i32[]"), dimensions=(0,)),
    _sample(reduce.reduce_with, ("f32[8, 6, 12]", "f32[]"), dimensions=(1, 2), body=Body("max")),
    _sample(reduce.reduce_with, ("f32[8, 6, 12]", "f32[]"), _near_one, dimensions=(0,), body=Body("mul")),
    _sample(reduce.reduce_with, ("bool[24, 8]", "bool[]"), dimensions=(1,), body=Body("min")),
    _sample(reduce.reduce_with, ("i32[24, 8]", "i32[]"), dimensions=(1,), body=Body("xor")),
    _sample(reduce.reduce_with, ("f32[24, 8]", "f32[24, 8]", "f32[]", "f32[]"), dimensions=(1,), body=FARTHEST),
    _sample(reduce.map_elements, ("f32[24, 8]", "f32[24, 8]"), body=Body("mul"), dtype="f32"),
    _sample(sort_along, ("f32[24, 9]",), dimension=1, body=LESS),
    _sample(sort_along, ("i32[9, 24]", "f32[9, 24]"), dimension=0, body=LESS_FIRST),
    _sample(
        window.reduce_window, ("f32[8, 24, 9]", "f32[]"), dimensions=(1, 1, 3), strides=(1, 1, 2), body=Body("add")
    ),
    _sample(
        window.reduce_window,
        ("f32[8, 6, 9]", "f32[]"),
        dimensions=(1, 2, 3),
        base_dilations=(2, 1, 1),
        window_dilations=(1, 1, 2),
        padding=((0, 0), (1, 0), (-1, 2)),
        body=Body("max"),
    ),
    _sample(
        window.select_and_scatter,
        ("f32[8, 24, 9]", "f32[8, 24, 4]", "f32[]"),
        _distinct,
        dimensions=(1, 1, 3),
        strides=(1, 1, 2),
        select=MORE,
        scatter=Body("add"),
    ),
    _sample(convolution, ("f32[8, 6, 5, 4]", "f32[3, 2, 4, 12]"), strides=(2, 1), padding=((1, 1), (0, 1)), **_IMAGE),
    _sample(convolution, ("f32[4, 6, 5, 8]", "f32[3, 2, 2, 12]"), feature_groups=4, lhs_dilation=(2, 1), **_IMAGE),
    _sample(convolution, ("f32[8, 6, 5, 4]", "f32[3, 2, 4, 12]"), batch_groups=4, reversal=(True, False), **_IMAGE),
    _sample(linalg.cholesky, ("f32[8, 6, 5, 5]",), _definite),
    _sample(linalg.triangular_solve, ("f32[24, 5, 5]", "f32[24, 5, 3]"), _triangle),
    _sample(linalg.fft, ("c64[8, 6, 5]",), kind="IRFFT", length=(8,)),
    Sample(
        norm.batch_norm_inference,
        ("f32[8, 24, 6]", *["f32[24]"] * 4),
        {"epsilon": 0.1, "feature": 1},
        make=_statistics,
    ),
    Sample(norm.batch_norm_training, ("f32[8, 24, 6]", "f32[24]", "f32[24]"), {"epsilon": 0.1, "feature": 1}),
    _sample(
        norm.batch_norm_grad,
        ("f32[8, 24, 6]", *["f32[24]"] * 3, "f32[8, 24, 6]"),
        _statistics_of_batch,
        epsilon=0.1,
        feature=1,
    ),
    _sample(random.rng_bit_generator, ("u64[2]",), _state, algorithm="THREE_FRY", shape=(9, 24)),
    _sample(random.rng_bit_generator, ("u64[2]",), _state, algorithm="THREE_FRY", shape=(6, 8), dtype="u64"),
    _sample(random.rng_bit_generator, ("u64[2]",), _state, algorithm="PHILOX", shape=(8, 6), dtype="u16"),
    _sample(random.rng, ("f32[]", "f32[]", "i32[2]"), _bounds, distribution="UNIFORM", shape=(24, 6), seed=3),
    _called(custom.custom_call, "mhlo.erf", ("f32[24, 8]",), ("f32[24, 8]",)),
    _called(custom.custom_call, "mhlo.topk", ("f32[24, 8]",), ("f32[24, 3]", "i32[24, 3]"), k=3, largest=True),
    _called(custom.custom_call, "Qr", ("f32[6, 5, 5]",), ("f32[6, 5, 5]", "f32[6, 5]")),
    _called(custom.move_call, "MoveToHost", ("f32[24, 8]",), ("f32[24, 8]",)),
)
