"""Every registered operator, split in every way, on four meshes: equals the whole, forward, gradient and partial sums.

Ways are numbers of parts per factor. Each is run on one of the three meshes of 8 devices, and on 6 devices; gradients
are planned around it by a search, and at random, on 8 or on 6 devices in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import autoshard.ops  # noqa: F401  (registers the operators)
from autoshard.layout import Mesh
from autoshard.ops.hlo_collective import COLLECTIVES
from autoshard.ops.registry import operators
from tests.oracle.check import EIGHT, SIX, check_forward, check_gradient, check_linear
from tests.oracle.samples import SAMPLES
from tests.oracle.samples.sample import Sample


def test_every_operator_has_a_sample():
    sampled = {sample.op.name for sample in SAMPLES}
    sampled.add("FuncDataFlowEdge")  # which is written into the functions of modules, and computes nothing
    missing = [op.name for op in operators() if op.has_rule and op not in COLLECTIVES and op.name not in sampled]
    assert not missing, f"operators without a sample in tests/oracle/samples: {missing}"


def spread(check: Callable[..., int], sample: Sample, meshes: Sequence[str], seed: int) -> int:
    """Each way to split the sample is checked on one of the meshes, in turn; returns how many there are."""
    arrays, count, at = sample.arrays(np.random.default_rng(seed)), len(meshes), SAMPLES.index(sample)
    checked = [
        check(sample.op, arrays, sample.attributes, Mesh.parse(mesh), share=(at + i) % count, of=count)
        for i, mesh in enumerate(meshes)
    ]
    return sum(checked)


@pytest.mark.parametrize("meshes", [EIGHT, SIX], ids=" ".join)
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_split_equals_whole(sample, meshes):
    assert spread(check_forward, sample, meshes, 1) > 0


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.differentiable], ids=str)
def test_split_gradient_equals_whole(sample):
    assert spread(check_gradient, sample, (EIGHT, SIX)[SAMPLES.index(sample) % 2], 2) > 0


def passes_terms(sample: Sample) -> bool:
    """Whether it is linear; of bools nothing is, which are no sums."""
    return bool(sample.op.linear) and sample.op.rule(sample.operand_types, sample.attributes).reduction == "sum"


@pytest.mark.parametrize("sample", list(filter(passes_terms, SAMPLES)), ids=str)
def test_terms_of_a_sum_pass_through(sample):
    arrays = sample.arrays(np.random.default_rng(3))
    checked = sum(check_linear(sample.op, arrays, sample.attributes, Mesh.parse(mesh)) for mesh in ("2x4", "6"))
    assert checked > 0
