"""For every sample of these families: the split law, gradients, linearity, and decompositions."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops
from autoshard.layout import Mesh
from autoshard.ops.hlo_collective import COLLECTIVES
from tests.ops.checks import check_gradient, check_linear, check_split
from tests.oracle.samples import (
    SAMPLES as ALL,
)
from tests.oracle.samples import (
    contract,
    experts,
    grouped,
    index,
    loss,
    norm,
    order,
    pointwise,
    random,
    reduce,
    shape,
    source,
    update,
)
from tests.oracle.samples.sample import Sample

FEW = (*experts.SAMPLES, *grouped.SAMPLES, *order.SAMPLES)
"""Samples that not every mesh splits in several ways."""
FAMILIES = (contract, index, loss, norm, pointwise, random, reduce, shape, source, update)
SAMPLES = [*(one for of in FAMILIES for one in of.SAMPLES), *FEW]


def test_every_operator_has_a_sample() -> None:
    alone = {
        one.name
        for one in ops.operators()
        if one.has_rule and one not in COLLECTIVES and one.name != "FuncDataFlowEdge"
    }
    assert alone <= {sample.op.name for sample in ALL}


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("mesh", ["x=8", "x=2 y=4", "x=6"])
def test_split_runs_give_the_blocks_of_the_whole_run(sample: Sample, mesh: str) -> None:
    arrays = sample.arrays(np.random.default_rng(1))
    least = 0 if sample.types == ("f32[]",) or sample in FEW else 1
    assert check_split(sample.op, arrays, dict(sample.attrs), Mesh.parse(mesh)) > least


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.differentiable], ids=str)
def test_gradients_are_finite_differences(sample: Sample) -> None:
    arrays = sample.arrays(np.random.default_rng(2), "f64")
    assert check_gradient(sample.op, arrays, dict(sample.attrs), constant=sample.constant) > 0


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.op.linear], ids=str)
def test_linear_operators_pass_terms_of_a_sum(sample: Sample) -> None:
    arrays = sample.arrays(np.random.default_rng(3), "f64")
    sets = sample.op.linear_in(len(arrays))
    if all(array.dtype.kind == "f" for i, array in enumerate(arrays) if any(i in one for one in sets)):
        assert check_linear(sample.op, arrays, dict(sample.attrs)) > 0


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.op.decomposition], ids=str)
def test_decompositions_compute_the_same(sample: Sample) -> None:
    arrays = sample.arrays(np.random.default_rng(4), "f64")
    assert sample.op.decomposition is not None
    parts = sample.op.decomposition(*arrays, **sample.attributes)
    whole = sample.op.evaluate(arrays, sample.attributes)
    for got, want in zip(parts if isinstance(parts, tuple) else (parts,), whole, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.types], ids=str)
def test_single_precision_stays_single(sample: Sample) -> None:
    wide = "f64" in str(sample)
    arrays = sample.arrays(np.random.default_rng(5))
    raw = sample.op.run(*arrays, **sample.attributes)
    kinds = {np.asarray(one).dtype for one in (raw if isinstance(raw, tuple) else (raw,))}
    ints = all(array.dtype.kind != "f" for array in arrays)
    assert wide or ints or np.dtype(np.float64) not in kinds, "an f64 array was made on the way"
