"""Plans in stages in other forms: torch modules, alone or run by torch.distributed.pipelining; MindSpore's lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.engines.code import defined_in, needed_by
from autoshard.exporters.mindspore import from_checkpoint, parse_lines
from autoshard.ir.graph import PARAMETER
from autoshard.pipeline import plan_pipeline
from autoshard.pipeline.exports.torch_pipelining import PIPELINING
from autoshard.search import find_mode
from autoshard.trace import Cell, CellList, evaluate, set_seed
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from tests.pipeline.test_planned_pipelines import Tied, X, Y

LABELS = np.random.default_rng(3).integers(0, 6, 12).astype(np.int32)
FORMS = ("json", "shard", "schedule", "jax-stages", "mpmd", "mindspore", "torch-stages", "torch-pipelining")


def tied_step():
    set_seed(3)
    cell = Tied()
    return train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-4), X, Y), (X, Y)


def chain_step():
    set_seed(3)
    net = nn.SequentialCell(*[one for _ in range(4) for one in (nn.Dense(6, 6, dtype="f64"), nn.Tanh())])
    optimizer = nn.SGD(net.trainable_params(), 1.0)
    return train_step(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), optimizer, X, Y), (X, Y)


class Words(Cell):
    """A layer, logits, and the loss of labels."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Dense(6, 6, dtype="f64"), nn.Dense(6, 9, dtype="f64")
        self.entropy = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, x, y):
        return -self.entropy(self.head(ops.tanh(self.body(x))), y)


def words_step():
    set_seed(3)
    cell = Words()
    return train_step(cell, nn.SGD(cell.trainable_params(), 1.0), X, LABELS), (X, LABELS)


class Skipping(Cell):
    """Layers down and up: each up reads what the down beside it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = (CellList(nn.Dense(size, 6, dtype="f64") for _ in range(3)) for size in (6, 12))

    def construct(self, x, y):
        kept = []
        for layer in self.down:
            x = ops.tanh(layer(x))
            kept.append(x)
        for layer in self.up:
            x = ops.tanh(layer(ops.concat(x, kept.pop(), axis=1)))
        return ops.reduce_mean(ops.square(x - y))


def skipping_step():
    set_seed(3)
    net = Skipping()
    return train_step(net, nn.SGD(net.trainable_params(), 1.0), X, Y), (X, Y)


class Beside(Cell):
    """Its input is read again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = CellList(nn.Dense(6, 6, dtype="f64") for _ in range(4))

    def construct(self, x, y):
        made = x
        for layer in self.layers:
            made = ops.tanh(layer(made))
        return ops.reduce_mean(ops.square(made - x - y))


def beside_step():
    set_seed(3)
    net = Beside()
    return train_step(net, nn.SGD(net.trainable_params(), 1.0), X, Y), (X, Y)


def odd_step():
    """Sizes that nothing divides, dropout, and a loss by class."""
    set_seed(5)
    net = nn.SequentialCell(
        nn.Dense(6, 11, dtype="f64"), nn.Dropout(0.3), nn.ReLU(), nn.Dense(11, 7, dtype="f64"), nn.Tanh(),
        nn.Dense(7, 6, dtype="f64"),
    ).set_train()  # fmt: skip
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return train_step(lambda x, y: loss(net(x), y), optimizer, X, LABELS), (X, LABELS)


ALONE = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}


