"""What every test starts with: the default settings, whatever the one before it set."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def default_settings():
    """Settings are those of a fresh process; where no test has imported them there is nothing to reset."""
    yield
    context = sys.modules.get("autoshard.context")
    if context is not None:
        context.reset_context()
        context.reset_auto_parallel_context()
