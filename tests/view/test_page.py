"""The page itself: names that bite, search, keyboard, both colour schemes, print, size, and the largest plans."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from autoshard.exporters.plan_json import to_json
from autoshard.util.errors import PlanError
from autoshard.view.page import page, view_of
from tests.view.conftest import Browser
from tests.view.models import BITING, biting, trained

STATIC = Path(page.__code__.co_filename).with_name("static")


def test_one_file_that_names_nothing_outside():
    text = view_of([to_json(trained("megatron"), everything=True)]).html
    own = "".join(path.read_text() for path in STATIC.glob("*.*"))
    assert "default-src 'none'" in text and not re.search(r"(src|href)=[\"']?(https?:|//)", text)
    assert "innerHTML" not in own and "eval(" not in own
    assert not re.search("https?:", own.replace("http://www.w3.org/2000/svg", ""))
    assert len(text) < 5_000_000


def test_libraries_are_as_published():
    import hashlib

    for line in (STATIC / "vendor" / "VERSIONS").read_text().splitlines():
        name, version, file, digest = line.split()
        assert hashlib.sha256((STATIC / "vendor" / file).read_bytes()).hexdigest() == digest, (name, version)
        licence = (STATIC / "vendor" / f"{file.split('.')[0]}.LICENSE").read_text()
        assert "Permission is hereby granted, free of charge" in licence


def test_figures_are_the_plans():
    planned = trained("megatron")
    data = to_json(planned, everything=True)
    tasks, cost = data["timeline"], data["cost"]
    assert max(one["start"] + one["seconds"] for one in tasks) == pytest.approx(planned.cost.seconds)
    talking = [one for one in tasks if one["lane"] != "compute"]
    assert sum(one["seconds"] for one in talking) == pytest.approx(cost["communication_seconds"])
    exposed = cost["communication_seconds"] - cost["hidden_seconds"]
    assert sum(one["exposed"] for one in talking) == pytest.approx(exposed)
    whole = data["modules"]
    assert whole["seconds"] == pytest.approx(cost["compute_seconds"])
    assert _operators(whole) == len(data["operators"])
    moment = cost["memory"]["peak_moment"]
    lying = [one for one in cost["memory"]["everything"] if one["first"] <= moment <= one["last"]]
    assert sum(one["bytes"] for one in lying) == cost["peak_memory_bytes"]


def _operators(module: dict) -> int:
    """How many operators a module of the JSON stands for, its copies not counted."""
    inside = sum(len(one["copies"]) * _operators(one) for one in module["modules"])
    return len(module["operators"]) + inside


def test_equal_layers_are_one_module():
    names = {tuple(one["copies"]) for one in _named(to_json(trained("megatron"), everything=True)["modules"], "blocks")}
    assert ("0", "1", "2", "3") in names


def _named(module: dict, name: str) -> list[dict]:
    """The modules in every module of that name."""
    own = module["modules"] if module["name"] == name else []
    return [*own, *(found for one in module["modules"] for found in _named(one, name))]


def test_placements_are_those_of_the_layouts():
    planned = trained("megatron")
    placed = to_json(planned, everything=True)["placements"]
    for layout in planned.plan.layouts.values():
        one = placed[str(layout)]
        for rank in range(8):
            block = layout.block(rank, one["parts"])  # a tensor with as many elements as parts
            assert [held[rank] for held in one["held"]] == [where.start for where in block]


def test_a_plan_without_figures_is_refused(tmp_path):
    from autoshard.exporters.plan_file import plan_data

    with pytest.raises(PlanError, match="no timeline.*--json --all"):
        view_of([plan_data(trained("megatron").plan)])
    with pytest.raises(PlanError, match="3 are given"):
        view_of([{}] * 3)
    with pytest.raises(PlanError, match="nowhere"):
        biting().view().save(tmp_path / "nowhere" / "plan.html")


@pytest.mark.parametrize(
    "edit, why",
    [
        (lambda data: data["operators"].pop(), "has figures of operator [0-9]+, counted from 0, and [0-9]+ of these"),
        (lambda data: data["redistributions"].clear(), "figures of redistribution [0-9]+, counted from 0, and 0 of"),
        (lambda data: data["cost"]["memory"].update(peak_moment=10**6), "moment of memory 1000000"),
    ],
)
def test_a_plan_that_was_cut_is_refused(edit, why):
    data = copy.deepcopy(to_json(trained("megatron"), everything=True))
    edit(data)
    with pytest.raises(PlanError, match=why):
        view_of([data])


def test_notebooks_show_it_in_a_frame():
    shown = biting().view()._repr_html_()
    assert 'sandbox="allow-scripts"' in shown and "<script" not in shown and "a step takes" in shown


# -- in a browser


def _alone(folder: Path) -> Path:
    """The page of the language model, without what can be taken away."""
    path = folder / "plan.html"
    return path if path.exists() else view_of([to_json(trained("megatron"), everything=True)]).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.mark.browser
def test_names_that_bite(browser: Browser, folder: Path):
    browser.open(biting().view(biting()).save(folder / "biting.html"))
    for name in BITING:
        assert name in browser.text("#inputs .grid")
        browser.run("document.getElementById('find').value = ''")
        browser.click("#find")
        browser.keys(name[:18])
        browser.click("#found button", name[:18])
        assert browser.text("#panel h2").startswith(name[:18])
    browser.click("nav a", "Graph")
    browser.wait("return Boolean(pageState.graph)")
    assert browser.run("return window.bitten") is None
    assert BITING[0] in browser.driver.title


@pytest.mark.browser
def test_alternatives_have_prices(browser: Browser, folder: Path):
    browser.open(biting().view().save(folder / "one.html"))
    data = to_json(biting(), everything=True)
    told = data["operators"][0]
    browser.click("#operators .line", told["name"])
    rows = browser.run("return document.querySelectorAll('#panel tbody tr').length")
    assert rows >= len(data["options"][told["around"]]) > 1 and "chosen" in browser.text("#panel")


@pytest.mark.browser
def test_search_keyboard_addresses_and_colours(browser: Browser, folder: Path):
    path = _alone(folder)
    browser.open(path)
    browser.run("document.body.focus()")
    browser.keys("/")
    browser.keys("query matmul", "\ue007")
    assert "query.matmul" in browser.text("#panel h2")
    assert browser.run("return location.hash").startswith("#op=")
    browser.keys("\ue00c")
    assert not browser.driver.find_element("id", "panel").is_displayed()
    browser.click("#operators .head button", "time")
    browser.click("#operators input")
    browser.keys("/adam$|Adam/")
    assert "Adam" in browser.text("#operators .line") and " of " in browser.text("#operators .tools")
    browser.run("document.querySelector('#operators .grid').focus()")
    browser.keys("\ue015", "\ue007")
    assert browser.driver.find_element("id", "panel").is_displayed()
    browser.driver.back()
    for on in (True, False):
        browser.dark(on)
        browser.run("document.getElementById('step').scrollIntoView({behavior: 'instant'})")
        browser.wait("return Boolean(document.querySelector('#memory-plot canvas'))")
        browser.picture(f"step_{'dark' if on else 'light'}")
    browser.open(path, "#value=embed.gather")
    assert "Who holds what" in browser.text("#panel")
    browser.open(path, "#op=nothing%ZZ")


@pytest.mark.browser
def test_a_narrow_window_scrolls_down_only(browser: Browser, folder: Path):
    wide = browser.driver.get_window_size()
    browser.driver.set_window_size(360, 900)
    try:
        browser.open(_alone(folder))
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        widths = browser.run(
            "return [...document.querySelectorAll('table.plain td:not(.short, .right)')].map((one) => one.offsetWidth)"
        )
        assert widths and min(widths) > 60, "names are read by words, not by letters"
    finally:
        browser.driver.set_window_size(wide["width"], wide["height"])


@pytest.mark.browser
def test_the_graph_unfolds_and_tells_its_edges(browser: Browser, folder: Path):
    browser.open(_alone(folder))
    browser.click("nav a", "Graph")
    browser.wait("return Boolean(pageState.graph)")
    folded = browser.run("return pageState.graph.nodes().length")
    assert "{0..3}" in browser.run("return pageState.graph.nodes().map((one) => one.data('label')).join()")
    moved = "return pageState.graph.edges('.moved').map((one) => one.data('label'))"
    assert any("MiB" in one or "KiB" in one for one in browser.run(moved))
    browser.run("unfold('blocks.1')")
    assert browser.run("return pageState.graph.nodes().length") > folded
    browser.run("pageState.graph.edges('.moved')[0].emit('tap')")
    assert "a device sends" in browser.text("#panel")
    browser.run("document.getElementById('graph-section').scrollIntoView({behavior: 'instant'})")
    browser.picture("graph")


@pytest.mark.browser
def test_twenty_thousand_operators(browser: Browser, folder: Path):
    data = enlarged(to_json(trained("megatron"), everything=True), 20_000)
    assert len(data["operators"]) >= 20_000
    path = view_of([data]).save(folder / "large.html")
    assert path.stat().st_size < 5_000_000
    browser.open(path)
    assert f"{len(data['operators'])} rows" in browser.text("#operators")
    # No more elements than for a small plan, wherever one scrolls.
    browser.run("document.querySelector('#operators .grid').scrollTop = 26 * 10000")
    browser.wait("return document.querySelector('#operators .line').textContent.startsWith('part')")
    assert browser.run("return document.querySelectorAll('*').length") < 5000
    browser.click("nav a", "Graph")
    browser.wait("return Boolean(pageState.graph)")
    browser.click("#find")
    browser.keys("part7 query.matmul", "\ue007")
    assert browser.text("#panel h2").startswith("part7.")
    browser.picture("large")


def enlarged(data: dict, least: int) -> dict:
    """A plan of as many operators: the same model several times one after the other, each under a name of its own."""
    times = -(-least // len(data["operators"]))
    found = copy.deepcopy(data)
    for name in ("operators", "redistributions", "inputs", "timeline"):
        found[name] = []
    found["layouts"], found["types"], found["modules"]["modules"] = {}, {}, []
    found["cost"]["memory"]["everything"], found["cost"]["memory"]["timeline"] = [], []
    moments, moves = len(data["cost"]["memory"]["timeline"]), len(data["redistributions"])
    for part in range(times):
        own = _renamed(data, f"part{part}.", {one["name"] for one in data["operators"]} | set(data["layouts"]))
        for name in ("redistributions", "inputs", "operators"):
            found[name] += own[name]
        found["layouts"].update(own["layouts"])
        shift = part * len(data["operators"])
        found["modules"]["modules"].append(
            {**_shifted(data["modules"], shift), "name": f"part{part}", "copies": [f"part{part}"]}
        )
        for task in data["timeline"]:
            numbers = [one + part * moves for one in task.get("redistributions", ())]
            operator = {"operator": task["operator"] + shift} if "operator" in task else {}
            start, moment = task["start"] + part * data["cost"]["seconds"], task["moment"] + part * moments
            found["timeline"].append({**task, "start": start, "moment": moment, "redistributions": numbers, **operator})
        for one in data["cost"]["memory"]["everything"]:
            found["cost"]["memory"]["everything"].append(
                {**one, "first": one["first"] + part * moments, "last": one["last"] + part * moments}
            )
        found["cost"]["memory"]["timeline"] += data["cost"]["memory"]["timeline"]
    for name in ("seconds", "compute_seconds", "communication_seconds", "hidden_seconds"):
        found["cost"][name] *= times
    return found


def _renamed(data: dict, prefix: str, names: set[str]) -> dict:
    """The lists of a plan with other names of operators and values."""

    def other(one):
        if isinstance(one, dict):
            return {other(key) if key in names else key: other(value) for key, value in one.items()}
        if isinstance(one, list | tuple):
            return [other(each) for each in one]
        return prefix + one if isinstance(one, str) and one in names else one

    return {name: other(data[name]) for name in ("operators", "redistributions", "inputs", "layouts")}


def _shifted(module: dict, by: int) -> dict:
    inside = [_shifted(one, by) for one in module["modules"]]
    return {**module, "operators": [one + by for one in module["operators"]], "modules": inside}


def test_the_schema_covers_all_of_it():
    import jsonschema

    from autoshard.exporters.export import plan_schema

    jsonschema.validate(json.loads(json.dumps(to_json(biting(), everything=True))), plan_schema())
