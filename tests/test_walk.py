"""A mesh, a parameter, a strategy and a plan on their way through `plan` and `run`, as docs/ tells it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import autoshard
from autoshard import nn
from autoshard.core.strategy import Strategy
from autoshard.layout.mesh import Mesh
from autoshard.plan.plan import Plan
from autoshard.trace.parameter import Parameter
from tests.test_layers import ROOT, ROW, part_of

PAGE = ROOT / "docs/explanation/walk.md"
FOLLOWED = {Mesh: "A mesh", Parameter: "A parameter", Strategy: "A strategy", Plan: "A plan"}
# Where a base class calls what a class of a higher room overrides, and where an operator lets its operands record it.
DISPATCHED = {("autoshard.ops", "autoshard.mindspore.ops"), ("autoshard.ops", "autoshard.trace")}
MOST_ROOMS, MOST_VISITS = 8, 2


@cache
def room(file: str) -> str | None:
    path = Path(file)
    # What remembers answers stands between a caller and whom it calls.
    if not path.is_relative_to(ROOT / "autoshard") or path == ROOT / "autoshard/util/memo.py":
        return None
    return part_of(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


def rooms_behind(frame: FrameType | None) -> Iterator[str]:
    """The rooms of the frames from this one outwards, each stay in a room once."""
    last = None
    while frame is not None:
        here = room(frame.f_code.co_filename)
        if here is not None and here != last:
            yield here
            last = here
        frame = frame.f_back


@pytest.fixture(scope="module")
def calls() -> dict[type, set[tuple[str, ...]]]:
    """For each type the chains of rooms, innermost first, in which a value of it was an argument."""
    found: dict[type, set[tuple[str, ...]]] = {kind: set() for kind in FOLLOWED}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or room(frame.f_code.co_filename) is None:
            return
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        kinds = {type(frame.f_locals.get(name)) for name in names if name != "self"}
        for kind in kinds & found.keys():
            found[kind].add(tuple(rooms_behind(frame)))

    net = nn.SequentialCell(nn.Dense(12, 64), nn.ReLU(), nn.Dense(64, 20))
    net[0].matmul.shard(((2, 1), (4, 1)))
    x = np.ones((16, 12), np.float32)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        autoshard.plan(net, (x,), mesh="dp=2 tp=4").run(x)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("kind", FOLLOWED)
def test_a_value_visits_the_rooms_of_the_page(kind, calls):
    section = PAGE.read_text(encoding="utf-8").partition(f"## {FOLLOWED[kind]}\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(autoshard[\w.]*)`", section, re.MULTILINE))
    visited = {chain[0] for chain in calls[kind]}
    assert visited and visited <= named
    assert len(named) <= MOST_ROOMS


@pytest.mark.parametrize("kind", FOLLOWED)
def test_no_chain_of_calls_enters_a_room_often(kind, calls):
    assert [chain for chain in calls[kind] if chain.count(chain[0]) > MOST_VISITS] == []


@pytest.mark.parametrize("kind", FOLLOWED)
def test_no_call_hands_a_value_up(kind, calls):
    steps = {(chain[1], chain[0]) for chain in calls[kind] if len(chain) > 1}
    assert {(caller, callee) for caller, callee in steps if ROW[callee] > ROW[caller]} <= DISPATCHED
