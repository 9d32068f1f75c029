"""Random operations: each function writes one operation of its kind, with operands from the scope.

Together they cover every operation that has a sharding rule.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.propagate.generate.scope import Scope, Shape, Value

OPERATIONS: list[tuple[int, Callable[[Scope], object]]] = []
F32 = "f32"


def kind(weight: int = 1) -> Callable:
    """Register a maker, drawn `weight` times as often as one of weight 1."""

    def register(maker: Callable[[Scope], object]) -> Callable[[Scope], object]:
        OPERATIONS.append((weight, maker))
        return maker

    return register


def ints(values: object) -> str:
    listed = list(values)  # type: ignore[call-overload]
    return f"array<i64: {', '.join(map(str, listed))}>" if listed else "array<i64>"


def reducer(scope: Scope, body: str = "add", element: str = F32) -> str:
    """A region of two scalars."""
    a, b, c = scope.module.fresh(), scope.module.fresh(), scope.module.fresh()
    of = f"tensor<{element}>"
    return (
        f" ({{ ^bb0({a}: {of}, {b}: {of}): {c} = stablehlo.{body} {a}, {b} : {of} "
        f"stablehlo.return {c} : {of} }})"
    )


# -- elementwise


@kind(3)
def unary(scope: Scope) -> None:
    x = scope.any()
    name = scope.random.choice(("sine", "negate", "exponential", "tanh", "abs", "floor", "logistic", "rsqrt", "cbrt"))
    scope.emit(f"stablehlo.{name}", "", [x], [(x.shape, F32)])


@kind(6)
def binary(scope: Scope) -> None:
    x = scope.any()
    y = scope.like(x.shape)
    name = scope.random.choice(("add", "multiply", "subtract", "divide", "maximum", "power", "atan2", "remainder"))
    scope.emit(f"stablehlo.{name}", "", [x, y], [(x.shape, F32)])


@kind()
def choose(scope: Scope) -> None:
    x = scope.any()
    y = scope.like(x.shape)
    sizes = scope.random.choice((x.shape, ()))
    pred = scope.like(sizes, "i1")
    scope.emit("stablehlo.select", "", [pred, x, y], [(x.shape, F32)])


@kind()
def compare(scope: Scope) -> None:
    x = scope.any()
    y = scope.like(x.shape)
    attributes = "comparison_direction = #stablehlo<comparison_direction LT>"
    scope.emit("stablehlo.compare", attributes, [x, y], [(x.shape, "i1")])


@kind()
def clamp(scope: Scope) -> None:
    x = scope.any()
    low = scope.like(()) if scope.module.chance(0.5) else scope.like(x.shape)
    high = scope.like(()) if not low.shape else scope.like(x.shape)
    scope.emit("stablehlo.clamp", "", [low, x, high], [(x.shape, F32)])


@kind()
def convert(scope: Scope) -> None:
    x = scope.any()
    y = scope.emit("stablehlo.convert", "", [x], [(x.shape, "bf16")])
    scope.emit("stablehlo.convert", "", [y], [(x.shape, F32)])


# -- sources and shapes


@kind(2)
def constant(scope: Scope) -> Value:
    shape = scope.any().shape
    number = scope.random.choice(("0.0", "1.0", "2.5"))
    of = f"tensor<{'x'.join([*map(str, shape), F32])}>"
    return scope.emit("stablehlo.constant", f"value = dense<{number}> : {of}", [], [(shape, F32)])


@kind()
def iota(scope: Scope) -> Value:
    shape = scope.any(1).shape
    dim = scope.random.randrange(len(shape))
    return scope.emit("stablehlo.iota", f"iota_dimension = {dim} : i64", [], [(shape, F32)])


@kind()
def folded(scope: Scope) -> None:
    """Something made of constants only, used more than once."""
    x = constant(scope) if scope.module.chance(0.5) else iota(scope)
    y = scope.emit("stablehlo.negate", "", [x], [(x.shape, F32)])
    z = scope.emit("stablehlo.broadcast_in_dim", f"broadcast_dimensions = {ints(range(1, len(x.shape) + 1))}", [y], [((2, *x.shape), F32)])
    for _ in range(scope.random.randint(1, 2)):
        scope.emit("stablehlo.add", "", [z, scope.like(z.shape)], [(z.shape, F32)])
        scope.emit("stablehlo.multiply", "", [scope.like(x.shape), y], [(x.shape, F32)])


@kind(2)
def scalar_broadcast(scope: Scope) -> None:
    shape = scope.any(1).shape
    x = scope.scalar(scope.random.choice((1.0, 2.0)))
    y = scope.emit("stablehlo.broadcast_in_dim", "broadcast_dimensions = array<i64>", [x], [(shape, F32)])
    scope.emit("stablehlo.add", "", [scope.like(shape), y], [(shape, F32)])
    if scope.module.chance(0.5):
        scope.emit("stablehlo.maximum", "", [y, scope.like(shape)], [(shape, F32)])


@kind(2)
def broadcast(scope: Scope) -> None:
    x = scope.any(0, 3)
    rank = len(x.shape) + scope.random.randint(0, 2)
    if not rank:
        return
    places = sorted(scope.random.sample(range(rank), len(x.shape)))
    shape = [scope.random.choice((2, 3, 4, 8)) for _ in range(rank)]
    for place, size in zip(places, x.shape, strict=True):
        shape[place] = size if size > 1 or scope.module.chance(0.5) else shape[place]
    scope.emit("stablehlo.broadcast_in_dim", f"broadcast_dimensions = {ints(places)}", [x], [(tuple(shape), F32)])


@kind(4)
def reshape(scope: Scope) -> None:
    x = scope.any(1)
    scope.emit("stablehlo.reshape", "", [x], [(_regrouped(scope, x.shape), F32)])


def _regrouped(scope: Scope, shape: Shape) -> Shape:
    """Another shape of as many elements: the prime factors in order, cut anew; ones put in."""
    primes: list[int] = []
    for size in shape:
        left = size
        for prime in (2, 3, 5, 7, 11, 13):
            while left % prime == 0:
                primes.append(prime)
                left //= prime
    if scope.module.chance(0.1):
        scope.random.shuffle(primes)
    result: list[int] = []
    for prime in primes:
        if result and scope.module.chance(0.55):
            result[-1] *= prime
        else:
            result.append(prime)
    if scope.module.chance(0.2):
        result.insert(scope.random.randint(0, len(result)), 1)
    return tuple(result[:5]) if len(result) <= 5 else (*result[:4], _product(result[4:]))


def _product(sizes: list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


@kind(2)
def transpose(scope: Scope) -> None:
    x = scope.any(1)
    order = scope.random.sample(range(len(x.shape)), len(x.shape))
    shape = tuple(x.shape[dim] for dim in order)
    scope.emit("stablehlo.transpose", f"permutation = {ints(order)}", [x], [(shape, F32)])


@kind(2)
def concatenate(scope: Scope) -> None:
    x = scope.any(1)
    dim = scope.random.randrange(len(x.shape))
    parts = [x]
    for _ in range(scope.random.randint(1, 2)):
        other = list(x.shape)
        other[dim] = scope.random.choice((x.shape[dim], 2))
        parts.append(scope.like(tuple(other)))
    if scope.module.chance(0.3):
        parts = [_sliced(scope, part) for part in parts]
    if scope.module.chance(0.2):
        parts = [x, x]
    shape = list(x.shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    if any(part.shape[:dim] + part.shape[dim + 1 :] != x.shape[:dim] + x.shape[dim + 1 :] for part in parts):
        return
    scope.emit("stablehlo.concatenate", f"dimension = {dim} : i64", parts, [(tuple(shape), F32)])


def _sliced(scope: Scope, x: Value, share: float = 0.3) -> Value:
    start = [scope.random.randrange(size) if scope.module.chance(share) else 0 for size in x.shape]
    shape = tuple(size - begin for size, begin in zip(x.shape, start, strict=True))
    attributes = f"start_indices = {ints(start)}, limit_indices = {ints(x.shape)}, strides = {ints([1] * len(shape))}"
    return scope.emit("stablehlo.slice", attributes, [x], [(shape, F32)])


@kind(2)
def slice_(scope: Scope) -> None:
    _sliced(scope, scope.any(1), 0.5)


@kind(2)
def pad(scope: Scope) -> None:
    x = scope.any(1)
    low = [scope.random.choice((0, 0, 1)) for _ in x.shape]
    high = [scope.random.choice((0, 0, 2)) for _ in x.shape]
    inner = [scope.random.choice((0, 0, 0, 1)) for _ in x.shape]
    shape = tuple(
        size + a + b + max(size - 1, 0) * c for size, a, b, c in zip(x.shape, low, high, inner, strict=True)
    )
    attributes = f"edge_padding_low = {ints(low)}, edge_padding_high = {ints(high)}, interior_padding = {ints(inner)}"
    scope.emit("stablehlo.pad", attributes, [x, scope.scalar(0.0)], [(shape, F32)])


@kind()
def reverse(scope: Scope) -> None:
    x = scope.any(1)
    dims = sorted(scope.random.sample(range(len(x.shape)), scope.random.randint(1, len(x.shape))))
    scope.emit("stablehlo.reverse", f"dimensions = {ints(dims)}", [x], [(x.shape, F32)])


@kind()
def bitcast(scope: Scope) -> None:
    x = scope.any()
    if scope.module.chance(0.5):
        y = scope.emit("stablehlo.bitcast_convert", "", [x], [(x.shape, "i32")])
        scope.emit("stablehlo.bitcast_convert", "", [y], [(x.shape, F32)])
        return
    y = scope.emit("stablehlo.bitcast_convert", "", [x], [((*x.shape, 2), "i16")])
    scope.emit("stablehlo.bitcast_convert", "", [y], [(x.shape, F32)])


# -- contractions


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
def convolution(scope: Scope) -> None:
    groups, batch_groups = scope.random.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
    batch = scope.random.choice((2, 4, 6)) * batch_groups
    features, out = scope.random.choice((2, 4)) * groups, scope.random.choice((4, 8)) * groups * batch_groups
    height, width = scope.random.choice((4, 8, 12)), scope.random.choice((1, 6))
    window = scope.random.choice((1, 2, 3))
    stride = scope.random.choice((1, 2))
    padding = scope.random.choice((0, 1)) if window > 1 else 0
    x = scope.like((batch, height, width, features))
    kernel = scope.like((window, 1, features // groups, out))
    tall = (height + 2 * padding - window) // stride + 1
    numbers = "#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>"
    attributes = (
        f"batch_group_count = {batch_groups} : i64, feature_group_count = {groups} : i64, dimension_numbers = {numbers}, "
        f"window_strides = {ints([stride, 1])}, padding = dense<[[{padding}, {padding}], [0, 0]]> : tensor<2x2xi64>"
    )
    shape = (batch // batch_groups, tall, width, out)
    scope.emit("stablehlo.convolution", attributes, [x, kernel], [(shape, F32)])


# -- reductions and windows


@kind(4)
def reduce(scope: Scope) -> None:
    x = scope.any(1)
    dims = sorted(scope.random.sample(range(len(x.shape)), scope.random.randint(1, len(x.shape))))
    shape = tuple(size for dim, size in enumerate(x.shape) if dim not in dims)
    start = scope.scalar(0.0)
    body = reducer(scope, scope.random.choice(("add", "maximum", "multiply")))
    made = [Value(scope.module.fresh(), shape)]
    scope.write("stablehlo.reduce", f"dimensions = {ints(dims)}", [x, start], made, body)


@kind()
def reduce_window(scope: Scope) -> None:
    x = scope.any(1, 3)
    window = [scope.random.choice((1, 1, 2, 3)) if size >= 3 else 1 for size in x.shape]
    strides = [scope.random.choice((1, 2)) if size > 1 else 1 for size in window]
    low = [scope.random.choice((0, 1)) if size > 1 else 0 for size in window]
    shape = tuple(
        (size + a - w) // s + 1 for size, w, s, a in zip(x.shape, window, strides, low, strict=True)
    )
    pads = ", ".join(f"[{a}, 0]" for a in low)
    attributes = (
        f"window_dimensions = {ints(window)}, window_strides = {ints(strides)}, "
        f"padding = dense<[{pads}]> : tensor<{len(low)}x2xi64>"
    )
    start = scope.scalar(0.0)
    body = reducer(scope, "maximum")
    scope.write("stablehlo.reduce_window", attributes, [x, start], [Value(scope.module.fresh(), shape)], body)


@kind()
def select_and_scatter(scope: Scope) -> None:
    x = scope.any(1, 3)
    window = [2 if size % 2 == 0 and scope.module.chance(0.5) else 1 for size in x.shape]
    source = scope.like(tuple(size // w for size, w in zip(x.shape, window, strict=True)))
    start = scope.scalar(0.0)
    a, b, c = (scope.module.fresh() for _ in range(3))
    select = (
        f"^bb0({a}: tensor<f32>, {b}: tensor<f32>): {c} = stablehlo.compare GE, {a}, {b} : "
        f"(tensor<f32>, tensor<f32>) -> tensor<i1> stablehlo.return {c} : tensor<i1>"
    )
    attributes = f"window_dimensions = {ints(window)}, window_strides = {ints(window)}"
    scatter = reducer(scope)[2:-1]
    body = f" ({{ {select} }}, {scatter})"
    scope.write("stablehlo.select_and_scatter", attributes, [x, source, start], [Value(scope.module.fresh(), x.shape)], body)


@kind()
def sort(scope: Scope) -> None:
    x = scope.any(1)
    dim = scope.random.randrange(len(x.shape))
    operands = [x] if scope.module.chance(0.5) else [x, scope.like(x.shape)]
    arguments = [scope.module.fresh() for _ in range(2 * len(operands))]
    result = scope.module.fresh()
    body = (
        f" ({{ ^bb0({', '.join(f'{name}: tensor<f32>' for name in arguments)}): {result} = stablehlo.compare LT, "
        f"{arguments[0]}, {arguments[1]} : (tensor<f32>, tensor<f32>) -> tensor<i1> stablehlo.return {result} : tensor<i1> }})"
    )
    made = [Value(scope.module.fresh(), x.shape) for _ in operands]
    scope.write("stablehlo.sort", f"dimension = {dim} : i64, is_stable = true", operands, made, body)


# -- indexing


@kind(2)
def gather(scope: Scope) -> None:
    x = scope.any(1, 3)
    rank = len(x.shape)
    batching = [0] if rank > 1 and scope.module.chance(0.3) else []
    others = [dim for dim in range(rank) if dim not in batching]
    indexed = sorted(scope.random.sample(others, scope.random.randint(1, len(others))))
    collapsed = [dim for dim in indexed if scope.module.chance(0.7)]
    sizes = [1 if dim in collapsed or dim in batching else scope.random.choice((1, size, size)) for dim, size in enumerate(x.shape)]
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
    numbers += [("scatter_indices_batching_dims", list(range(len(batching)))), ("scatter_dims_to_operand_dims", indexed)]
    text = ", ".join(f"{name} = {listed}" for name, listed in numbers if listed)
    attributes = (
        f"indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<{text}, "
        f"index_vector_dim = {len(batch)}>, unique_indices = false"
    )
    body = reducer(scope, scope.random.choice(("add", "maximum")))
    if scope.module.chance(0.3):
        a, b = scope.module.fresh(), scope.module.fresh()
        body = f" ({{ ^bb0({a}: tensor<f32>, {b}: tensor<f32>): stablehlo.return {b} : tensor<f32> }})"
    scope.write("stablehlo.scatter", attributes, [x, indices, updates], [Value(scope.module.fresh(), x.shape)], body)


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


# -- linear algebra, random numbers, normalization, the rest


@kind()
def fft(scope: Scope) -> None:
    x = scope.any(1, 3)
    half = (*x.shape[:-1], x.shape[-1] // 2 + 1)
    attributes = f"fft_type = #stablehlo<fft_type RFFT>, fft_length = {ints(x.shape[-1:])}"
    y = scope.emit("stablehlo.fft", attributes, [x], [(half, "complex<f32>")])
    if scope.module.chance(0.5):
        attributes = f"fft_type = #stablehlo<fft_type FFT>, fft_length = {ints(half[-1:])}"
        y = scope.emit("stablehlo.fft", attributes, [y], [(half, "complex<f32>")])
    scope.emit("stablehlo.real", "", [y], [(half, F32)])


@kind()
def cholesky(scope: Scope) -> None:
    size = scope.random.choice((2, 4, 6))
    x = scope.like((*scope.shape(0, 1), size, size))
    scope.emit("stablehlo.cholesky", "lower = true", [x], [(x.shape, F32)])


@kind()
def triangular_solve(scope: Scope) -> None:
    batch, size, columns = scope.shape(0, 1), scope.random.choice((2, 4, 6)), scope.random.choice((3, 8))
    left = scope.module.chance(0.5)
    a = scope.like((*batch, size, size))
    b = scope.like((*batch, size, columns) if left else (*batch, columns, size))
    turn = scope.random.choice(("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))
    attributes = (
        f"left_side = {str(left).lower()}, lower = true, unit_diagonal = false, "
        f"transpose_a = #stablehlo<transpose {turn}>"
    )
    scope.emit("stablehlo.triangular_solve", attributes, [a, b], [(b.shape, F32)])


@kind()
def random_bits(scope: Scope) -> None:
    state = scope.like((2,), "ui64")
    shape = scope.shape(1, 3)
    made = [((2,), "ui64"), (shape, "ui32")]
    attributes = "rng_algorithm = #stablehlo<rng_algorithm DEFAULT>"
    scope.emit("stablehlo.rng_bit_generator", attributes, [state], made)
    bits = scope.values[-1]
    scope.emit("stablehlo.convert", "", [bits], [(shape, F32)])


@kind()
def batch_norm(scope: Scope) -> None:
    x = scope.any(2)
    dim = scope.random.randrange(len(x.shape))
    vectors = [scope.like((x.shape[dim],)) for _ in range(4)]
    attributes = f"epsilon = 1.0e-05 : f32, feature_index = {dim} : i64"
    scope.emit("stablehlo.batch_norm_inference", attributes, [x, *vectors], [(x.shape, F32)])


@kind()
def custom_call(scope: Scope) -> None:
    x = scope.any(1, 3)
    target = scope.random.choice(("MoveToHost", "LayoutConstraint", "unknown_target", "mhlo.topk"))
    if target == "mhlo.topk":
        top = (*x.shape[:-1], max(x.shape[-1] // 2, 1))
        scope.emit("stablehlo.custom_call", f'call_target_name = "{target}"', [x], [(top, F32), (top, "i32")])
        return
    scope.emit("stablehlo.custom_call", f'call_target_name = "{target}"', [x], [(x.shape, F32)])
