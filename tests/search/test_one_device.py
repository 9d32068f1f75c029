"""On one device all plans are the same: the default mode makes one."""

from __future__ import annotations

import pytest

import autoshard as ash
from autoshard import nn
from autoshard.core.tensortype import TensorType
from autoshard.search.modes import combination


class AnotherMode(Exception):
    """Another mode was asked for a plan."""


def test_no_other_mode_is_asked_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AnotherMode

    model, inputs = nn.Dense(8, 6), (TensorType.of((4, 8), "f32"),)
    whole = ash.plan(model, inputs, devices=1)
    monkeypatch.setattr(combination, "find_mode", refuse)
    again = ash.plan(model, inputs, devices=1)
    assert [one.work_split for one in again.strategies] == [1] * len(whole.strategies)
    assert again.cost == whole.cost
    with pytest.raises(AnotherMode):
        ash.plan(model, inputs, devices=2)
