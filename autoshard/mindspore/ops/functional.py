"""Functions with MindSpore's names, arguments, defaults and meaning: `ops.relu(x)`, `ops.split(x, 2, axis=1)`, ...

Most apply a primitive of the same operands; the others say what MindSpore's functions do besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops import index as lookups
from autoshard.mindspore.ops import loss, neural, shapes, windows
from autoshard.mindspore.ops import math as elementwise
from autoshard.mindspore.ops.primitive import Named, as_tensors, plain, tensors
from autoshard.trace.initializer import next_seed
from autoshard.util.errors import ShapeError


def _function(primitive: type[Named], *names: str) -> Callable:
    """A call of the primitive, made without attributes; `names` are those of the operands, where they differ."""

    def call(*args: Any, **given: Any) -> Any:
        renamed = {known.get(name, name): value for name, value in given.items()}
        return primitive()(*args, **renamed)

    parameters = list(primitive.called_with.parameters.values())
    own = [
        one.replace(name=name) for one, name in zip(parameters, names or [one.name for one in parameters], strict=True)
    ]
    known = {name: one.name for name, one in zip(names, parameters, strict=False)}
    call.__signature__ = primitive.called_with.replace(parameters=own)  # type: ignore[attr-defined]
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
stop_gradient = _function(elementwise.StopGradient)
bias_add = _function(neural.BiasAdd)
bmm = _function(neural.BatchMatMul, "input_x", "mat2")
mm = _function(neural.MatMul)


# -- arithmetic and activations


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """input / other; "floor" or "trunc" rounds it."""
    if rounding_mode is None:
        return elementwise.Div()(input, other)
    if rounding_mode not in ("floor", "trunc"):
        raise ShapeError(f"div: rounding_mode is {rounding_mode!r}; it is None, 'floor' or 'trunc'")
    return (elementwise.FloorDiv if rounding_mode == "floor" else elementwise.TruncateDiv)()(input, other)


divide = div


def subtract(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha * other."""
    return elementwise.Sub()(input, other if alpha == 1 else elementwise.Mul()(other, alpha))


def remainder(input: Any, other: Any) -> Any:
    """input - floor(input / other) * other: it has the sign of `other`."""
    return elementwise.FloorMod()(input, other)


def fmod(input: Any, other: Any) -> Any:
    """input - trunc(input / other) * other: it has the sign of `input`."""
    return elementwise.Mod()(input, other)


def round(input: Any, *, decimals: int = 0) -> Any:
    """The nearest whole number, of two the even one; or so many decimals."""
    return elementwise.Round()(input, decimals)


def trunc(input: Any) -> Any:
    """The number without its fraction."""
    return as_tensors(core.mul(core.sign(input), core.floor(core.abs(input))))


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Kept between min and max, of which one may be left out."""
    if min is None and max is None:
        raise ShapeError("clamp: give min, max or both")
    x = input if min is None else elementwise.Maximum()(input, min)
    return x if max is None else elementwise.Minimum()(x, max)


clip = clamp


def clip_by_value(x: Any, clip_value_min: Any = None, clip_value_max: Any = None) -> Any:
    """The same as `clamp`."""
    return clamp(x, clip_value_min, clip_value_max)


def relu(input: Any, inplace: bool = False) -> Any:
    """max(x, 0); `inplace` is not offered, as tensors of a trace never change."""
    if inplace:
        raise ShapeError("relu: inplace=True is not offered; use the result")
    return elementwise.ReLU()(input)


def gelu(input: Any, approximate: str = "none") -> Any:
    """x times the normal distribution function of x; "tanh" takes the approximation by tanh."""
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"gelu: approximate is {approximate!r}; it is 'none' or 'tanh'")
    return as_tensors(core.gelu(input, approximate=approximate))


def silu(input: Any) -> Any:
    """x times the sigmoid of x."""
    return as_tensors(core.silu(input))


def elu(input_x: Any, alpha: float = 1.0) -> Any:
    """x where it is at least 0, else alpha (exp(x) - 1)."""
    return elementwise.Elu(alpha)(input_x)


def leaky_relu(input: Any, alpha: float = 0.2) -> Any:
    """x where it is at least 0, else alpha x."""
    below = core.scalar_mul(core.minimum(input, core.zeros_like(input)), factor=alpha)
    return as_tensors(core.add(core.relu(input), below))


def logsigmoid(x: Any) -> Any:
    """The logarithm of the sigmoid."""
    return as_tensors(core.neg(core.softplus(core.neg(x))))


def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    scaled = input if beta == 1 else core.scalar_mul(input, factor=beta)
    far = core.greater(scaled, core.fill(shape=(), value=threshold, dtype=element(input.dtype).name))
    soft = core.softplus(scaled)
    return as_tensors(core.select(far, input, soft if beta == 1 else core.scalar_mul(soft, factor=1 / beta)))


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Kept between two numbers."""
    return clamp(input, min_val, max_val)