@pytest.fixture(scope="module")
def forked():
    """Runs a script on ranks that share what one process has imported: `forked(folder, ranks, paths, *command)`."""
    pytest.importorskip("torch")
    script = str(Path(__file__).with_name("forked_ranks.py"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": ALONE}
    with subprocess.Popen([sys.executable, script], **pipes) as process:

        def run(folder, ranks, paths, *command):
            job = {"folder": str(folder), "ranks": ranks, "paths": paths, "command": command}
            print(json.dumps(job), file=process.stdin, flush=True)
            error = json.loads(process.stdout.readline())["error"]
            assert not error, error[-3000:]

        yield run
        process.stdin.close()


def torchrun(folder, ranks, paths, *command):
    """Runs a script as its users do; those of both forms join each other by the same lines (`standalone_torch.py`)."""
    assert not paths
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=ALONE, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


def run_on_ranks(start, folder, ranks, arrays, script, *more, paths=()):
    """What a script writes that is started in the folder."""
    np.savez(folder / "in.npz", **arrays)
    start(folder, ranks, paths, script, *more)
    return np.load(folder / "out.npz")


def run_alone(start, folder, ranks, arrays, *more):
    """What the exported `train.py` writes, run where autoshard cannot be imported."""
    (folder / "autoshard.py").write_text("raise ImportError('exported code imports autoshard')\n")
    return run_on_ranks(start, folder, ranks, arrays, "train.py", "in.npz", "out.npz", *more)


def run_on_device(start, folder, ranks, arrays, *wire):
    """What the exported code makes on a device that is pretended, which sends as gloo or through copies on the host."""
    script = str(Path(__file__).with_name("stage_ranks.py"))
    return run_on_ranks(start, folder, ranks, arrays, script, ".", "in.npz", "out.npz", *wire, paths=sys.path)


def given_of(step, data):
    arrays = step.traced.inputs(*data)
    return arrays, dict(zip([value.name for value in step.graph.inputs], arrays, strict=True))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (tied_step, {"mesh": "pp=2,dp=2", "micro_batches": 4, "schedule": "zbv"}),
        (tied_step, {"pipeline": "tp=2/dp=2/tp=1", "micro_batches": 2, "schedule": "gpipe"}),
        (odd_step, {"pipeline": "dp=3/tp=2", "micro_batches": 2, "schedule": "zb_h1"}),
    ],
)
def test_exported_stages_train_alone_as_the_step_in_one_piece_does(make, settings, forked, tmp_path):
    step, data = make()
    planned = plan_pipeline(step, **settings)
    files = planned.export("torch-stages", tmp_path).splitlines()
    assert str(tmp_path / "stage_0.py") in files and str(tmp_path / "schedule.csv") in files
    arrays, named = given_of(step, data)
    found = run_alone(forked, tmp_path, planned.devices, named, "--steps", "2")
    assert_two_steps(step, arrays, found)


def assert_two_steps(step, arrays, found):
    outputs = evaluate(step.graph, arrays)
    for i, into in step.graph.updates.items():
        arrays[into] = outputs[i]
    for value, wanted in zip(step.graph.outputs, evaluate(step.graph, arrays), strict=True):
        np.testing.assert_allclose(found[value.name], wanted, rtol=1e-9, atol=1e-9, err_msg=value.name)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings", "by_torchrun"),
    [
        (chain_step, {"mesh": "pp=2", "micro_batches": 4, "schedule": "zb_h1"}, True),
        (chain_step, {"mesh": "pp=2,dp=2", "micro_batches": 3, "schedule": "zbv"}, False),
        (odd_step, {"mesh": "pp=2,tp=2", "micro_batches": 4, "stages": {"{0..2}.*": 0, "{3..5}.*": 1}}, False),
        (skipping_step, {"mesh": "pp=2,tp=2", "micro_batches": 4, "schedule": "zbv"}, False),
        (skipping_step, {"mesh": "pp=4", "micro_batches": 4, "schedule": "zb_h1"}, False),
        # A stage without parameters, which makes something once.
        (words_step, {"mesh": "pp=2", "micro_batches": 3, "stages": {"body.*": 0, "head.*": 0, "*entropy*": 1}}, False),
        (words_step, {"mesh": "pp=2", "micro_batches": 3, "schedule": "zb_h1", "loss_pieces": 2}, False),
    ],
)
def test_torch_pipelining_makes_the_gradients_of_the_step_in_one_piece(make, settings, by_torchrun, forked, tmp_path):
    step, data = make()
    planned = plan_pipeline(step, **settings)
    planned.export("torch-pipelining", tmp_path)
    arrays, named = given_of(step, data)
    found = run_alone(torchrun if by_torchrun else forked, tmp_path, planned.devices, named)
    assert_gradients(step, arrays, found)


@pytest.mark.torch
@pytest.mark.slow
def test_stages_of_a_rank_take_the_same_rows_in_layouts_of_their_own(forked, monkeypatch, tmp_path):
    """The first stage takes rows in parts, the last one whole."""

    def mode_of(name):
        return lambda problem: find_mode("bfs" if problem.graph.name.endswith("stage3") else name)(problem)

    monkeypatch.setattr("autoshard.pipeline.stage_plans.find_mode", mode_of)
    step, data = beside_step()
    stages = {f"layers.{i}": i for i in range(4)}
    planned = plan_pipeline(
        step, mesh="pp=2,d=2", micro_batches=2, schedule="zbv", stages=stages, search="data_parallel"
    )
    ends = {(place, value.name): str(one.layout) for place, ready in planned.programs.pieces.items()
            for value, one in zip(ready.inputs, ready.program.inputs, strict=True)}  # fmt: skip
    assert ends[(0, "F"), "x.micro"] != ends[(3, "F"), "x.micro"]
    planned.export("torch-pipelining", tmp_path)
    arrays, named = given_of(step, data)
    assert_gradients(step, arrays, run_alone(forked, tmp_path, planned.devices, named))


