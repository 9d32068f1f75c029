"""Random elementwise operations, of StableHLO and CHLO."""

from __future__ import annotations

from tests.propagate.generate.scope import F32, Scope, Value
from tests.propagate.generate.table import kind

UNARY = (
    "abs", "cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log", "log_plus_one", "logistic",
    "negate", "round_nearest_afz", "round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "tan", "tanh",
)  # fmt: skip
BINARY = ("add", "atan2", "divide", "maximum", "minimum", "multiply", "power", "remainder", "subtract")
OF_INTEGERS = ("and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical")
ONE_INTEGER = ("not", "popcnt", "count_leading_zeros", "negate", "sign")
CHLO_UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "conj", "cosh", "digamma", "erf", "erf_inv",
    "erfc", "lgamma", "sinh", "square", "tan",
)  # fmt: skip
CHLO_BINARY = ("next_after", "polygamma", "zeta")
CHLO_TESTS = ("is_inf", "is_neg_inf", "is_pos_inf")


@kind(5)
def unary(scope: Scope) -> None:
    x = scope.any()
    scope.emit(f"stablehlo.{scope.random.choice(UNARY)}", "", [x], [(x.shape, F32)])


@kind(7)
def binary(scope: Scope) -> None:
    x = scope.any()
    scope.emit(f"stablehlo.{scope.random.choice(BINARY)}", "", [x, scope.like(x.shape)], [(x.shape, F32)])


@kind(2)
def of_integers(scope: Scope) -> None:
    shape = scope.any().shape
    x, y = scope.like(shape, "i32"), scope.like(shape, "i32")
    if scope.module.chance(0.4):
        made = scope.emit(f"stablehlo.{scope.random.choice(ONE_INTEGER)}", "", [x], [(shape, "i32")])
    else:
        made = scope.emit(f"stablehlo.{scope.random.choice(OF_INTEGERS)}", "", [x, y], [(shape, "i32")])
    if scope.module.chance(0.7):
        scope.emit("stablehlo.convert", "", [made], [(shape, F32)])


@kind(2)
def chlo(scope: Scope) -> None:
    x = scope.any()
    drawn = scope.random.random()
    if drawn < 0.6:
        scope.emit(f"chlo.{scope.random.choice(CHLO_UNARY)}", "", [x], [(x.shape, F32)])
    elif drawn < 0.8:
        scope.emit(f"chlo.{scope.random.choice(CHLO_BINARY)}", "", [x, scope.like(x.shape)], [(x.shape, F32)])
    elif drawn < 0.9:
        y = scope.like(x.shape, "i32")
        scope.emit("chlo.mulhi", "", [y, scope.like(x.shape, "i32")], [(x.shape, "i32")])
    else:
        found = scope.emit(f"chlo.{scope.random.choice(CHLO_TESTS)}", "", [x], [(x.shape, "i1")])
        scope.emit("stablehlo.select", "", [found, x, scope.like(x.shape)], [(x.shape, F32)])


@kind()
def complex_numbers(scope: Scope) -> None:
    x = scope.any()
    made = scope.emit("stablehlo.complex", "", [x, scope.like(x.shape)], [(x.shape, "complex<f32>")])
    if scope.module.chance(0.3):
        made = scope.emit("chlo.conj", "", [made], [(x.shape, "complex<f32>")])
    scope.emit(f"stablehlo.{scope.random.choice(('real', 'imag'))}", "", [made], [(x.shape, F32)])


@kind(2)
def choose(scope: Scope) -> None:
    x = scope.any()
    pred = _test(scope, x) if scope.module.chance(0.5) else scope.like(scope.random.choice((x.shape, ())), "i1")
    scope.emit("stablehlo.select", "", [pred, x, scope.like(x.shape)], [(x.shape, F32)])


def _test(scope: Scope, x: Value) -> Value:
    if scope.module.chance(0.3):
        return scope.emit("stablehlo.is_finite", "", [x], [(x.shape, "i1")])
    direction = scope.random.choice(("EQ", "NE", "LT", "LE", "GT", "GE"))
    attributes = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
    return scope.emit("stablehlo.compare", attributes, [x, scope.like(x.shape)], [(x.shape, "i1")])


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


@kind()
def reduce_precision(scope: Scope) -> None:
    x = scope.any()
    attributes = "exponent_bits = 5 : i32, mantissa_bits = 10 : i32"
    scope.emit("stablehlo.reduce_precision", attributes, [x], [(x.shape, F32)])


@kind()
def map_(scope: Scope) -> None:
    x = scope.any(1)
    a, b, c = (scope.module.fresh() for _ in range(3))
    body = (
        f"{{ ^bb0({a}: tensor<f32>, {b}: tensor<f32>): {c} = stablehlo.multiply {a}, {b} : tensor<f32> "
        f"stablehlo.return {c} : tensor<f32> }}"
    )
    dims = f"dimensions = array<i64: {', '.join(map(str, range(len(x.shape))))}>"
    scope.emit("stablehlo.map", dims, [x, scope.like(x.shape)], [(x.shape, F32)], [body])


@kind()
def bitcast(scope: Scope) -> None:
    x = scope.any()
    if scope.module.chance(0.5):
        y = scope.emit("stablehlo.bitcast_convert", "", [x], [(x.shape, "i32")])
    else:
        y = scope.emit("stablehlo.bitcast_convert", "", [x], [((*x.shape, 2), "i16")])
    scope.emit("stablehlo.bitcast_convert", "", [y], [(x.shape, F32)])
