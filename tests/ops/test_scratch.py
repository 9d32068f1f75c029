"""What operators take for a while, and which results are views: as they say against what numpy does."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from autoshard import ops
from autoshard.core.tensortype import type_of
from autoshard.ops.hlo_collective import COLLECTIVES
from autoshard.ops.options import VIEWS
from tests.oracle.samples import SAMPLES
from tests.oracle.samples.sample import Sample

NOISE = 20_000
"""Bytes of Python's own that a call may take: small beside the arrays here."""


def big(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


X, G = big(96, 40, 64), big(96, 40, 64)
LABELS = np.random.default_rng(1).integers(0, 64, (96, 40))
CALLS = {
    "Softmax": ((X,), {}),
    "SoftmaxGrad": ((G, X), {}),
    "LogSoftmax": ((X,), {}),
    "LayerNorm": ((X, big(64), big(64)), {}),
    "RmsNorm": ((X, big(64)), {}),
    "Standardize": ((X,), {}),
    "NormGrad": ((G, X, big(96, 40, 1), big(64)), {}),
    "LayerNormParamGrad": ((G, X), {}),
    "SparseSoftmaxCrossEntropyWithLogits": ((X, LABELS), {}),
    "SparseSoftmaxCrossEntropyGrad": ((big(96, 40), X, LABELS), {}),
    "GeLU": ((X,), {}),
    "GeLUGrad": ((G, X), {}),
    "ReLU": ((X,), {}),
    "Add": ((X, G), {}),
    "AddN": ((X, G, X, G), {}),
    "MatMul": ((X, big(64, 80)), {}),
    "BatchMatMul": ((X, big(96, 64, 30)), {}),
    "Einsum": ((X, G), {"equation": "abk,abn->kn"}),
    "ReduceSum": ((X,), {"axis": (0, 1)}),
    "ReduceMean": ((X,), {"axis": (1,)}),
    "Concat": ((X, G), {"axis": 1}),
    "Gather": ((big(64, 300), LABELS), {"axis": 0}),
    "Dropout": ((X, np.int32(3)), {"rate": 0.3}),
    "DropoutRows": ((X, np.int32(3), np.arange(len(X), dtype=np.int32)), {"rate": 0.3, "dim": 0, "whole": X.shape}),
    "SGD": ((X, G), {"learning_rate": 0.1}),
    "ApplyMomentum": ((X, G, X), {"learning_rate": 0.1, "nesterov": True, "weight_decay": 0.1}),
    "Adam": ((X, G, np.abs(X), G, np.int32(2)), {"weight_decay": 0.1, "decoupled": True}),
}


@pytest.mark.parametrize("name", CALLS)
def test_scratch_is_near_to_what_a_call_takes(name):
    arrays, attrs = CALLS[name]
    op = ops.registry.lookup(name)
    attrs, types = op.check_attributes(attrs), tuple(map(type_of, arrays))
    op.run(*arrays, **attrs)
    tracemalloc.start()
    try:
        results = op.run(*arrays, **attrs)
        now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert results is not None
    told = op.scratch(op.rule(types, attrs), types, op.result_types(types, attrs), attrs)
    largest = max(one.nbytes for one in (*types, *op.result_types(types, attrs)))
    assert most - now <= told + NOISE, f"it takes {(most - now) / largest:.2f} of the largest tensor"
    assert told <= most - now + 0.35 * largest + NOISE, f"it takes only {(most - now) / largest:.2f} of the largest"


def _arrays(sample: Sample) -> list[np.ndarray]:
    return [np.asarray(one, order="C") for one in sample.arrays(np.random.default_rng(0))]


RUNNING = [one for one in SAMPLES if one.types and not one.op.takes_regions and one.op not in COLLECTIVES]


@pytest.mark.parametrize("sample", [one for one in RUNNING if one.op.view], ids=str)
def test_views_lie_in_the_memory_of_their_operand(sample):
    arrays = _arrays(sample)
    assert sample.op.view in VIEWS
    made = sample.op.run(*arrays, **sample.attributes)
    for one in made if isinstance(made, tuple) else (made,):
        one = np.asarray(one)
        assert np.shares_memory(one, arrays[0]) or one.size == 0 or "scale" in sample.attrs
        if sample.op.view != "strided":
            assert one.flags.c_contiguous
