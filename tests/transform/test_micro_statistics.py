"""Statistics of each micro batch: what accumulating over the same slices leads to, and what stays refused."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard
from autoshard import nn, ops
from autoshard.pipeline import plan_pipeline
from autoshard.trace import Cell, Parameter, evaluate
from autoshard.transform import train_step
from autoshard.util.errors import GraphError, ScheduleError, StageError

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(12, 6)) * np.linspace(0.2, 3, 12)[:, None] + 1, RNG.normal(size=(12, 4))
FAST, SLOW = 0.75, 0.25


def normalized(made):
    """Each column with mean 0 and variance 1, and both as they were."""
    mean = ops.reduce_mean(made, axis=0)
    variance = ops.reduce_mean((made - mean) * (made - mean), axis=0)
    return (made - mean) * ops.rsqrt(variance + 1e-5), mean, variance


class Normed(Cell):
    """Two layers, each normalized by its batch, with running means; `first` normalizes the data, too."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        rng = np.random.default_rng(1)
        self.first = first
        self.up, self.down = Parameter(rng.normal(size=(6, 5)), "up"), Parameter(rng.normal(size=(5, 4)), "down")
        self.gain = Parameter(rng.normal(size=5), "gain")
        self.running = Parameter(np.zeros(5), "running", requires_grad=False)
        self.calls = Parameter(np.zeros((), np.int64), "calls", requires_grad=False)

    def construct(self, x, y):
        x = normalized(x)[0] if self.first else x
        made, mean, variance = normalized(ops.matmul(x, self.up))
        self.running.assign(self.running * FAST + ops.stop_gradient(mean + variance) * SLOW)
        self.calls.assign(self.calls + 1)
        made, _, _ = normalized(ops.matmul(ops.tanh(made * self.gain), self.down))
        return ops.reduce_mean((made - y) * (made - y))


def step_of(cell, data=(X, Y), **settings):
    return train_step(cell, nn.SGD(cell.trainable_params(), 0.1), *data, **settings)


def accumulated(make, parts, steps=2):
    """Losses, and parameters and states by name, of steps whose gradients are accumulated by hand."""
    cell = make()
    held = {one.name: one for one in cell.get_parameters()}
    losses = []
    for _ in range(steps):
        before = {name: np.array(one.data) for name, one in held.items()}
        moved = {name: np.zeros_like(value) for name, value in before.items()}
        loss = 0.0
        for k in range(parts):
            step = step_of(cell, (X[k::parts], Y[k::parts]))
            loss += step(X[k::parts], Y[k::parts]) / parts
            for one in cell.trainable_params():  # what this micro batch alone would do, of the same parameters
                moved[one.name] += (one.data - before[one.name]) / parts
                one.set_data(before[one.name])
        for one in cell.trainable_params():
            one.set_data(before[one.name] + moved[one.name])
        losses.append(float(loss))
    return losses, {name: np.array(one.data) for name, one in held.items()}


def check(planned, losses, held):
    found = [float(planned.run(X, Y)) for _ in losses]
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    for one in planned.traced.parameters.values():
        np.testing.assert_allclose(one.data, held[one.name], rtol=1e-9, atol=1e-12, err_msg=one.name)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 6])
def test_a_step_is_that_of_gradient_accumulation(parts, first):
    losses, held = accumulated(lambda: Normed(first), parts)
    step = step_of(Normed(first))
    planned = autoshard.plan(
        step, mesh="dp=2 tp=2", search="data_parallel", micro_batches=parts, statistics="micro_batch"
    )
    check(planned, losses, held)
    assert held["calls"] == 2 * parts, "states that the forward pass writes count micro batches"


@pytest.mark.parametrize(
    ("schedule", "mesh", "chunks"),
    [
        ("gpipe", "pp=2,dp=2", None),
        ("1f1b", "pp=3,dp=2", None),
        ("interleaved_1f1b", "pp=2,dp=3", 2),
        ("looped_bfs", "pp=2", 2),
        ("zb_h1", "pp=2,dp=2", None),
        ("zbv", "pp=2,dp=2", None),
        ("dualpipev", "pp=2", None),
    ],
)
def test_stages_hand_their_states_from_micro_batch_to_micro_batch(schedule, mesh, chunks):
    losses, held = accumulated(Normed, 4)
    planned = plan_pipeline(
        step_of(Normed()), mesh=mesh, micro_batches=4, schedule=schedule, chunks=chunks, statistics="micro_batch"
    )
    check(planned, losses, held)


def test_stages_on_groups_of_other_sizes_split_the_rows_of_a_micro_batch():
    losses, held = accumulated(lambda: Normed(True), 2)
    planned = plan_pipeline(
        step_of(Normed(True)), pipeline="dp=3/dp=2", micro_batches=2, search="data_parallel", statistics="micro_batch"
    )
    check(planned, losses, held)


