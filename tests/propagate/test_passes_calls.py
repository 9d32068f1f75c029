"""Calls before and after propagation, against Shardy's passes: copies, names, order of uses, shardings, reshards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoshard.propagate.mutable_ir import MutableModule
from autoshard.propagate.passes.calls_in import flatten_calls, import_calls, results_to_calls
from autoshard.propagate.passes.calls_out import (
    export_named_computations,
    reshard_call_results,
    shardings_to_results,
    unflatten_calls,
)
from autoshard.propagate.passes.functions import Symbols, callers_first, drop_unused_functions
from autoshard.propagate.passes.reshards import insert_reshards
from autoshard.util.errors import GraphError
from tests.propagate.compare import check, load, module_text

pytestmark = pytest.mark.jax
Pass = Callable[[MutableModule], None]

SHARED = module_text("shared_calls")

ASKED = module_text("asking_calls")

# As they follow each other: our pass, Shardy's.
CHAIN: list[tuple[Pass, str]] = [
    (results_to_calls, "sdy-propagate-sharding-from-func-to-call"),
    (flatten_calls, "sdy-flatten-call-graph"),
    (drop_unused_functions, "symbol-dce"),
    (import_calls, "sdy-import-func-calls"),
    (callers_first, "sdy-pre-order-funcs"),
    (export_named_computations, "sdy-export-named-computations"),
    (shardings_to_results, "sdy-propagate-to-func-results"),
    (unflatten_calls, "sdy-unflatten-call-graph"),
    (drop_unused_functions, "symbol-dce"),
    (reshard_call_results, "sdy-insert-func-call-reshards"),
    (insert_reshards, "func.func(sdy-insert-explicit-reshards{enable-full-version=false})"),
]


@pytest.mark.parametrize("text", [SHARED, ASKED], ids=["shared", "asked"])
@pytest.mark.parametrize("count", range(1, len(CHAIN) + 1))
def test_a_chain_of_passes_equals_shardys(text: str, count: int) -> None:
    def ours(module: MutableModule) -> None:
        for one, _ in CHAIN[:count]:
            one(module)

    # Uses decide what propagation, which comes after the fifth, chases first; later their order means nothing.
    check(text, ours, [theirs for _, theirs in CHAIN[:count]], uses=count <= 5)


@pytest.mark.parametrize("text", [SHARED, ASKED], ids=["shared", "asked"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [pair for pair in CHAIN if pair[0] not in (import_calls, unflatten_calls)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_each_pass_alone_equals_shardys(text: str, ours: Pass, theirs: str) -> None:
    check(text, ours, [theirs])


def test_a_body_called_twice_is_copied_when_it_is_written_out() -> None:
    check(SHARED, import_calls, ["sdy-import-func-calls"])


def test_names_count_on_and_skip_what_is_taken() -> None:
    symbols = Symbols(load(SHARED))
    assert [symbols.free(name) for name in ("new", "foo", "baz", "mesh")] == ["new", "foo_1", "baz_2", "mesh_3"]


def test_a_call_of_nothing_is_an_error() -> None:
    module = load(SHARED)
    module.function("baz").attrs["name"] = "other"
    with pytest.raises(GraphError, match=r"a call of 'baz', but the module has only bar, main, foo, foo_0, other"):
        flatten_calls(module)
