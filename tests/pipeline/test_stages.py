"""Stages by hand: every schedule on virtual ranks leads to what the step in one piece leads to; what cannot be cut."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.ir.verify import verify
from autoshard.pipeline import run_stages
from autoshard.pipeline.schedules import SCHEDULES, Schedule, make_schedule, read_schedule
from autoshard.pipeline.stages import cut_stages, stages_of_cells
from autoshard.trace import Cell, CellList, Parameter, evaluate, set_seed, trace
from autoshard.transform import train_step
from autoshard.transform.train import TrainStep
from autoshard.util.errors import GraphError, ScheduleError, StageError, UnknownNameError
from tests.trace.models import FFN, Language
from tests.transform.test_micro_batches import IDS, WORDS, Loss, X, Y, squared, token_loss

FOUR = {"network.embedding": 0, "network.layers.{0..0}.*": 0, "network.layers.1": 1, "network.layers.2": 2}
FOUR["network.head.**"] = 3


def step_of(network: Cell, loss=squared, data=(X, Y), shown=None) -> TrainStep:
    cell = Loss(network, loss, shown)
    return train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-4), *data)


@pytest.fixture(scope="module")
def language() -> TrainStep:
    set_seed(2)
    return step_of(Language(3), token_loss, (IDS, WORDS), shown=lambda made: made)


def check_equal(step: TrainStep, stages, schedule: Schedule, data=(X, Y), tolerance=1e-11, seed=0):
    pipeline = cut_stages(step.traced, stages, schedule.micro_batches)
    for piece in pipeline.pieces:
        verify(piece.graph)
    given = step.traced.inputs(*data)
    ran = run_stages(pipeline, schedule, given, seed)
    for one, other in zip(evaluate(step.graph, given), ran.outputs, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
    return pipeline, ran


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_leads_to_the_step_in_one_piece(language, name):
    ranks = 4 // SCHEDULES[name].chunks
    pipeline, ran = check_equal(language, FOUR, make_schedule(name, ranks, 6), (IDS, WORDS))
    # One value goes on, and one gradient comes back, from each stage to its neighbour.
    assert [pipeline.made_by[value].stage for value in pipeline.crossing].count(1) == 2
    assert len(pipeline.crossing) == 6
    rows = 2 * 5 * 12 * 8
    if ranks == 4:
        assert ran.sent[1] == ran.sent[2] == 6 * 2 * rows


@pytest.mark.parametrize(
    "what", ["cheap", lambda node: node.name.startswith("network.layers."), [f"network.layers.{i}" for i in range(3)]]
)
def test_what_is_made_again_is_so_within_its_stage(language, what):
    """From what the stage was sent: chains of operators that are made again do not go back into the stages before."""
    set_seed(2)
    cell = Loss(Language(3), token_loss, lambda made: made)
    step = train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-4), IDS, WORDS, recompute=what)
    pipeline, ran = check_equal(step, FOUR, make_schedule("zb_h1", 4, 6), (IDS, WORDS))
    plain = cut_stages(language.traced, FOUR, 6)
    assert len(pipeline.crossing) == len(plain.crossing)
    homes = {(node.name, piece.stage) for piece in pipeline.pieces for node in piece.graph.nodes}
    again = {(name.removesuffix(".again"), stage) for name, stage in homes if name.endswith(".again")}
    assert len({stage for _, stage in again}) >= 3 and again <= homes
    before = run_stages(plain, make_schedule("zb_h1", 4, 6), language.traced.inputs(IDS, WORDS)).peaks
    assert ran.peaks[0] < before[0]


def test_results_do_not_depend_on_who_goes_first(language):
    pipeline = cut_stages(language.traced, FOUR, 6)
    given = language.traced.inputs(IDS, WORDS)
    runs = [run_stages(pipeline, make_schedule("zb_h1", 4, 6), given, seed) for seed in (None, 1, 2)]
    for ran in runs[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(runs[0].outputs, ran.outputs, strict=True))
        assert ran.sent == runs[0].sent


def test_gpipe_holds_more_than_1f1b(language):
    pipeline = cut_stages(language.traced, FOUR, 12)
    given = language.traced.inputs(IDS, WORDS)
    all_of_them, few = (run_stages(pipeline, make_schedule(name, 4, 12), given).peaks for name in ("gpipe", "1f1b"))
    assert all_of_them[0] > 2 * few[0] and few[0] > few[1] > few[2] > few[3]


def test_a_schedule_of_ones_own_and_one_micro_batch():
    stages = {"network.dense1": 0, "network.dense2": 1}
    own = read_schedule("0F0,0F2,0F1,0B1,0B0,0B2\n1F0,1F2,1B2,1F1,1I1,1I0,1W0,1W1")
    check_equal(step_of(FFN()), stages, own)
    check_equal(step_of(FFN()), stages, make_schedule("1f1b", 2, 1))


def test_parameters_lie_with_their_operators():
    pipeline = cut_stages(step_of(FFN()).traced, {"network.dense1": 0, "network.dense2": 1}, 3)
    names = [[value.name for value in stage.parameters] for stage in pipeline.stages]
    assert names == [
        ["network.dense1.weight", "network.dense1.bias"],
        ["network.dense2.weight", "network.dense2.bias"],
    ]
    assert str(pipeline).splitlines()[1].startswith("stage 1: 6 operators forward, ")
    assert "2 parameters of 352 bytes; sends 320 bytes per micro batch" in str(pipeline)


def test_cells_bear_stages():
    cell = Loss(Language(2), token_loss)
    cell.network.embedding.pipeline_stage = 0
    cell.network.layers[1].pipeline_stage = 1
    assert stages_of_cells(cell) == {"network.embedding": 0, "network.layers.1": 1}
    cell.network.layers.pipeline_stage, cell.network.layers[0].pipeline_stage = 1, 0
    assert stages_of_cells(cell)["network.layers"] == 1
    step = train_step(cell, nn.SGD(cell.trainable_params(), 0.1), IDS, WORDS)
    pipeline, _ = check_equal(step, stages_of_cells(cell), make_schedule("1f1b", 2, 3), (IDS, WORDS))
    assert {value.name.split(".")[1] for value in pipeline.stages[0].parameters} == {"embedding", "layers"}
    assert any(value.name.startswith("network.layers.1.") for value in pipeline.stages[1].parameters)
    assert not any(value.name.startswith("network.layers.0.") for value in pipeline.stages[1].parameters)


class Skipping(Cell):
    """Three layers; the third also gets what the first made, and the table is used at both ends."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(1)
        self.table = Parameter(rng.normal(size=(6, 5)), "table")
        self.layers = CellList(nn.Dense(5, 5, dtype="f64") for _ in range(3))

    def construct(self, x):
        first = ops.tanh(self.layers[0](ops.matmul(x, self.table)))
        second = ops.tanh(self.layers[1](first))
        return ops.matmul(self.layers[2](second) + first, ops.transpose(self.table, perm=(1, 0)))


