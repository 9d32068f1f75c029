"""Mixtures of experts on 8 ranks, each a process: a training step whose experts are split equals torch's."""

from __future__ import annotations

import pytest

from autoshard.mindspore import communication
from tests.search.test_expert_plans import MODELS, assert_step_equals_torch

communication.init()


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
def test_a_step_on_ranks_equals_torch(name: str) -> None:
    if communication.get_group_size() != 8:
        pytest.skip("the plans are for 8 ranks")
    assert_step_equals_torch(name)
