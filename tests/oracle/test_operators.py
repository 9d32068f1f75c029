"""Every registered operator, every strategy on four meshes: split equals whole, forward, gradient and partial sums."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard.ops  # noqa: F401  (registers the operators)
from autoshard.layout import Mesh
from autoshard.ops.hlo_collective import COLLECTIVES
from autoshard.ops.registry import operators
from tests.oracle.check import MESHES, check_forward, check_gradient, check_linear
from tests.oracle.samples import SAMPLES


def test_every_operator_has_a_sample():
    sampled = {sample.op.name for sample in SAMPLES}
    missing = [op.name for op in operators() if op.has_rule and op not in COLLECTIVES and op.name not in sampled]
    assert not missing, f"operators without a sample in tests/oracle/samples: {missing}"


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_split_equals_whole(sample, mesh):
    arrays = sample.arrays(np.random.default_rng(1))
    assert check_forward(sample.op, arrays, sample.attributes, Mesh.parse(mesh)) > 0


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.differentiable], ids=str)
def test_split_gradient_equals_whole(sample, mesh):
    arrays = sample.arrays(np.random.default_rng(2))
    assert check_gradient(sample.op, arrays, sample.attributes, Mesh.parse(mesh)) > 0


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.op.linear], ids=str)
def test_terms_of_a_sum_pass_through(sample):
    arrays = sample.arrays(np.random.default_rng(3))
    checked = sum(check_linear(sample.op, arrays, sample.attributes, Mesh.parse(mesh)) for mesh in ("2x4", "6"))
    assert checked > 0
