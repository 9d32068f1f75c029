"""Commands that draw: `layout -o`, `hardware show -o` and `view --plot`."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as etree

import pytest

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
