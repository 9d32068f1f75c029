"""benchmarks/cost_truth.py, in small: what it judges, and one run that measures."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.api import plan
from benchmarks import cost_truth
from benchmarks.cost_truth import Pair
from costmodel import preset, save


def pair(program: str, predicted: float, measured: float, of: int = 100, took: int = 100) -> Pair:
    return Pair(program, "a plan", 2, predicted, measured, of, took)


def test_judge_finds_order_and_errors():
    pairs = [pair("a", 1e-3, 2e-3), pair("a", 2e-3, 2.5e-3), pair("a", 6e-3, 5e-3, 120, 100)]
    pairs += [pair("b", 1e-3, 4e-3), pair("b", 2e-3, 2e-3), pair("b", 4e-3, 1e-3)]
    first, second = cost_truth.judge(pairs)
    assert (first.program, first.pairs, first.correlation) == ("a", 3, pytest.approx(1.0))
    assert first.median_error == pytest.approx(0.2) and first.worst_error == pytest.approx(0.5)
    assert first.median_memory_error == 0 and pairs[2].memory_error == pytest.approx(0.2)
    assert second.correlation == pytest.approx(-1.0) and second.worst_error == pytest.approx(3.0)


def test_tables_tell_what_was_measured_in_peace(capsys):
    pairs = [pair("a", 1e-3, 2e-3), replace(pair("a", 2e-3, 8e-3), slowed=4.0)]
    cost_truth.show(pairs, cost_truth.judge(pairs))
    printed = capsys.readouterr().out
    assert "2 pairs, median error 62%, of memory 0%" in printed
    assert "1 pairs while the machine was as fast as when it was calibrated, median error 50%" in printed


def test_quickest_takes_each_run_as_often(monkeypatch):
    now, calls = [0.0], {"slow": 0, "fast": 0}
    monkeypatch.setattr(cost_truth.time, "perf_counter", lambda: now[0])

    def run(name: str, took: float):
        def action() -> None:
            calls[name] += 1
            now[0] += took + (1.0 if calls[name] == 2 else 0.0)

        return action

    found = cost_truth.quickest({"slow": run("slow", 0.05), "fast": run("fast", 0.0039)}, lambda s: s, rounds=3)
    assert found == {"slow": pytest.approx(0.05), "fast": pytest.approx(0.0039)}
    assert calls == {"slow": 1 + 3, "fast": 1 + 3 * 5}


def test_peak_of_a_step_is_near_to_what_its_plan_says():
    make = cost_truth.programs(quick=False)["wide layers"]
    planned = plan(make(None), devices=1)
    measured = cost_truth.peak_of(planned)
    assert measured <= planned.cost.peak_memory_bytes <= 1.1 * measured


def test_plans_of_a_program_differ():
    make = cost_truth.programs(quick=True)["layers"]
    found = dict(cost_truth.plans(make, 4, "cpu"))
    assert len(found) == 7
    assert len({one.cost.bytes_per_device for one in found.values()}) >= 4


def test_without_matplotlib_it_says_so(monkeypatch, tmp_path):
    known = builtins.__import__

    def missing(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert "matplotlib is not installed" in cost_truth.draw([pair("a", 1e-3, 2e-3)], tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


def test_with_matplotlib_it_draws(tmp_path):
    path = tmp_path / "plot.png"
    assert str(path) in cost_truth.draw([pair("a", 1e-3, 2e-3), pair("b", 3e-3, 2e-3)], path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [["--ranks", "1"], ["--ranks", "2,many"], ["--rounds", "0"]])
def test_options_are_checked(arguments, capsys):
    with pytest.raises(SystemExit):
        cost_truth.parse(arguments)
    assert "are numbers from 2 to 64" in capsys.readouterr().err


@pytest.mark.mpi
def test_it_measures(tmp_path):
    path = save(preset("cpu"), tmp_path / "cpu.json")
    words = ["--quick", "--ranks", "2", "--rounds", "1", "--hardware", str(path), "--json"]
    command = [sys.executable, str(Path(cost_truth.__file__)), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert [one["pairs"] for one in figures["programs"]] == [4, 4]
    for one in map(lambda fields: Pair(**fields), figures["pairs"]):
        assert one.predicted > 0 and one.measured > 0
        # Memory can be told beforehand on any machine.
        assert one.measured_bytes <= one.predicted_bytes and one.memory_error < 0.1