def softmax(input: Any, axis: int = -1, *, dtype: Any = None) -> Any:
    """exp(x) divided by its sum along `axis`; in another element type, if given."""
    return neural.Softmax(axis)(input if dtype is None else elementwise.Cast()(input, dtype))


def log_softmax(logits: Any, axis: int = -1) -> Any:
    """The logarithm of `softmax`."""
    return neural.LogSoftmax(axis)(logits)


def where(condition: Any, input: Any, other: Any) -> Any:
    """`input` where the condition is true, else `other`."""
    return elementwise.Select()(condition, *tensors(input, other))


# -- products and layers


def matmul(input: Any, other: Any) -> Any:
    """The product of matrices, with batches in front that broadcast, as numpy's; vectors are rows and columns."""
    left, right = len(input.shape), len(other.shape)
    if not left or not right:
        raise ShapeError("matmul: an operand has no dims; use mul")
    x = core.expand_dims(input, axis=0) if left == 1 else input
    w = core.expand_dims(other, axis=1) if right == 1 else other
    flat = len(w.shape) == 2
    batch = () if flat else np.broadcast_shapes(tuple(x.shape[:-2]), tuple(w.shape[:-2]))
    if not flat:
        x = core.broadcast_to(x, shape=(*batch, *x.shape[-2:])) if tuple(x.shape[:-2]) != batch else x
        w = core.broadcast_to(w, shape=(*batch, *w.shape[-2:])) if tuple(w.shape[:-2]) != batch else w
    y = core.matmul(x, w) if flat else core.batch_matmul(x, w)
    gone = (*((len(y.shape) - 2,) if left == 1 else ()), *((len(y.shape) - 1,) if right == 1 else ()))
    return as_tensors(core.squeeze(y, axis=gone) if gone else y)


def dense(input: Any, weight: Any, bias: Any = None) -> Any:
    """input times the transposed weight [out, in], plus the bias."""
    y = core.matmul(input, weight, transpose_b=True)
    return as_tensors(y if bias is None else core.add(y, bias))


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta input + alpha mat1 mat2."""
    product = core.scalar_mul(core.matmul(mat1, mat2), factor=alpha)
    return as_tensors(core.add(core.scalar_mul(input, factor=beta), product))


def einsum(equation: str, *operands: Any) -> Any:
    """Sums of products by Einstein's notation."""
    return neural.Einsum(equation)(operands)


