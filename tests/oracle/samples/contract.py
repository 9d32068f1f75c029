"""Samples of matrix products and einsum."""

from __future__ import annotations

from autoshard.ops.contract import batch_matmul, einsum, matmul

from .sample import Sample

SAMPLES = (
    Sample(matmul, ("f32[24, 48]", "f32[48, 12]")),
    Sample(matmul, ("bool[12, 4]", "bool[4, 6]"), differentiable=False),
    Sample(matmul, ("f32[48, 24]", "f32[12, 48]"), {"transpose_a": True, "transpose_b": True}),
    Sample(matmul, ("f32[24, 6]", "f32[24, 12]"), {"transpose_a": True}),
    Sample(matmul, ("f32[12, 8, 6]", "f32[6, 24]")),
    Sample(matmul, ("f32[4, 12, 6]", "f32[24, 6]"), {"transpose_b": True}),
    Sample(matmul, ("f32[8, 6, 12]", "f32[24, 6]"), {"transpose_a": True, "transpose_b": True}),
    Sample(batch_matmul, ("f32[8, 6, 12]", "f32[8, 12, 4]")),
    Sample(batch_matmul, ("f32[2, 6, 8, 12]", "f32[2, 1, 4, 12]"), {"transpose_b": True}),
    Sample(batch_matmul, ("f32[6, 1, 12, 8]", "f32[4, 12, 6]"), {"transpose_a": True}),
    Sample(batch_matmul, ("f32[8, 12, 6]", "f32[24, 12]"), {"transpose_a": True, "transpose_b": True}),
    Sample(einsum, ("f32[24, 6]", "f32[6, 12]"), {"equation": "ik,kj->ij"}),
    Sample(einsum, ("f32[4, 6, 2, 12]", "f32[4, 8, 2, 12]"), {"equation": "bshd,bthd->bhst"}),
    Sample(einsum, ("f32[6, 8, 12]", "f32[8, 6, 24]"), {"equation": "abk,ban->kn"}),
    Sample(einsum, ("f32[8, 12, 6]",), {"equation": "abc->ca"}),
    Sample(einsum, ("f32[8, 6]", "f32[6, 12]", "f32[12, 4]"), {"equation": "ij,jk,kl->li"}),
    Sample(einsum, ("f32[24]", "f32[12]"), {"equation": "i,j->ji"}),
    Sample(einsum, ("f32[24, 6]", "f32[24, 8]"), {"equation": "ij,ik->i"}),
)
