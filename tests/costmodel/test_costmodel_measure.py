"""The order of rounds, and the arithmetic on their times; clocks are made up."""

from __future__ import annotations

import pytest

from costmodel import measure
from costmodel.measure import seconds_each


class Clock:
    """A clock that an action moves."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)


def test_the_least_of_the_rounds_counts(monkeypatch):
    clock, calls = Clock(monkeypatch), []

    def action() -> None:
        calls.append(None)
        # Every 40 calls another process takes a turn.
        clock.now += 1e-3 + (0.5 if len(calls) % 40 == 0 else 0.0)

    assert seconds_each(action, budget=0.06, rounds=6) == pytest.approx(1e-3)
    assert 60 <= len(calls) <= 80


def test_the_slowest_rank_counts_and_all_call_as_often(monkeypatch):
    clock, said = Clock(monkeypatch), []

    def agree(seconds: float) -> float:
        said.append(seconds)
        return 3 * seconds  # another rank takes three times as long

    def action() -> None:
        clock.now += 2e-3

    assert seconds_each(action, agree, budget=0.12, rounds=2) == pytest.approx(6e-3)
    rounds = [one for one in said if one]
    assert rounds[-2:] == pytest.approx([10 * 2e-3] * 2)
    # A round begins and ends when all ranks are there.
    assert said[-3:-1] == [0.0, 0.0]


@pytest.mark.parametrize("options", [{"budget": 0.0}, {"budget": float("nan")}, {"rounds": 0}])
def test_measure_refuses(options):
    with pytest.raises(ValueError, match="numbers above 0"):
        seconds_each(lambda: None, **options)
