"""The questions that people ask of a plan: the page answers each in two clicks at most, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from costmodel import format_bytes
from tests.view.conftest import Browser
from tests.view.models import trained

pytestmark = pytest.mark.browser
HERE = "models.py:"


@pytest.fixture(scope="module")
def page(tmp_path_factory, chromium) -> Path:
    """Two plans of the language model in one file."""
    return trained("megatron").view(trained("zero3")).save(tmp_path_factory.mktemp("view") / "plan.html")


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    return browser


def test_which_redistribution_costs_most_and_for_which_line(opened):
    told = opened.text("#summary .two > div:last-child")
    dearest = max(trained("megatron").to_json()["redistributions"], key=lambda one: one["seconds"])
    assert dearest["steps"][0]["kind"] in told and HERE in told
    opened.picture("summary")


def test_what_is_this_collective_doing_there(opened):
    opened.click("#summary .two > div:last-child .link", "all_reduce over tp")
    told = opened.text("#panel")
    for words in ("from\n", "to\n", "wanted by", "a device sends", "exposed", "Before", "After", HERE, "all_reduce"):
        assert words in told
    opened.picture("redistribution")


def test_why_this_strategy_and_what_else(opened):
    opened.click("#operators .line", "embed.gather")
    told = opened.text("#panel")
    decision = next(one for one in trained("megatron").to_json()["operators"] if one["name"] == "embed.gather")
    assert decision["why"] in told and "What else it could be" in told and "against chosen" in told
    opened.picture("operator")


def test_what_differs_between_two_plans(opened):
    told = opened.text("#difference")
    first, second = (trained(mode).cost.seconds for mode in ("megatron", "zero3"))
    assert f"B is {'slower' if second > first else 'faster'}"[:4] in told and "Operators that are split" in told
    faster = "slower" if second > first else "faster"
    assert faster in opened.text("#difference .lead") and "computing" in opened.text("#difference .lead")
    opened.click("#which button", "B: zero3")
    opened.wait("return document.getElementById('summary').textContent.includes('by zero3')")  # read only now
    assert "B: zero3" in opened.text("#which button[aria-pressed=true]")
    opened.picture("difference")


def test_does_it_fit_and_what_is_largest_when(opened):
    cost = trained("megatron").cost
    assert "it fits" in opened.text("#lead")
    assert cost.memory.peak_at in opened.text("#peak h3")
    largest = cost.memory.at(cost.memory.peak_moment)[0]
    assert largest.what in opened.text("#peak .line") and _near(largest.nbytes, opened.text("#peak .line"))


def _near(nbytes: float, text: str) -> bool:
    number, unit = format_bytes(nbytes).split()
    shown = [float(one) for one in re.findall(rf"([\d.]+) {unit}", text)]
    return any(one == pytest.approx(float(number), rel=0.01) for one in shown)


def test_few_large_or_many_small_lives(opened):
    opened.click("#lives")
    kept = [one for one in trained("megatron").cost.memory.held if one.nbytes]
    assert f"{len(kept)} rows" in opened.text("#peak")
    assert opened.run("return document.querySelectorAll('#peak .life i').length") > 10
    opened.picture("lives")


def test_collectives_by_module_and_phase(opened):
    rows = opened.text("#moves table")
    for words in ("forward", "backward", "update", "blocks.{0..3}"):
        assert words in rows
    opened.picture("redistributions")


def test_who_holds_what(opened):
    opened.click("#inputs .line", "blocks.0.attention.query.weight")
    drawn = opened.run("return [...document.querySelectorAll('#panel svg title')].map((one) => one.textContent)")
    picture = trained("megatron").show_layout("blocks.0.attention.query.weight")
    held = [one.split()[-1] for one in drawn]
    assert len(held) == 4 and all(ranks in picture for ranks in held), picture
    opened.picture("who_holds_what")


def test_is_communication_hidden(opened):
    assert "exposed" in opened.text("#step p")
    opened.click("nav a", "Timeline")
    opened.wait("return Boolean(document.querySelector('#lanes canvas'))")
    opened.run("document.getElementById('lanes').focus()")
    opened.keys("\ue014", "\ue007")  # to the first piece, and open it
    first = trained("megatron").to_json()["redistributions"][0]
    assert first["steps"][0]["kind"] in opened.text("#panel") or "operator" in opened.text("#panel")
    opened.picture("timeline")


def test_what_to_write_to_get_this(opened):
    opened.click("#take-away button", "dtensor")
    assert opened.text("#taken").strip() == trained("megatron").export("dtensor").strip()
    assert {one.text for one in opened.driver.find_elements("css selector", "#take-away button")} >= {"shard", "Copy"}
