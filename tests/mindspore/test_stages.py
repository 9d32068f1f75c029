"""Training in stages, as MindSpore's scripts say it: the numbers are those of training without stages."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard.mindspore as ms
from autoshard.mindspore import Model, nn, ops
from autoshard.mindspore.callbacks import ShardedCheckpoint
from autoshard.mindspore.context import reset_context
from autoshard.mindspore.dataset import Dataset, NumpySlicesDataset
from autoshard.mindspore.parallel import AutoParallel
from autoshard.mindspore.resume import Position
from autoshard.pipeline import PlannedPipeline
from autoshard.runtime.checkpoint import export_file, find, read_index
from autoshard.runtime.launch import launch
from autoshard.util.errors import AutoshardError, ContextError, MemoryLimitError, StageError

SEMI = {"parallel_mode": "semi_auto_parallel", "full_batch": True}
AUTO = {"parallel_mode": "auto_parallel", "full_batch": True}
BATCH = 24


class Block(nn.Cell):
    @ms.lazy_inline
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((inputs,))
        self.dense = nn.Dense(inputs, outputs, activation="tanh")
        self.dropout = nn.Dropout(p=0.2)

    def construct(self, x: Any) -> Any:
        return self.dropout(self.dense(self.norm(x)))


class Net(nn.Cell):
    """10 -> 14 -> 14 -> 18 -> 14, a table at both ends, and a skip from the first block to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ms.Parameter(np.random.default_rng(1).normal(0, 0.3, (6, 14)).astype(np.float32), name="table")
        self.gather, self.add = ops.Gather(), ops.Add()
        self.score = ops.MatMul(transpose_b=True)
        self.first, self.second, self.third = Block(14, 14), Block(14, 18), Block(18, 14)
        self.last = Block(14, 14)

    def construct(self, x: Any) -> Any:
        first = self.first(self.gather(self.table, x, 0))
        made = self.third(self.second(first))
        return self.score(self.last(self.add(made, first)), self.table)


def staged(net: Net, *stages: int) -> Net:
    for cell, stage in zip((net.first, net.second, net.third, net.last), stages, strict=True):
        cell.pipeline_stage = stage
    return net


def data(rows: int = 72) -> Dataset:
    random = np.random.default_rng(4)
    x = random.integers(0, 6, rows).astype(np.int32)
    return NumpySlicesDataset((x, ((x * 5 + 1) % 6).astype(np.int32)), ["x", "label"], shuffle=False).batch(BATCH)


def loss() -> nn.SoftmaxCrossEntropyWithLogits:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def model(
    settings: dict[str, Any],
    stages: tuple[int, ...] = (0, 0, 1, 1),
    micro: int = 4,
    optimizer: Any = lambda net: nn.Adam(net.trainable_params(), 0.02, weight_decay=0.01),
    **more: Any,
) -> Model:
    """A fresh one under these settings of the context, in stages if they say so."""
    ms.set_seed(3)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(**settings)
    net = Net()
    if settings.get("pipeline_stages", 1) > 1 and stages:
        staged(net, *stages)
    whole = nn.WithLossCell(net, loss())
    return Model(nn.PipelineCell(whole, micro) if micro else whole, optimizer=optimizer(net), **more)


def trained(one: Model, epochs: int = 2) -> tuple[list[float], dict[str, np.ndarray]]:
    history = ms.History()
    one.train(epochs, data(), callbacks=[history])
    return history.losses, values(one)


def values(one: Model) -> dict[str, np.ndarray]:
    held = {**one.network.parameters_dict(), **one.optimizer.parameters_dict()}
    return {name: np.array(parameter.asnumpy()) for name, parameter in held.items()}


