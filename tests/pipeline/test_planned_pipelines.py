"""Stages on meshes of their own: every schedule leads to what the step in one piece leads to; memory and price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoshard import annotate, nn, ops
from autoshard.cost.program_memory import program_peak
from autoshard.pipeline import plan_pipeline
from autoshard.pipeline.planned.price import live_activations
from autoshard.pipeline.schedules import SCHEDULES, make_schedule
from autoshard.pipeline.stage_plans import most_memory
from autoshard.pipeline.stages import balance
from autoshard.pipeline.transfers.price import ValueMessages
from autoshard.trace import Cell, CellList, Parameter, evaluate, set_seed, trace
from autoshard.transform import train_step
from autoshard.util.errors import MemoryLimitError, MeshError, PlanError, ScheduleError, StageError, UnknownNameError
from benchmarks.random_pairs import slow_bound
from costmodel import Link, Topology, preset

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)), RNG.normal(size=(12, 6))
WEIGHTS = np.cumsum(RNG.uniform(size=(12, 6)), 0)


class Tied(Cell):
    """Four layers, a skip over two of them, and a table at both ends; a parameter and a constant for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(RNG.normal(size=(6, 10)), "table")
        self.shift = Parameter(RNG.normal(size=(12, 6)), "shift")
        self.layers = CellList(nn.Dense(10, 10, dtype="f64") for _ in range(4))

    def construct(self, x, y):
        first = ops.tanh(self.layers[0](ops.matmul(x + ops.tanh(self.shift), self.table)))
        made = ops.tanh(self.layers[2](ops.tanh(self.layers[1](first)))) + first
        made = ops.matmul(ops.tanh(self.layers[3](made)), ops.transpose(self.table, perm=(1, 0)))
        return ops.reduce_mean((made - y) * (made - y) * WEIGHTS), made


@pytest.fixture(scope="module")
def step():
    set_seed(3)
    cell = Tied()
    return train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-4), X, Y)


def check_equal(step, **settings):
    planned = plan_pipeline(step, **settings)
    given = step.traced.inputs(X, Y)
    ran = planned.session.run(given, seed=1)
    for one, other in zip(evaluate(step.graph, given), ran.outputs, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)
    for number in range(len(planned.groups)):
        peak = max((size for _, size, _ in live_activations(planned, number)), default=0)
        assert peak == ran.measured[number].peak
    return planned, ran


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_on_meshes_leads_to_the_step_in_one_piece(step, name):
    planned, ran = check_equal(step, mesh="pp=2,dp=2", micro_batches=4, schedule=name)
    assert planned.stages == 2 * SCHEDULES[name].chunks
    assert all(one.sent > 0 for one in ran.measured.values())
    assert planned.price.seconds >= max(map(float, planned.price.timeline.busy))


def test_the_fastest_schedule_is_taken(step):
    found = plan_pipeline(step, mesh="pp=2", micro_batches=4, schedule="auto")
    for name in SCHEDULES:
        schedule = make_schedule(name, 2, 4)
        if schedule.ranks_of_stages != found.schedule.ranks_of_stages:
            continue
        other = found.with_schedule(schedule)
        assert found.price.seconds <= other.price.seconds
        assert other.price.bound <= float(other.price.timeline.makespan) * (1 + 1e-12)
    told = found.report()
    assert f"{found.schedule.name} takes" in told and "no order takes less than" in told


def test_a_file_says_how_many_micro_batches_there_are(step, tmp_path):
    (tmp_path / "own.csv").write_text("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")
    planned, _ = check_equal(step, mesh="pp=2", schedule=str(tmp_path / "own.csv"))
    assert planned.schedule.micro_batches == 2
    with pytest.raises(ScheduleError, match="own.csv is for 2 micro batches, and 3 are given"):
        plan_pipeline(step, mesh="pp=2", micro_batches=3, schedule=str(tmp_path / "own.csv"))


