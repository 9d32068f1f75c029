"""DTensor: models split by plans on four gloo ranks equal themselves, forward and gradient; placements of layouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

import autoshard as ash
from autoshard.exporters.dtensor import device_mesh, parallelize, torch_placements
from autoshard.exporters.dtensor_blocks import smallest_block
from autoshard.exporters.pieces import Pieces
from autoshard.exporters.placements import placements
from autoshard.layout import Layout, Mesh
from autoshard.util.errors import PlanError, RuntimeSetupError

pytestmark = pytest.mark.torch
SCRIPT, FUNCTIONS = (Path(__file__).with_name(f"dtensor_{name}.py") for name in ("ranks", "functions"))
CASES = (
    "gpt2/dp=2,tp=2/megatron",
    "llama/d=4/factor",
    "odd/dp=2,tp=2/factor",
    "rows/dp=2,tp=2/factor",
    "masked/dp=2,tp=2/factor",
    "image/dp=2,tp=2/factor",
    "table/dp=2,tp=2/megatron",
    "table_norm/dp=2,tp=2/megatron",
    "table/dp=2,tp=2/optimal",
    "dropped/dp=4/zero1(dp)/adamw",
    "bert/dp=2,tp=2/megatron/adamw",
    "mixtral/dp=2,tp=2/megatron/adamw",
)
EXPECTED = {
    "odd": (["cdist"], 4),
    "rows": ([], 2),
    "masked": ([], 2),
    "image": ([], 1),
    "table": ([], 0),
    "table_norm": ([], 4),
    "dropped": ([], 0),
}
"""What DTensor cannot do split, and how many parameters are split at least; of other models nothing, and 4."""


def _run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)


@pytest.mark.slow
def test_models_equal_themselves_on_four_ranks() -> None:
    done = _run(SCRIPT, *CASES)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = json.loads(done.stdout)
    assert len(ranks) == 4
    for told in ranks:
        for case, one in zip(CASES, told, strict=True):
            assert one["output"] <= 1e-4 * max(1.0, one["size"]), (case, one)
            assert max(one["gradient"], one["buffers"]) <= 1e-3 and one["compared"] >= 3, (case, one)
            gathered, split = EXPECTED.get(case.partition("/")[0], ([], 4))
            assert one["split"] >= split and not one["astray"], (case, one)
            assert list(one["gathered"]) == gathered, (case, one)
            assert one["moved"] <= 1e-4 and one["held"] == 1, (case, one)


MESH = Mesh(a=2, b=3, c=2)


@given(st.permutations(["a", "b", "c"]), st.integers(0, 3), st.integers(0, 3))
def test_blocks_are_those_of_the_layout(names, first, second) -> None:
    """What the placements cut, axis by axis as DTensor does it, is the block of the layout."""
    low, high = sorted((first, second))
    dims = [names[:low], names[low:high]]
    layout = Layout(MESH, [[MESH.axis(name) for name in dim] for dim in dims])
    pieces = Pieces.of(MESH, [layout])
    shape = (24, 36)
    whole = np.arange(24 * 36).reshape(shape)
    for rank in range(MESH.devices):
        found = _cut(whole, placements(layout, pieces), pieces, rank)
        assert np.array_equal(found, whole[layout.block(rank, shape)])


def _cut(whole, told, pieces, rank):
    """DTensor's meaning: each mesh dim in order cuts; one inside of k parts cuts each of k parts and takes them all."""
    place = dict(zip(pieces.names, np.argwhere(pieces.ranks == rank)[0], strict=True))
    block = whole
    for name, one in zip(pieces.names, told, strict=True):
        if one.kind != "S":
            continue
        parts = [
            np.array_split(part, pieces.sizes[name], one.dim) for part in np.array_split(block, one.inside, one.dim)
        ]
        block = np.concatenate([part[place[name]] for part in parts], one.dim)
    return block


def test_placements_have_dtensors_names() -> None:
    mesh = Mesh(dp=2, tp=4)
    layout = Layout.parse("tp.dp, - ", mesh)
    told = placements(layout, Pieces.of(mesh, [layout]))
    assert [str(one) for one in told] == ["S(0, 4)", "S(0)"]
    strided, plain = torch_placements(told)
    assert strided.split_factor == 4 and plain == Shard(0)
    terms = Layout.parse("-, dp max tp", mesh)
    told = placements(terms, Pieces.of(mesh, [terms]))
    assert [str(one) for one in torch_placements(told)] == ["S(1)", "P(max)"]


def test_sub_axes_become_axes() -> None:
    mesh = Mesh(d=8)
    layouts = [Layout.parse("d:(1)2, d:(2)4", mesh), Layout.parse("d, -", mesh)]
    pieces = Pieces.of(mesh, layouts)
    assert pieces.axes == (("d_0", 2), ("d_1", 4))
    assert pieces.dims(layouts[1]) == (("d_0", "d_1"), ())
    with pytest.raises(PlanError, match=r"layouts cut the mesh axis 'e' at \[1, 2, 3, 6\], which have no common cut"):
        mesh = Mesh(e=6)
        Pieces.of(mesh, [Layout.parse("e:(1)2", mesh), Layout.parse("e:(1)3", mesh)])


def test_a_plan_needs_its_ranks() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU())
    planned = ash.plan(ash.from_torch(net, (torch.ones(4, 6),)), mesh="dp=2 tp=2", search="data_parallel")
    with pytest.raises(RuntimeSetupError, match=r"the plan is for 4 ranks .* but torch.distributed is not initialized"):
        device_mesh(planned)


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 4))
def test_the_smallest_block_of_a_tensor_that_is_split_twice(size: int, first: int, second: int) -> None:
    made = [block.shape[0] for part in torch.zeros(size, 2).chunk(first) for block in part.chunk(second)]
    least = min(made) if len(made) == first * second else 0
    assert smallest_block((size, 2), [Shard(0), Shard(0)], [first, second]) == [least, 2]


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(PlanError, match=r"parallelize takes a Plan, .* not dict; a saved plan is read by"):
        parallelize(torch.nn.Linear(2, 2), {"format": "autoshard placements 1"})


def test_the_data_names_tensors_and_modules() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 8))
    planned = ash.plan(ash.from_torch(net, (torch.ones(4, 6),)), mesh="dp=2 tp=2", search="data_parallel")
    data = json.loads(planned.export("dtensor"))
    assert data["mesh"] and data["tensors"].keys() == dict(net.named_parameters()).keys()
    assert data["ranks"] == np.arange(4).reshape(list(data["mesh"].values())).tolist()
    (first,) = data["modules"]["2"]["inputs"]
    assert first["shape"] == [4, 10] and len(first["placements"]) == len(data["mesh"])
    assert any(one.startswith("S(0") for one in data["inputs"][0]["placements"])


@pytest.mark.slow
def test_functions_on_blocks_equal_those_on_whole_tensors() -> None:
    done = _run(FUNCTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
