"""Random operations that make values from nothing or only move elements."""

from __future__ import annotations

from tests.propagate.generate.scope import F32, Scope, Shape, Value
from tests.propagate.generate.table import ints, kind


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
    z = scope.emit(
        "stablehlo.broadcast_in_dim",
        f"broadcast_dimensions = {ints(range(1, len(x.shape) + 1))}",
        [y],
        [((2, *x.shape), F32)],
    )
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
    primes = [prime for size in shape for prime in _primes(size)]
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


def _primes(number: int) -> list[int]:
    found, prime = [], 2
    while number > 1:
        if number % prime:
            prime += 1
        else:
            found.append(prime)
            number //= prime
    return found


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
    shape = tuple(size + a + b + max(size - 1, 0) * c for size, a, b, c in zip(x.shape, low, high, inner, strict=True))
    attributes = f"edge_padding_low = {ints(low)}, edge_padding_high = {ints(high)}, interior_padding = {ints(inner)}"
    scope.emit("stablehlo.pad", attributes, [x, scope.scalar(0.0)], [(shape, F32)])


@kind()
def reverse(scope: Scope) -> None:
    x = scope.any(1)
    dims = sorted(scope.random.sample(range(len(x.shape)), scope.random.randint(1, len(x.shape))))
    scope.emit("stablehlo.reverse", f"dimensions = {ints(dims)}", [x], [(x.shape, F32)])
