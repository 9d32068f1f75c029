"""`autoshard redistribute`: steps, bytes, bound and picture; JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from autoshard.cli import app
from autoshard.cli.redistributing import read_change
from autoshard.errors import LayoutError, RedistributeError
from autoshard.layout import Mesh


def told(*args: str) -> str:
    result = CliRunner().invoke(app, ["redistribute", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_steps_and_the_bound_are_shown():
    lines = told("f32[8, 16] tp, dp -> dp, tp", "--mesh", "dp=2,tp=4").splitlines()
    assert lines[0] == "f32[8@tp, 16@dp] -> f32[8@dp, 16@tp] on dp=2 tp=4"
    assert lines[3].split()[:3] == ["permute", "over=dp.tp", "rounds=2"] and "64 B" in lines[3]
    assert lines[4].startswith("all") and "bound 64 B" in lines[4]


def test_the_picture_shows_who_sends_to_whom():
    text = told("f32[6, 4] a, - -> -, a", "--mesh", "a=2")
    assert "among 0,1" in text
    text = told("f32[8, 12] a, b -> b, a", "--mesh", "a=2,b=2")
    assert "2>1 1>2" in text
    assert text.count("dim 0") == 2


def test_json():
    found = json.loads(told("f32[8, 6] -, - +tp -> tp, -", "--mesh", "dp=2,tp=4", "--json"))
    assert [step["kind"] for step in found["steps"]] == ["reduce_scatter"]
    assert found["bytes_received"] == found["bound_bytes"] == 8 * 6 * 4 * 3 / 4
    assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["steps"])) and found["seconds"] > 0


def test_equal_layouts_and_large_meshes():
    assert "nothing to do" in told("f32[8] d -> d", "-n", "8")
    assert "no picture" in told("f32[128] a -> b", "--mesh", "a=128,b=128")


def test_errors():
    with pytest.raises(LayoutError, match="write a type and two layouts"):
        read_change("f32[8, 6] tp, -", Mesh(dp=2, tp=4))
    with pytest.raises(LayoutError, match="has 1 dims"):
        read_change("f32[8, 6] tp -> -, -", Mesh(dp=2, tp=4))
    with pytest.raises(RedistributeError, match="terms of a max cannot be made"):
        told("f32[6] tp -> - max tp", "--mesh", "dp=2,tp=4")


def test_sizes_that_do_not_divide_are_padded():
    text = told("f32[6] tp -> -", "--mesh", "dp=2,tp=4")
    assert "held as f32[8]" in text
    found = json.loads(told("f32[6] tp -> -", "--mesh", "dp=2,tp=4", "--json"))
    assert found["steps"][0]["bytes_received"] == found["bound_bytes"] == 6 * 4
