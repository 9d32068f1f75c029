"""The oracle on MPI ranks: a sample of each family of operators, every strategy, forward and gradient.

On 2, 4 and 6 ranks each a third of the families is tried, which together are all; on other numbers all of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.layout import Mesh
from autoshard.mindspore.communication import get_group_size
from autoshard.runtime.mpi import default_comm
from tests.oracle.check import check_forward, check_gradient
from tests.oracle.samples import SAMPLES

WORLD = get_group_size()
FAMILIES = (
    "Add", "ReLU", "Select", "MatMul", "BatchMatMul", "Einsum", "ReduceSum", "ReduceMean", "ReduceMax", "ArgMax",
    "CumSum", "Softmax", "LayerNorm", "RmsNorm", "SoftmaxCrossEntropyWithLogits", "MSELoss", "Dropout", "Reshape",
    "Transpose", "BroadcastTo", "Concat", "Split", "StridedSlice", "Pad", "Gather", "OneHot", "ApplyMomentum", "Adam",
)  # fmt: skip


def _sampled() -> list:
    """The first sample of each named operator that is tried on so many ranks."""
    first: dict[str, object] = {}
    for sample in SAMPLES:
        first.setdefault(sample.op.name, sample)
    begin = {2: 0, 4: 1, 6: 2}.get(WORLD)
    return [first[name] for name in (FAMILIES if begin is None else FAMILIES[begin::3])]


@pytest.fixture(scope="module")
def comm():
    return default_comm(WORLD)


@pytest.mark.parametrize("sample", _sampled(), ids=str)
def test_split_equals_whole(sample, comm):
    arrays = sample.arrays(np.random.default_rng(1))
    assert check_forward(sample.op, arrays, sample.attributes, Mesh.flat(WORLD), comm=comm) > 0


@pytest.mark.parametrize("sample", [one for one in _sampled() if one.differentiable], ids=str)
def test_split_gradient_equals_whole(sample, comm):
    arrays = sample.arrays(np.random.default_rng(2))
    assert check_gradient(sample.op, arrays, sample.attributes, Mesh.flat(WORLD), comm=comm) > 0
