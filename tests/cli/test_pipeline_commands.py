"""`autoshard plan` and `autoshard run` in stages: a report, MPI ranks, and what is refused before anything starts."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from autoshard.cli.module_run import SEED, random_inputs
from autoshard.exporters.ir_parse import parse_dump
from autoshard.ir.graph import DATA
from autoshard.runtime.checkpoint import Reader, find

SCRIPT = """
import numpy as np
from autoshard import nn, ops
from autoshard.trace import set_seed
from autoshard.transform import train_step

x, y = (np.random.default_rng(i).normal(size=(12, 6)).astype(np.float32) for i in range(2))


def train():
    set_seed(1)
    net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 8), nn.Tanh(), nn.Dense(8, 6))
    adam = nn.Adam(net.trainable_params(), 0.1, eps=1e-4)
    return train_step(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), adam, x, y)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("stages") / "train.py"
    path.write_text(SCRIPT)
    return f"{path}:train"


def test_plan_tells_of_stages(target, cli):
    order = ["--pipeline", "pp", "--micro-batches", "3", "--schedule", "auto", "--json"]
    code, out, err = cli("plan", target, "--mesh", "pp=2,dp=2", *order)
    assert code == 0, err
    found = json.loads(out)
    assert [group["ranks"] for group in found["groups"]] == [[0, 1], [2, 3]]
    assert 0 < found["schedule_bound"] <= found["schedule_seconds"] <= found["seconds"]
    assert all(stage["operators"] for stage in found["stages"])


@pytest.mark.parametrize(("hardware", "stages"), [("tpu_v5p", 2), ("h100", None)])
def test_mode_auto_looks_at_stages_too(target, cli, hardware, stages):
    """What takes fewer seconds is the plan, whatever the command, and it tells of the other."""
    asked = ["-n", "2", "--mode", "auto", "--hardware", hardware]
    code, out, err = cli("plan", target, *asked, "--json")
    assert code == 0, err
    found = json.loads(out)
    if stages is None:
        assert "mesh" in found and "; in stages: " in found["started_from"]
    else:
        assert len(found["stages"]) == stages
        whole = next(one for one in found["others"] if one["label"] == "in one piece on (d=2), by auto")
        assert whole["seconds"] > found["seconds"]
    code, out, err = cli("export", target, *asked, "--to", "schedule")
    assert (code == 0) is (stages is not None), err
    code, out, err = cli("explain", target, "0.matmul", *asked, "--json")
    assert code == 0 and bool(json.loads(out).get("stages")) is (stages is not None), err


def test_how_a_plan_is_shown_does_not_choose_it(target, cli, tmp_path):
    asked = ["-n", "2", "--mode", "auto", "--hardware", "tpu_v5p"]
    code, out, err = cli("plan", target, *asked, "--full", "--top", "3")
    assert code == 2 and "leave --full and --json out" in err
    code, out, err = cli("plan", target, *asked, "--top", "3", "--sort", "name")
    assert code == 0 and "stage" in out
    assert (
        err == "--top and --sort: of the report of a plan in one piece; this plan is in stages, and all of it is told\n"
    )
    page = str(tmp_path / "page.html")
    code, out, err = cli("view", target, *asked, "--against", "bfs", "-o", page)
    assert code == 0 and err == "--against: not for plans in stages, which mode auto leaves out here\n"


def test_mode_auto_and_stages_on_given_meshes_contradict_each_other(target, cli):
    code, _, err = cli("plan", target, "--mesh", "pp=2,dp=2", "--pipeline", "pp", "--mode", "auto")
    assert code and "'auto' chooses meshes, but those of the stages are given (2 x (dp=2))" in err
    code, out, err = cli("plan", target, "-n", "2", "--pipeline", "auto", "--mode", "auto", "--json")
    assert code == 0 and len(json.loads(out)["groups"]) >= 1, err


@pytest.mark.mpi
def test_a_run_by_mode_auto_is_in_stages_where_these_are_faster(target, cli):
    code, out, err = cli("run", target, "-n", "2", "--mode", "auto", "--hardware", "tpu_v5p", "--check", "--json")
    assert code == 0 and json.loads(out)["equal"], err


def test_dump_writes_what_each_rank_of_a_stage_runs(target, cli, tmp_path):
    order = ["--mesh", "pp=2,dp=2", "--pipeline", "pp", "--micro-batches", "3", "--ranks", "0,3", "-o", str(tmp_path)]
    code, out, err = cli("dump", target, *order)
    assert code == 0, err
    files = [Path(line) for line in out.splitlines()]
    assert [file.parent.name for file in files] == ["rank_0"] * 3 + ["rank_3"] * 3
    nodes = parse_dump(files[-1].read_text()).nodes
    assert sorted({node.attr("micro") for node in nodes if node.op == "Receive"}) == [0, 1, 2]
    code, _, err = cli("dump", target, *order, "--dataset-strategy", "data_parallel")
    assert code and "--dataset-strategy: not for a plan in stages" in err


