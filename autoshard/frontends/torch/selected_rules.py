"""How each overload of ATen does with all rows what it did with selected ones; see `selected`.

A rule takes the writer, whose `node` is the call, and gives what stands for its result: `Rows`, or a node where the
result has a known size. It raises NotSaid where all rows cannot say it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from autoshard.frontends.torch.selected import (
    NotSaid,
    Rows,
    RowsWriter,
    Selection,
    selected_dim,
    shape_of,
)
from autoshard.frontends.torch.selected_parts import joined_again, sliced_part, split_in_parts

Rule = Callable[[RowsWriter], Any]
RULES: dict[str, Rule] = {}

_TAME = frozenset(
    (
        "add", "sub", "rsub", "mul", "neg", "abs", "relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid",
        "tanh", "erf", "softplus", "log_sigmoid_forward", "hardtanh", "hardswish", "hardsigmoid", "mish", "sin",
        "cos", "where", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "masked_fill", "eq", "ne",
        "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
        "bitwise_not", "sign", "floor", "ceil", "round", "square", "clone", "isnan", "isinf", "remainder",
    )
)  # fmt: skip
"""Functions of elements that are finite, with finite slopes, wherever their arguments are."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(one: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, one))
        return one

    return register


def rule_of(node: Any) -> Rule | None:
    """The rule for a node, by the name of its operator."""
    import torch

    space, _, rest = str(node.target).partition(".")
    name = rest.partition(".")[0]
    if space == "autoshard":
        return _alike if name == "stop_gradient" else None
    if space != "aten":
        return None
    if name in RULES:
        return RULES[name]
    return _elementwise if torch.Tag.pointwise in getattr(node.target, "tags", ()) else None


def name_of(node: Any) -> str:
    return str(node.target).split(".")[1]


def result_of(w: RowsWriter, made: Any, selection: Selection) -> Any:
    dim = selected_dim(w.node)
    return made if dim is None else Rows(made, selection, dim)


def rows_among(w: RowsWriter) -> list[tuple[Any, Rows]]:
    """The arguments that are rows."""
    return [(one, w.found[one]) for one in w.node.all_input_nodes if one in w.found]


def one_selection(w: RowsWriter) -> tuple[Selection, dict[Any, Any]]:
    """The selection of all arguments that are rows, and what stands for those of others."""
    given = rows_among(w)
    if not given:
        raise NotSaid("nothing says which rows it means")
    # Parts of rows, and the mask of fewer rows, are what others are brought to.
    selection = min((rows.selection for _, rows in given), key=lambda one: (one.within is None, one.size))
    return selection, {node: w.aligned(rows, selection) for node, rows in given}


# -- functions of elements


def _elementwise(w: RowsWriter) -> Any:
    node, dim = w.node, selected_dim(w.node)
    if dim is None:  # of sizes alone
        return w.again(_of_tensors(w))
    behind = len(node.meta["val"].shape) - dim
    selection, put = one_selection(w)
    for one, rows in rows_among(w):
        rank = len(shape_of(rows.node))
        if rank - rows.dim != behind:
            raise NotSaid("rows meet other dims of another tensor")
        if name_of(node) not in _TAME and one.meta["val"].is_floating_point():
            put[one] = w.legal(Rows(put[one], selection, rows.dim))
    for one in node.all_input_nodes:
        shape = getattr(one.meta.get("val"), "shape", ())
        if one not in w.found and len(shape) >= behind and shape[-behind] != 1:
            raise NotSaid("rows meet a dim of known size")
    return Rows(w.again(_of_tensors(w), put=put), selection, dim)


def _of_tensors(w: RowsWriter) -> Any:
    """The overload that takes sizes as tensors."""
    node = w.node
    counts = any(w.is_count(one) for one in node.args)
    overload = str(node.target).split(".")[2]
    if not counts or overload != "Scalar":
        return None
    import torch

    return getattr(torch.ops.aten, name_of(node)).Tensor


# -- what treats each row for itself