def test_groups_of_other_sizes(step):
    planned, _ = check_equal(step, pipeline="tp=2/dp=2,tp=2/tp=2", micro_batches=2, schedule="gpipe")
    assert [group.ranks for group in planned.groups] == [(0, 1), (2, 3, 4, 5), (6, 7)]
    told = planned.report()
    assert "3 stages (gpipe, 2 micro batches) on tp=2 on ranks 0-1; dp=2 tp=2 on ranks 2-5" in told
    assert "bubble" in told


def test_faster_devices_are_given_more_and_files_keep_what_they_are(tmp_path):
    net = nn.SequentialCell(*(nn.Dense(96, 96) for _ in range(12)))
    x = np.ones((4096, 96), np.float32)
    step = train_step(lambda x: ops.reduce_mean(ops.square(net(x))), nn.SGD(net.trainable_params(), 0.1), x)

    def planned(pipeline):
        return plan_pipeline(step, pipeline=pipeline, micro_batches=4, hardware="a100")

    def shares(planned):
        return [len(stage.parameters) for stage in planned.whole.pipeline.stages]

    faster_first, faster_last = planned("tp=1@h100/tp=1"), planned("tp=1@a100/tp=1@h100")
    assert shares(planned("tp=1/tp=1")) == [12, 12]
    assert (
        shares(faster_first)[0] > 12 > shares(faster_first)[1] and shares(faster_last)[0] < 12 < shares(faster_last)[1]
    )
    assert [one.name for one in faster_first.stage_hardware] == ["h100", "a100"]
    saved = faster_first.save(tmp_path / "plan.json")
    again = plan_pipeline(step, search=str(saved), hardware="a100")
    assert again.report() == faster_first.report() and "rank 0 of h100" in again.report()
    assert planned("dp=2@h100/dp=2").price.seconds < planned("dp=2/dp=2").price.seconds


def test_a_stage_that_updates_nothing_is_part_of_a_training_step(step):
    """The last stage has nothing but its use of the table, which the first one owns."""
    stages = {"layers.{0..3}": 0, "table": 0, "reduce_mean": 1}
    planned, _ = check_equal(step, mesh="pp=2,dp=2", micro_batches=2, stages=stages, search="zero1")
    assert not planned.whole.pipeline.stages[1].parameters
    net = trace(nn.Dense(6, 6, dtype="f64"), X)
    with pytest.raises(PlanError, match="it is no training step"):
        plan_pipeline(net, mesh="pp=1,dp=2", micro_batches=2, search="zero1")


def test_stages_of_one_device_and_by_name(step):
    stages = {"layers.{0..1}": 0, "layers.2": 1, "layers.3": 2}
    planned, _ = check_equal(step, mesh="pp=3", micro_batches=4, stages=stages)
    assert [len(stage.parameters) for stage in planned.whole.pipeline.stages] == [6, 2, 2]


def test_stages_that_a_model_says_itself():
    def stages_of(model, **settings):
        planned = plan_pipeline(model, mesh="pp=3", micro_batches=4, **settings)
        return [sorted(value.name for value in one.parameters) for one in planned.whole.pipeline.stages]

    set_seed(3)
    cell = Tied()
    train = lambda: train_step(cell, nn.SGD(cell.trainable_params(), 0.1), X, Y)  # noqa: E731
    given = {"layers.{0..1}": 0, "layers.2": 1, "layers.3": 2}
    wanted = stages_of(train(), stages=given)
    assert stages_of(annotate(train(), stages=given)) == wanted
    for number, stage in enumerate((0, 0, 1, 2)):
        cell.layers[number].pipeline_stage = stage
    assert stages_of(train()) == wanted
    check_equal(train(), mesh="pp=3", micro_batches=2)
    assert stages_of(train(), stages={"layers.0": 0, "layers.{1..2}": 1, "layers.3": 2}) != wanted
    with pytest.raises(StageError, match="3 stages are given, but the schedule has 2"):
        plan_pipeline(train(), mesh="pp=2", micro_batches=2)
    with pytest.raises(PlanError, match="finds the stages itself: leave out stages"):
        plan_pipeline(train(), mesh="2", pipeline="auto", micro_batches=2)
    wrongs: tuple[Any, ...] = (-1, True, "1")
    for wrong in wrongs:
        with pytest.raises(StageError, match="numbered from 0 on"):
            annotate(train(), stages={"layers.0": wrong})
    with pytest.raises(UnknownNameError, match="nothing"):
        plan_pipeline(annotate(train(), stages={"nothing": 1}), mesh="pp=2", micro_batches=2)


