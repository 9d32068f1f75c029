"""Our propagation against Shardy's own passes: the whole module text is the same, for random modules and JAX programs.

Where Shardy fails, `faults` says why, with a small module; no other failure is taken.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoshard.frontends.stablehlo.reader import load_translators
from autoshard.frontends.stablehlo.structures import STRUCTURES
from autoshard.frontends.stablehlo.table import TABLE
from autoshard.ops.hlo_custom import has_custom_call_rule
from autoshard.util.errors import AutoshardError
from tests.propagate.faults import FAULTS, SINGLE, Fault, fault_of
from tests.propagate.generate.coverage import counts, drawn
from tests.propagate.generate.custom import POINTWISE
from tests.propagate.generate.module import ALONE, FEATURES, catalogue, random_module
from tests.propagate.generate.table import OPERATIONS
from tests.propagate.jax_models import MODULES, opened
from tests.propagate.shardy import ShardyFailed, ours_each, pipeline, shardy_each

pytestmark = pytest.mark.jax

# Meshes written out in place crash all passes but the pipeline, which names them first.
GENERAL = tuple(name for name in FEATURES if name != "inlined")
SEEDS = st.integers(0, 2**32 - 1)
# What random modules once showed.
SMALL = {
    "a manual axis behind a free one": """sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
        func.func @main(%x: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"z", "x"}]>})
            -> tensor<8x12xf32> {
          %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{?}, {?}]>] out_shardings=[<@mesh, [{?}, {?}]>]
              manual_axes={"x"} (%a: tensor<8x12xf32>) {
            %1 = stablehlo.negate %a : tensor<8x12xf32>
            sdy.return %1 : tensor<8x12xf32>
          } : (tensor<8x12xf32>) -> tensor<8x12xf32>
          return %0 : tensor<8x12xf32>
        }""",
    "a function with an unreduced argument and result": """sdy.mesh @mesh = <["x"=2, "y"=4]>
        func.func @main(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {
          %0 = func.call @f(%x) : (tensor<8x6xf32>) -> tensor<8x6xf32>
          %1 = stablehlo.negate %0 : tensor<8x6xf32>
          return %1 : tensor<8x6xf32>
        }
        func.func private @f(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {
          %0 = sdy.sharding_constraint %x <@mesh, [{}, {}], unreduced={"y"}> : tensor<8x6xf32>
          return %0 : tensor<8x6xf32>
        }""",
    "a group with an unreduced value": """sdy.mesh @mesh = <["x"=8, "y"=2]>
        func.func @main(%x: tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}], unreduced={"x"}>},
                        %y: tensor<12x6xf32>) -> tensor<12x6xf32> {
          %0 = stablehlo.add %x, %y : tensor<12x6xf32>
          sdy.sharding_group %x group_id=0 : tensor<12x6xf32>
          sdy.sharding_group %y group_id=0 : tensor<12x6xf32>
          return %0 : tensor<12x6xf32>
        }""",
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


def assert_equal_on_random_modules(count: int, always: Sequence[str], others: Sequence[str]) -> None:
    """Draw `count` modules with the features `always` and some of the others; few runs may end in faults."""
    faults: Counter[str] = Counter()
    runs = 0

    @settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])
    @given(SEEDS, st.frozensets(st.sampled_from(others), max_size=8))
    def check(seed: int, more: frozenset[str]) -> None:
        nonlocal runs
        features = more | frozenset(always)
        chosen = options(seed, features)
        runs += len(chosen)
        faults.update(compare(random_module(Random(seed), features), chosen))

    check()
    assert faults.total() <= max(runs // 10, 5), f"of {runs} runs, these end in faults of Shardy's: {faults}"


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


@pytest.mark.parametrize("name", SMALL)
def test_small_modules(name: str) -> None:
    assert not compare(SMALL[name], options(0, frozenset()))


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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_of_shardy(fault: Fault) -> None:
    """Shardy still fails, so the entry is still needed; we give a module that it accepts, or an error.

    What reads memory that is no more may fail or not.
    """
    which = fault.which[0]
    (theirs,) = shardy_each(fault.text, [pipeline(which, edges=fault.edges)])
    (ours,) = ours_each(fault.text, [{"which": which, "edges": fault.edges}])
    if isinstance(theirs, ShardyFailed):
        assert fault.explains(theirs, fault.text, which, ours), f"{theirs}\nours: {ours}"
    else:
        assert fault.undefined, f"no fault any more ({fault.reason})"
    if isinstance(ours, str):
        (read,) = shardy_each(ours, [["symbol-dce"]])
        assert isinstance(read, str), str(read)


def test_an_unknown_failure_is_no_fault() -> None:
    for failed, which in (("the process died (-11)", "basic"), ("does not end", "full")):
        with pytest.raises(AssertionError, match="an unknown failure of Shardy"):
            fault_of(ShardyFailed(failed), "module {}", which, "module {}")