def assert_gradients(step, arrays, found):
    gradients = {of.name: grad for grad, of in step.graph.cotangents.items() if of.name in found.files}
    own = {one.name for one in step.graph.inputs if step.graph.role_of[one] == PARAMETER}
    assert set(gradients) == own
    whole = replace(step.graph, outputs=(step.graph.outputs[0], *gradients.values()), updates={})
    loss, *wanted = evaluate(whole, arrays)
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-12)
    for name, gradient in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(found[name], gradient, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "make", "wire", "check"),
    [
        ("torch-stages", tied_step, (), assert_two_steps),
        ("torch-stages", odd_step, ("cpu",), assert_two_steps),
        ("torch-pipelining", chain_step, (), assert_gradients),
    ],
)
def test_stages_compute_on_a_device(to, make, wire, check, forked, tmp_path):
    step, data = make()
    planned = plan_pipeline(step, mesh="pp=2,dp=2", micro_batches=3, schedule="zbv")
    planned.export(to, tmp_path)
    arrays, named = given_of(step, data)
    check(step, arrays, run_on_device(forked, tmp_path, planned.devices, named, *wire))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": "pp=3"}, "grad.* goes back to stage 0, which gives stage 2 nothing of its shape and type"),
        ({"mesh": "pp=2"}, "parameter table is read by stage 0, 1, and no stage makes all of its gradient alone"),
        ({"pipeline": "tp=2/tp=1"}, "its groups have 1, 2 ranks"),
    ],
)
def test_what_torch_pipelining_does_not_run_is_told(settings, message, tmp_path):
    planned = plan_pipeline(tied_step()[0], micro_batches=4, **settings)
    with pytest.raises(PlanError, match=f"torch.distributed.pipelining does not run this plan: {message}"):
        planned.export("torch-pipelining", tmp_path)
    assert not list(tmp_path.iterdir())


def test_carried_files_share_no_name_and_need_no_others():
    names = [name for one in PIPELINING for name in defined_in(one)]
    assert len(set(names)) == len(names), [one for one in names if names.count(one) > 1]
    assert {home for one in PIPELINING for home in needed_by(one)} <= set(PIPELINING)


def test_lines_for_mindspore_say_stages_and_are_read_back():
    cut = {"layers.{0..1}": 0, "layers.{2..3}": 1}
    planned = plan_pipeline(tied_step()[0], mesh="pp=2,dp=2", micro_batches=4, stages=cut)
    text = planned.export("shard")
    first, second, *_ = text.splitlines()
    assert first.startswith("set_auto_parallel_context(device_num=4, pipeline_stages=2, pipeline_config={")
    assert second == "net = PipelineCell(net, 4)"
    found = parse_lines(text)
    assert found.stages == {"layers.0": 0, "layers.1": 0, "layers.2": 1, "layers.3": 1}
    again = plan_pipeline(tied_step()[0], mesh="pp=2,dp=2", micro_batches=4, stages=found.stages)
    assert again.export("json") == planned.export("json")


def test_strategy_checkpoints_of_stages_say_what_the_lines_say(tmp_path):
    planned = plan_pipeline(tied_step()[0], mesh="pp=2,dp=2", micro_batches=4, schedule="zbv")
    lines = planned.export("shard")
    assert "layers.3.pipeline_stage = 0\nlayers.3.pipeline_segment = 1\n" in lines
    files = planned.export("mindspore", tmp_path).splitlines()
    found = {}
    for number, path in enumerate(files):
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        assert data["current_stage"] == number
        assert {one["stage"] for one in data["parallel_strategy_item"].values()} == {number}
        read = from_checkpoint(data)
        found |= read.operators
        assert "layers.0.weight" in read.parameters or number
    assert found == parse_lines(lines).operators


@pytest.mark.parametrize(
    ("settings", "to", "message"),
    [
        ({"pipeline": "tp=2/dp=2"}, "shard", "MindSpore's stages lie on equal meshes, but this plan has tp=2; dp=2"),
        ({"mesh": "pp=2", "schedule": "zb_h1"}, "shard", "MindSpore has no schedule like zb_h1; it has gpipe, 1f1b"),
        ({"mesh": "pp=2"}, "torch-stages", r"torch-stages is a folder .*: name its folder \(-o DIR\)"),
        ({"mesh": "pp=2"}, "sdy", "a plan in stages has no form 'sdy' yet; its forms are " + ", ".join(FORMS)),
    ],
)
def test_what_stages_cannot_be_exported_to_is_told(settings, to, message):
    planned = plan_pipeline(tied_step()[0], micro_batches=4, **settings)
    with pytest.raises(PlanError, match=message):
        planned.export(to)