def test_a_parameter_is_read_in_its_own_stage_but_for_tied_ones(step):
    planned = plan_pipeline(step, mesh="pp=3", micro_batches=4)
    for stage in planned.whole.pipeline.stages:
        for value in stage.parameters:
            read = {piece.stage for piece in planned.whole.pipeline.pieces if value in piece.graph.inputs}
            assert value.name == "table" or read <= {stage.number}, value.name


def test_a_tied_gradient_goes_once_in_a_step(step):
    planned, _ = check_equal(step, mesh="pp=3,dp=2", micro_batches=4)
    routes = [
        one for one in planned.programs.routes if one.stage != one.source[0] and one.value.name.endswith(".total")
    ]
    assert routes and not any(one.is_repeated for one in routes)


def test_each_node_is_sent_a_value_once_and_passes_it_on(step):
    near, far = Link("inside", 0.0, 200e9), Link("between", 0.0, 1e9)
    hardware = replace(preset("cpu"), topology=Topology(((5, near), (None, far))))
    planned, ran = check_equal(step, mesh="pp=2,tp=5", micro_batches=4, hardware=hardware)
    routes = [route for route in planned.price.crossing if route.relayed]
    assert {route.relayed for route in routes} == {5} and any(route.is_repeated for route in routes)
    for route in routes:
        messages = ValueMessages(route.before, route.after, 8, route.spans, route.relayed)
        assert messages.slow_bytes(5) == slow_bound(route.before, route.after, 8, 5)
    assert all(one.sent > 0 for one in ran.measured.values())


def test_groups_along_an_inner_axis(step):
    planned, _ = check_equal(step, mesh="dp=2,pp=2", micro_batches=2)
    assert [group.ranks for group in planned.groups] == [(0, 2), (1, 3)]


def test_what_is_updated_lies_once_in_memory(step):
    planned = plan_pipeline(step, mesh="pp=2,dp=2", micro_batches=4)
    count, tied = 0, step.graph.tied
    for ready in planned.programs.pieces.values():
        updates = ready.program.updates
        assert set(updates) == {i for i, one in enumerate(ready.outputs) if tied.get(one) in ready.inputs}
        count += len(updates)
        updated = sum(ready.program.inputs[into].local.nbytes for into in updates.values())
        saved = program_peak(replace(ready.program, updates={})) - program_peak(ready.program)
        assert saved >= updated / 2
    assert count > len(tied) / 2


@pytest.mark.parametrize("name", ["1f1b", "zb_h2", "zbv"])
def test_dropout_draws_what_it_draws_of_the_whole_batch(name):
    set_seed(5)
    cell = nn.SequentialCell(
        nn.Dense(6, 10, dtype="f64"), nn.Dropout(0.4), nn.Dense(10, 10, dtype="f64"), nn.Dropout(0.3), nn.ReLU(),
        nn.Dense(10, 6, dtype="f64"),
    ).set_train()  # fmt: skip
    optimizer = nn.Momentum(cell.trainable_params(), 0.1, 0.9)
    step = train_step(lambda x, y: ops.reduce_mean((cell(x) - y) * WEIGHTS), optimizer, X, Y)
    check_equal(step, mesh="pp=2,dp=2", micro_batches=3, schedule=name)


def test_models_without_a_gradient_go_forward_alone():
    network = nn.SequentialCell(nn.Dense(6, 8, dtype="f64"), nn.ReLU(), nn.Dense(8, 5, dtype="f64"))
    traced = trace(network, X)
    planned = plan_pipeline(traced, mesh="pp=2,tp=2", micro_batches=3, schedule="gpipe")
    found = planned.run(X)
    np.testing.assert_allclose(found, evaluate(traced.graph, traced.inputs(X))[0], rtol=1e-12)