class Experts(Cell):
    """A loss that balances experts: products of means over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Parameter(np.random.default_rng(2).normal(size=(6, 4)), "router")

    def construct(self, x, y):
        shares = ops.softmax(ops.matmul(x, self.router))
        chosen = ops.cast(ops.equal(shares, ops.reduce_max(shares, axis=1, keep_dims=True)), dtype="f64")
        balance = ops.reduce_sum(ops.reduce_mean(shares, axis=0) * ops.reduce_mean(chosen, axis=0))
        return ops.reduce_mean((shares - y) * (shares - y)) + balance * 0.5


def test_products_of_means_are_those_of_each_micro_batch():
    with pytest.raises(GraphError, match=r"statistics='micro_batch' takes them of each micro batch"):
        step_of(Experts(), micro_batches=3)
    losses, held = accumulated(Experts, 3)
    check(autoshard.plan(step_of(Experts()), devices=2, micro_batches=3, statistics="micro_batch"), losses, held)


def test_counts_of_valid_labels_stay_those_of_the_whole_batch():
    valid = np.array([1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1]) > 0

    def loss(x, keep):
        made, _, _ = normalized(ops.matmul(x, cell.up))
        weights = ops.cast(keep, dtype="f64")
        return ops.reduce_sum(ops.reduce_sum(made * made * cell.gain, axis=1) * weights) / ops.reduce_sum(weights)

    cell = Normed()
    step = train_step(loss, nn.SGD([cell.up, cell.gain], 0.1), X, valid)
    cut = train_step(loss, nn.SGD([cell.up, cell.gain], 0.1), X, valid, micro_batches=2, statistics="micro_batch")
    made = [normalized(X[k::2] @ cell.up.data)[0] for k in (0, 1)]
    terms = [np.asarray(one) ** 2 @ cell.gain.data * valid[k::2] for k, one in enumerate(made)]
    found = evaluate(cut.graph, step.traced.inputs(X, valid))[0]
    np.testing.assert_allclose(found, sum(map(np.sum, terms)) / valid.sum(), rtol=1e-12)


def test_what_is_refused():
    with pytest.raises(GraphError, match="statistics is 'mini'; it can be 'batch' or 'micro_batch'"):
        step_of(Normed(), micro_batches=2, statistics="mini")
    with pytest.raises(GraphError, match=r"statistics='micro_batch'"):
        step_of(Normed(), micro_batches=2)
    with pytest.raises(StageError, match=r"state running is read in stage 0, but written in stage 1"):
        plan_pipeline(
            step_of(Shared()), mesh="pp=2", micro_batches=2, stages={"mul": 0, "matmul": 0, "matmul_1": 1},
            statistics="micro_batch",
        )  # fmt: skip


class Counted(Normed):
    """A state of sums over the batch, divided by a number of rows or not."""

    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def construct(self, x, y):
        made = ops.matmul(x, self.up)
        self.running.assign(self.running * FAST + ops.stop_gradient(ops.reduce_sum(made, axis=0)) / self.divisor)
        made, _, _ = normalized(made + self.running)
        return ops.reduce_mean(ops.square(made - 1.0))


def test_states_of_sums_are_refused_unless_they_are_means():
    with pytest.raises(
        GraphError, match=r"state running follows from reduce_sum, a sum over the batch; make it a mean"
    ):
        step_of(Counted(7.0), micro_batches=2, statistics="micro_batch")
    step_of(Counted(12.0), micro_batches=2, statistics="micro_batch")


def test_stages_are_cut_where_no_state_is_read_and_written():
    losses, held = accumulated(Twice, 3)
    for schedule in ("1f1b", "zbv"):
        planned = plan_pipeline(
            step_of(Twice()), mesh="pp=2", micro_batches=3, schedule=schedule, statistics="micro_batch"
        )
        check(planned, losses, held)


class Twice(Normed):
    """Writes the same running mean for both layers, with products before and behind."""

    def construct(self, x, y):
        made = ops.tanh(ops.matmul(ops.tanh(ops.matmul(x, self.up)) * self.gain, ops.transpose(self.up, perm=(1, 0))))
        for _ in range(2):
            made, mean, _ = normalized(ops.matmul(made, self.up))
            self.running.assign(self.running * FAST + ops.stop_gradient(mean) * SLOW)
            made = ops.matmul(ops.tanh(made), ops.transpose(self.up, perm=(1, 0)))
        made = ops.tanh(ops.matmul(ops.tanh(ops.matmul(made, self.up)), self.down))
        return ops.reduce_mean((made - y) * (made - y))


class Shared(Normed):
    """Reads a running mean early and writes it late."""

    def construct(self, x, y):
        made, mean, _ = normalized(ops.matmul(x * 1.5, self.up))
        late = ops.matmul(ops.tanh(made) + self.running, self.down)
        self.running.assign(self.running * FAST + ops.stop_gradient(mean) * ops.reduce_mean(late))
        return ops.reduce_mean((late - y) * (late - y))


def test_a_schedule_that_goes_forward_in_another_order_is_refused(tmp_path):
    path = tmp_path / "backwards.csv"
    path.write_text("0F1,0F0,,,0B1,0B0\n,1F1,1F0,1B1,1B0,\n", encoding="utf-8")
    with pytest.raises(ScheduleError, match=r"micro batches 1, 0 of stage"):
        plan_pipeline(step_of(Normed()), mesh="pp=2", micro_batches=2, schedule=str(path), statistics="micro_batch")