@pytest.mark.parametrize("name", ["1f1b", "zb_h2", "gpipe"])
def test_skips_and_tied_weights_cross_stages(name):
    stages = {f"network.layers.{i}": i for i in range(3)} | {"network.table": 0}
    step = step_of(Skipping(), data=(X, X))
    pipeline, _ = check_equal(step, stages, make_schedule(name, 3, 4), (X, X))
    made_by = {value: pipeline.made_by[value].stage for value in pipeline.crossing}
    readers = {value: {piece.stage for piece in pipeline.readers[value]} - {made_by[value]} for value in made_by}
    assert [made_by[value] for value in made_by if readers[value] >= {1, 2}] == [0]


@pytest.mark.parametrize(
    ("stages", "error", "message"),
    [
        (
            {"network.dense1": 0, "network.dense2": 1, "**": 2},
            StageError,
            "no operator of the forward pass is in stage 0",
        ),
        ({"network.dense1": 1, "network.dense2": 0}, StageError, r"dense2.*is in stage 0, but reads .* of stage 1"),
        ({"network.dense1": 0, "network.dense2": 2}, StageError, "nothing is given to stage 1, but to stage 2"),
        ({"network.dense1": 0, "network.dense3": 1}, UnknownNameError, "'network.dense3' matches no operator"),
        (
            {"network.dense1=0,network.dense2": 1},
            UnknownNameError,
            "'network.dense1=0,network.dense2' matches no operator",
        ),
        ({"network.dense{3..1}": 0}, StageError, "has no numbers, or too many"),
        ({0: 1}, StageError, "0 is no pattern of names, such as"),
        ({"network.dense1": -1}, StageError, "stages are numbered 0, 1, 2"),
        ({"network.dense1": True}, StageError, "is given to stage True"),
        ({}, StageError, "give a dict from patterns"),
        (2, StageError, "stages is 2; give a dict"),
    ],
)
def test_stages_that_cannot_be(stages, error, message):
    with pytest.raises(error, match=message):
        cut_stages(step_of(FFN()).traced, stages, 3)


def test_schedules_for_other_sizes_are_refused():
    step = step_of(FFN())
    pipeline = cut_stages(step.traced, {"network.dense1": 0, "network.dense2": 1}, 3)
    given = step.traced.inputs(X, Y)
    with pytest.raises(ScheduleError, match="is for 3 stages; 'loss' has 2"):
        run_stages(pipeline, make_schedule("1f1b", 3, 3), given)
    with pytest.raises(ScheduleError, match="is for 4 micro batches; 'loss' has 3"):
        run_stages(pipeline, make_schedule("1f1b", 2, 4), given)
    with pytest.raises(GraphError, match="12 rows, which 5 does not divide"):
        cut_stages(step.traced, {"network.dense1": 0}, 5)


def test_models_without_a_gradient_go_forward_alone():
    network = FFN()
    traced = trace(network, X)
    pipeline = cut_stages(traced, {"dense1": 0, "dense2": 1}, 4)
    ran = run_stages(pipeline, make_schedule("gpipe", 2, 4), traced.inputs(X))
    np.testing.assert_allclose(ran.outputs[0], evaluate(traced.graph, traced.inputs(X))[0], rtol=1e-12)


def test_gradients_of_the_layer_that_reads_data_are_made_beside_it():
    """Its weight's gradient reads rows of data and a gradient that the next stage sends: it is no sum of gradients."""
    net = nn.SequentialCell(nn.Dense(6, 8), nn.Dense(8, 4))
    step = train_step(lambda x: ops.reduce_mean(ops.square(net(x))), nn.SGD(net.trainable_params(), 0.1), X[:, :6])
    pipeline = cut_stages(step.traced, {"0": 0, "1": 1}, 2)
    (own,) = (value for value in pipeline.made_by if value.name.startswith("grad.0.matmul"))
    assert pipeline.made_by[own].stage == 0
    assert sorted(pipeline.made_by[value].stage for value in pipeline.crossing) == [0, 1]
