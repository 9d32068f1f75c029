"""Mixtures of experts on 8 ranks, each a process: a training step whose experts are split equals torch's.

The first rank alone imports torch and plans.
"""

from __future__ import annotations

import pickle

import pytest

from autoshard.mindspore import communication
from tests.mpi.first_rank import by_first
from tests.search.test_expert_plans import MODELS, assert_step_equals_torch, planned_step

communication.init()


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
def test_a_step_on_ranks_equals_torch(name: str) -> None:
    if communication.get_group_size() != 8:
        pytest.skip("the plans are for 8 ranks")
    assert_step_equals_torch(*pickle.loads(by_first(lambda: written(name))))


def written(name: str) -> bytes:
    """A planned step and what goes with it, the parameters' values among it."""
    step = planned_step(name)
    for one in step[0].traced.parameters.values():
        _ = one.data
    return pickle.dumps(step)
