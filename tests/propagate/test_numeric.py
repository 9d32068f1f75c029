"""Modules run split as their shardings ask, on 8 virtual ranks, and give what they give whole.

They are random modules with all features that a plan takes. One counts only if at least one of its operators runs
split.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from autoshard.api import plan
from autoshard.frontends import from_stablehlo
from autoshard.ir.graph import Graph
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ParseError, PlanError, ShapeError
from tests.propagate.generate import module, scope
from tests.propagate.numeric import assert_equal, assert_runs, feed, split

pytestmark = pytest.mark.jax

MESHES = ({"x": 2, "y": 4}, {"a": 4, "b": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 8}, {"y": 4, "u": 1, "x": 2})
# Sizes that divide are likelier than those that do not.
SIZES = (2, 4, 4, 8, 8, 16, 1, 3, 6, 12)
FEATURES = (
    "sub_axes", "priorities", "replicated", "unreduced", "constraints", "groups", "barriers", "reshards", "named",
    "calls", "rules",
)  # fmt: skip
PER_BATCH = 10
# Of what is drawn about half counts: the rest has nothing to split, or operations that are not planned.
MOST_DRAWN = 120


def unsplit(graph: Graph, feeds: list[np.ndarray]) -> list[np.ndarray] | None:
    """What the graph gives whole; None if it holds what cannot be run by one process."""
    try:
        with np.errstate(all="ignore"):
            return evaluate(graph, feeds)
    except ShapeError as error:
        assert "custom call" in str(error) or "manual computation" in str(error), error
        return None


def check_random(seed: int, search: str | None) -> str:
    """Draw, run and compare one module; what became of it."""
    random = Random(seed)
    features = frozenset(name for name in FEATURES if random.random() < 0.5)
    try:
        imported = from_stablehlo(module.random_module(random, features))
    except ParseError:
        return "no module"  # a shape that came out wrong
    try:
        planned = plan(imported, search=search)
    except PlanError as error:
        assert "cannot plan" in str(error), error
        return "not planned"
    except ShapeError as error:
        assert "no operator for custom call" in str(error), error
        return "no meaning"
    rng = np.random.default_rng(seed)
    feeds = [feed(value.type, rng) for value in imported.graph.inputs]
    whole = unsplit(imported.graph, feeds)
    if whole is None:
        return "no meaning"
    try:
        assert_runs(planned, feeds, whole, 1e-4, f"seed {seed}")
    except AssertionError:
        if not is_unstable(imported.graph, feeds, whole):
            raise
        return "unstable"
    return "split" if split(planned) else "nothing split"


def is_unstable(graph: Graph, feeds: list[np.ndarray], whole: list[np.ndarray]) -> bool:
    """Whether inputs that differ by rounding alone give other outputs even whole: bits of floats, jumps, poles."""
    rng = np.random.default_rng(0)
    near = [
        (array * (1 + 1e-6 * rng.normal(size=array.shape))).astype(array.dtype) if array.dtype.kind == "f" else array
        for array in feeds
    ]
    with np.errstate(all="ignore"):
        found = evaluate(graph, near)
    try:
        for one, other in zip(found, whole, strict=True):
            assert_equal(one, other, 1e-4, "")
    except AssertionError:
        return True
    return False


@pytest.fixture
def fitting(monkeypatch):
    """Modules for 8 devices, whose sizes mostly divide."""
    monkeypatch.setattr(module, "MESHES", MESHES)
    monkeypatch.setattr(scope, "SIZES", SIZES)


@pytest.mark.parametrize("batch", range(10))
def test_random_modules(batch, fitting, record_property):
    """Ten batches of ten that count."""
    _run_batch(1000 * batch, PER_BATCH, None, record_property)


def test_random_modules_with_a_search(fitting, record_property):
    """The search that prices takes modules, too."""
    _run_batch(20_000, PER_BATCH, "sharding_propagation", record_property)


def _run_batch(first: int, wanted: int, search: str | None, record_property) -> None:
    found: Counter[str] = Counter()
    for seed in range(first, first + MOST_DRAWN):
        found[check_random(seed, search)] += 1
        if found["split"] == wanted:
            break
    record_property("modules", dict(found))
    print(f"of {found.total()} modules: {dict(found)}")
    assert found["split"] == wanted
