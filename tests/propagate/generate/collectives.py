"""Random collectives of StableHLO, as programs have them that say themselves who sends what to whom."""

from __future__ import annotations

from tests.propagate.generate.scope import F32, Scope
from tests.propagate.generate.table import kind, reducer

GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


@kind()
def same_shape(scope: Scope) -> None:
    x = scope.any()
    which = scope.random.choice(("all_reduce", "collective_broadcast", "collective_permute", "cross-replica-sum"))
    attributes = f"{GROUPS}, {CHANNEL}"
    if which == "collective_permute":
        attributes = f"source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>, {CHANNEL}"
    elif which == "cross-replica-sum":
        attributes = GROUPS
    regions = [reducer(scope)] if which == "all_reduce" else []
    scope.emit(f"stablehlo.{which}", attributes, [x], [(x.shape, F32)], regions)


@kind()
def resizing(scope: Scope) -> None:
    x = scope.any(1)
    dim = scope.random.randrange(len(x.shape))
    if x.shape[dim] % 2 or scope.module.chance(0.5):
        shape = (*x.shape[:dim], x.shape[dim] * 2, *x.shape[dim + 1 :])
        scope.emit("stablehlo.all_gather", f"all_gather_dim = {dim} : i64, {GROUPS}, {CHANNEL}", [x], [(shape, F32)])
        return
    shape = (*x.shape[:dim], x.shape[dim] // 2, *x.shape[dim + 1 :])
    attributes = f"scatter_dimension = {dim} : i64, {GROUPS}, {CHANNEL}"
    scope.emit("stablehlo.reduce_scatter", attributes, [x], [(shape, F32)], [reducer(scope)])


@kind()
def all_to_all(scope: Scope) -> None:
    x = scope.any(1)
    even = [dim for dim, size in enumerate(x.shape) if size % 2 == 0]
    if not even:
        return
    split, concat = scope.random.choice(even), scope.random.randrange(len(x.shape))
    shape = list(x.shape)
    shape[split] //= 2
    shape[concat] *= 2
    attributes = (
        f"split_dimension = {split} : i64, concat_dimension = {concat} : i64, split_count = 2 : i64, "
        f"{GROUPS}, {CHANNEL}"
    )
    scope.emit("stablehlo.all_to_all", attributes, [x], [(tuple(shape), F32)])


@kind()
def who(scope: Scope) -> None:
    which = scope.random.choice(("partition_id", "replica_id"))
    number = scope.emit(f"stablehlo.{which}", "", [], [((), "ui32")])
    x = scope.any()
    wide = scope.emit("stablehlo.broadcast_in_dim", "broadcast_dimensions = array<i64>", [number], [(x.shape, "ui32")])
    scope.emit("stablehlo.convert", "", [wide], [(x.shape, F32)])
