"""The page of a plan in stages: its figures are the plan's, and a browser answers what people ask of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.pipeline import plan_pipeline
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.view.page import View
from tests.view.conftest import Browser
from tests.view.models import training


@pytest.fixture(scope="module")
def planned() -> PlannedPipeline:
    """Four stages in turn on two groups."""
    return plan_pipeline(
        training(), (), "pp=2 dp=2 tp=2", micro_batches=4, schedule="interleaved_1f1b", hardware="h100"
    )


@pytest.fixture(scope="module")
def view(planned) -> View:
    return planned.view()


def test_figures_are_the_plans(planned, view):
    told, price = view.data["pipeline"], planned.price
    actions = told["actions"]["all"]
    ends = [start + took for start, took in zip(actions["start"], actions["seconds"], strict=True)]
    assert max(ends) == pytest.approx(price.seconds) and told["seconds"] == price.seconds
    assert told["actions"]["rows"] == told["count"] + sum(map(bool, (*price.before, *price.updates)))
    for number, memory in enumerate(price.memory):
        assert max(size for _, size in told["held"][number]) == memory.nbytes
    crossing = told["transfers"]["all"]
    sent = sum(took for took, each in zip(crossing["seconds"], crossing["repeated"], strict=True) if each)
    line = price.durations
    assert sent == pytest.approx(sum(line.forward_transfers) + sum(line.backward_transfers))
    assert [one["graph"] for one in view.data["plans"]] == [plan.graph.name for plan in planned.plans]


def test_a_notebook_and_the_page_say_the_same(planned, view):
    assert "in 4 stages" in view.title and "interleaved_1f1b" in view.label
    assert view.html == planned.page() and view.label[:20] in view._repr_html_()


@pytest.mark.browser
def test_who_does_what_when_and_what_it_holds(browser: Browser, view: View, planned, tmp_path: Path):
    browser.open(view.save(tmp_path / "stages.html"))
    fullest = max(planned.price.memory, key=lambda one: one.nbytes)
    told = browser.text("#pipeline-lead")
    assert f"{fullest.nbytes / 2**20:.1f} MiB of its 80.0 GiB: it fits" in told
    browser.picture("pipeline")
    browser.click("#groups .link", "group 1")
    assert "Largest in it" in browser.text("#panel") and "dp=2 tp=2, ranks 4-7" in browser.text("#panel")
    browser.click("#panel .close")
    browser.run("document.getElementById('schedule').scrollIntoView()")
    browser.wait("return document.querySelector('#schedule-lanes canvas') !== null")
    browser.run("document.getElementById('schedule-lanes').focus()")
    browser.keys("\ue014", "\ue007")  # right, Enter
    assert "micro batch 0 in stage 0" in browser.text("#panel h2") and "takes" in browser.text("#panel")


@pytest.mark.browser
def test_how_a_stage_is_split(browser: Browser, view: View, planned, tmp_path: Path):
    browser.open(view.save(tmp_path / "stages.html"))
    assert browser.text("#summary h2") == "Stage 0"
    browser.click("#groups .link", "stage 3")
    browser.wait("return document.querySelector('#summary h2').textContent === 'Stage 3'")
    browser.click("#operators .line", "head")
    assert "strategy" in browser.text("#panel")
    browser.click("#which button", "stage 1")
    browser.wait("return document.querySelector('#summary h2').textContent === 'Stage 1'")
    browser.run("document.getElementById('transfers').scrollIntoView()")
    crossing = {route.value.name for route in planned.price.crossing}
    assert any(name in browser.text("#transfers") for name in crossing)


@pytest.mark.browser
def test_a_narrow_window_scrolls_down_only(browser: Browser, view: View, tmp_path: Path):
    path = view.save(tmp_path / "stages.html")
    try:
        browser.driver.set_window_size(520, 900)
        browser.open(path)
        browser.run("document.getElementById('schedule').scrollIntoView()")
        browser.wait("return document.querySelector('#schedule-memory canvas') !== null")
        assert browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    finally:
        browser.driver.set_window_size(1400, 1000)
