"""`autoshard schedule`: pictures, rows, facts, files of one's own, and what is refused."""

from __future__ import annotations

import json

import pytest

from autoshard.pipeline.schedules import load_schedule, make_schedule, with_transfers


def test_picture(cli):
    code, out, err = cli("schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--durations", "1,1,0.5")
    assert (code, err) == (0, "")
    assert out == (
        "1f1b: 2 stages on 2 ranks, 2 micro batches\n\n"
        "rank 0  F0 -- F1 -- .  .  .  B0 -- -- .  .  B1 -- --\n"
        "rank 1  .  .  F0 -- B0 -- -- F1 -- B1 -- -- .  .  .\n\n"
        "step    7.5 s, or 7.5 s from step to step without a barrier\n"
        "bubble  33.3 % of all ranks' time\n"
        "memory  activations of 2, 1 stages x micro batches at once, rank by rank\n"
    )


def test_rows_are_written_and_read_back(cli, tmp_path):
    path = tmp_path / "mine.csv"
    sizes = ["--stages", "8", "--micro-batches", "8"]
    code, out, _ = cli("schedule", "DualPipeV", *sizes, "--csv", "-o", str(path))
    assert code == 0 and out == path.read_text()
    assert load_schedule(path) == make_schedule("dualpipev", 4, 8)
    code, out, _ = cli("schedule", str(path), "--csv", "--transfers")
    path.write_text(out)
    assert code == 0 and load_schedule(path) == with_transfers(make_schedule("dualpipev", 4, 8))


def test_facts(cli):
    code, out, _ = cli("schedule", "zbv", "--stages", "8", "--micro-batches", "8", "--json", "--transfer", "0.5")
    facts = json.loads(out)
    assert code == 0
    assert (facts["stages"], facts["ranks"], facts["micro_batches"]) == (8, 4, 8)
    assert facts["ranks_of_stages"] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert facts["peak_activations"] == [8, 8, 8, 8]
    assert facts["busy"] == [48.0] * 4 and facts["makespan"] == 48 + facts["idle"][0]
    assert facts["makespan"] >= facts["period"] >= 48
    assert facts["rows"][0][:2] == ["0F0", "0F1"] and facts["seconds"][0]["0F1"] == [1.0, 2.0]


def test_times_that_no_column_divides_are_rounded(cli):
    given = ("schedule", "1f1b", "--stages", "2", "--micro-batches", "3")
    code, out, _ = cli(*given, "--durations", "1.003,1,1.0001")
    assert code == 0 and "a column is 1.003 s; times are rounded to columns" in out
    assert [line.split() for line in out.splitlines() if line.startswith("rank")] == [
        line.split() for line in cli(*given)[1].splitlines() if line.startswith("rank")
    ]


def test_wide_pictures_are_left_out(cli):
    code, out, _ = cli("schedule", "gpipe", "--stages", "2", "--micro-batches", "200")
    assert code == 0 and "too wide: at most 512; --csv prints the rows" in out and "bubble  0.5 %" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b", "--stages", "4"], "schedule 1f1b needs --micro-batches M"),
        (["1f1b", "--micro-batches", "4"], "schedule 1f1b needs --stages P"),
        (["zb3", "--stages", "4", "--micro-batches", "4"], "there is no schedule 'zb3'; did you mean zb"),
        (["zbv", "--stages", "3", "--micro-batches", "4"], "3 stages cannot be given to ranks of 2 stages each"),
        (["gpipe", "--stages", "4", "--micro-batches", "4", "--chunks", "2"], "has 1 chunks a rank, not 2"),
        (["gpipe", "--stages", "4", "--micro-batches", "4", "--chunks", "0"], "each rank has at least one stage"),
        (["gpipe", "--stages", "2", "--micro-batches", "2", "--durations", "1,2"], "give three, of forward"),
        (["gpipe", "--stages", "2", "--micro-batches", "2", "--durations", "1,2,x"], "'x' is no number of seconds"),
        (["gpipe", "--stages", "2", "--micro-batches", "2", "--transfer", "nan"], "'nan' is no number of seconds"),
        (["gpipe", "--stages", "2", "--micro-batches", "2", "-o", "/no/x.csv"], "there is no directory /no"),
        (["missing.csv"], "cannot read the schedule missing.csv"),
    ],
)
def test_mistakes(cli, arguments, message):
    code, out, err = cli("schedule", *arguments)
    assert (code, out) == (2, "") and message in err


def test_a_file_that_deadlocks_or_says_something_else(cli, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    code, _, err = cli("schedule", str(path))
    assert code == 2 and "mine.csv: the schedule deadlocks: rank 0 does" in err
    path.write_text("0F0,0B0\n1F0,1B0\n")
    code, _, err = cli("schedule", str(path), "--stages", "3")
    assert code == 2 and "--stages 3 is given, and" in err and "has 2; leave --stages out" in err
    code, _, err = cli("schedule", str(path), "--chunks", "1")
    assert code == 2 and "says which rank runs which stages" in err


def test_actions_of_no_time_have_no_picture(cli):
    code, out, err = cli("schedule", "gpipe", "--stages", "2", "--micro-batches", "2", "--durations", "0,0,0")
    assert (code, err) == (0, "") and "all actions take 0 s" in out and "step    0 s" in out
