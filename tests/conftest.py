"""What every test starts with: the default settings and random numbers, whatever the one before it set and drew; how
properties are tested, and how tests are spread over processes.

The same examples are tried in every run, in the same order, so that a change is judged by what it changes;
AUTOSHARD_RANDOM_TESTS=order runs the tests in another order each time, and =1 tries other examples, too.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.xla_flags import quick

RANDOM = os.environ.get("AUTOSHARD_RANDOM_TESTS", "")
if RANDOM not in ("", "0", "1", "order"):
    raise pytest.UsageError(f"AUTOSHARD_RANDOM_TESTS is {RANDOM!r}; it can be 1 (examples and order) or order")
hypothesis.settings.register_profile("autoshard", derandomize=RANDOM != "1", deadline=None)
hypothesis.settings.load_profile("autoshard")

# Each of the many small functions that are compared with JAX is compiled, and run once: what XLA's optimizations take
# is never got back. Read when JAX is first imported, by child processes too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["XLA_FLAGS"] = quick(os.environ.get("XLA_FLAGS", ""))

# What importing and collecting makes stays to the end: looking through it for garbage again and again finds nothing.
# Graphs are many thousands of objects that stay while a test needs them; they are looked through more seldom.
gc.disable()
gc.set_threshold(50_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """pytest-randomly shuffles only where it is asked to."""
    if RANDOM not in ("1", "order") and hasattr(config.option, "randomly_reorganize"):
        config.option.randomly_reorganize = config.option.randomly_reset_seed = False


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What a file's tests leave behind stays to the end, too: a collection looks through what one file has made."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files, in their order, are spread over the processes of `-n`, not tests: what the tests of a file share (models
    that are read, programs that are compiled, plans that are kept) is made in one process only."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def _reset_random_numbers() -> None:
    """The next initial values are those of a fresh process; what no test has imported is as it was."""
    initializer, torch = sys.modules.get("autoshard.trace.initializer"), sys.modules.get("torch")
    if initializer is not None:
        initializer.set_seed(None)
    if torch is not None:
        torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> None:
    """What several tests share holds the same numbers, whichever of them comes first."""
    if fixturedef.scope != "function":
        _reset_random_numbers()


@pytest.fixture(autouse=True)
def default_settings():
    """Settings and random numbers are those of a fresh process, whatever the test before it has drawn."""
    _reset_random_numbers()
    yield
    context = sys.modules.get("autoshard.mindspore.context")
    if context is not None:
        context.reset_context()
        context.reset_auto_parallel_context()