def layer_norm(
    input: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """x without mean and scale over its last dims of `normalized_shape`, times the weight plus the bias."""
    last = shapes.axes(normalized_shape)
    if tuple(input.shape[len(input.shape) - len(last) :]) != last:
        raise ShapeError(f"layer_norm: normalized_shape {last} are not the last dims of {tuple(input.shape)}")
    kind = element(input.dtype).name
    gamma = core.fill(shape=last, value=1, dtype=kind) if weight is None else weight
    beta = core.fill(shape=last, value=0, dtype=kind) if bias is None else bias
    return as_tensors(core.layer_norm(input, gamma, beta, begin_norm_axis=len(input.shape) - len(last), epsilon=eps))


def rms_norm(x: Any, gamma: Any, epsilon: float = 1e-6) -> Any:
    """x divided by its root mean square, times gamma; and the factor that did it."""
    return neural.RmsNorm(epsilon)(x, gamma)


def batch_norm(
    input_x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """x with mean and scale of each channel taken out, times the weight plus the bias."""
    made = neural.BatchNorm(is_training=training, epsilon=eps, momentum=momentum)
    return made(input_x, weight, bias, running_mean, running_var)[0]


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Any:
    """The rows of the weight by whole numbers."""
    if padding_idx is not None or max_norm is not None or scale_grad_by_freq:
        raise ShapeError("embedding: padding_idx, max_norm and scale_grad_by_freq are not offered here")
    return lookups.Gather()(weight, input, 0)


def dropout(input: Any, p: float = 0.5, training: bool = True, seed: int | None = None) -> Any:
    """While training, a share `p` of the elements set to 0 and the others scaled by 1 / (1 - p).

    Outside of a cell nothing counts its uses, so that in a trace every step would drop the same elements: there it is
    refused; nn.Dropout draws anew.
    """
    if not training or p == 0:
        return input
    if not isinstance(input, np.ndarray):
        raise ShapeError("ops.dropout in a traced model would drop the same elements in every step; use nn.Dropout")
    counter = np.zeros((), np.int32)
    return as_tensors(core.dropout(input, counter, rate=p, seed=next_seed() if seed is None else seed))


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    pad_mode: str = "valid",
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Sums of products of x [N, C, H, W] under windows of weight [out, C / groups, h, w], plus a bias per channel."""
    y = windows.convolve(input, weight, pad_mode, padding, stride, dilation, groups, "conv2d")
    return as_tensors(y if bias is None else core.add(y, elementwise.along(bias, y, 1)))


def max_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """The largest element under each window of the last two dims."""
    if return_indices:
        raise ShapeError("max_pool2d: return_indices=True is not offered here")
    kernel = windows.each(kernel_size, 2, "max_pool2d: kernel_size")
    steps = kernel if stride is None else windows.each(stride, 2, "max_pool2d: stride")
    far = windows.each(dilation, 2, "max_pool2d: dilation")
    of = [(windows.reach(size, one), step) for size, one, step in zip(kernel, far, steps, strict=True)]
    pads = windows.pads("pad", padding, x.shape[-2:], of, "max_pool2d")
    pads = windows.more_behind(x.shape[-2:], pads, of) if ceil_mode else pads
    return as_tensors(windows.pooled(x, "max", windows.least(x), kernel, steps, pads, far))


def avg_pool2d(
    input_x: Any,
    kernel_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> Any:
    """The mean of the elements under each window of the last two dims."""
    kernel, steps = (windows.each(one, 2, "avg_pool2d") for one in (kernel_size, stride))
    of = list(zip(kernel, steps, strict=True))
    own = windows.pads("pad", padding, input_x.shape[-2:], of, "avg_pool2d")
    pads = windows.more_behind(input_x.shape[-2:], own, of) if ceil_mode else own
    counted = own if count_include_pad else None
    return as_tensors(windows.average(input_x, kernel, steps, pads, counted, divisor_override or None))


# -- reductions


def _reduced(operator: Any, x: Any, axis: Any, keep: bool, dtype: Any = None) -> Any:
    x = x if dtype is None else core.cast(x, dtype=element(dtype).name)
    return as_tensors(operator(x, axis=shapes.axes(axis), keep_dims=keep))


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of elements along dims, or of all."""
    kind = element(input.dtype)
    if dtype is None and not kind.is_float:
        dtype = "i64"
    return _reduced(core.reduce_sum, input, dim, keepdim, dtype)


def mean(x: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """The mean of elements along axes, or of all."""
    return shapes.ReduceMean(keep_dims)(x, shapes.axes(axis))


def prod(input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> Any:
    """The product of elements along an axis, or of all."""
    return _reduced(core.reduce_prod, input, axis, keep_dims, dtype)


def all(input: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """Whether all elements along axes are true."""
    return _reduced(core.reduce_all, _true(input), axis, keep_dims)


def any(input: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """Whether any element along axes is true."""
    return _reduced(core.reduce_any, _true(input), axis, keep_dims)


def _true(x: Any) -> Any:
    return x if element(x.dtype).name == "bool" else core.not_equal(x, core.zeros_like(x))


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of the sum of exponentials along dims."""
    over = shapes.axes(dim)
    top = core.stop_gradient(core.reduce_max(input, axis=over, keep_dims=True))
    total = core.log(core.reduce_sum(core.exp(core.sub(input, top)), axis=over, keep_dims=keepdim))
    gone = tuple(sorted(one % len(input.shape) for one in over))
    return as_tensors(core.add(total, top if keepdim else core.squeeze(top, axis=gone)))


def _extreme(x: Any, axis: Any, keep: bool, given: tuple, value: Any, place: Any, what: str) -> Any:
    if given != (None, None):
        raise ShapeError(f"{what}: initial and where are not offered here")
    if axis is None:
        return as_tensors((value(x, axis=()), np.asarray(0, np.int64)))
    found = core.cast(place(x, axis=axis, keep_dims=keep), dtype="i64")
    return as_tensors((value(x, axis=(axis,), keep_dims=keep), found))


def max(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """The largest element along `axis` and its place; of all elements, if no axis is given, and 0."""
    return _extreme(input, axis, keepdims, (initial, where), core.reduce_max, core.arg_max, "max")


def min(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """The smallest element along `axis` and its place; of all elements, if no axis is given, and 0."""
    return _extreme(input, axis, keepdims, (initial, where), core.reduce_min, core.arg_min, "min")


def argmax(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The place (int64) of the largest element along `dim`, or in the flat tensor."""
    return _place(input, dim, keepdim, core.arg_max)


def argmin(input: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The place (int32) of the smallest element along `axis`, or in the flat tensor."""
    return elementwise.Cast()(_place(input, axis, keepdims, core.arg_min), "i32")


def _place(x: Any, axis: int | None, keep: bool, find: Any) -> Any:
    found = find(core.reshape(x, shape=(-1,)), axis=0) if axis is None else find(x, axis=axis, keep_dims=keep)
    return as_tensors(core.cast(found, dtype="i64"))


def cumsum(x: Any, axis: int, dtype: Any = None) -> Any:
    """Sums up to each element along `axis`."""
    return shapes.CumSum()(x if dtype is None else elementwise.Cast()(x, dtype), axis)


# -- moving elements


def split(tensor: Any, split_size_or_sections: int | Sequence[int], axis: int = 0) -> Any:
    """Parts of so many elements along `axis`, the last may have less; or parts of the given sizes."""
    length, given = tensor.shape[axis], plain(split_size_or_sections)
    sizes = (
        given
        if isinstance(given, tuple)
        else (given,) * (length // given) + ((length % given,) if length % given else ())
    )
    if math.fsum(sizes) != length:
        raise ShapeError(f"split: sizes {sizes} do not add up to the {length} elements along axis {axis}")
    parts = core.split(tensor, axis=axis, sizes=sizes)
    return as_tensors(parts if isinstance(parts, tuple) else (parts,))


def chunk(input: Any, chunks: int, axis: int = 0) -> Any:
    """So many parts along `axis`, equal but for the last."""
    return split(input, -(-input.shape[axis] // chunks), axis)


def concat(tensors: Any, axis: int = 0) -> Any:
    """Tensors one behind the other along `axis`."""
    return shapes.Concat(axis)(tensors)


cat = concat


def stack(tensors: Any, axis: int = 0) -> Any:
    """Tensors of one shape along a new axis."""
    return shapes.Stack(axis)(tensors)


def unstack(input_x: Any, axis: int = 0) -> Any:
    """The tensors that lie along `axis`."""
    return shapes.Unstack(axis)(input_x)


def unbind(input: Any, dim: int = 0) -> Any:
    """The tensors that lie along `dim`."""
    return shapes.Unstack(dim)(input)


def squeeze(input: Any, axis: Any = None) -> Any:
    """Without the dims of size 1 at `axis`, or any."""
    return shapes.Squeeze(shapes.axes(axis))(input)


def flatten(input: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Any:
    """The dims from `start_dim` to `end_dim` as one."""
    if order != "C":
        raise ShapeError(f"flatten: order is {order!r}; only 'C', row-major, is offered here")
    rank = len(input.shape)
    if not rank:
        return as_tensors(core.reshape(input, shape=(1,)))
    first, last = start_dim % rank, end_dim % rank
    if last < first:
        raise ShapeError(f"flatten: start_dim {start_dim} comes behind end_dim {end_dim}")
    whole = math.prod(input.shape[first : last + 1])
    return as_tensors(core.reshape(input, shape=(*input.shape[:first], whole, *input.shape[last + 1 :])))


def broadcast_to(input: Any, shape: Sequence[int]) -> Any:
    """Repeated along new leading dims, and along dims of size 1; -1 keeps a dim."""
    return shapes.BroadcastTo(plain(shape))(input)


def flip(input: Any, dims: Any) -> Any:
    """In reversed order along dims."""
    return shapes.ReverseV2(shapes.axes(dims))(input)


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Moved by `shifts` along `dims`; what leaves at the end comes in at the begin."""
    return shapes.Roll(shifts, dims)(input)


def swapaxes(input: Any, axis0: int, axis1: int) -> Any:
    """With two dims exchanged."""
    order = list(range(len(input.shape)))
    order[axis0], order[axis1] = order[axis1], order[axis0]
    return shapes.Transpose()(input, tuple(order))


def t(input: Any) -> Any:
    """The transposed matrix."""
    return input if len(input.shape) < 2 else swapaxes(input, 0, 1)


def tril(input: Any, diagonal: int = 0) -> Any:
    """Zeros above a diagonal of the last two dims."""
    return shapes.Tril(diagonal)(input)


def triu(input: Any, diagonal: int = 0) -> Any:
    """Zeros below a diagonal of the last two dims."""
    return shapes.Triu(diagonal)(input)


def narrow(input: Any, axis: int, start: int, length: int) -> Any:
    """`length` elements from `start` on along `axis`."""
    begin, sizes = [0] * len(input.shape), list(input.shape)
    begin[axis], sizes[axis] = start, length
    return shapes.Slice()(input, tuple(begin), tuple(sizes))


def strided_slice(
    input_x: Any,
    begin: Any,
    end: Any,
    strides: Any,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Any:
    """See the primitive StridedSlice."""
    made = shapes.StridedSlice(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return made(input_x, begin, end, strides)


def pad(input_x: Any, padding: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    """A number around: (before, behind) for the last dim, then for the one before it, and so on."""
    if mode != "constant":
        raise ShapeError(f"pad: mode is {mode!r}; only 'constant' is offered here")
    given, missing = plain(padding), len(input_x.shape) - len(padding) // 2
    pairs = [(given[2 * i], given[2 * i + 1]) for i in range(len(given) // 2)]
    return as_tensors(core.pad(input_x, paddings=(*((0, 0),) * missing, *reversed(pairs)), value=value or 0))


# -- looking up


def gather(input_params: Any, input_indices: Any, axis: int, batch_dims: int = 0) -> Any:
    """Slices along `axis`, one per index."""
    return lookups.Gather(batch_dims)(input_params, input_indices, axis)


def index_select(input: Any, axis: int, index: Any) -> Any:
    """Slices along `axis`, one per index of a vector."""
    return lookups.Gather()(input, index, axis)


def one_hot(indices: Any, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1) -> Any:
    """`on_value` where a new axis has the index, else `off_value`."""
    return lookups.OneHot(axis)(indices, depth, on_value, off_value)


def topk(input: Any, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest (or smallest) elements along `dim`, by default the last, and their places."""
    rank, at = len(input.shape), (len(input.shape) - 1 if dim is None else dim % len(input.shape))
    x = input if at == rank - 1 else swapaxes(input, at, rank - 1)
    values, places = lookups.TopK(sorted)(x if largest else core.neg(x), k)
    values = values if largest else as_tensors(core.neg(values))
    return (values, places) if at == rank - 1 else (swapaxes(values, at, rank - 1), swapaxes(places, at, rank - 1))


def sort(input_x: Any, axis: int = -1, descending: bool = False) -> Any:
    """The elements in order along `axis`, and their places."""
    return lookups.Sort(axis, descending)(input_x)


def argsort(input: Any, axis: int = -1, descending: bool = False) -> Any:
    """The places of the elements in order along `axis`."""
    return lookups.Sort(axis, descending)(input)[1]


# -- tensors out of nothing


def zeros(size: Any, dtype: Any = None) -> Any:
    """0 everywhere."""
    return shapes.Zeros()(size, dtype)


def ones(shape: Any, dtype: Any = None) -> Any:
    """1 everywhere."""
    return shapes.Ones()(shape, dtype)


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A number everywhere."""
    kind = dtype or ("bool" if isinstance(fill_value, bool) else "i64" if isinstance(fill_value, int) else "f32")
    return shapes.Fill()(kind, shapes.axes(size), fill_value)


def zeros_like(input: Any, *, dtype: Any = None) -> Any:
    """0 everywhere, in the shape of another tensor."""
    return shapes.Fill()(dtype or input.dtype, tuple(input.shape), 0)


def ones_like(input: Any, *, dtype: Any = None) -> Any:
    """1 everywhere, in the shape of another tensor."""
    return shapes.Fill()(dtype or input.dtype, tuple(input.shape), 1)


def full_like(input: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A number everywhere, in the shape of another tensor."""
    return shapes.Fill()(dtype or input.dtype, tuple(input.shape), fill_value)


def arange(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    """start, start + step, ... before end; with one number the numbers from 0 to before it."""
    first, last = (0, start) if end is None else (start, end)
    found = shapes.Range()(first, last, step)
    return found if dtype is None else elementwise.Cast()(found, dtype)


def eye(n: int, m: int | None = None, dtype: Any = None) -> Any:
    """1 on the main diagonal, 0 elsewhere."""
    return shapes.Eye()(n, n if m is None else m, dtype or "f32")


# -- losses


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Squared differences."""
    return as_tensors(core.mse_loss(input, target, reduction=reduction))


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Absolute differences."""
    return as_tensors(core.l1_loss(input, target, reduction=reduction))


def smooth_l1_loss(input: Any, target: Any, beta: float = 1.0, reduction: str = "none") -> Any:
    """See the primitive SmoothL1Loss."""
    return loss.SmoothL1Loss(beta, reduction)(input, target)


def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """d^2 / 2 of differences d below delta, else delta (|d| - delta / 2)."""
    found = loss.SmoothL1Loss(delta, reduction)(input, target)
    return as_tensors(core.scalar_mul(found, factor=delta))


def binary_cross_entropy(logits: Any, labels: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """The cross entropy of probabilities with probabilities."""
    return loss.BinaryCrossEntropy(reduction)(logits, labels, weight)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Any:
    """The cross entropy of the sigmoid of logits with probabilities."""
    return loss.BCEWithLogitsLoss(reduction)(input, target, weight, pos_weight)


def kl_div(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    """See the primitive KLDivLoss."""
    return loss.KLDivLoss(reduction=reduction)(logits, labels)


def nll_loss(
    inputs: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Minus logarithms of probabilities [N, C] of class numbers [N]."""
    if len(inputs.shape) != 2:
        raise ShapeError(f"nll_loss: inputs are {tuple(inputs.shape)}; only [N, C] is offered here")
    kind = element(inputs.dtype).name
    own = core.fill(shape=(inputs.shape[1],), value=1, dtype=kind) if weight is None else weight
    found, total = loss.NLLLoss(reduction, ignore_index)(inputs, target, own)
    if not label_smoothing:
        return found
    _, share = loss.counted(target, own, ignore_index)
    each = core.mul(core.neg(core.reduce_sum(core.mul(inputs, own), axis=(1,))), _seen(target, ignore_index, kind))
    evenly = (
        core.div(core.reduce_sum(each), total) if reduction == "mean" else loss.reduced(each, reduction, "nll_loss")
    )
    kept = core.scalar_mul(found, factor=1 - label_smoothing)
    return as_tensors(core.add(kept, core.scalar_mul(evenly, factor=label_smoothing / inputs.shape[1])))


def _seen(target: Any, ignore: int, kind: str) -> Any:
    return core.cast(
        core.not_equal(target, core.fill(shape=(), value=ignore, dtype=element(target.dtype).name)), dtype=kind
    )


def _by_class(logits: Any, labels: Any, ignore: int, reduction: str) -> Any:
    """The cross entropy with class numbers as one operator, without rows of the class that is ignored."""
    kind = element(logits.dtype).name
    seen = core.not_equal(labels, core.fill(shape=(), value=ignore, dtype=element(labels.dtype).name))
    rows = core.sparse_softmax_cross_entropy_with_logits(logits, core.select(seen, labels, core.zeros_like(labels)))
    count = core.cast(seen, dtype=kind)
    rows = core.mul(rows, count)
    if reduction != "mean":
        return as_tensors(loss.reduced(rows, reduction, "cross_entropy"))
    return as_tensors(core.div(core.reduce_sum(rows), core.reduce_sum(count)))


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Logits [N, C] against class numbers [N] or class probabilities [N, C]."""
    if len(input.shape) != 2:
        raise ShapeError(
            f"cross_entropy: logits are {tuple(input.shape)}; only [N, C] is offered (MindSpore has classes in dim 1, "
            "autoshard.nn.TokenLoss takes them in the last)"
        )
    sparse = not element(target.dtype).is_float
    if sparse and weight is None and not label_smoothing:
        return _by_class(input, target, ignore_index, reduction)
    logs = neural.LogSoftmax(-1)(input)
    if sparse:
        return nll_loss(logs, target, weight, ignore_index, reduction, label_smoothing)
    if label_smoothing:
        rest = label_smoothing / input.shape[-1]
        target = core.scalar_add(core.scalar_mul(target, factor=1 - label_smoothing), addend=rest)
    parts = core.mul(logs, target if weight is None else core.mul(target, weight))
    rows = core.neg(core.reduce_sum(parts, axis=(-1,)))
    return as_tensors(loss.reduced(rows, reduction, "cross_entropy"))


__all__ = sorted(
    name
    for name, value in globals().items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and name[0] != "_"
)
