"""Our propagation against Shardy's own passes: the whole module text is the same, for random modules and JAX programs.

Where Shardy is wrong or gives up, FAULTS says so, with the reason and a small module.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.frontends.stablehlo.reader import load_translators
from autoshard.frontends.stablehlo.structures import STRUCTURES
from autoshard.frontends.stablehlo.table import TABLE
from autoshard.ops.hlo_custom import has_custom_call_rule
from tests.propagate.generate.coverage import counts, drawn
from tests.propagate.generate.custom import POINTWISE
from tests.propagate.generate.module import ALONE, FEATURES, catalogue, random_module
from tests.propagate.generate.table import OPERATIONS
from tests.propagate.jax_models import MODULES, opened
from tests.propagate.shardy import PASSES, ShardyFailed, ours_each, pipeline, shardy_each

pytestmark = pytest.mark.jax

SINGLE = PASSES[:4]
# Meshes written out in place crash all passes but the pipeline, which names them first.
GENERAL = tuple(name for name in FEATURES if name != "inlined")
SEEDS = st.integers(0, 2**32 - 1)


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


def compare(text: str, runs: Sequence[dict[str, Any]]) -> list[ShardyFailed]:
    """Assert that both give the same module text in all runs; returns why Shardy refused in some."""
    wanted = shardy_each(text, [pipeline(**run) for run in runs])
    refused = []
    for run, want, got in zip(runs, wanted, ours_each(text, runs), strict=True):
        if isinstance(want, ShardyFailed):
            refused.append(want)
            continue
        if isinstance(got, AutoshardError):
            raise AssertionError(f"{run}: Shardy takes it, ours does not: {got}\n{text}") from got
        assert got.strip() == want.strip(), f"{run}\n{_difference(want, got)}\n{text}"
    return refused


def _difference(want: str, got: str) -> str:
    lines = difflib.unified_diff(want.splitlines(), got.splitlines(), "Shardy's", "ours", lineterm="", n=1)
    return "\n".join(lines)


def assert_equal_on_random_modules(count: int, always: Sequence[str], others: Sequence[str]) -> None:
    """Draw `count` modules with the features `always` and some of the others; Shardy may refuse one run in twenty."""
    refused, runs = [], []

    @settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])
    @given(SEEDS, st.frozensets(st.sampled_from(others), max_size=8))
    def check(seed: int, more: frozenset[str]) -> None:
        features = more | frozenset(always)
        chosen = options(seed, features)
        runs.extend(chosen)
        refused.extend(compare(random_module(Random(seed), features), chosen))

    check()
    assert len(refused) <= max(len(runs) // 20, 5), f"Shardy refuses {len(refused)} of {len(runs)}: {refused}"


@pytest.mark.parametrize(
    "always",
    [
        ("sub_axes",),
        ("priorities", "constraints"),
        ("groups", "replicated"),
        ("while", "case"),
        ("manual", "calls"),
        ("unreduced", "reshards"),
        ("meshes", "orders", "maximal"),
        ("rules", "tokens"),
    ],
)
def test_random_modules(always: tuple[str, ...]) -> None:
    assert_equal_on_random_modules(24, always, GENERAL)


def test_meshes_written_out_in_place() -> None:
    assert_equal_on_random_modules(20, ("inlined",), GENERAL)


def test_named_computations() -> None:
    assert_equal_on_random_modules(20, ("named",), GENERAL)


def test_edges_that_the_module_holds() -> None:
    # Not all edges can be drawn for these; where one is missing, Shardy reads what is not there.
    others = tuple(name for name in GENERAL if name not in ("manual", "case"))
    assert_equal_on_random_modules(20, ("edges", "while", "barriers"), others)


@pytest.mark.parametrize("maker", [maker for _, maker in OPERATIONS], ids=lambda maker: maker.__name__)
def test_each_operation(maker: Callable) -> None:
    text = catalogue(maker, Random(3))
    assert not compare(text, options(len(text), frozenset()))


@pytest.mark.parametrize("name", MODULES)
def test_jax_programs(name: str) -> None:
    text = MODULES[name]()
    runs = options(len(name), frozenset())
    assert not compare(text, runs)
    assert not compare(opened(text, len(name)), runs[4:])


# -- that the random modules hold everything

# Without a rule in Shardy, or made by the pipeline only.
NOT_DRAWN = {"stablehlo.dynamic_gather", "sdy.constant", "sdy.all_gather", "sdy.all_reduce"}
NOT_DRAWN |= {"sdy.replicated_to_unreduced", "sdy.sharded_to_unreduced"}
TARGETS = {*POINTWISE, "Eigh", "Qr", "QrDecompositionBlock", "ProductOfElementaryHouseholderReflectors"}
TARGETS |= {"mhlo.topk", "ApproxTopK", "PartialReduce"}


def test_every_operation_is_drawn() -> None:
    load_translators()
    texts = [catalogue(maker, Random(number)) for _, maker in OPERATIONS for number in range(9)]
    found = counts([*drawn(60), *texts])
    print("\n".join(f"{count:7} {name}" for name, count in found.most_common()))
    assert {*TABLE, *STRUCTURES} - NOT_DRAWN - found.keys() == set()
    assert all(map(has_custom_call_rule, TARGETS))
    assert {f"@{target}" for target in TARGETS} - found.keys() == set()


# -- where Shardy is wrong


class Fault(NamedTuple):
    """A module that Shardy fails on, and why that is its fault; `ours` is what we say of it if we do not take it."""

    name: str
    reason: str
    which: str
    text: str
    ours: str = ""


_MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2]>\n'
FAULTS = [
    Fault(
        "priority_of_dead_code",
        "it keeps a pointer to the value whose priority it read, and the value is erased as dead code",
        "user-priority",
        _MESH
        + """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}p1]>]>} : tensor<8xf32>
          return %x : tensor<8xf32>
        }""",
    ),
    Fault(
        "mesh_in_place",
        "a single pass looks up the mesh by the name that it does not have; only the pipeline gives it one before",
        "basic",
        """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}]>}) -> tensor<8xf32> {
          %0 = stablehlo.negate %x : tensor<8xf32>
          return %0 : tensor<8xf32>
        }""",
    ),
    Fault(
        "named_computation_in_the_pipeline",
        "edges are added to it with all others and once more when calls become named computations",
        "full",
        """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = sdy.named_computation<"f">(%x) (%a: tensor<8xf32>) {
            %1 = stablehlo.negate %a : tensor<8xf32>
            sdy.return %1 : tensor<8xf32>
          } : (tensor<8xf32>) -> tensor<8xf32>
          return %0 : tensor<8xf32>
        }""",
        "cannot write Call as an operation of StableHLO or sdy",
    ),
    Fault(
        "edge_in_the_pipeline",
        "an edge that the module holds gets a second one",
        "full",
        """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.optimization_barrier %x : tensor<8xf32>
          %1 = sdy.data_flow_edge %0 : tensor<8xf32>
          return %1 : tensor<8xf32>
        }""",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_of_shardy(fault: Fault) -> None:
    """Shardy still fails, so the entry is still needed; we give a module that it accepts, or refuse it too."""
    (theirs,) = shardy_each(fault.text, [pipeline(fault.which)])
    assert isinstance(theirs, ShardyFailed), f"no fault any more ({fault.reason})"
    (ours,) = ours_each(fault.text, [{"which": fault.which}])
    if fault.ours:
        assert isinstance(ours, AutoshardError) and fault.ours in str(ours)
        return
    assert isinstance(ours, str), str(ours)
    (read,) = shardy_each(ours, [["symbol-dce"]])
    assert isinstance(read, str), str(read)
