"""Training in stages with one process per rank: every rank runs the script, and has the losses and parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard.mindspore as ms
from autoshard.mindspore import Model, communication, nn
from autoshard.mindspore.callbacks import ShardedCheckpoint
from autoshard.mindspore.dataset import DataError
from autoshard.pipeline import PlannedPipeline
from autoshard.runtime.agree import from_all
from autoshard.runtime.checkpoint import read_index
from autoshard.runtime.mpi import default_comm
from autoshard.util.errors import StageError
from tests.mpi.test_training import FFN, rows

communication.init()
RANK, RANKS = communication.get_rank(), communication.get_group_size()
SEMI = {"parallel_mode": "semi_auto_parallel", "full_batch": True}
EACH = RANKS // 2
"""Ranks of each of two stages."""

pytestmark = pytest.mark.skipif(RANKS % 2 == 1, reason="two stages of equal size")


def model(stages: int, seed: int = 0, micro: int = 2, **settings: Any) -> Model:
    """A fresh one; of two stages the first ends before the second product."""
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(**({**settings, "pipeline_stages": stages} if stages > 1 else settings))
    net = FFN(seed)
    net.dense1.matmul.in_strategy = None
    if stages > 1:
        net.dense1.pipeline_stage, net.dense2.pipeline_stage = 0, 1
    whole = nn.PipelineCell(nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(reduction="mean")), micro)
    return Model(whole, optimizer=nn.Adam(net.trainable_params(), 0.02))


def losses(one: Model, epochs: int, data: Any, callbacks: Any = (), resume: bool = False) -> list[float]:
    history = ms.History()
    one.train(epochs, data, callbacks=[history, *callbacks], resume=resume)
    return history.losses


def values(one: Model) -> dict[str, np.ndarray]:
    held = {**one.network.parameters_dict(), **one.optimizer.parameters_dict()}
    return {name: np.array(parameter.asnumpy()) for name, parameter in held.items()}


def assert_alike(found: Model, wanted: Model) -> None:
    theirs = values(wanted)
    for name, array in values(found).items():
        np.testing.assert_allclose(array, theirs[name], rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def alone():
    one = model(1)
    return losses(one, 2, rows()), one


@pytest.mark.parametrize("scheduler", ["1f1b", "gpipe", "zb_h1"])
def test_training_in_two_stages(scheduler, alone):
    found = model(2, device_num=RANKS, pipeline_config={"pipeline_scheduler": scheduler}, **SEMI)
    np.testing.assert_allclose(losses(found, 2, rows()), alone[0], rtol=1e-5)
    assert isinstance(found.planned, PlannedPipeline) and len(found.planned.groups) == 2
    assert_alike(found, alone[1])


def test_each_rank_of_a_stage_reads_its_part_of_the_batch(alone):
    """Those of each stage the same parts, as scripts say by `shard_id=get_rank() % (device_num // stages)`."""
    data = [tuple(np.split(column, EACH)[RANK % EACH] for column in row) for row in rows()]
    found = model(2, device_num=RANKS, parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel")
    np.testing.assert_allclose(losses(found, 2, data), alone[0], rtol=1e-5)
    assert_alike(found, alone[1])


def test_evaluation_prediction_and_one_step():
    def told(stages, **settings):
        one = model(stages, **settings)
        step = nn.TrainOneStepCell(one.network, one.optimizer)
        return [float(step(*row)) for row in rows()], one.eval(rows()), one, step.model

    found = told(2, device_num=RANKS, **SEMI)
    one = Model(found[2].network.network.backbone)
    scores = one.predict(rows()[0][0])
    assert isinstance(found[3].planned, PlannedPipeline)
    wanted = told(1)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    assert found[1] == pytest.approx(wanted[1], rel=1e-5)
    assert_alike(found[2], wanted[2])
    np.testing.assert_allclose(scores, wanted[2].network.network.backbone(rows()[0][0]), rtol=1e-4, atol=1e-5)


def test_checkpoints_of_stages_go_on_without_and_the_other_way_round(tmp_path):
    folder = from_all(default_comm(RANKS), str(tmp_path / "saved"))[0]
    unbroken = model(1)
    wanted = losses(unbroken, 3, rows())
    for source, target, name in ((2, 1, "a"), (1, 2, "b")):
        first = model(source, device_num=RANKS, **SEMI)
        losses(first, 2, rows(), [ShardedCheckpoint(f"{folder}{name}", every=5)])
        path = f"{folder}{name}/step-00000005"
        if source == 2:
            files = {block.file for block in read_index(Path(path)).tensors["dense2.weight"].blocks}
            assert all(int(file.split("-")[1]) >= EACH for file in files)
        second = model(target, seed=7, device_num=RANKS, **SEMI)
        second.load(path)
        np.testing.assert_allclose(losses(second, 3, rows(), resume=True), wanted[5:], rtol=1e-4)
        assert_alike(second, unbroken)


def test_all_ranks_refuse_what_cannot_be():
    with pytest.raises(StageError, match=r"micro_size is 1; 2 stages need at least 2"):
        losses(model(2, micro=1, device_num=RANKS, **SEMI), 1, rows())
    with pytest.raises(StageError, match="micro_size is 5, which does not divide the rows"):
        losses(model(2, micro=5, device_num=RANKS, **SEMI), 1, rows())
    found = model(2, device_num=RANKS, **SEMI)
    short = rows()[: 2 if RANK == RANKS - 1 else 3]
    with pytest.raises(DataError, match="goes on, that of ranks"):
        losses(found, 1, short)
