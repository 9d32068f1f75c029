"""Random contractions, reductions and windows."""

from __future__ import annotations

from tests.propagate.generate.scope import F32, Scope
from tests.propagate.generate.table import comparator, ints, kind, pairs, reducer


@kind(5)
def dot_general(scope: Scope) -> None:
    x = scope.any(1, 4)
    dims = scope.random.sample(range(len(x.shape)), len(x.shape))
    batch = dims[: scope.random.randint(0, max(len(dims) - 1, 0)) if scope.module.chance(0.5) else 0]
    contract = dims[len(batch) : len(batch) + scope.random.randint(0, 1 + (len(dims) > 2))]
    free = [scope.random.choice((2, 3, 4, 8)) for _ in range(scope.random.randint(0, 2))]
    sizes = [("b", dim, x.shape[dim]) for dim in batch] + [("c", dim, x.shape[dim]) for dim in contract]
    sizes += [("f", -1, size) for size in free]
    scope.random.shuffle(sizes)
    y = scope.like(tuple(size for _, _, size in sizes))
    where = {(what, dim): place for place, (what, dim, _) in enumerate(sizes) if what != "f"}
    right_batch = [where["b", dim] for dim in batch]
    right_contract = [where["c", dim] for dim in contract]
    left_free = [x.shape[dim] for dim in range(len(x.shape)) if dim not in batch and dim not in contract]
    shape = tuple(x.shape[dim] for dim in batch) + tuple(left_free) + tuple(s for w, _, s in sizes if w == "f")
    if len(shape) > 4:
        return
    numbers = [("lhs_batching", batch), ("rhs_batching", right_batch)]
    numbers += [("lhs_contracting", contract), ("rhs_contracting", right_contract)]
    text = ", ".join(f"{name}_dimensions = {listed}" for name, listed in numbers if listed)
    scope.emit("stablehlo.dot_general", f"dot_dimension_numbers = #stablehlo.dot<{text}>", [x, y], [(shape, F32)])


@kind()
def dot(scope: Scope) -> None:
    x = scope.any(1, 2)
    columns = [scope.random.choice((2, 3, 8))] * scope.random.randint(0, 1)
    y = scope.like((x.shape[-1], *columns))
    scope.emit("stablehlo.dot", "", [x, y], [((*x.shape[:-1], *columns), F32)])


@kind()
def einsum(scope: Scope) -> None:
    x = scope.any(2, 2)
    y = scope.like((x.shape[1], scope.random.choice((3, 4))))
    made = scope.emit("stablehlo.einsum", 'einsum_config = "ab,bc->ca"', [x, y], [((y.shape[1], x.shape[0]), F32)])
    scope.emit("stablehlo.unary_einsum", 'einsum_config = "ab->ba"', [made], [((x.shape[0], y.shape[1]), F32)])


@kind(2)
def convolution(scope: Scope) -> None:
    random = scope.random
    groups, batch_groups = random.choice(((1, 1), (1, 1), (2, 1), (4, 1), (1, 2)))
    batch = random.choice((2, 4, 6)) * batch_groups
    features, out = random.choice((1, 2, 4)) * groups, random.choice((1, 4, 8)) * groups * batch_groups
    spatial = [_window(scope) for _ in range(random.randint(1, 2))]
    sizes, window, stride, low, high, base, hole, made = zip(*spatial, strict=True)
    x = scope.like((batch, *sizes, features))
    kernel = scope.like((*window, features // groups, out))
    dims = ", ".join(map(str, range(len(spatial))))
    numbers = f"#stablehlo.conv<[b, {dims}, f]x[{dims}, i, o]->[b, {dims}, f]>"
    attributes = (
        f"batch_group_count = {batch_groups} : i64, feature_group_count = {groups} : i64, "
        f"dimension_numbers = {numbers}, window_strides = {ints(stride)}, lhs_dilation = {ints(base)}, "
        f"rhs_dilation = {ints(hole)}, padding = {pairs(zip(low, high, strict=True))}"
    )
    shape = (batch // batch_groups, *made, out)
    scope.emit("stablehlo.convolution", attributes, [x, kernel], [(shape, F32)])


def _window(scope: Scope, sizes: tuple[int, ...] = (4, 8, 9, 12)) -> tuple[int, ...]:
    """Size, window, stride, padding on both sides, dilations of base and window, and the size that comes out."""
    random = scope.random
    size, window, stride = random.choice(sizes), random.choice((1, 2, 3)), random.choice((1, 1, 2))
    low, high = (random.choice((0, 0, 1)) for _ in range(2))
    base, hole = random.choice((1, 1, 1, 2)), random.choice((1, 1, 1, 2))
    reach = (window - 1) * hole + 1
    return size, window, stride, low, high, base, hole, ((size - 1) * base + 1 + low + high - reach) // stride + 1


@kind(4)
def reduce(scope: Scope) -> None:
    x = scope.any(1)
    dims = sorted(scope.random.sample(range(len(x.shape)), scope.random.randint(1, len(x.shape))))
    shape = tuple(size for dim, size in enumerate(x.shape) if dim not in dims)
    count = 2 if scope.module.chance(0.2) else 1
    operands = [x, *(scope.like(x.shape) for _ in range(count - 1)), *[scope.scalar(0.0)] * count]
    body = reducer(scope, scope.random.choice(("add", "maximum", "multiply")), count=count)
    scope.emit("stablehlo.reduce", f"dimensions = {ints(dims)}", operands, [(shape, F32)] * count, [body])


@kind(2)
def reduce_window(scope: Scope) -> None:
    x = scope.any(1, 3)
    one = (1, 1, 0, 0, 1, 1)
    drawn = [
        _window(scope, (size,)) if size >= 5 and scope.module.chance(0.7) else (size, *one, size) for size in x.shape
    ]
    _, window, stride, low, high, base, hole, shape = zip(*drawn, strict=True)
    attributes = (
        f"window_dimensions = {ints(window)}, window_strides = {ints(stride)}, base_dilations = {ints(base)}, "
        f"window_dilations = {ints(hole)}, padding = {pairs(zip(low, high, strict=True))}"
    )
    count = 2 if scope.module.chance(0.2) else 1
    operands = [x, *(scope.like(x.shape) for _ in range(count - 1)), *[scope.scalar(0.0)] * count]
    body = reducer(scope, "maximum", count=count)
    scope.emit("stablehlo.reduce_window", attributes, operands, [(tuple(shape), F32)] * count, [body])


@kind()
def select_and_scatter(scope: Scope) -> None:
    x = scope.any(1, 3)
    window = [2 if size % 2 == 0 and scope.module.chance(0.5) else 1 for size in x.shape]
    source = scope.like(tuple(size // w for size, w in zip(x.shape, window, strict=True)))
    attributes = f"window_dimensions = {ints(window)}, window_strides = {ints(window)}"
    regions = [comparator(scope, "GE"), reducer(scope)]
    scope.emit("stablehlo.select_and_scatter", attributes, [x, source, scope.scalar(0.0)], [(x.shape, F32)], regions)
