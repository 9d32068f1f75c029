"""MindSpore's functions that apply a primitive of the same operands, and attributes, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.mindspore.ops import index as lookups
from autoshard.mindspore.ops import loss, neural, shapes, state
from autoshard.mindspore.ops import math as elementwise
from autoshard.mindspore.ops.primitive import Named


def _function(primitive: type[Named], *names: str) -> Callable:
    """A call of the primitive: its operands, then what it is made with, as far as `names`, if given, go."""
    operands, made = (list(one.parameters.values()) for one in (primitive.called_with, primitive.made_with))
    own = [*operands, *made][: len(names) or len(operands)]
    attributes = {name: one.name for name, one in zip(names[len(operands) :], made, strict=False)}
    known = {name: one.name for name, one in zip(names, operands, strict=False)}

    def call(*args: Any, **given: Any) -> Any:
        made_with = {attributes[name]: given.pop(name) for name in attributes if name in given}
        renamed = {known.get(name, name): value for name, value in given.items()}
        return primitive(*args[len(operands) :], **made_with)(*args[: len(operands)], **renamed)

    shown = [one.replace(name=name) for one, name in zip(own, names or [one.name for one in own], strict=True)]
    call.__signature__ = primitive.called_with.replace(parameters=shown)  # type: ignore[attr-defined]
    call.__doc__ = primitive.__doc__
    return call


_ONE = {
    "abs": "Abs", "acos": "ACos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "erfc": "Erfc", "exp": "Exp", "expm1": "Expm1",
    "floor": "Floor", "isfinite": "IsFinite", "isinf": "IsInf", "log": "Log", "log1p": "Log1p",
    "logical_not": "LogicalNot", "neg": "Neg", "negative": "Neg", "reciprocal": "Reciprocal", "rsqrt": "Rsqrt",
    "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "square": "Square",
    "tan": "Tan", "tanh": "Tanh", "add": "Add", "tensor_add": "Add", "mul": "Mul", "multiply": "Mul", "sub": "Sub",
    "floor_divide": "FloorDiv", "floor_mod": "FloorMod", "pow": "Pow", "maximum": "Maximum", "minimum": "Minimum",
    "equal": "Equal", "eq": "Equal", "not_equal": "NotEqual", "ne": "NotEqual", "greater": "Greater", "gt": "Greater",
    "greater_equal": "GreaterEqual", "ge": "GreaterEqual", "less": "Less", "le": "LessEqual",
    "less_equal": "LessEqual", "atan2": "Atan2", "select": "Select", "lerp": "Lerp",
    "masked_fill": "MaskedFill", "hardsigmoid": "HSigmoid", "hardswish": "HSwish", "selu": "SeLU", "mish": "Mish",
    "fast_gelu": "FastGeLU", "relu6": "ReLU6", "truncate_div": "TruncateDiv", "truncate_mod": "TruncateMod",
    "absolute": "Abs", "arccos": "ACos", "arccosh": "Acosh", "arcsinh": "Asinh", "arctan": "Atan",
    "arctanh": "Atanh", "arctan2": "Atan2", "xdivy": "Xdivy", "xlogy": "Xlogy",
}  # fmt: skip
globals().update({name: _function(getattr(elementwise, kind)) for name, kind in _ONE.items()})

lt = _function(elementwise.Less)
cast = _function(elementwise.Cast, "input", "dtype")
isnan = _function(elementwise.IsNan, "input")
logical_and = _function(elementwise.LogicalAnd, "input", "other")
logical_or = _function(elementwise.LogicalOr, "input", "other")
logical_xor = _function(elementwise.LogicalXor)
floor_div = _function(elementwise.FloorDiv, "x", "y")
tensor_div = _function(elementwise.RealDiv)
tensor_mul = _function(elementwise.Mul)
bitwise_and = _function(elementwise.BitwiseAnd, "input", "other")
bitwise_or = _function(elementwise.BitwiseOr, "input", "other")
bitwise_xor = _function(elementwise.BitwiseXor, "input", "other")
arcsin = _function(elementwise.Asin, "x")
true_divide = _function(elementwise.Div, "dividend", "divisor")
softsign = _function(elementwise.Softsign, "x")
prelu = _function(elementwise.PReLU)
addn = _function(elementwise.AddN, "x")
reshape = _function(shapes.Reshape)
transpose = _function(shapes.Transpose, "input", "dims")
permute = _function(shapes.Transpose, "input", "axis")
expand_dims = _function(shapes.ExpandDims)
unsqueeze = _function(shapes.ExpandDims, "input", "dim")
tile = _function(shapes.Tile)
fill = _function(shapes.Fill)
depend = _function(shapes.Depend)
shape = _function(shapes.Shape)
rank = _function(shapes.Rank)
size = _function(shapes.Size)
gather_d = _function(lookups.GatherD)
gather_elements = _function(lookups.GatherD, "input", "dim", "index")
unsorted_segment_sum = _function(lookups.UnsortedSegmentSum)
scatter_nd = _function(lookups.ScatterNd)
gather_nd = _function(lookups.GatherNd)
tensor_scatter_add = _function(lookups.TensorScatterAdd)
tensor_scatter_update = _function(lookups.TensorScatterUpdate)
tensor_scatter_sub = _function(lookups.TensorScatterSub)
tensor_scatter_max = _function(lookups.TensorScatterMax)
tensor_scatter_min = _function(lookups.TensorScatterMin)
tensor_scatter_mul = _function(lookups.TensorScatterMul)
tensor_scatter_div = _function(lookups.TensorScatterDiv)
tensor_scatter_elements = _function(lookups.TensorScatterElements, "input_x", "indices", "updates", "axis", "reduction")
unsorted_segment_max = _function(lookups.UnsortedSegmentMax)
unsorted_segment_min = _function(lookups.UnsortedSegmentMin)
unsorted_segment_prod = _function(lookups.UnsortedSegmentProd)
identity = _function(elementwise.Identity, "x")
dtype = _function(shapes.DType, "x")
assign = _function(state.Assign)
assign_add = _function(state.AssignAdd)
assign_sub = _function(state.AssignSub)
stop_gradient = _function(elementwise.StopGradient)
bias_add = _function(neural.BiasAdd)
bmm = _function(neural.BatchMatMul, "input_x", "mat2")
mm = _function(neural.MatMul)
remainder = _function(elementwise.FloorMod, "input", "other")
fmod = _function(elementwise.Mod, "input", "other")
elu = _function(elementwise.Elu, "input_x", "alpha")
celu = _function(elementwise.CeLU, "x", "alpha")
softshrink = _function(elementwise.SoftShrink, "input", "lambd")
hardshrink = _function(elementwise.HShrink, "input", "lambd")
log_softmax = _function(neural.LogSoftmax, "logits", "axis")
rms_norm = _function(neural.RmsNorm, "x", "gamma", "epsilon")
concat = cat = _function(shapes.Concat, "tensors", "axis")
stack = _function(shapes.Stack, "tensors", "axis")
unstack = _function(shapes.Unstack, "input_x", "axis")
unbind = _function(shapes.Unstack, "input", "dim")
broadcast_to = _function(shapes.BroadcastTo, "input", "shape")
roll = _function(shapes.Roll, "input", "shifts", "dims")
tril = _function(shapes.Tril, "input", "diagonal")
triu = _function(shapes.Triu, "input", "diagonal")
numel = _function(shapes.Size, "input")
zeros = _function(shapes.Zeros, "size", "dtype")
ones = _function(shapes.Ones, "shape", "dtype")
strided_slice = _function(
    shapes.StridedSlice, "input_x", "begin", "end", "strides", "begin_mask", "end_mask", "ellipsis_mask",
    "new_axis_mask", "shrink_axis_mask",
)  # fmt: skip
gather = _function(lookups.Gather, "input_params", "input_indices", "axis", "batch_dims")
sort = _function(lookups.Sort, "input_x", "axis", "descending")
smooth_l1_loss = _function(loss.SmoothL1Loss, "input", "target", "beta", "reduction")
binary_cross_entropy = _function(loss.BinaryCrossEntropy, "logits", "labels", "weight", "reduction")
binary_cross_entropy_with_logits = _function(
    loss.BCEWithLogitsLoss, "input", "target", "weight", "pos_weight", "reduction"
)
kl_div = _function(loss.KLDivLoss, "logits", "labels", "reduction")
