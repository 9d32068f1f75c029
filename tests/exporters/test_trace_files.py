"""Traces are read back: every slice, arrow and counter is what the plan's price and the program say."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict

import pytest

from autoshard.exporters.trace import MEASURED, Span, predicted_spans, save_trace, trace_data
from autoshard.util.errors import PlanError
from tests.view.models import trained


def read(data: dict) -> tuple[dict, dict, dict]:
    """The slices by lane, the arrows by number, the memory by process; each as the format demands it."""
    lanes, flows, memory = defaultdict(list), defaultdict(list), defaultdict(list)
    for one in json.loads(json.dumps(data))["traceEvents"]:
        if one["ph"] == "X":
            assert one["dur"] > 0 and one["ts"] >= 0
            lanes[one["pid"], one["tid"]].append(one)
        elif one["ph"] in "stf":
            flows[one["id"]].append(one)
        elif one["ph"] == "C":
            memory[one["pid"]].append(one)
        else:
            assert one["ph"] in "Mi"
    for slices in lanes.values():  # they follow each other: what overlaps in part is drawn wrongly
        slices.sort(key=lambda one: one["ts"])
        for one, other in zip(slices, slices[1:], strict=False):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-2
    for arrow in flows.values():
        assert [one["ph"] for one in arrow] == ["s", *["t"] * (len(arrow) - 2), "f"]
        for one in arrow:
            inside = [at for at in lanes[one["pid"], one["tid"]] if at["ts"] <= one["ts"] <= at["ts"] + at["dur"]]
            assert len(inside) == 1 and inside[0]["cat"] == "communication"
    return lanes, flows, memory


def test_a_predicted_step_is_that_of_the_price():
    planned = trained("megatron")
    lanes, flows, memory = read(trace_data(planned))
    assert {pid for pid, _ in lanes} == set(range(8))
    end = max(one["ts"] + one["dur"] for slices in lanes.values() for one in slices)
    assert end == pytest.approx(1e6 * planned.cost.seconds, rel=1e-3)
    talking = [one for (pid, tid), slices in lanes.items() if pid == 0 and tid for one in slices]
    assert sum(one["dur"] for one in talking) == pytest.approx(1e6 * planned.cost.communication_seconds, rel=1e-3)
    assert sum(one["args"]["bytes_sent"] for one in talking) == pytest.approx(planned.cost.bytes_per_device)
    assert max(sum(one["args"].values()) for one in memory[3]) == planned.cost.peak_memory_bytes
    # Eight ranks in groups of four over tp, of two over dp.
    sizes = {(arrow[0]["tid"], len(arrow)) for arrow in flows.values()}
    names = {
        one["tid"]: one["args"]["name"] for one in trace_data(planned)["traceEvents"] if one["name"] == "thread_name"
    }
    assert {(names[tid], size) for tid, size in sizes} >= {("over tp", 4), ("over dp", 2)}
    named = next(one for slices in lanes.values() for one in slices if one["name"] == "blocks.0.attention.query.matmul")
    assert named["args"]["op"] == "MatMul" and "models.py" in named["args"]["source"] and named["args"]["cause"]


def test_measured_times_stand_beside_predicted_ones():
    planned = trained("megatron")
    slower = [Span(one.moment, 2 * one.start, 2 * one.end) for one in predicted_spans(planned)]
    lanes, _, _ = read(trace_data(planned, ranks=[5, 2], measured={2: slower, 5: slower[:40]}))
    assert {pid for pid, _ in lanes} == {2, 5, 2 + MEASURED, 5 + MEASURED}
    own, real = (sorted(lanes[pid, 0], key=lambda one: one["ts"]) for pid in (2, 2 + MEASURED))
    assert [one["name"] for one in own] == [one["name"] for one in real]
    assert sum(one["dur"] for one in real) == pytest.approx(2 * sum(one["dur"] for one in own))


def test_files(tmp_path):
    data = trace_data(trained("megatron"), ranks=[0])
    assert json.loads(save_trace(data, tmp_path / "trace.json").read_text()) == json.loads(json.dumps(data))
    packed = save_trace(data, tmp_path / "trace.json.gz").read_bytes()
    assert json.loads(gzip.decompress(packed)) == json.loads(json.dumps(data))
    with pytest.raises(PlanError, match="ranks 0 to 7"):
        trace_data(trained("megatron"), ranks=[8])
    with pytest.raises(PlanError, match="nowhere"):
        save_trace(data, tmp_path / "nowhere" / "trace.json")
