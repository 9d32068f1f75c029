"""Our propagation against Shardy's own passes, whole module texts: one module, or many random ones.

`python -m tests.propagate.differential 500 [seed]` draws so many modules of all features and counts what comes of them.
"""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from autoshard.util.errors import AutoshardError
from tests.propagate.faults import SINGLE, fault_of
from tests.propagate.generate.module import ALONE, FEATURES, random_module
from tests.propagate.shardy import ShardyFailed, ours_each, pipeline, shardy_each

# Meshes written out in place crash all passes but the pipeline, which names them first.
GENERAL = tuple(name for name in FEATURES if name != "inlined")
# Features that come together, and those that do not go with them: where not all edges of a module can be drawn, Shardy
# reads what is not there.
_TOGETHER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("inlined",): (),
    ("named",): (),
    ("function_edges", "calls"): (),
    ("edges", "while", "barriers"): ("manual", "case"),
    ("dynamic", "calls"): (),
    ("manual", "groups"): (),
}


def options(number: int, features: frozenset[str]) -> list[dict[str, Any]]:
    """What to run on a module: all passes that take it, and for some modules one more with other options."""
    if "inlined" in features:
        return [{"which": "full"}]
    edges = "edges" not in features
    chosen: list[dict[str, Any]] = [{"which": which, "edges": edges} for which in SINGLE]
    if not features & set(ALONE):
        chosen.append({"which": "full"})
    if number % 4 < 2:
        more = "keep_rules" if number % 4 else "conservative"
        chosen.append({"which": SINGLE[number % 3], "edges": edges, more: True})
    return chosen


def compare(text: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    """Assert that both give the same module text in all runs, or Shardy fails as it is known to; returns how."""
    wanted = shardy_each(text, [pipeline(**run) for run in runs])
    faults = []
    for run, want, got in zip(runs, wanted, ours_each(text, runs), strict=True):
        if isinstance(want, ShardyFailed):
            faults.append(fault_of(want, text, run["which"], got))
            continue
        if isinstance(got, AutoshardError):
            raise AssertionError(f"{run}: Shardy takes it, ours does not: {got}\n{text}") from got
        assert got.strip() == want.strip(), f"{run}\n{_difference(want, got)}\n{text}"
    return faults


def _difference(want: str, got: str) -> str:
    lines = difflib.unified_diff(want.splitlines(), got.splitlines(), "Shardy's", "ours", lineterm="", n=1)
    return "\n".join(lines)


def features_of(random: Random) -> frozenset[str]:
    """Random features that go together."""
    always: tuple[str, ...] = random.choice([(), *_TOGETHER]) if random.random() < 0.7 else ()
    others = [name for name in GENERAL if name not in _TOGETHER.get(always, ())]
    return frozenset(always) | frozenset(random.sample(others, random.randint(0, 8)))


def main(count: int, first: int = 0) -> None:
    """Compare on `count` random modules, and print how many runs were equal, and the faults of Shardy's met.

    Raises:
        AssertionError: texts differ, with the module and its seed.
    """
    runs, faults, drawn = 0, Counter[str](), Counter[str]()
    for seed in range(first, first + count):
        random = Random(seed)
        features = features_of(random)
        chosen = options(seed, features)
        try:
            faults.update(compare(random_module(random, features), chosen))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        runs += len(chosen)
        drawn.update(features)
    print(f"{count} modules in {runs} runs: {runs - faults.total()} texts equal; Shardy fails: {dict(faults)}")
    print(f"modules with a feature: {dict(drawn)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
