"""Commands that draw: `layout -o`, `hardware show -o` and `view --plot`."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as etree

import pytest

TRAINING = f"{Path(__file__).parents[2]}/sample_code/07_torch_models/samples.py:gpt2_training"
SAMPLE = f"{Path(__file__).parents[2]}/sample_code/sharding_propagation/train.py:forward"


def words(picture: str) -> list[str]:
    return [one.text or "" for one in etree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_commands_draw(cli, tmp_path):
    drawn, page = tmp_path / "a.svg", tmp_path / "b.png"
    assert cli("layout", "f32[8, 6]", "dp, -", "--mesh", "dp=2,tp=3", "-o", str(drawn))[0] == 0
    assert {"0-2", "3-5"} <= set(words(drawn.read_text()))
    assert cli("hardware", "show", "a100", "-n", "16", "-o", str(drawn))[0] == 0
    assert "15" in words(drawn.read_text())
    assert cli("view", SAMPLE, "-n", "8", "--plot", "memory", "-o", str(page))[:2] == (0, f"{page}\n")
    assert page.stat().st_size > 5000


@pytest.mark.parametrize(
    "args, told",
    [
        (("layout", "f32[8, 6]", "dp, -", "--mesh", "dp=2", "-o", "a.png"), "must end in .svg"),
        (("view", SAMPLE, "-n", "8", "-o", "a.svg"), "--plot timeline or memory"),
        (("view", SAMPLE, "-n", "8", "--plot", "memory"), "plan.html: its name must end in .svg"),
        (("view", SAMPLE, "-n", "8", "--plot", "memory", "--against", "bfs", "-o", "a.svg"), "--plot draws one plan"),
        (("hardware", "show", "a100", "-n", "16", "-o", "a.txt"), "to FILE.graphml"),
    ],
)
def test_wrong_use_is_told_before_any_work(cli, args, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*args)
    assert (code, out) == (2, "") and told in re.sub(r"\s+", " ", err)
    assert list(tmp_path.iterdir()) == []


def test_schedules_are_drawn(cli, tmp_path):
    drawn = tmp_path / "zbv.svg"
    asked = ("schedule", "zbv", "--stages", "4", "--micro-batches", "6")
    assert cli(*asked, "-o", str(drawn))[0] == 0
    found = etree.fromstring(drawn.read_text())
    titles = [one.text for one in found.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 4 * 6 * 3
    assert "weight gradient of micro batch 5 in stage 3" in titles
    assert {"group 0", "group 1", "weight gradient"} <= set(words(drawn.read_text()))


def test_a_plan_in_stages_is_a_page(cli, tmp_path):
    page = tmp_path / "stages.html"
    asked = ("view", TRAINING, "--mesh", "pp=2,dp=2", "--pipeline", "pp", "--micro-batches", "2", "-o", str(page))
    code, out, err = cli(*asked)
    assert (code, out) == (0, f"{page}\n"), err
    text = page.read_text()
    assert all(f'id="{part}"' in text for part in ("data", "plan-0", "plan-1")) and 'id="plan-2"' not in text
    code, _, err = cli(*asked, "--against", "bfs")
    assert code == 2 and "--against: not for a plan in stages" in err
