"""All of propagation, from a module as it was read to one whose shardings are settled: Shardy's pipeline.

The passes, in their order, are those of `sdy-propagation-pipeline` with its default options.
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.propagate.edges import add_edges, sink_edges
from autoshard.propagate.mutable_ir import MutableModule
from autoshard.propagate.passes.boundaries import even_boundaries, full_axes_at_main
from autoshard.propagate.passes.calls_in import flatten_calls, import_calls, results_to_calls
from autoshard.propagate.passes.calls_out import (
    export_named_computations,
    reshard_call_results,
    shardings_to_results,
    unflatten_calls,
)
from autoshard.propagate.passes.cleanup import drop_dead
from autoshard.propagate.passes.constants import merge_constants, split_constants
from autoshard.propagate.passes.constraints import apply_constraints, constraints_to_reshards
from autoshard.propagate.passes.functions import callers_first, drop_unused_functions
from autoshard.propagate.passes.groups import drop_groups, unify_groups
from autoshard.propagate.passes.manual_axes import clean_manual_axes
from autoshard.propagate.passes.meshes import close_shardings, lift_meshes, remove_size_one_axes
from autoshard.propagate.passes.reshards import insert_reshards
from autoshard.propagate.passes.unreduced import cancel_sums
from autoshard.propagate.run import Log, Options, propagate

Pass = Callable[[MutableModule], None]
_DEFAULT = Options()

IMPORT: tuple[Pass, ...] = (
    drop_unused_functions,
    lift_meshes,
    remove_size_one_axes,
    results_to_calls,
    split_constants,
    drop_unused_functions,
    clean_manual_axes,
    add_edges,
    flatten_calls,
    drop_unused_functions,
    import_calls,
    drop_unused_functions,
    apply_constraints,
    unify_groups,
    callers_first,
)
EXPORT: tuple[Pass, ...] = (
    export_named_computations,
    shardings_to_results,
    unflatten_calls,
    drop_unused_functions,
    reshard_call_results,
    merge_constants,
    sink_edges,
    drop_groups,
    constraints_to_reshards,
    even_boundaries,
    full_axes_at_main,
    close_shardings,
    insert_reshards,
    cancel_sums,
    drop_dead,
)


def run_pipeline(module: MutableModule, options: Options = _DEFAULT) -> Log:
    """Import, propagate, export, in place.

    Afterwards constants stand for `sdy.constant` in text, as splitting leaves them, and operations that have neither
    users nor effects are gone.

    Raises:
        ShardingError, GraphError: a module that the passes cannot take; each says which.
    """
    for one in IMPORT:
        one(module)
    log = propagate(module, options)
    for one in EXPORT:
        one(module)
    return log
