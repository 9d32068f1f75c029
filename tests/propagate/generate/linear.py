"""Random sorts, linear algebra, transforms, random numbers and normalization."""

from __future__ import annotations

from tests.propagate.generate.scope import F32, Scope, Value
from tests.propagate.generate.table import comparator, ints, kind


@kind(2)
def sort(scope: Scope) -> None:
    x = scope.any(1)
    dim = scope.random.randrange(len(x.shape))
    operands = [x] if scope.module.chance(0.5) else [x, scope.like(x.shape)]
    body = comparator(scope, count=len(operands))
    attributes = f"dimension = {dim} : i64, is_stable = true"
    scope.emit("stablehlo.sort", attributes, operands, [(x.shape, F32)] * len(operands), [body])


@kind()
def top_k(scope: Scope) -> None:
    x = scope.any(1)
    count = scope.random.randint(1, x.shape[-1])
    kept = (*x.shape[:-1], count)
    scope.emit("chlo.top_k", f"k = {count} : i64", [x], [(kept, F32), (kept, "i32")])


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
    shape = scope.shape(1, 3)
    attributes = "rng_algorithm = #stablehlo<rng_algorithm DEFAULT>"
    scope.emit("stablehlo.rng_bit_generator", attributes, [_state(scope)], [((2,), "ui64"), (shape, "ui32")])
    scope.emit("stablehlo.convert", "", [scope.values[-1]], [(shape, F32)])


def _state(scope: Scope) -> Value:
    """The state of a generator, sometimes joined from two halves, which then may not be split."""
    if scope.module.chance(0.6):
        return scope.like((2,), "ui64")
    halves = [scope.like((2,), "ui32") for _ in range(2)]
    return scope.emit("stablehlo.custom_call", 'call_target_name = "X64Combine"', halves, [((2,), "ui64")])


@kind()
def drawn(scope: Scope) -> None:
    shape = scope.shape(1, 3)
    attributes = "rng_distribution = #stablehlo<rng_distribution UNIFORM>"
    limits = [scope.scalar(0.0), scope.scalar(1.0)]
    scope.emit("stablehlo.rng", attributes, [*limits, scope.integers(shape)], [(shape, F32)])


@kind()
def batch_norm(scope: Scope) -> None:
    x = scope.any(2)
    dim = scope.random.randrange(len(x.shape))
    vector = (x.shape[dim],)
    attributes = f"epsilon = 1.0e-05 : f32, feature_index = {dim} : i64"
    which = scope.random.choice(("inference", "inference", "training", "grad"))
    count = {"inference": 4, "training": 2, "grad": 3}[which]
    operands = [x, *(scope.like(vector) for _ in range(count)), *([scope.like(x.shape)] if which == "grad" else [])]
    made = [(x.shape, F32), *([] if which == "inference" else [(vector, F32)] * 2)]
    scope.emit(f"stablehlo.batch_norm_{which}", attributes, operands, made)
