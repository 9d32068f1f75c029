"""Checkpoints with one process per rank, for any number of ranks: what ranks save they load, alike or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import autoshard as ash
from autoshard import Model, communication, nn
from autoshard.core.tensortype import type_of
from autoshard.layout import Layout, Mesh
from autoshard.runtime.agree import from_all
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import LocalBlocks, Placed, checkpoints, find, load, read_index, save
from autoshard.runtime.checkpoint.agree import together
from autoshard.runtime.mpi import default_comm
from autoshard.util.errors import CheckpointError
from tests.mpi.test_training import FFN, rows

communication.init()
RANK, RANKS = communication.get_rank(), communication.get_group_size()
MESH = Mesh(a=2, b=RANKS // 2) if RANKS % 2 == 0 else Mesh.flat(RANKS)
LAYOUTS = ["-, -", "a, b", "b.a, -", "-, b"] if RANKS % 2 == 0 else ["-, -", "d, -", "-, d"]
ARRAYS = {
    f"t{i}": np.random.default_rng(i).normal(size=(7 + i, 11 - i)).astype(kind)
    for i, kind in enumerate(["f4", "f8", "i2", "f2"])
}


@pytest.fixture(scope="module")
def comm():
    return default_comm(RANKS)


@pytest.fixture
def folder(tmp_path, comm):
    """One folder for all ranks."""
    return from_all(comm, str(tmp_path / "saved"))[0]


def placed(shift: int) -> dict[str, Placed]:
    texts = [LAYOUTS[(i + shift) % len(LAYOUTS)] for i in range(len(ARRAYS))]
    pairs = zip(ARRAYS.items(), texts, strict=True)
    return {name: Placed(type_of(array), Layout.parse(text, MESH)) for (name, array), text in pairs}


def held(lies: dict[str, Placed], comm) -> dict[str, LocalBlocks]:
    return {name: LocalBlocks(cut(ARRAYS[name], one.layout, comm.ranks), one) for name, one in lies.items()}


@pytest.mark.parametrize("shift", range(4))
def test_other_layouts_load_the_same(shift, folder, comm):
    save(folder, held(placed(0), comm), comm, step=4)
    lies = placed(shift)
    found = load(folder, lies, comm)
    for name, array in ARRAYS.items():
        (block,) = cut(array, lies[name].layout, comm.ranks)
        assert found.arrays[name][0].tobytes() == block.tobytes()


@pytest.mark.skipif(RANKS == 1, reason="one rank agrees with itself")
def test_all_ranks_fail_with_the_words_of_the_one_that_did(folder, comm):
    save(folder, held(placed(0), comm), comm, step=1)
    other = held(placed(1 if RANK == 1 else 0), comm)
    with pytest.raises(CheckpointError, match="ranks 0 and 1 were given different tensors, layouts or steps to save"):
        save(folder, other, comm, step=2)
    mine = held(placed(0), comm)
    if RANK == RANKS - 1:
        mine["t1"] = replace(mine["t1"], parts=[mine["t1"].parts[0].astype(np.float32)])
    with pytest.raises(CheckpointError, match=f"rank {RANKS - 1}: rank {RANKS - 1} holds float32"):
        save(folder, mine, comm, step=2)
    wanted = placed(0)
    if RANK == 0:
        del wanted["t0"]
    with pytest.raises(CheckpointError, match="rank 0: the checkpoint is of another model: nobody wants its t0"):
        load(folder, wanted, comm)
    with pytest.raises(CheckpointError, match="there is no checkpoint in nowhere|nowhere: No such file"):
        load("nowhere", placed(0), comm)
    assert together(comm, "look", lambda: [one for one in checkpoints(find(folder).parent)]) == ["step-00000001"]


@pytest.mark.parametrize("optimizer", ["Adam", "Momentum"])
def test_training_resumes_with_the_same_numbers(optimizer, folder):
    def model(seed: int) -> Model:
        ash.reset_auto_parallel_context()
        ash.set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="factor", full_batch=True)
        net = FFN(seed)
        params = net.trainable_params()
        rule = nn.Adam(params, 0.01, eps=1e-4) if optimizer == "Adam" else nn.Momentum(params, 0.1, 0.9)
        return Model(net, nn.SoftmaxCrossEntropyWithLogits(reduction="mean"), rule)

    first, again, history = model(0), model(1), ash.History()
    first.train(2, rows(), callbacks=[history, ash.ShardedCheckpoint(folder, every=2, keep=0)])
    index = read_index(find(folder, 4))
    split = any(len(tensor.blocks) > 1 for tensor in index.tensors.values())
    assert index.ranks == RANKS and split == (RANKS % 2 == 0 and RANKS > 2)
    later = ash.History()
    assert again.load(folder, step=4).total_steps == 4
    again.train(2, rows(), callbacks=later, resume=True)
    assert later.losses == history.losses[4:]
    for one, other in zip(first.network.get_parameters(), again.network.get_parameters(), strict=True):
        assert (one.asnumpy() == other.asnumpy()).all()