@rule("permute", "transpose", "t", "unsqueeze", "detach", "alias", "_to_copy", "native_dropout", "full_like",
      "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "bernoulli", "lift_fresh_copy")  # fmt: skip
def _alike(w: RowsWriter) -> Any:
    selection, put = one_selection(w)
    coordinates = {rows.coordinate for _, rows in rows_among(w)}
    kept = name_of(w.node) in ("unsqueeze", "detach", "alias", "lift_fresh_copy")
    made = Rows(w.again(put=put), selection, needed_dim(w))
    return Rows(made.node, selection, made.dim, coordinates.pop()) if kept and len(coordinates) == 1 else made


def needed_dim(w: RowsWriter) -> int:
    dim = selected_dim(w.node)
    if dim is None:
        raise NotSaid("its result has a known size, which rows of unknown number have not")
    return dim


@rule("squeeze", "slice", "select")
def _cut(w: RowsWriter) -> Any:
    if w.node.args[0] not in w.found:
        return sliced_part(w)
    rows = w.found[w.node.args[0]]
    shape, name = shape_of(rows.node), name_of(w.node)
    dims = (
        w.node.args[1] if len(w.node.args) > 1 else [i for i, size in enumerate(shape) if size == 1 and i != rows.dim]
    )
    dims = [dims] if isinstance(dims, int) else [*dims]
    if name != "squeeze" and dims[0] % len(shape) == rows.dim:
        if name == "slice" and not any(map(w.is_count, w.node.args[2:])) and _whole(w.node):
            return rows
        raise NotSaid("which rows it takes depends on the data")
    if name == "squeeze":
        made = w.emit("squeeze.dims", rows.node, [one for one in dims if one % len(shape) != rows.dim])
    else:
        made = w.again()
    coordinate = rows.coordinate
    if coordinate is None and rows.selection.key == _listed(rows) and shape[-1] == len(rows.selection.sizes):
        coordinate = w.node.args[2] if name != "squeeze" and dims[0] % len(shape) == 1 else 0
    return Rows(made, rows.selection, needed_dim(w), coordinate)


def _whole(node: Any) -> bool:
    return tuple(node.args[2:4]) in ((), (0,), (0, 9223372036854775807)) and len(node.args) < 5


def _listed(rows: Rows) -> Any:
    """The selection whose coordinates the rows are, all of them side by side."""
    return rows.node.meta.get("coordinates_of")


@rule("cumsum", "sort", "topk", "argmax", "argmin", "argsort",
      "split", "split_with_sizes", "unbind", "flip", "glu", "logsumexp", "linalg_vector_norm", "var",
      "std")  # fmt: skip
def _along_other_dims(w: RowsWriter) -> Any:
    if name_of(w.node) == "split_with_sizes" and any(map(w.is_count, w.node.args[1])):
        return split_in_parts(w)
    selection, put = one_selection(w)
    ((node, rows),) = rows_among(w)
    rank = len(shape_of(rows.node))
    dims = _named(w.node, "dim", "dims")
    dims = [-1] if dims is None and name_of(w.node) in ("topk", "sort", "glu", "split") else dims
    if dims is None or any(one % max(rank, 1) == rows.dim for one in ([dims] if isinstance(dims, int) else dims)):
        raise NotSaid("it goes along the selected rows")
    if name_of(w.node) in ("linalg_vector_norm", "var", "std"):
        put[node] = w.legal(rows)
    return Rows(w.again(put=put), selection, needed_dim(w))


@rule("_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax")
def _softmax(w: RowsWriter) -> Any:
    ((node, rows),) = rows_among(w)
    along = w.node.args[1] % len(shape_of(rows.node)) == rows.dim
    return Rows(w.again(put={node: w.masked(rows, _least(rows))} if along else None), rows.selection, needed_dim(w))


def _least(rows: Rows) -> float:
    """The lowest finite number of the rows' type."""
    import torch

    return torch.finfo(rows.node.meta["val"].dtype).min


@rule("one_hot")
def _one_hot(w: RowsWriter) -> Any:
    ((node, rows),) = rows_among(w)
    return Rows(w.again(put={node: w.masked(rows, 0)}), rows.selection, needed_dim(w))


def _named(node: Any, *names: str) -> Any:
    """An argument by its name."""
    for i, one in enumerate(node.target._schema.arguments):
        if one.name in names:
            return node.args[i] if i < len(node.args) else node.kwargs.get(one.name, one.default_value)
    return None


@rule("convolution", "conv1d", "conv2d", "conv3d", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d",
      "native_group_norm", "group_norm", "native_layer_norm", "layer_norm", "rms_norm", "scaled_dot_product_attention",
      "linear", "bmm", "upsample_nearest2d", "upsample_bilinear2d", "pixel_shuffle")  # fmt: skip
def _of_a_batch(w: RowsWriter) -> Any:
    """Each row is one of a batch."""
    node = w.node
    selection, put = one_selection(w)
    rows = w.rows(node.args[0])
    rank = 0 if rows is None else len(shape_of(rows.node))
    kept = {"linear": rank - 1, "layer_norm": rank - len(_named(node, "normalized_shape") or ())}
    first = kept.get(name_of(node).removeprefix("native_"), 1)
    if rows is None or rows.dim >= first or rank < 2:
        raise NotSaid("it mixes the selected rows")
    others = [one for given, one in rows_among(w) if given is not node.args[0]]
    if any(one.dim for one in others):
        raise NotSaid("it mixes the selected rows")
    return Rows(w.again(put=put), selection, needed_dim(w))


@rule("mm", "matmul", "addmm", "mv", "dot")
def _product(w: RowsWriter) -> Any:
    node = w.node
    left, right = node.args[-2:]
    selection, put = one_selection(w)
    over_left = len(left.meta["val"].shape) - 1
    over_right = max(len(right.meta["val"].shape) - 2, 0)
    for one, over in ((left, over_left), (right, over_right)):
        rows = w.rows(one)
        if rows is not None and rows.dim == over:  # what does not count is not summed
            put[one] = w.masked(Rows(put[one], selection, over), 0)
    if name_of(node) == "addmm" and w.rows(node.args[0]) is not None:
        raise NotSaid("it adds selected rows to a product")
    return result_of(w, w.again(put=put), selection)


@rule("einsum")
def _einsum(w: RowsWriter) -> Any:
    equation, tensors = w.node.args[0].replace(" ", ""), w.node.args[1]
    words, _, result = equation.partition("->")
    selection, put = one_selection(w)
    if "." in equation or "->" not in equation:
        raise NotSaid("its equation has to name all dims of selected rows")
    for word, one in zip(words.split(","), tensors, strict=True):
        rows = w.rows(one)
        if rows is not None and word[rows.dim] not in result:
            put[one] = w.masked(Rows(put[one], selection, rows.dim), 0)
    return result_of(w, w.again(put=put), selection)


@rule("cat")
def _joined(w: RowsWriter) -> Any:
    tensors, dim = w.node.args[0], (w.node.args[1] if len(w.node.args) > 1 else 0)
    if (again := joined_again(w, tensors, dim % len(w.node.meta["val"].shape))) is not None:
        return again
    result = needed_dim(w)
    if dim % len(w.node.meta["val"].shape) != result:
        selection, put = one_selection(w)
        if any(w.rows(one) is None for one in tensors):
            raise NotSaid("it joins selected rows with a tensor of known size")
        return Rows(w.again(put=put), selection, result)
    made, holds, keys = w.again(), [], []
    for one in tensors:
        rows = w.rows(one)
        if rows is not None and rows.selection.order != tuple(sorted(rows.selection.order)):
            raise NotSaid("it joins rows selected by masks whose largest dim is not the first")
        size = [shape_of(one)[dim]] if rows is None else None
        holds.append(w.emit("full.default", size, True) if rows is None else rows.selection.holds)
        keys.append(w.key(one) if rows is None else rows.selection.key)
    joined = w.emit("cat.default", holds)
    selection = Selection(("joined", *keys), (shape_of(joined)[0],), (0,), joined)
    return Rows(made, selection, result)


# -- shapes


@rule("view", "reshape", "_unsafe_view")
def _view(w: RowsWriter) -> Any:
    given = w.node.args[0]
    rows, dim = w.found[given], selected_dim(w.node)
    before, after = shape_of(rows.node), list(w.node.meta["val"].shape)
    selection = rows.selection
    if dim is None:
        raise NotSaid("its result has a known size, which rows of unknown number have not")
    ahead, behind = math.prod(after[:dim]), math.prod(after[dim + 1 :])
    known = [math.prod(before[: rows.dim]), math.prod(before[rows.dim + 1 :])]
    if [ahead, behind] == known:
        after[dim] = selection.size
        return Rows(w.reshaped(rows.node, after), selection, dim, rows.coordinate if len(after) == 1 else None)
    if ahead and behind and known[0] % ahead == 0 and known[1] % behind == 0:  # rows with others become one dim
        parts = known[0] // ahead, known[1] // behind
        wide = w.reshaped(selection.holds, (1, selection.size, 1))
        wide = w.emit("expand.default", wide, [parts[0], selection.size, parts[1]])
        size = math.prod(parts) * selection.size
        cut = Selection((selection.key, *parts), (size,), (0,), w.reshaped(wide, (size,)), (selection, *parts))
        after[dim] = size
        return Rows(w.reshaped(rows.node, after), cut, dim)
    if selection.within is not None:
        whole, first, last = selection.within
        if [ahead, behind] == [known[0] * first, known[1] * last]:
            after[dim] = whole.size
            return Rows(w.reshaped(rows.node, after), whole, dim)
    raise NotSaid("it makes other rows of the selected ones")


@rule("scalar_tensor")
def _scalar(w: RowsWriter) -> Any:
    return w.cast(w.number(w.node.args[0]), w.node.meta["val"].dtype)


@rule("expand", "repeat", "full", "new_zeros", "new_ones", "new_full", "zeros", "ones", "empty", "new_empty", "rand",
      "randn")  # fmt: skip
def _sized(w: RowsWriter) -> Any:
    """As many as there are rows."""
    dim, given = needed_dim(w), rows_among(w)
    if given:
        ((_, rows),) = given
        if name_of(w.node) == "repeat" and w.node.args[1][dim] != 1:
            raise NotSaid("it repeats the selected rows")
        return Rows(w.again(), rows.selection, dim)
    sizes = next(one for one in w.node.args if isinstance(one, tuple | list))
    counts = [one for one in sizes if w.is_count(one)]
    return Rows(w.again(), w.sized_by(counts[0]), dim)


# -- sums and the like


def _reduces(w: RowsWriter) -> tuple[Rows, list[int], bool]:
    """The rows, the dims that are reduced, and whether rows are among them."""
    rows = w.found[w.node.args[0]]
    rank = len(shape_of(rows.node))
    dims = _named(w.node, "dim")
    dims = [dims] if isinstance(dims, int) else dims
    dims = [one % max(rank, 1) for one in dims] if dims else [*range(rank)]
    return rows, dims, rows.dim in dims


_REST: dict[str, Any] = {"sum": 0, "prod": 1, "any": False, "all": True, "amax": -math.inf, "amin": math.inf,
                         "max": -math.inf, "min": math.inf}  # fmt: skip


@rule(*_REST)
def _reduction(w: RowsWriter) -> Any:
    rows, _, over_rows = _reduces(w)
    if not over_rows:
        return Rows(w.again(), rows.selection, needed_dim(w))
    if isinstance(w.node.meta["val"], tuple | list):
        raise NotSaid("it asks for places among the selected rows; use amax or amin")
    return w.again(put={w.node.args[0]: w.masked(rows, _rest(_REST[name_of(w.node)], rows))})


def _rest(value: Any, rows: Rows) -> Any:
    """The number that changes no result, in the rows' type."""
    import torch

    kind = rows.node.meta["val"].dtype
    if not isinstance(value, float) or kind.is_floating_point:
        return value
    limits = torch.iinfo(kind)
    return limits.min if value < 0 else limits.max


@rule("mean")
def _mean(w: RowsWriter) -> Any:
    rows, dims, over_rows = _reduces(w)
    if not over_rows:
        return Rows(w.again(), rows.selection, needed_dim(w))
    keep = _named(w.node, "keepdim") or False
    total = w.emit("sum.dim_IntList", w.masked(rows, 0), dims, keep)
    others = math.prod(shape_of(rows.node)[i] for i in dims if i != rows.dim)
    count = w.cast(w.count(rows.selection), w.node.meta["val"].dtype)
    count = count if others == 1 else w.emit("mul.Tensor", count, others)
    return w.emit("div.Tensor", w.cast(total, w.node.meta["val"].dtype), count)


@rule("nll_loss_forward", "nll_loss2d_forward")
def _likelihood(w: RowsWriter) -> Any:
    scores, target = (w.rows(one) for one in w.node.args[:2])
    if scores is None or target is None or w.node.args[3] == 0:
        raise NotSaid("it takes rows of two masks")
    selection, put = one_selection(w)
    put[w.node.args[1]] = w.masked(Rows(put[w.node.args[1]], selection, target.dim), w.node.args[4])
    return w.again(put=put)
