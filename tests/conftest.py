"""What every test starts with: the default settings, whatever the one before it set, and how properties are tested.

The same examples are tried in every run, so that a change is judged by what it changes; AUTOSHARD_RANDOM_TESTS=1
tries others each time.
"""

from __future__ import annotations

import os
import sys

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "autoshard", derandomize=os.environ.get("AUTOSHARD_RANDOM_TESTS") != "1", deadline=None
)
hypothesis.settings.load_profile("autoshard")


@pytest.fixture(autouse=True)
def default_settings():
    """Settings are those of a fresh process; where no test has imported them there is nothing to reset."""
    yield
    context = sys.modules.get("autoshard.context")
    if context is not None:
        context.reset_context()
        context.reset_auto_parallel_context()
