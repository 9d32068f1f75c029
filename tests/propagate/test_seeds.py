"""The worked examples of Shardy's documents on modules: what comes out is as written down, and is what Shardy gives."""

from __future__ import annotations

import pytest
from seeds import NAMES, check, module, ours, results, shardys

pytestmark = pytest.mark.jax
ALL = [(name, title) for name in NAMES for title in results(name)]
LEVELS = ("basic", "aggressive", "op-priority", "user-priority")
CASES = pytest.mark.parametrize(("name", "title"), ALL)


@CASES
def test_what_comes_out_is_as_written_down(name: str, title: str) -> None:
    check(name, title)


@CASES
def test_shardy_gives_the_same(name: str, title: str) -> None:
    assert ours(module(name), title) == shardys(module(name), title)


@pytest.mark.parametrize(("name", "title"), [case for case in ALL if case[1] in LEVELS])
def test_what_comes_out_is_settled(name: str, title: str) -> None:
    """A module that propagation is done with is left as it is by the same pass."""
    done = ours(module(name), title)
    assert ours(done, title) == done


def test_the_last_round_is_all_of_user_priority() -> None:
    assert ours(module("priorities"), "after p2") == ours(module("priorities"), "user-priority")