def test_a_step_in_stages_is_traced(target, cli, tmp_path):
    path = tmp_path / "trace.json"
    order = ["--mesh", "pp=2,dp=2", "--pipeline", "pp", "--micro-batches", "3", "-o", str(path), "--json"]
    code, out, err = cli("trace", target, *order)
    assert code == 0 and json.loads(out)["ranks"] == [0, 2], err
    events = json.loads(path.read_text())["traceEvents"]
    slices = [one for one in events if one["ph"] == "X"]
    acting = [one for one in slices if one["tid"] == 0]
    assert {one["name"] for one in acting if one["pid"] == 2} >= {"1F0", "1F1", "1F2", "1B2", "update"}
    assert max(one["ts"] + one["dur"] for one in acting) == pytest.approx(1e6 * json.loads(out)["seconds"])
    for one in slices:  # what is computed lies inside of an action
        around = [each for each in acting if each["pid"] == one["pid"] and each["ts"] <= one["ts"] + 1e-6]
        assert around and max(each["ts"] + each["dur"] for each in around) >= one["ts"] + one["dur"] - 0.01
    arrows = [one for one in events if one["ph"] in "sf"]
    assert len(arrows) == 2 * 2 * 3 and {one["pid"] for one in arrows} == {0, 2}
    code, _, err = cli("trace", target, *order, "--ranks", "4")
    assert code == 2 and "0 to 3" in err


@pytest.mark.mpi
def test_a_run_in_stages_is_traced(target, cli, tmp_path):
    order = ["--mesh", "pp=2,dp=2", "--pipeline", "pp", "--micro-batches", "3", "--schedule", "zb_h1"]
    code, _, err = cli("run", target, "-n", "4", *order, "--trace", str(tmp_path / "traced"), "--timeout", "120")
    assert code == 0 and "traced to" in err, err
    events = json.loads((tmp_path / "traced" / "trace.json").read_text())["traceEvents"]
    named = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert len(named) == 4 and named[2] == "rank 2 (group 1, dp=0) predicted"
    acting = {
        pid: [one for one in events if one["ph"] == "X" and (one["pid"], one["tid"]) == (pid, 0)] for pid in named
    }
    for rank in (0, 2):  # in the schedule's order, one after the other
        predicted, measured = acting[rank], acting[rank + 1_000_000]
        assert {one["name"] for one in predicted} == {one["name"] for one in measured}
        begins = [one["ts"] for one in measured]
        assert begins == sorted(begins)


def test_a_name_is_explained_in_each_stage(target, cli):
    order = ["--mesh", "pp=2,dp=2", "--pipeline", "pp", "--micro-batches", "3"]
    code, out, err = cli("plan", target, *order, "--json")
    assert code == 0, err
    first = json.loads(out)["stages"][0]["parameters"][0]
    code, told, err = cli("explain", target, first, *order)
    assert code == 0 and told.startswith("stage 0, on group 0") and "stage 1" not in told, err
    code, told, _ = cli("explain", target, first, *order, "--json")
    assert code == 0 and [one["stage"] for one in json.loads(told)["stages"]] == [0]
    code, _, err = cli("explain", target, f"{first}x", *order)
    assert code == 2 and "no stage of" in err and first in err


@pytest.mark.mpi
@pytest.mark.parametrize(
    "engine", ["numpy", pytest.param("torch", marks=pytest.mark.torch), pytest.param("xla", marks=pytest.mark.jax)]
)
def test_run_on_ranks_of_other_sizes(target, cli, engine):
    if engine != "numpy":
        pytest.importorskip("torch" if engine == "torch" else "jax")
    order = ["--pipeline", "dp=2/tp=1", "--micro-batches", "2", "--schedule", "zb_h1", "--check", "--engine", engine]
    code, out, err = cli("run", target, "-n", "3", *order)
    assert code == 0, err
    assert "ran on 2 stages (zb_h1, 2 micro batches) on dp=2 on ranks 0-1; rank 2" in out
    assert "ranks idle for" in out and "predicted " in out and "equal to the unsplit run" in out


