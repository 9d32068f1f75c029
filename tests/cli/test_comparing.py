"""`autoshard compare`: rows for modes, named plans and files; the limit; plain data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.layout import Mesh
from autoshard.pipeline.compare import compare, default_modes, default_pipelines, ranked
from autoshard.search import search_modes
from autoshard.search.named import named_plans
from autoshard.util.errors import PlanError
from tests.search.plans import array
from tests.search.test_search_evaluate import training

FORWARD = f"{Path(__file__).with_name('models.py')}:forward"
TRAINING = f"{Path(__file__).with_name('models.py')}:step"
MESH = Mesh.parse("dp=2 tp=4")
CHEAP = ("bfs", "data_parallel", "zero2", "megatron")


@pytest.fixture(scope="module")
def contenders():
    return compare(training(None), meshes=[MESH], modes=CHEAP)


def test_all_are_priced_alike(contenders):
    assert [one.mode for one in contenders] == list(CHEAP)
    for one in contenders:
        assert one.cost is not None and one.planned is not None and one.fits and one.mesh == "dp=2 tp=4"
        assert one.cost.compute_seconds == pytest.approx(one.planned.cost.compute_seconds)
        assert one.planning_seconds > 0


def test_the_fastest_that_fits_comes_first(contenders):
    order = [one.cost.seconds for one in ranked(contenders) if one.cost]
    assert order == sorted(order)
    needed = sorted(one.cost.peak_memory_bytes for one in contenders if one.cost)
    found = list(ranked(compare(training(None), meshes=[MESH], modes=CHEAP, memory=needed[1])))
    assert [one.fits for one in found].count(True) == sum(one <= needed[1] for one in needed)
    assert sorted(found, key=lambda one: not one.fits) == found


def test_by_default_all_modes_and_named_plans_compete():
    found = default_modes()
    assert set(found) == set(search_modes()) - {"auto"}
    assert found[-len(named_plans()) :] == named_plans()


def test_stages_stand_beside_plans_in_one_piece(cli):
    found = compare(training(None), meshes=[MESH], modes=["data_parallel"], pipelines=["auto", "tp=4/tp=4", "pp"])
    assert [one.mode for one in found] == ["data_parallel", "stages auto", "stages tp=4/tp=4", "stages pp"]
    whole, searched, given, wrong = found
    assert given.mesh == "2 x (tp=4)" and "no axis 'pp'" in wrong.why
    for one in (searched, given):
        assert one.cost is not None and one.cost.seconds == pytest.approx(one.planned.price.seconds)
        assert one.cost.peak_memory_bytes == max(each.nbytes for each in one.planned.price.memory)
        assert sum(one.to_json()["axes"].values()) == pytest.approx(one.cost.communication_seconds)
    assert searched.cost.seconds <= given.cost.seconds and whole.planned is not None
    out = cli("compare", TRAINING, "-n", "4", "--plan", "zero1", "--pipeline", "dp=2/tp=2")[1]
    assert "stages dp=2/tp=2" in out and "waits" in out and "over stages" in out


def test_stages_that_cannot_be_compared_say_why(cli):
    settings = {"pipelines": ["tp=4/tp=4"], "dataset_strategy": "data_parallel"}
    (one,) = compare(training(None), meshes=[MESH], **settings)
    assert one.cost is None and "lie whole on every rank" in one.why
    module = Path(__file__).parents[2] / "sample_code" / "06_shardings_by_rule" / "mlp.mlir"
    code, _, err = cli("compare", str(module), "--pipeline", "auto")
    assert code == 2 and "a module has none" in err


def test_a_training_step_is_searched_for_stages_by_default():
    step = training(None).traced
    assert default_pipelines(step, [MESH]) == ("auto",)
    assert default_pipelines(step, ["dp=1"]) == () == default_pipelines(lambda x: x, [MESH])


def test_what_does_not_fit_says_why():
    (one,) = compare(lambda x: x + 1, (array(8, 6),), [MESH], ["megatron"])
    assert one.cost is None and "does not fit" in one.why and one.to_json()["why"] == one.why
    with pytest.raises(PlanError, match="cannot read"):
        compare(training(None), meshes=[MESH], modes=["bfs"], memory="lots")


def test_the_table_has_a_row_for_each(cli):
    words = ["compare", FORWARD, "--mesh", "dp=2,tp=4", "--mesh", "dp=8", "--mode", "bfs", "--plan", "data_parallel"]
    code, out, err = cli(*words, "--plan", "zero1", "--memory", "1 GiB")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["bfs"], ["data_parallel"])]
    assert len(rows) == 4 and all("yes" in row for row in rows)
    assert "over dp" in out and "peak memory" in out
    assert "zero1: the named plan 'zero1' does not fit" in out


def test_files_compete_and_rows_are_plain_data(cli, tmp_path):
    path = tmp_path / "plan.json"
    assert cli("plan", FORWARD, "--mesh", "dp=2,tp=4", "--search", "bfs", "--save", str(path))[0] == 0
    code, out, err = cli("compare", FORWARD, "--mesh", "dp=2,tp=4", "--plan", str(path), "--mode", "bfs", "--json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)["plans"]
    assert {first["mode"], second["mode"]} == {"bfs", str(path)}
    assert all(first[name] == second[name] for name in ("seconds", "peak_memory_bytes", "bytes_per_device"))
    assert sum(first["axes"].values()) == pytest.approx(first["communication_seconds"])


def test_what_a_plan_does_not_follow_is_told(cli):
    code, out, _ = cli("compare", FORWARD, "--mesh", "dp=2,tp=4", "--mode", "bfs", "--plan", "data_parallel")
    assert code == 0 and out.splitlines()[-1] == "data_parallel: does not follow what was asked of dense1.matmul"
    assert "bfs: does not" not in out


def test_nothing_that_keeps_the_limit_is_an_error(cli):
    words = ("compare", FORWARD, "--mesh", "dp=2,tp=4", "--mode", "bfs", "--memory", "1 KiB")
    code, out, err = cli(*words)
    assert code == 1 and " no " in out and err == "no plan keeps the memory limit of 1 KiB\n"
    code, out, _ = cli(*words, "--json")
    assert code == 1 and not json.loads(out)["plans"][0]["fits"]


def test_nothing_that_fits_is_an_error(cli):
    code, out, _ = cli("compare", FORWARD, "--mesh", "dp=7", "--plan", "megatron")
    assert code == 1 and "needs a tensor axis" in out
    for option in ("--plan", "--mode"):
        code, out, err = cli("compare", FORWARD, "-n", "8", option, "nowhere.json", "--mode", "bfs")
        assert (code, out) == (2, "") and "cannot read the plan nowhere.json: No such file" in err
    code, _, err = cli("compare", FORWARD)
    assert code == 2 and "neither is given" in err


def test_a_plan_over_the_limit_is_refused(cli):
    code, _, err = cli("plan", FORWARD, "-n", "8", "--memory", "100 B")
    assert code == 1 and "over the memory limit of 100 B (100 B)" in err
