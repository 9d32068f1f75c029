"""Random gathers, scatters and slices at computed places."""

from __future__ import annotations

from tests.propagate.generate.scope import F32, Scope
from tests.propagate.generate.table import ints, kind, reducer


@kind(2)
def gather(scope: Scope) -> None:
    x = scope.any(1, 3)
    rank = len(x.shape)
    batching = [0] if rank > 1 and scope.module.chance(0.3) else []
    others = [dim for dim in range(rank) if dim not in batching]
    indexed = sorted(scope.random.sample(others, scope.random.randint(1, len(others))))
    collapsed = [dim for dim in indexed if scope.module.chance(0.7)]
    sizes = [
        1 if dim in collapsed or dim in batching else scope.random.choice((1, size, size))
        for dim, size in enumerate(x.shape)
    ]
    batch = [x.shape[dim] for dim in batching] + list(scope.shape(0, 1))
    indices = scope.like((*batch, len(indexed)), "i32")
    offsets = [sizes[dim] for dim in range(rank) if dim not in collapsed and dim not in batching]
    places = sorted(scope.random.sample(range(len(batch) + len(offsets)), len(offsets)))
    left, right = iter(batch), iter(offsets)
    shape = tuple(next(right) if i in places else next(left) for i in range(len(batch) + len(offsets)))
    numbers = [("offset_dims", places), ("collapsed_slice_dims", collapsed), ("operand_batching_dims", batching)]
    numbers += [("start_indices_batching_dims", list(range(len(batching)))), ("start_index_map", indexed)]
    text = ", ".join(f"{name} = {listed}" for name, listed in numbers if listed)
    attributes = (
        f"dimension_numbers = #stablehlo.gather<{text}, index_vector_dim = {len(batch)}>, "
        f"indices_are_sorted = false, slice_sizes = {ints(sizes)}"
    )
    scope.emit("stablehlo.gather", attributes, [x, indices], [(shape, F32)])


@kind(2)
def scatter(scope: Scope) -> None:
    x = scope.any(1, 3)
    rank = len(x.shape)
    batching = [0] if rank > 1 and scope.module.chance(0.3) else []
    others = [dim for dim in range(rank) if dim not in batching]
    indexed = sorted(scope.random.sample(others, scope.random.randint(1, len(others))))
    inserted = [dim for dim in indexed if scope.module.chance(0.7)]
    window = [scope.random.choice((x.shape[dim], 1)) for dim in others if dim not in inserted]
    batch = [x.shape[dim] for dim in batching] + list(scope.shape(0, 1))
    indices = scope.like((*batch, len(indexed)), "i32")
    places = sorted(scope.random.sample(range(len(batch) + len(window)), len(window)))
    left, right = iter(batch), iter(window)
    shape = tuple(next(right) if i in places else next(left) for i in range(len(batch) + len(window)))
    updates = scope.like(shape)
    numbers = [("update_window_dims", places), ("inserted_window_dims", inserted), ("input_batching_dims", batching)]
    numbers += [
        ("scatter_indices_batching_dims", list(range(len(batching)))),
        ("scatter_dims_to_operand_dims", indexed),
    ]
    text = ", ".join(f"{name} = {listed}" for name, listed in numbers if listed)
    attributes = (
        f"indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<{text}, "
        f"index_vector_dim = {len(batch)}>, unique_indices = false"
    )
    body = reducer(scope, scope.random.choice(("add", "maximum")))
    if scope.module.chance(0.3):
        a, b = scope.module.fresh(), scope.module.fresh()
        body = f"{{ ^bb0({a}: tensor<f32>, {b}: tensor<f32>): stablehlo.return {b} : tensor<f32> }}"
    scope.emit("stablehlo.scatter", attributes, [x, indices, updates], [(x.shape, F32)], [body])


@kind()
def dynamic_slice(scope: Scope) -> None:
    x = scope.any(1)
    sizes = tuple(scope.random.choice((1, size, size)) for size in x.shape)
    starts = [scope.like((), "i32") for _ in x.shape]
    scope.emit("stablehlo.dynamic_slice", f"slice_sizes = {ints(sizes)}", [x, *starts], [(sizes, F32)])


@kind()
def dynamic_update_slice(scope: Scope) -> None:
    x = scope.any(1)
    update = scope.like(tuple(scope.random.choice((1, size, size)) for size in x.shape))
    if scope.module.chance(0.4):
        starts = [scope.scalar(0, "i32")] * len(x.shape)
    else:
        starts = [scope.like((), "i32") for _ in x.shape]
    scope.emit("stablehlo.dynamic_update_slice", "", [x, update, *starts], [(x.shape, F32)])


@kind()
def index_select(scope: Scope) -> None:
    x = scope.any(1, 3)
    dim = scope.random.randrange(len(x.shape))
    index = scope.like((scope.random.choice((2, 3, 4)),), "i32")
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    attributes = f"dim = {dim} : i64, batch_dims = 0 : i64"
    scope.emit("stablehlo.torch_index_select", attributes, [x, index], [(shape, F32)])


@kind()
def computed_shapes(scope: Scope) -> None:
    """Operations whose shapes are operands although the types tell them."""
    x = scope.any(1, 3)
    drawn = scope.random.randrange(5)
    if drawn == 0:
        scope.emit("stablehlo.dynamic_reshape", "", [x, scope.integers(x.shape[::-1])], [(x.shape[::-1], F32)])
    elif drawn == 1:
        shape = (3, *x.shape)
        dims = f"broadcast_dimensions = {ints(range(1, len(shape)))}"
        scope.emit("stablehlo.dynamic_broadcast_in_dim", dims, [x, scope.integers(shape)], [(shape, F32)])
    elif drawn == 2:
        scope.emit("stablehlo.dynamic_iota", "iota_dimension = 0 : i64", [scope.integers(x.shape)], [(x.shape, F32)])
    elif drawn == 3:
        edges = [scope.integers([number] * len(x.shape)) for number in (1, 0, 0)]
        shape = tuple(size + 1 for size in x.shape)
        scope.emit("stablehlo.dynamic_pad", "", [x, scope.scalar(0.0), *edges], [(shape, F32)])
    else:
        ends = [scope.integers(numbers) for numbers in ([0] * len(x.shape), x.shape, [1] * len(x.shape))]
        scope.emit("stablehlo.real_dynamic_slice", "", [x, *ends], [(x.shape, F32)])


@kind()
def dimension_size(scope: Scope) -> None:
    x = scope.any(1)
    made = scope.emit("stablehlo.get_dimension_size", "dimension = 0 : i64", [x], [((), "i32")])
    scope.emit("stablehlo.broadcast_in_dim", "broadcast_dimensions = array<i64>", [made], [(x.shape, "i32")])
