"""`autoshard redistribute`: steps, bytes, bound and picture; JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from autoshard.cli.commands import app
from autoshard.cli.redistributing import read_change
from autoshard.layout import Mesh
from autoshard.util.errors import LayoutError, RedistributeError


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
    assert found["bytes_received"] == 8 * 6 * 4 * 3 / 4
    assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["steps"])) and found["seconds"] > 0


def test_a_thrifty_plan_lets_all_ranks_take_part_in_a_sum():
    found = json.loads(told("f32[8, 6] -, - +tp -> tp, -", "--mesh", "dp=2,tp=4", "--json", "--thrifty"))
    assert [step["kind"] for step in found["steps"]] == ["slice", "reduce_scatter", "all_gather"]
    assert found["bytes_received"] == found["bound_bytes"] == 8 * 6 * 4 / 2


def test_the_picture_of_sizes_that_do_not_divide_ends_where_the_tensor_does():
    text = told("f32[7, 10] b, - -> a, -", "--mesh", "a=3,b=2")
    assert "held as f32[12, 10]" in text and "permute over=a.b boxes=1" in text
    assert "6:7" in text and "7:7" in text and "8:12" not in text
    assert "  2 gets [6:7, 0:10] of" in text and "  0 has what it needs" in text


def test_reshapes():
    text = told("f32[24, 5] a.b, - -> f32[4, 30] b, a", "--mesh", "a=2,b=4")
    assert "as f32[4, 6, 5]: [a.b:(1)2, b:(2)2, -] -> [b, a, -]" in text
    found = json.loads(told("f32[24, 5] a.b, - -> f32[4, 30] b, a", "--mesh", "a=2,b=4", "--json"))
    assert found["bytes_received"] == found["legs"][0]["bound_bytes"] == 60
    assert "each block is reshaped where it is" in told("f32[8, 6] a, - -> f32[48] a", "--mesh", "a=2,b=4")


def test_equal_layouts_and_large_meshes():
    assert "nothing to do" in told("f32[8] d -> d", "-n", "8")
    assert "no picture" in told("f32[128] a -> b", "--mesh", "a=128,b=128")


def test_errors():
    with pytest.raises(LayoutError, match="write a type and two layouts"):
        read_change("f32[8, 6] tp, -", Mesh(dp=2, tp=4))
    with pytest.raises(LayoutError, match="has 1 dims"):
        read_change("f32[8, 6] tp -> -, -", Mesh(dp=2, tp=4))
    with pytest.raises(LayoutError, match="does not convert elements"):
        read_change("f32[8, 6] tp, - -> i32[48] tp", Mesh(dp=2, tp=4))
    with pytest.raises(RedistributeError, match="terms of a max cannot be made"):
        told("f32[6] tp -> - max tp", "--mesh", "dp=2,tp=4")


def test_sizes_that_do_not_divide_are_padded():
    text = told("f32[6] tp -> -", "--mesh", "dp=2,tp=4")
    assert "held as f32[8]" in text
    found = json.loads(told("f32[6] tp -> -", "--mesh", "dp=2,tp=4", "--json"))
    assert found["steps"][0]["bytes_received"] == found["bound_bytes"] == 6 * 4