@pytest.mark.mpi
def test_a_checkpoint_goes_on_in_other_stages_and_without(target, cli, tmp_path):
    """Three steps, each in another form, lead to what three steps in one process lead to."""
    saved = str(tmp_path / "saved")
    for i, order in enumerate(
        (
            ["-n", "3", "--pipeline", "dp=2/tp=1", "--micro-batches", "2"],
            ["-n", "4", "--pipeline", "pp", "--mesh", "pp=2,dp=2", "--micro-batches", "3", "--schedule", "zb_h1"],
            ["-n", "2"],
        )
    ):
        resumed = ["--resume", saved] if i else []
        code, out, err = cli("run", target, *order, *resumed, "--save", saved, "--check", "--json")
        assert code == 0, err
        told = json.loads(out)
        assert told["saved"].endswith(f"step-0000000{i + 1}") and told["equal"]
        assert told["compared_with"] == "the unsplit run"
    reader = Reader.open(find(tmp_path / "saved", 3))
    step = runpy.run_path(target.rpartition(":")[0])["train"]()
    data = [
        array for array, role in zip(random_inputs(step.graph, SEED), step.graph.roles, strict=True) if role == DATA
    ]
    for _ in range(3):
        step(*data)
    for value, parameter in step.traced.parameters.items():
        found = np.empty(parameter.shape, parameter.dtype.numpy)
        reader.read(value.name, tuple(slice(0, size) for size in parameter.shape), found)
        np.testing.assert_allclose(found, parameter.asnumpy(), rtol=1e-4, atol=1e-5, err_msg=value.name)
    for path in (tmp_path / "saved" / "step-00000003").glob("rank-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    code, _, err = cli("run", target, "-n", "1", "--resume", saved)
    assert code == 1 and " is damaged: " in err and "Traceback" not in err, err


def test_what_cannot_be_resumed(target, cli, tmp_path):
    code, _, err = cli("run", target, "-n", "2", "--resume", str(tmp_path))
    assert code == 2 and "there is no checkpoint in" in " ".join(err.split())
    code, _, err = cli("run", "--save", str(tmp_path), "-n", "2", target.rpartition(":")[0])
    assert code == 2 and "--save: for a model" in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "1f1b"], "--schedule: for stages; give --pipeline AXIS, too"),
        (["--pipeline", "tp=2/tp=2"], "have 4 devices, but -n starts 8 ranks"),
        (["--pipeline", "pp", "--mesh", "pp=2,dp=4", "--device", "cuda"], "the engine numpy computes on CPUs"),
        (["--pipeline", "pp", "--mesh", "pp=2,dp=4", "--stage", "layers.0"], "write PATTERN=S, like"),
        (["--pipeline", "pp", "--mesh", "dp=8"], "no axis 'pp' for stages to lie along"),
        (["--pipeline", "4", "--mesh", "dp=8"], "of 4 stages name one, as in mesh 'pp=4 dp=2' and pipeline 'pp'"),
        (["--pipeline", "pp", "--mesh", "pp=2,dp=4", "--micro-batches", "5"], "which 5 does not divide"),
    ],
)
def test_runs_that_cannot_be(target, arguments, message, cli):
    code, _, err = cli("run", target, "-n", "8", *arguments)
    assert code != 0 and message in " ".join(err.split())


def test_export_has_forms_of_stages(target, cli, tmp_path):
    order = ["--mesh", "pp=2,dp=2", "--pipeline", "pp", "--micro-batches", "3", "--schedule", "gpipe"]
    code, out, err = cli("export", target, *order, "--to", "schedule")
    assert code == 0, err
    assert out == "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n"
    path = tmp_path / "schedule.csv"
    code, out, err = cli("export", target, *order, "--to", "schedule", "-o", str(path), "--json")
    assert code == 0 and json.loads(out) == {"form": "schedule", "files": [str(path)]}, err
    assert path.read_text().startswith("0F0,0F1,0F2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "dtensor"], "a plan in stages has no form 'dtensor' yet; its forms are"),
        (["--to", "shedule"], "did you mean 'schedule'?"),
        (["--to", "schedule", "-o", "no/folder/x.csv"], "there is no directory no/folder"),
        (["--to", "schedule", "--option", "time_limit=3"], "time_limit"),
    ],
)
def test_exports_that_cannot_be(target, arguments, message, cli):
    code, _, err = cli("export", target, "--mesh", "pp=2,dp=2", "--pipeline", "pp", *arguments)
    assert code != 0 and message in " ".join(err.split())


def test_a_saved_plan_in_stages_is_taken_up_again(target, cli, tmp_path):
    path = str(tmp_path / "stages.json")
    order = ["--mesh", "pp=2,dp=2", "--pipeline", "pp"]
    code, first, err = cli("plan", target, *order, "--micro-batches", "3", "--schedule", "zb_h1", "--save", path)
    assert code == 0, err
    code, again, err = cli("plan", target, *order, "--mode", path)
    assert code == 0 and again == first, err
    code, again, err = cli("plan", target, "-n", "4", "--pipeline", "pp", "--mode", path)
    assert code == 0 and again == first, err
    code, text, err = cli("export", target, *order, "--mode", path, "--to", "json")
    assert code == 0 and text == (tmp_path / "stages.json").read_text(), err
    code, _, err = cli("plan", target, "--mesh", "dp=2", "--mode", path)
    assert code == 2 and "is a plan in stages: it goes with --pipeline" in " ".join(err.split())