def assert_alike(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(found[0], wanted[0], rtol=tolerance)
    assert found[1].keys() == wanted[1].keys()
    for name, array in wanted[1].items():
        np.testing.assert_allclose(found[1][name], array, rtol=10 * tolerance, atol=tolerance, err_msg=name)


@pytest.fixture(autouse=True)
def plain_context():
    yield
    ms.reset_auto_parallel_context()
    reset_context()


@pytest.fixture(scope="module")
def alone() -> Any:
    return trained(model({}, micro=0))


@pytest.mark.parametrize(
    "settings",
    [
        {**SEMI, "device_num": 4, "pipeline_stages": 2},
        {**AUTO, "device_num": 4, "pipeline_stages": 2, "search_mode": "sharding_propagation"},
        {**AUTO, "device_num": 4, "pipeline_stages": 2},
        {**SEMI, "mesh": "pp=2 dp=2 tp=3", "pipeline_stages": 2, "pipeline_config": {"pipeline_scheduler": "gpipe"}},
        {**SEMI, "device_num": 2, "pipeline_stages": 2, "pipeline_config": {"pipeline_scheduler": "zb_h1"}},
        {**SEMI, "device_num": 4, "pipeline_stages": 2, "enable_parallel_optimizer": True,
         "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}, "comm_fusion": {"openstate": False}},
        {"parallel_mode": "semi_auto_parallel", "device_num": 6, "pipeline_stages": 2,
         "pipeline_result_broadcast": True, "dataset_strategy": ((3,), (3,))},
    ],
)  # fmt: skip
def test_training_in_stages_is_training(alone: Any, settings: dict[str, Any]) -> None:
    found = model(settings)
    assert_alike(trained(found), alone)
    planned = found.planned
    assert isinstance(planned, PlannedPipeline) and planned.stages == 2
    devices = settings.get("device_num") or 12
    each = devices // 2
    assert [group.ranks for group in planned.groups] == [tuple(range(each)), tuple(range(each, devices))]
    by_stage = [{value.name for value in one.parameters} for one in planned.whole.pipeline.stages]
    assert {"first.dense.weight", "second.norm.gamma"} <= by_stage[0]
    assert {"third.dense.weight", "last.dense.bias"} <= by_stage[1]


def test_parallel_optimizer_cuts_parameters_within_their_stage() -> None:
    settings = {**SEMI, "device_num": 4, "pipeline_stages": 2, "enable_parallel_optimizer": True}
    found = model({**settings, "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}})
    matrix, tensor_map, shape, *_ = found.infer_train_layout(data())["third.dense.weight"]
    assert (matrix, tensor_map, shape) == ([2], [0, -1], [7, 18])
    assert found.infer_train_layout(data())["moment1.third.dense.weight"][2] == [7, 18]


def test_strategies_of_a_file_and_of_cells_are_those_of_a_stage(tmp_path: Path, alone: Any) -> None:
    path = str(tmp_path / "strategies.json")
    settings = {**AUTO, "device_num": 2, "search_mode": "sharding_propagation"}
    one = model({**settings, "strategy_ckpt_save_file": path}, micro=0)
    one.network.backbone.third.dense.matmul.shard(((1, 1), (2, 1)))
    one.build(data())
    found = model({**settings, "device_num": 4, "pipeline_stages": 2, "strategy_ckpt_load_file": path})
    found.network.network.backbone.first.dense.matmul.shard(((1, 2), (1, 2)))
    assert_alike(trained(found), alone)
    parts = {node.name: plan.strategy(node).in_strategy for plan in found.planned.plans for node in plan.graph.nodes}
    assert parts["third.dense.matmul"] == ((1, 1), (2, 1)) and parts["first.dense.matmul"] == ((1, 2), (1, 2))
    wrong = model({**settings, "device_num": 4, "pipeline_stages": 2})
    wrong.network.network.backbone.last.dense.matmul.shard(((2, 1), (2, 1)))
    with pytest.raises(AutoshardError, match="last.dense.matmul"):  # four parts, and a stage has two devices
        wrong.train(1, data())


@pytest.mark.parametrize("scheduler, numbers", [("1f1b", (0, 1, 2, 3)), ("gpipe", (0, 1, 2, 3)),
                                                ("zero_bubble_v", (0, 1, 3, 2))])  # fmt: skip
def test_segments_of_interleaved_stages(alone: Any, scheduler: str, numbers: tuple[int, ...]) -> None:
    config = {"pipeline_interleave": True, "pipeline_scheduler": scheduler}
    found = model({**SEMI, "device_num": 4, "pipeline_stages": 2, "pipeline_config": config}, (0, 1, 0, 1))
    net = found.network.network.backbone
    for cell, segment in zip((net.first, net.second, net.third, net.last), (0, 0, 1, 1), strict=True):
        cell.pipeline_segment = segment
    if scheduler == "zero_bubble_v":  # the second segment comes back
        net.third.pipeline_stage, net.last.pipeline_stage = 1, 0
    assert_alike(trained(found), alone)
    assert found.planned is not None and found.planned.stages == 4
    parameters = [{value.name for value in one.parameters} for one in found.planned.whole.pipeline.stages]
    for place, name in enumerate(("first", "second", "third", "last")):
        assert f"{name}.dense.weight" in parameters[place]


def test_stages_by_stage_config_and_by_auto_parallel(alone: Any) -> None:
    found = model({"device_num": 4, "full_batch": True})
    config = {"_backbone.first": 0, "_backbone.second": 0, "_backbone.third": 1, "_backbone.last": 1}
    whole = found.network.network
    net = AutoParallel(nn.PipelineCell(whole, 4, stage_config=config), parallel_mode="semi_auto")
    net.pipeline(stages=2, scheduler="gpipe")
    found = Model(net, optimizer=nn.Adam(whole.trainable_params(), 0.02, weight_decay=0.01))
    assert_alike(trained(found), alone)
    assert found.planned is not None and found.planned.schedule.name == "gpipe"


def test_cells_that_bear_no_stage_are_cut_so_that_they_cost_alike(alone: Any) -> None:
    found = model({**SEMI, "device_num": 4, "pipeline_stages": 4}, ())
    assert_alike(trained(found), alone)
    assert found.planned is not None and found.planned.stages == 4


def test_micro_batches_without_stages(alone: Any) -> None:
    assert_alike(trained(model({**SEMI, "device_num": 2})), alone)
    assert_alike(trained(model({}, micro=3)), alone)
    assert_alike(trained(model({"pipeline_stages": 2, "device_num": 2})), alone)  # in stand_alone nothing is split
    one = model({}, micro=0)
    step = nn.TrainOneStepCell(nn.GradAccumulationCell(one.network, 6), one.optimizer)
    losses = [float(step(*row)) for _ in range(2) for row in data()]
    assert_alike((losses, values(one)), alone)


def test_one_step_recomputed_cells_and_other_batches() -> None:
    """A step cell, cells that are computed twice, and batches of several sizes, of which each is planned."""

    def losses(settings: dict[str, Any]) -> Any:
        one = model(settings, micro=2)
        one.network.network.backbone.second.recompute()
        step = nn.TrainOneStepCell(one.network, one.optimizer)
        found = [float(step(*(column[:size] for column in row))) for size in (24, 12, 20, 24) for row in data(24)]
        return found, values(one)

    assert_alike(losses({**SEMI, "device_num": 4, "pipeline_stages": 2}), losses({}))


class Normed(nn.Cell):
    """Two layers with a batch normalization between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Dense(5, 8), nn.BatchNorm1d(8), nn.Dense(8, 6)
        self.first.pipeline_stage = self.norm.pipeline_stage = 0
        self.last.pipeline_stage = 1

    def construct(self, x: Any) -> Any:
        return self.last(ops.tanh(self.norm(self.first(x))))


def test_batch_normalizations_take_what_a_micro_batch_holds() -> None:
    """As in MindSpore: in stages and in micro batches alone, which is not what the whole batch does."""

    def losses(settings: dict[str, Any], micro: int) -> Any:
        ms.set_seed(3)
        ms.reset_auto_parallel_context()
        ms.set_auto_parallel_context(**settings)
        whole = nn.WithLossCell(Normed(), loss())
        net = nn.PipelineCell(whole, micro) if micro else whole
        one = Model(net, optimizer=nn.Momentum(net.trainable_params(), 0.1, 0.9))
        history = ms.History()
        random = np.random.default_rng(4)
        rows = random.normal(size=(48, 5)).astype(np.float32), random.integers(0, 6, 48).astype(np.int32)
        one.train(2, NumpySlicesDataset(rows, ["x", "label"], shuffle=False).batch(24), callbacks=[history])
        return history.losses, values(one)

    staged_losses = losses({**SEMI, "device_num": 4, "pipeline_stages": 2}, 3)
    assert_alike(staged_losses, losses({}, 3))
    assert not np.allclose(staged_losses[0], losses({}, 0)[0], rtol=1e-4)


def test_graphs_of_each_rank_are_saved(tmp_path: Path) -> None:
    ms.set_context(save_graphs=True, save_graphs_path=str(tmp_path))
    trained(model({**SEMI, "device_num": 4, "pipeline_stages": 2}), 1)
    for rank in range(4):
        text = "".join(one.read_text() for one in (tmp_path / f"rank_{rank}").glob("*.ir"))
        assert "Send(" in text and "Receive(" in text


def test_evaluation_prediction_and_callbacks(capsys: pytest.CaptureFixture[str]) -> None:
    def told(settings: dict[str, Any]) -> tuple[Any, ...]:
        ms.set_seed(3)
        ms.reset_auto_parallel_context()
        ms.set_auto_parallel_context(**settings)
        net = staged(Net(), 0, 0, 1, 1)
        one = Model(
            nn.PipelineCell(net, 4), loss(), nn.Momentum(net.trainable_params(), 0.1, 0.9), metrics={"accuracy", "loss"}
        )
        one.fit(2, data(), data(48), callbacks=[ms.LossMonitor(2), ms.TimeMonitor()])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("epoch: 1 ", "epoch: 2 "))]
        scores = one.predict(np.arange(6, dtype=np.int32)), one.predict(np.array([4, 1, 0, 0, 2], np.int32))
        uneven = [tuple(column[:size] for column in row) for row, size in zip(data(), (24, 10, 24), strict=True)]
        return {**one.eval(data()), "uneven": one.eval(uneven)["loss"]}, lines, *scores

    found = told({**SEMI, "device_num": 4, "pipeline_stages": 2})
    wanted = told({})
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    for ours, theirs in zip(found[1], wanted[1], strict=True):
        assert ours.rpartition(" ")[0] == theirs.rpartition(" ")[0]
        assert float(ours.split()[-1]) == pytest.approx(float(theirs.split()[-1]), rel=1e-4)
    assert len(found[1]) == 3 and isinstance(found[2], ms.Tensor)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[3], wanted[3], rtol=1e-4, atol=1e-5)


SAMPLE = Path(__file__).parents[2] / "sample_code" / "pipeline_parallel" / "train.py"


def test_the_sample_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SAMPLE), run_name="__main__")
    told = capsys.readouterr().out
    assert "2 stages (1f1b, 4 micro batches) on d=2 on ranks 0-1; d=2 on ranks 2-3" in told
    assert told.count("epoch: 3 step: 8, loss is") == 2 and "largest relative difference of a loss" in told


@pytest.mark.mpi
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec")
def test_the_sample_on_ranks() -> None:
    assert launch([str(SAMPLE)], 4, timeout=120) == 0


# -- checkpoints

PLACES = {
    "two": ({**SEMI, "device_num": 4, "pipeline_stages": 2}, (0, 0, 1, 1)),
    "four": ({**AUTO, "device_num": 8, "pipeline_stages": 4, "search_mode": "sharding_propagation",
              "enable_parallel_optimizer": True,
              "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}}, (0, 1, 2, 3)),
    "none": ({**SEMI, "device_num": 3}, ()),
    "alone": ({}, ()),
}  # fmt: skip


@pytest.fixture(scope="module")
def unbroken() -> Any:
    return trained(model({}, micro=0), 3)


@pytest.mark.parametrize("source, target", [("two", "four"), ("four", "two"), ("two", "none"), ("none", "four"),
                                            ("four", "alone"), ("alone", "two"), ("two", "two")])  # fmt: skip
def test_training_goes_on_in_another_number_of_stages(tmp_path: Path, unbroken: Any, source: str, target: str) -> None:
    """Parameters, states, masks of dropout and the step: as training that was never broken off."""
    first = model(*PLACES[source])
    first.train(2, data(), callbacks=[ShardedCheckpoint(tmp_path / "saved", keep=0)])
    index = read_index(find(tmp_path / "saved", 5))
    assert set(index.tensors) == set(unbroken[1])
    ms.set_seed(9)
    second = model(*PLACES[target])
    assert second.load(tmp_path / "saved", step=5) == Position(2, 2, 5)
    history = ms.History()
    second.train(3, data(), callbacks=[history], resume=True)
    assert_alike((history.losses, values(second)), (unbroken[0][5:], unbroken[1]))


def test_each_group_writes_its_own_blocks(tmp_path: Path) -> None:
    one = model(*PLACES["four"])
    one.train(1, data(), callbacks=[ShardedCheckpoint(tmp_path / "saved")])
    index = read_index(find(tmp_path / "saved"))
    assert index.ranks == 8 and "d=2 on ranks 2, 3" in index.mesh
    places = {block.file for block in index.tensors["second.dense.weight"].blocks}
    assert places == {"rank-00002-of-00008.safetensors", "rank-00003-of-00008.safetensors"}
    export_file(tmp_path / "saved", tmp_path / "plain.safetensors")
    plain = ms.load_checkpoint(tmp_path / "plain.safetensors")
    assert set(plain) == set(one.network.parameters_dict())
    for name, parameter in one.network.parameters_dict().items():
        np.testing.assert_array_equal(plain[name], parameter.asnumpy())


def test_files_of_mindspores_callback(tmp_path: Path) -> None:
    one = model(*PLACES["two"])
    config = ms.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2)
    one.train(1, data(), callbacks=[ms.ModelCheckpoint("net", tmp_path, config)])
    assert {path.name for path in tmp_path.iterdir()} == {"net-1_2.safetensors", "net-1_3.safetensors"}
    other = Net()
    found = ms.load_param_into_net(other, ms.load_checkpoint(tmp_path / "net-1_3.safetensors"))
    assert not found.missing and all(name.startswith(("moment", "global_step")) for name in found.unexpected)
    for name, parameter in other.parameters_dict().items():
        np.testing.assert_array_equal(parameter.asnumpy(), values(one)[name])


# -- what cannot be


def refused(settings: dict[str, Any], *stages: int, micro: int = 4, **more: Any) -> Any:
    return lambda: model({**SEMI, "device_num": 4, **settings}, stages, micro, **more).train(1, data())


@pytest.mark.parametrize(
    "run, kind, words",
    [
        (refused({"pipeline_stages": 3}), ContextError, "3, which does not divide the 4 devices into equal groups"),
        (refused({"pipeline_stages": 0}), ContextError, "pipeline_stages is 0; it must be a whole number of at least"),
        (refused({"pipeline_stages": 2, "parallel_mode": "data_parallel"}), ContextError, "there are no stages"),
        (refused({"pipeline_stages": 2, "device_num": 8, "mesh": "dp=4 tp=2"}), ContextError, "has size 4"),
        (refused({"pipeline_config": {"pipeline_scheduler": "seqpipe"}}), ContextError, "cuts sequences into parts"),
        (refused({"pipeline_config": {"pipeline_scheduler": "2f2b"}}), ContextError, "there is no schedule '2f2b'"),
        (refused({"pipeline_config": {"interleave": True}}), ContextError, "a dict with pipeline_interleave"),
        (refused({"pipeline_stages": 2}, 0, 0, 0, 0), StageError, "no cell is given to stage 1"),
        (refused({"pipeline_stages": 2}, 0, 0, 1, 2), StageError, r"last.pipeline_stage is 2 at .*test_stages.py:\d+"),
        (refused({"pipeline_stages": 2}, 0, 0, 1, -1), StageError, "is -1 at .*: stages are 0 to 1"),
        (refused({"pipeline_stages": 2}, 1, 1, 0, 0), StageError, "stages that wait for each other"),
        (refused({"pipeline_stages": 2}, 0, 0, 1, 1, micro=1), StageError,
         r"PipelineCell at .*test_stages.py:\d+: micro_size is 1; 2 stages need at least 2 micro batches"),
        (refused({"pipeline_stages": 2}, 0, 0, 1, 1, micro=0), StageError, "the network is in no nn.PipelineCell"),
        (refused({"pipeline_stages": 2}, 0, 0, 1, 1, micro=7), StageError,
         r"test_stages.py:\d+: micro_size is 7, which does not divide the rows .*: x has 24, label has 24"),
        (refused({"pipeline_stages": 2, "pipeline_config": {"pipeline_scheduler": "zero_bubble_v"}}, 0, 0, 1, 1),
         StageError, r"'zero_bubble_v' runs 2 segments on each rank, but cells bear 1; give each cell a pipeline_segm"),
        (refused({"grad_accumulation_step": 2}, micro=4), StageError, "micro_size is 4, but grad_accumulation_step is"),
        (refused({"pipeline_stages": 2, "strategy_ckpt_save_file": "file.json"}, 0, 0, 1, 1), ContextError,
         "strategy_ckpt_save_file goes with one stage"),
    ],
)  # fmt: skip
def test_bad_settings(run: Any, kind: type[AutoshardError], words: str) -> None:
    with pytest.raises(kind, match=words):
        run()


def test_bad_cells() -> None:
    with pytest.raises(StageError, match=r"micro_size is 0; it must be a whole number of at least 1"):
        nn.PipelineCell(Net(), 0)
    with pytest.raises(StageError, match=r"network is 3, which is no Cell"):
        nn.GradAccumulationCell(3, 2)  # type: ignore[arg-type]
    with pytest.raises(
        StageError, match=r"stage_config names '_backbone.fourth', but no cell; the nearest are backbone."
    ):
        nn.PipelineCell(nn.WithLossCell(Net(), loss()), 2, stage_config={"_backbone.fourth": 1})
    with pytest.raises(StageError, match="a network is cut into micro batches once"):
        one = model({})
        Model(nn.PipelineCell(one.network, 2), optimizer=one.optimizer).train(1, data())
    one = model({**SEMI, "device_num": 4, "pipeline_stages": 2})
    one.network.network.backbone.last.pipeline_segment = 1
    with pytest.raises(
        StageError, match="bear 2 segments for each rank, but the schedule 1f1b has one|no cell is given"
    ):
        one.train(1, data())


@pytest.mark.torch
def test_stages_train_on_torch_as_on_numpy() -> None:
    pytest.importorskip("torch")
    found = []
    for engine in ("numpy", "torch"):
        one = model(
            {**SEMI, "device_num": 4, "pipeline_stages": 2},
            optimizer=lambda net: nn.Momentum(net.trainable_params(), 0.1, 0.9),
        )
        one.train(2, data(), engine=engine)
        found.append({each.name: each.asnumpy() for each in one.network.trainable_params()})
    for name, wanted in found[0].items():
        np.testing.assert_allclose(found[1][name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_memory_of_stages() -> None:
    ms.set_context(max_device_memory="1KB")
    with pytest.raises(MemoryLimitError, match="a device of group 0, which runs stage 0"):
        model({**SEMI, "device_num": 4, "pipeline_stages": 2}).train(1, data())
