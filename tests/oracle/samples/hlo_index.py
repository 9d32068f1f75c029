"""Samples of StableHLO's contractions, gathers, scatters and dynamic slices; some indices lie outside on purpose."""

from __future__ import annotations

import numpy as np

from autoshard.ops import hlo_contract, hlo_dynamic, hlo_gather, hlo_scatter, hlo_sized
from autoshard.ops.body import Body

from .sample import Sample, scalar_function

_EMBEDDING = {
    "offset_dims": (2,),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "index_vector_dim": 2,
    "slice_sizes": (1, 8),
}
_ALONG = {
    "offset_dims": (),
    "collapsed_slice_dims": (1,),
    "operand_batching_dims": (0,),
    "start_indices_batching_dims": (0,),
    "start_index_map": (1,),
    "index_vector_dim": 2,
    "slice_sizes": (1, 1),
}
_WINDOWS = {
    "offset_dims": (1, 2, 3),
    "collapsed_slice_dims": (),
    "start_index_map": (1, 0),
    "index_vector_dim": 1,
    "slice_sizes": (1, 3, 8),
}
_ROWS = {
    "update_window_dims": (2,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 2,
}
_ELEMENTS = {
    "update_window_dims": (),
    "inserted_window_dims": (1,),
    "input_batching_dims": (0,),
    "scatter_indices_batching_dims": (1,),
    "scatter_dims_to_operand_dims": (1,),
    "index_vector_dim": 2,
}
_BLOCKS = {
    "update_window_dims": (1, 2),
    "inserted_window_dims": (),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}
_DIFFERENCE = scalar_function(lambda a, b: a - b, "f32", "f32")


def _gather(operand: str, indices: str, high: int, attrs: dict, **more) -> Sample:
    return Sample(
        hlo_gather.gather_slices, (operand, indices), {**attrs, **more}, False, _indexed(operand, indices, high)
    )


def _indexed(operand: str, indices: str, high: int, *updates: str):
    """Operands at random, indices from -2 to high + 1."""
    parse = Sample(hlo_gather.gather_slices, (operand, indices, *updates)).operand_types

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        made = [rng.integers(-4, 5, one.shape) if one.dtype.name == "i32" else _values(rng, one) for one in parse]
        made[1] = rng.integers(-2, high + 2, parse[1].shape)
        return made

    return make


def _values(rng: np.random.Generator, of) -> np.ndarray:
    return rng.random(of.shape) < 0.5 if of.dtype.name == "bool" else rng.standard_normal(of.shape)


def _scatter(operand: str, indices: str, updates: str, high: int, attrs: dict, body: Body) -> Sample:
    types, make = (operand, indices, updates), _indexed(operand, indices, high, updates)
    return Sample(hlo_scatter.scatter_slices, types, {**attrs, "body": body}, False, make)


def _scatter_add(operand: str, indices: str, updates: str, high: int, attrs: dict) -> Sample:
    types, make = (operand, indices, updates), _indexed(operand, indices, high, updates)
    return Sample(hlo_scatter.scatter_add_slices, types, attrs, False, make)


def _two(rng: np.random.Generator) -> list[np.ndarray]:
    floats, indices = rng.standard_normal, rng.integers(-2, 14, (6, 4, 1))
    return [floats((12, 8)), floats((12, 8)), indices, floats((6, 4, 8)), floats((6, 4, 8))]


def _starts(*shapes: tuple[int, ...], count: int):
    return lambda rng: [*map(rng.standard_normal, shapes), *rng.integers(-2, 10, count)]


SAMPLES = (
    Sample(
        hlo_contract.dot_general,
        ("f32[3, 8, 4]", "f32[4, 6, 8]"),
        {"lhs_batch": (1,), "rhs_batch": (2,), "lhs_contract": (2,), "rhs_contract": (0,), "dtype": "f32"},
    ),
    Sample(
        hlo_contract.dot_general,
        ("f32[4, 6, 8]", "f32[8, 4]"),
        {"lhs_contract": (2, 0), "rhs_contract": (0, 1), "dtype": "f32"},
    ),
    Sample(hlo_contract.dot_general, ("f32[6]", "f32[8]"), {"dtype": "f32"}),
    Sample(hlo_contract.hlo_einsum, ("f32[8, 6]", "f32[6, 4]"), {"equation": "ab,bc->ca", "dtype": "f32"}, False),
    Sample(hlo_contract.hlo_einsum, ("f32[8, 6]",), {"equation": "ab->b", "dtype": "f32"}, False),
    _gather("f32[24, 8]", "i32[6, 4, 1]", 24, _EMBEDDING),
    _gather("f32[8, 12]", "i32[8, 6, 1]", 12, _ALONG),
    _gather("f32[6, 12, 8]", "i32[4, 2]", 12, _WINDOWS),
    _scatter_add("f32[12, 8]", "i32[6, 4, 1]", "f32[6, 4, 8]", 12, _ROWS),
    _scatter_add("f32[8, 12]", "i32[6, 8, 1]", "f32[6, 8]", 12, _ELEMENTS),
    _scatter_add("f32[12, 8]", "i32[6, 1]", "f32[6, 4, 8]", 12, _BLOCKS),
    _scatter("f32[12, 8]", "i32[6, 4, 1]", "f32[6, 4, 8]", 12, _ROWS, Body("mul")),
    _scatter("i32[12, 8]", "i32[6, 4, 1]", "i32[6, 4, 8]", 12, _ROWS, Body("max")),
    _scatter("bool[12, 8]", "i32[6, 4, 1]", "bool[6, 4, 8]", 12, _ROWS, Body("min")),
    _scatter("f32[12, 8]", "i32[6, 4, 1]", "f32[6, 4, 8]", 12, _ROWS, hlo_scatter.REPLACE),
    _scatter("f32[8, 12]", "i32[6, 8, 1]", "f32[6, 8]", 12, _ELEMENTS, _DIFFERENCE),
    Sample(
        hlo_scatter.scatter_slices,
        ("f32[12, 8]", "f32[12, 8]", "i32[6, 4, 1]", "f32[6, 4, 8]", "f32[6, 4, 8]"),
        {**_ROWS, "body": Body("add")},
        False,
        _two,
    ),
    Sample(
        hlo_dynamic.dynamic_slice,
        ("f32[8, 12, 6]", "i32[]", "i32[]", "i32[]"),
        {"sizes": (8, 4, 6)},
        False,
        _starts((8, 12, 6), count=3),
    ),
    Sample(
        hlo_dynamic.dynamic_update_slice,
        ("f32[8, 12, 6]", "f32[8, 5, 2]", "i32[]", "i32[]", "i32[]"),
        {},
        False,
        _starts((8, 12, 6), (8, 5, 2), count=3),
    ),
    Sample(
        hlo_dynamic.dynamic_update_slice,
        ("f32[24, 8]", "f32[10, 8]", "i32[]", "i32[]"),
        {"fixed": True},
        False,
        _starts((24, 8), (10, 8), count=2),
    ),
    Sample(
        hlo_sized.torch_index_select,
        ("f32[4, 6, 8]", "i32[4, 12]"),
        {"dim": 2, "batch_dims": 1},
        False,
        lambda rng: [rng.standard_normal((4, 6, 8)), rng.integers(-2, 10, (4, 12))],
    ),
)
