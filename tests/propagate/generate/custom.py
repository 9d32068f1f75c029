"""Random custom calls: the targets with rules, unknown ones, side effects and tokens, composites."""

from __future__ import annotations

from tests.propagate.generate.scope import DYNAMIC, F32, TOKEN, Scope, Value, tensor
from tests.propagate.generate.structure_table import structure
from tests.propagate.generate.table import kind

POINTWISE = (
    "annotate_device_placement", "Cholesky", "CompactWyHelper", "InspectSharding", "InvertDiagBlocksLowerTriangular",
    "InvertDiagBlocksUpperTriangular", "LayoutConstraint", "mhlo.erf", "MoveToDevice", "MoveToHost", "X64SplitHigh",
    "X64SplitLow", "X64Combine", "xla.megascale.provide_metadata", "_SPMDInternalOp_MultiPad",
    "_SPMDInternalOp_RotateRight", "_SPMDInternalOp_MultiRotate", "_SPMDInternalOp_MultiSlice", "_SPMDInternalOp_Wrap",
)  # fmt: skip
WITHOUT_RULE = ("sdy_testonly", "tpu_custom_call", "xla_ffi_python_cpu_callback", "xla.debug.Log", "nobody_knows_it")


def custom_call(
    scope: Scope, target: str, operands: list[Value], results: list[tuple[tuple[int, ...], str]], effects: bool = False
) -> Value:
    attributes = f'call_target_name = "{target}"{", has_side_effect = true" if effects else ""}'
    return scope.emit("stablehlo.custom_call", attributes, operands, results)


@kind(2)
def pointwise(scope: Scope) -> None:
    x = scope.any()
    target = scope.random.choice(POINTWISE)
    operands = [x, scope.like(x.shape)] if target in ("X64Combine", "_SPMDInternalOp_MultiPad") else [x]
    custom_call(scope, target, operands, [(x.shape, F32)])


@kind(2)
def unknown(scope: Scope) -> None:
    operands = [scope.any() for _ in range(scope.random.randint(1, 2))]
    shape = scope.random.choice((operands[0].shape, scope.shape()))
    target = scope.random.choice(WITHOUT_RULE)
    custom_call(scope, target, operands, [(shape, F32)], effects=scope.module.chance(0.3))


@kind()
def effect(scope: Scope) -> None:
    """A call without results, which keeps what it is given from being dropped."""
    custom_call(scope, scope.random.choice(WITHOUT_RULE), [scope.any()], [], effects=True)


@kind(2)
def factorization(scope: Scope) -> None:
    batch, rows, columns = scope.shape(0, 1), scope.random.choice((2, 4, 6)), scope.random.choice((3, 4))
    square, matrix, taus = (*batch, rows, rows), (*batch, rows, columns), (*batch, min(rows, columns))
    target = scope.random.choice(("Eigh", "Qr", "QrDecompositionBlock", "ProductOfElementaryHouseholderReflectors"))
    if target == "Eigh":
        custom_call(scope, target, [scope.like(square)], [(square, F32), ((*batch, rows), F32)])
    elif target.startswith("Qr"):
        custom_call(scope, target, [scope.like(matrix)], [(matrix, F32), (taus, F32)])
    else:
        custom_call(scope, target, [scope.like(matrix), scope.like(taus)], [(matrix, F32)])


@kind(2)
def largest(scope: Scope) -> None:
    x = scope.any(1)
    kept = (*x.shape[:-1], scope.random.randint(1, x.shape[-1]))
    target = scope.random.choice(("mhlo.topk", "ApproxTopK", "PartialReduce"))
    operands = [x]
    if target != "mhlo.topk":
        operands += [scope.like(x.shape, "i32"), scope.scalar(0.0), scope.scalar(0, "i32")]
    custom_call(scope, target, operands, [(kept, F32), (kept, "i32")])


@kind()
def tokens(scope: Scope) -> None:
    if "tokens" not in scope.module.features:
        return
    token, x = scope.token(), scope.any()
    drawn = scope.random.randrange(4)
    if drawn == 0:
        custom_call(scope, "nobody_knows_it", [token, x], [((), TOKEN), (x.shape, F32)], effects=True)
    elif drawn == 1:
        scope.emit("stablehlo.after_all", "", [token, scope.token()], [((), TOKEN)])
    elif drawn == 2:
        layout = [list(range(len(x.shape)))[::-1]]
        attributes = f'infeed_config = "", layout = {layout}'
        scope.emit("stablehlo.infeed", attributes, [token], [(x.shape, F32), ((), TOKEN)])
    else:
        scope.emit("stablehlo.outfeed", 'outfeed_config = ""', [x, token], [((), TOKEN)])


@kind()
def composite(scope: Scope) -> None:
    """An operation that is known by its name and has a function for those who do not know it."""
    x = scope.any()
    name = f"composed{len(scope.module.functions)}"
    of, inside = tensor(x.shape), scope.module.fresh()
    scope.module.functions.append(
        f"func.func private @{name}({inside}: {of}) -> {of} {{\n"
        f"  {inside}r = stablehlo.tanh {inside} : {of}\n  return {inside}r : {of}\n}}"
    )
    scope.emit("stablehlo.composite", f'name = "own.{name}", decomposition = @{name}', [x], [(x.shape, F32)])


@structure("dynamic")
def dynamic(scope: Scope) -> None:
    """An operation on a tensor of dynamic size; what makes one Shardy refuses, so that is rare."""
    x = scope.dynamic(scope.random.choice((3, 4)))
    if x is None:
        return
    drawn = scope.random.random()
    if drawn < 0.03:
        scope.emit("stablehlo.negate", "", [x], [(x.shape, DYNAMIC)])
    elif drawn < 0.4:
        scope.emit("stablehlo.get_dimension_size", "dimension = 0 : i64", [x], [((), "i32")])
    elif drawn < 0.7:
        custom_call(
            scope, "nobody_knows_it", [x, scope.any()], [(scope.shape(), F32)], effects=scope.module.chance(0.5)
        )
    elif drawn < 0.85:
        scope.line(f"sdy.sharding_group {x.name} group_id={scope.module.group_of((x.dims, scope.place))} : {x.type}")
    else:
        custom_call(scope, "sdy_testonly", [x], [], effects=True)
