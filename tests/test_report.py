"""The rows of a plan add up to its cost, and report and JSON show all of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import autoshard.ops as ops
from autoshard.api import plan
from autoshard.exporters.plan_json import to_json
from autoshard.report.plan import report
from autoshard.report.summary import summarize
from autoshard.report.totals import picture
from autoshard.trace.cell import Cell
from costmodel import format_count

A, B, C = np.ones((48, 24)), np.ones((24, 12)), np.ones((12, 96))


class Chain(Cell):
    """Two products, both configured: the second wants the first's result in another layout."""

    def __init__(self, first, second) -> None:
        super().__init__()
        self.one, self.two = ops.MatMul(), ops.MatMul()
        self.one.shard(*first)
        self.two.shard(*second)

    def construct(self, a, b, c):
        return self.two(self.one(a, b), c)


def planned(first=(((1, 1), (1, 4)),), second=(((4, 1), (1, 2)),), hardware="cpu"):
    return plan(Chain(first, second), (A, B, C), devices=8, hardware=hardware)


CASES = {
    "conflict": {},
    "terms": {"first": (((2, 4), (4, 1)),), "second": (((8, 1), (1, 1)),)},
    "out_strategy": {"first": (((2, 4), (4, 1)), ((8, 1),)), "second": (((2, 1), (1, 4)),)},
    "two nodes": {"hardware": "ascend910"},
}


@pytest.mark.parametrize("case", CASES)
def test_rows_add_up_to_the_cost(case):
    made = planned(**CASES[case])
    summary, cost = summarize(made), made.cost
    assert sum(row.seconds for row in summary.operators) == pytest.approx(cost.compute_seconds)
    assert sum(move.seconds for move in summary.moves) == pytest.approx(cost.communication_seconds)
    assert sum(move.nbytes for move in summary.moves) == pytest.approx(cost.bytes_per_device)
    assert cost.communication_seconds > 0


@pytest.mark.parametrize("case", CASES)
def test_moves_lead_from_layout_to_layout(case):
    made = planned(**CASES[case])
    moves = summarize(made).moves
    assert [move.number for move in moves] == list(range(1, len(moves) + 1))
    assert sum(len(move.collectives) for move in moves) == len(made.program.instructions) - len(made.graph.nodes)
    for move in moves:
        layouts = [move.before, *(one.result.layout for one in move.collectives)]
        assert all(one.step.before is layout for one, layout in zip(move.collectives, layouts, strict=False))
        assert layouts[-1] is move.after
        assert move.users


def test_moves_are_listed_with_the_operator_they_serve():
    rows = {row.node.label: row for row in summarize(planned()).operators}
    assert [move.value.name for move in rows["one"].moves] == ["b"]
    assert [move.value.name for move in rows["two"].moves] == ["one", "c"]


def test_conflict_in_report_and_json():
    made = planned()
    text, found = report(made, width=200), to_json(made)
    assert "conflicts between configured operators" in text
    (conflict,) = found["conflicts"]
    assert (conflict["producer"], conflict["consumer"]) == ("one", "two")
    assert conflict["bytes"] > 0 and conflict["seconds"] > 0


def test_no_table_without_rows():
    made = plan(lambda x: ops.relu(x), (A,), devices=1)
    text = report(made)
    assert "redistributions" not in text and "conflicts" not in text
    assert "a step takes" in text


def test_report_fits_its_width():
    made = planned()
    natural = max(map(len, report(made).splitlines()))
    assert natural < 200
    for width in (80, 120, 200):
        lines = report(made, width=width).splitlines()
        tables = [line for line in lines if "─" in line]
        assert tables and max(map(len, tables)) <= width
        assert all(line == line.rstrip() for line in lines)


def test_report_is_plain_text():
    assert "\x1b" not in report(planned(), alternatives=True)


def test_report_shows_layouts_with_brackets():
    """Layouts of one axis look like markup to the table's library."""
    made = plan(lambda x: ops.relu(x), (np.ones(24),), mesh="d=4")
    assert "[d]" in report(made)


def test_report_is_the_same_every_time():
    assert report(planned(), alternatives=True) == report(planned(), alternatives=True)


@pytest.mark.parametrize("case", CASES)
def test_json_is_plain_and_complete(case):
    made = planned(**CASES[case])
    found = json.loads(json.dumps(to_json(made, alternatives=True)))
    assert [one["name"] for one in found["operators"]] == [node.label for node in made.graph.nodes]
    for one in found["operators"]:
        assert all(isinstance(parts, list) for parts in one["in_strategy"])
        assert len(one["in_strategy"]) == len(one["operands"])
    assert sum(one["bytes"] for one in found["redistributions"]) == pytest.approx(found["cost"]["bytes_per_device"])
    for one in found["redistributions"]:
        assert one["bytes"] == pytest.approx(sum(step["bytes"] for step in one["steps"]))
    assert [one["name"] for one in found["inputs"]] == [value.name for value in made.graph.inputs]


def test_out_strategy_is_what_the_operator_leaves():
    found = to_json(planned(**CASES["out_strategy"]))
    first = found["operators"][0]
    assert first["in_strategy"] == [[2, 4], [4, 1]]
    assert first["out_strategy"] == [[8, 1]]
    left, taken = (move for move in found["redistributions"] if move["value"] == "one")
    assert ([step["kind"] for step in left["steps"]], left["users"]) == (["reduce_scatter"], ["one"])
    assert ([step["kind"] for step in taken["steps"]], taken["users"]) == (["all_gather"], ["two"])


def test_report_ends_with_axes_memory_and_what_was_not_chosen():
    made = planned()
    text = report(made, width=200)
    (axis,) = made.cost.axes
    assert f"  over {axis.axes}: " in text and f" in {format_count(axis.collectives, 'collective')}," in text
    memory = made.cost.memory
    assert memory is not None and f"most at {memory.peak_at}: " in text and "largest then: " in text
    assert picture(memory.timeline) in text and "█" in picture(memory.timeline)
    with_others = [row for row in summarize(made).operators if row.decision.alternatives]
    assert ("runners-up" in text) == bool(with_others)
    found = to_json(made)["cost"]
    assert max(found["memory"]["timeline"]) == found["peak_memory_bytes"]
    assert sum(one["seconds"] for one in found["axes"]) == pytest.approx(found["communication_seconds"])


def test_the_picture_shows_every_peak():
    bytes_at = np.full(600, 10)
    bytes_at[333] = 80
    drawn = picture(bytes_at, columns=30)
    assert len(drawn) == 30 and drawn.count("█") == 1 and drawn.index("█") == 16
    assert picture(np.zeros(4, int)) == "" and picture(np.array([5, 0])) == "█ "


def test_a_bound_is_told():
    made = planned()
    proven = replace(made.plan, search_stats={"bound": 1e-5, "proven": 1})
    assert "proven" in report(replace(made, plan=proven), width=200)
    opened = replace(made.plan, search_stats={"bound": 1e-5, "gap": 0.031, "proven": 0})
    assert "a gap of 3.10% at most" in report(replace(made, plan=opened), width=200)
    undercut = replace(made.plan, search_stats={"seconds": 1e-5, "bound": 1e-5, "gap": 0.0, "proven": 0})
    told = report(replace(made, plan=undercut), width=200)
    assert "nothing is proven" in told and "no plan takes less" not in told
