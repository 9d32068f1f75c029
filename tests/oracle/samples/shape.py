"""Samples of the operators of shape, joint and slices."""

from __future__ import annotations

from autoshard.ops import concatenation, shape, slices

from .sample import Sample

SAMPLES = (
    Sample(shape.identity, ("f32[24, 6]",)),
    Sample(shape.reshape, ("f32[8, 12, 6]",), {"shape": (96, 6)}),
    Sample(shape.reshape, ("f32[24, 6]",), {"shape": (4, 6, -1)}),
    Sample(shape.reshape, ("f32[8, 12]",), {"shape": (2, 48)}),
    Sample(shape.reshape, ("f32[48, 6, 1]",), {"shape": (1, 6, 8, 2, 3)}),
    Sample(shape.reshape, ("f32[8, 6, 4]",), {"shape": (8, 4, 6)}),
    Sample(shape.reshape, ("f32[4, 3, 8]",), {"shape": (6, 2, 8)}),
    Sample(shape.transpose, ("f32[24, 8, 6]",), {"perm": (1, 2, 0)}),
    Sample(shape.transpose, ("f32[24, 48]",)),
    Sample(shape.expand_dims, ("f32[24, 8]",), {"axis": 1}),
    Sample(shape.expand_dims, ("f32[24, 8]",), {"axis": (0, -1)}),
    Sample(shape.squeeze, ("f32[8, 1, 24, 1]",)),
    Sample(shape.squeeze, ("f32[8, 1, 24, 1]",), {"axis": -3}),
    Sample(shape.broadcast_to, ("f32[24, 1]",), {"shape": (8, -1, 6)}),
    Sample(shape.broadcast_to, ("f32[12]",), {"shape": (24, 12)}),
    Sample(shape.tile, ("f32[6, 4, 1]",), {"multiples": (4, 1, 8)}),
    Sample(shape.tile, ("f32[8, 6]",), {"multiples": (2, 2, 6)}),
    Sample(concatenation.concat, ("f32[24, 6]", "f32[24, 10]", "f32[24, 8]"), {"axis": 1}),
    Sample(concatenation.concat, ("f32[8, 24]", "f32[4, 24]"), {"axis": -2}),
    Sample(concatenation.concat, ("f32[8, 24]",)),
    Sample(concatenation.split, ("f32[24, 12]",), {"axis": 1, "output_num": 3}),
    Sample(concatenation.split, ("f32[12, 48]",), {"axis": 0, "sizes": (2, 4, 6)}),
    Sample(concatenation.split, ("f32[12, 48]",), {}),
    Sample(concatenation.split, ("f32[6, 4]",), {"axis": 0, "sizes": (0, 4, 2)}),
    Sample(concatenation.stack, ("f32[24, 8]", "f32[24, 8]", "f32[24, 8]"), {"axis": 1}),
    Sample(concatenation.unstack, ("f32[24, 4, 8]",), {"axis": -2, "num": 4}),
    Sample(slices.strided_slice, ("f32[24, 12, 8]",), {"begin": (0, 2), "end": (24, -1), "strides": (1, 3)}),
    Sample(slices.strided_slice, ("f32[12, 24]",), {"begin": (None, None), "end": (2, None), "strides": (-2, 1)}),
    Sample(
        slices.strided_slice_grad,
        ("f32[24, 3, 8]",),
        {"shape": (24, 12, 8), "begin": (0, 2), "end": (24, -1), "strides": (1, 3)},
    ),
    Sample(slices.pad, ("f32[24, 10]",), {"paddings": ((0, 0), (1, 3)), "value": 2.5}),
    Sample(slices.pad, ("i32[6, 48]",), {"paddings": ((2, 0), (0, 0))}, differentiable=False),
    Sample(slices.flip, ("f32[24, 6, 8]",), {"axis": (1,)}),
    Sample(slices.flip, ("f32[6, 24]",), {"axis": -2}),
    Sample(slices.roll, ("f32[24, 6]",), {"shift": 2, "axis": 1}),
    Sample(slices.roll, ("f32[6, 4, 24]",), {"shift": (2, -1), "axis": (0, 1)}),
    Sample(slices.tril, ("f32[6, 24, 8]",)),
    Sample(slices.tril, ("f32[24, 48]",), {"diagonal": 5}),
    Sample(slices.triu, ("f32[24, 12]",), {"diagonal": -2}),
    Sample(slices.arange, (), {"limit": 48}, differentiable=False),
    Sample(slices.arange, (), {"start": 3, "limit": -9.0, "delta": -0.5, "dtype": "f32"}, differentiable=False),
)