def test_cuts_are_as_good_as_any():
    rng = np.random.default_rng(4)
    for _ in range(20):
        seconds, talk = rng.uniform(size=7).tolist(), (rng.uniform(size=6) * 0.2).tolist()
        ends, devices = [0.0, *talk, 0.0], rng.integers(1, 4, 3).tolist()

        def worst(cuts, seconds=seconds, ends=ends, devices=devices):
            marks = zip((0, *cuts), (*cuts, 7), devices, strict=True)
            return max(sum(seconds[a:b]) / share + ends[a] + ends[b] for a, b, share in marks)

        every = [(a, b) for a in range(1, 6) for b in range(a + 1, 7)]
        assert (
            worst(balance.best_cuts([seconds] * 3, talk, devices))
            <= min(map(worst, every)) * (1 + balance.SLACK) + 1e-12
        )


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"pipeline": "tp=1@h1000/tp=1"},
            PlanError,
            "group 0 of the stages, rank 0 of h1000: no hardware preset 'h1000'",
        ),
        ({"pipeline": "tp=1@/tp=1"}, MeshError, "'tp=1@' names no hardware after @"),
        ({"mesh": "pp=64"}, StageError, "cannot be cut into 64 stages: its forward pass has"),
        ({"mesh": "dp=2"}, MeshError, "no axis 'pp' for stages to lie along; its axes: dp"),
        ({}, PlanError, "give the mesh, such as 'pp=2,dp=2'"),
        ({"pipeline": "tp=2/"}, MeshError, "that of group 1 is empty; write"),
        ({"pipeline": ()}, PlanError, r"pipeline is \(\); give an axis of the mesh"),
        ({"mesh": "8", "pipeline": "tp=2/tp=2"}, PlanError, "have 4 devices in all, but there are 8"),
        ({"mesh": "pp=2", "stages": {"layers.0": 0, "layers.1": 1, "layers.2": 2}}, StageError, "3 stages are given"),
        ({"mesh": "pp=2", "search": "plan.json"}, PlanError, "cannot read the plan plan.json"),
        ({"mesh": "pp=2", "schedule": "2f2b"}, UnknownNameError, "did you mean 1f1b"),
        ({"mesh": "pp=2", "schedule": None}, ScheduleError, "schedule is None; give a name"),
        ({"mesh": "pp=2", "pipeline": 3}, PlanError, "pipeline is 3; give an axis"),
        ({"mesh": "pp=2", "memory": 3000}, MemoryLimitError, r"group 0, which runs stage 0, holds .*layers\.0\.weight"),
    ],
)
def test_pipelines_that_cannot_be(step, settings, error, message):
    with pytest.raises(error, match=message):
        plan_pipeline(step, **{"micro_batches": 2, **settings})


def test_stages_are_planned_to_keep_a_limit():
    """Stages by hand whose fastest plans need more than a device has are planned to need less."""
    set_seed(1)
    net = nn.SequentialCell(nn.Dense(64, 256), nn.ReLU(), nn.Dense(256, 256), nn.ReLU(), nn.Dense(256, 64))
    x = np.ones((8, 64), np.float32)
    step = train_step(lambda x: ops.reduce_mean(ops.square(net(x))), nn.Adam(net.trainable_params(), 0.1), x)
    settings: dict[str, Any] = {"pipeline": "d=2/d=2", "micro_batches": 2, "hardware": "h100"}
    most = most_memory(plan_pipeline(step, **settings))
    for schedule in ("1f1b", "auto"):
        assert most_memory(plan_pipeline(step, memory=most * 3 // 4, schedule=schedule, **settings)) <= most * 3 // 4
    with pytest.raises(MemoryLimitError, match="runs stage 0, holds .*operators take while they run .* KiB.; take"):
        plan_pipeline(step, memory=most // 10, **settings)
