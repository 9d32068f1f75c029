"""Rows that are looked up by masks and places, and placed back, with all rows; see `selected`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autoshard.frontends.torch.selected import NotSaid, Rows, RowsWriter, Selection, shape_of
from autoshard.frontends.torch.selected_rules import name_of, needed_dim, one_selection, result_of, rows_among, rule


@rule("nonzero")
def _nonzero(w: RowsWriter) -> Any:
    selection = w.selection(w.node.args[0])
    columns = [w.reshaped(_coordinate(w, selection, i), (selection.size, 1)) for i in range(len(selection.sizes))]
    made = columns[0] if len(columns) == 1 else w.emit("cat.default", columns, 1)
    made.meta["coordinates_of"] = selection.key
    return Rows(made, selection, 0)


def _coordinate(w: RowsWriter, selection: Selection, i: int) -> Any:
    import torch

    every = w.emit("arange.start_step", 0, selection.sizes[i], 1, dtype=torch.int64)
    shape = [size if one == i else 1 for one, size in zip(selection.order, selection.ordered, strict=True)]
    wide = w.emit("expand.default", w.reshaped(every, shape), list(selection.ordered))
    return w.reshaped(wide, (selection.size,))


@rule("masked_select")
def _masked_select(w: RowsWriter) -> Any:
    x, mask = w.node.args[:2]
    if w.rows(x) is not None or w.rows(mask) is not None:
        raise NotSaid("it selects among rows that are selected already")
    import torch

    shape = list(torch.broadcast_shapes(shape_of(x), shape_of(mask)))
    wide = [one if [*shape_of(one)] == shape else w.emit("expand.default", one, shape) for one in (x, mask)]
    selection = w.selection(wide[1])
    return Rows(w.rows_of(wide[0], 0, len(shape), selection), selection, 0)


@rule("index")
def _index(w: RowsWriter) -> Any:
    return _indexed(w, w.node.args[0], [*w.node.args[1]])


@rule("index_select")
def _index_select(w: RowsWriter) -> Any:
    x, dim, index = w.node.args[:3]
    return _indexed(w, x, [*[None] * (dim % len(x.meta["val"].shape)), index])


def _indexed(w: RowsWriter, x: Any, indices: list[Any]) -> Any:
    given = [(i, one) for i, one in enumerate(indices) if one is not None]
    if _is_mask(given):
        ((first, mask),) = given
        if w.rows(x) is not None:
            raise NotSaid("it selects among rows that are selected already; make one mask of both by &")
        selection = w.selection(mask)
        return Rows(w.rows_of(x, first, len(selection.sizes), selection), selection, first)
    if w.rows(x) is not None:
        raise NotSaid("it looks up rows among selected ones")
    if (direct := _by_coordinates(w, x, given)) is not None:
        return direct
    selection, put = one_selection(w)
    for one, rows in rows_among(w):
        if rows.coordinate is None:
            put[one] = w.masked(Rows(put[one], selection, rows.dim), 0)
    return Rows(w.again(put=put), selection, needed_dim(w))


def _is_mask(given: Sequence[tuple[int, Any]]) -> bool:
    return len(given) == 1 and str(given[0][1].meta["val"].dtype) == "torch.bool"


def _coordinates(
    w: RowsWriter, given: Sequence[tuple[int, Any]], shape: Sequence[int]
) -> tuple[Selection, list[int]] | None:
    """The selection and which of its coordinates indices are, if they are of dims that the mask has."""
    rows = [w.rows(one) for _, one in given]
    if any(one is None or one.coordinate is None or len(shape_of(one.node)) != 1 for one in rows):
        return None
    found = [one for one in rows if one is not None]
    selection, which = found[0].selection, [int(one.coordinate or 0) for one in found]
    places = [i for i, _ in given]
    side_by_side = places == [*range(places[0], places[0] + len(places))]
    alike = all(one.selection.key == selection.key for one in found) and len(set(which)) == len(which)
    fits = all(shape[i] == selection.sizes[j] for i, j in zip(places, which, strict=True))
    return (selection, which) if side_by_side and alike and fits else None


def _by_coordinates(w: RowsWriter, x: Any, given: Sequence[tuple[int, Any]]) -> Rows | None:
    """x[i, j] for the places (i, j) of a mask: x with its dims as rows, once for each of the mask's other dims."""
    shape = shape_of(x)
    if (found := _coordinates(w, given, shape)) is None:
        return None
    selection, which = found
    first, count = given[0][0], len(given)
    places = [which.index(i) for i in selection.order if i in which]
    x = w.permuted(x, [*range(first), *(first + i for i in places), *range(first + count, len(shape))])
    lone = [selection.sizes[i] if i in which else 1 for i in selection.order]
    x = w.reshaped(x, (*shape[:first], *lone, *shape[first + count :]))
    x = w.emit("expand.default", x, [*shape[:first], *selection.ordered, *shape[first + count :]])
    return Rows(w.reshaped(x, (*shape[:first], selection.size, *shape[first + count :])), selection, first)


@rule("embedding", "gather")
def _looked_up(w: RowsWriter) -> Any:
    index = w.node.args[1 if name_of(w.node) == "embedding" else 2]
    selection, put = one_selection(w)
    rows = w.rows(index)
    table = w.rows(w.node.args[0])
    if rows is None or (table is not None and w.node.args[1] % len(shape_of(rows.node)) == rows.dim):
        raise NotSaid("it looks up rows among selected ones")
    put[index] = w.masked(Rows(put[index], selection, rows.dim), 0)
    return Rows(w.again(put=put), selection, needed_dim(w))


@rule("index_put")
def _index_put(w: RowsWriter) -> Any:
    x, indices, values = w.node.args[:3]
    accumulate = len(w.node.args) > 3 and bool(w.node.args[3])
    given = [(i, one) for i, one in enumerate(indices) if one is not None]
    if w.rows(x) is not None:
        raise NotSaid("it changes selected rows in place; give it those of one mask")
    masks = _is_mask(given)
    if masks:
        selection = w.selection(given[0][1])
        first, which = given[0][0], [*range(len(selection.sizes))]
    elif (found := _coordinates(w, given, shape_of(x))) is not None:
        selection, which = found
        first = given[0][0]
    else:
        return _put_anywhere(w, x, given, values, accumulate)
    shape = shape_of(x)
    rest = shape[first + len(which) :]
    if first:
        raise NotSaid("it places selected rows behind another dim; select along the first")
    dense = _values(w, values, selection, rest)
    wide = w.apart(Rows(dense, selection, 0))  # the mask's dims, then the rest
    holds = w.apart(Rows(selection.holds, selection, 0))
    count = len(selection.sizes)
    order = [*which, *(i for i in range(count) if i not in which)]
    wide = w.permuted(wide, [*order, *range(count, count + len(rest))])
    holds = w.permuted(holds, order)
    return _placed(w, x, wide, holds, len(which), accumulate)


def _values(w: RowsWriter, values: Any, selection: Selection, rest: Sequence[int]) -> Any:
    """Values as one for each row."""
    rows, shape = w.rows(values), [selection.size, *rest]
    if rows is None:
        given = [*shape_of(values)]
        return values if given == shape else w.emit("expand.default", values, shape)
    dense = w.aligned(rows, selection)
    return dense if [*shape_of(dense)] == shape else w.emit("expand.default", dense, shape)


def _placed(w: RowsWriter, x: Any, wide: Any, holds: Any, count: int, accumulate: bool) -> Any:
    """x with values [dims of x, other dims of the mask, rest] where the mask holds."""
    kind = x.meta["val"].dtype
    wide = w.cast(wide, kind)
    sizes = shape_of(holds)
    others, rest = math.prod(sizes[count:]), shape_of(wide)[len(sizes) :]
    wide = w.reshaped(wide, (*sizes[:count], others, *rest))
    holds = w.reshaped(holds, (*sizes[:count], others))
    if others > 1 and not accumulate:  # of several for one place the last counts
        back = w.emit("flip.default", w.cast(holds, _int()), [count])
        nth = w.emit("flip.default", w.emit("cumsum.default", back, count), [count])
        picked = w.emit("logical_and.default", holds, w.emit("eq.Scalar", nth, 1))
    else:
        picked = holds
    asked = w.reshaped(picked, (*sizes[:count], others, *(1 for _ in rest)))
    zero = w.emit("scalar_tensor.default", 0, dtype=kind)
    found = w.emit("where.self", asked, wide, zero)
    found = w.reshaped(found, (*sizes[:count], *rest)) if others == 1 else w.emit("sum.dim_IntList", found, [count])
    if accumulate:
        return w.emit("add.Tensor", x, w.cast(found, kind))
    some = holds if others == 1 else w.emit("any.dim", holds, count, True)
    some = w.reshaped(some, (*sizes[:count], *(1 for _ in rest)))
    return w.emit("where.self", some, w.cast(found, kind), x)


def _int() -> Any:
    import torch

    return torch.int32


def _put_anywhere(w: RowsWriter, x: Any, given: Sequence[tuple[int, Any]], values: Any, accumulate: bool) -> Any:
    """Rows placed by an index of their own: those that do not count go to a place behind the last."""
    if [i for i, _ in given] != [0] or (rows := w.rows(given[0][1])) is None or len(shape_of(rows.node)) != 1:
        raise NotSaid("it places selected rows by several indices")
    selection, shape = rows.selection, shape_of(x)
    dense = w.cast(_values(w, values, selection, shape[1:]), x.meta["val"].dtype)
    zeros = w.emit("full.default", [1, *shape[1:]], 0, dtype=x.meta["val"].dtype)
    negative = w.emit("lt.Scalar", rows.node, 0)
    index = w.emit("where.self", negative, w.emit("add.Tensor", rows.node, shape[0]), rows.node)
    index = w.masked(Rows(index, selection, 0), shape[0])
    wide = w.emit("index_put.default", w.emit("cat.default", [x, zeros]), [index], dense, accumulate)
    return w.emit("slice.Tensor", wide, 0, 0, shape[0])


@rule("scatter_add")
def _scatter_add(w: RowsWriter) -> Any:
    x, dim, index, values = w.node.args[:4]
    selection, put = one_selection(w)
    for one in (index, values):
        rows = w.rows(one)
        if rows is None:
            raise NotSaid("it adds what is no selected row at selected places")
        put[one] = w.masked(Rows(put[one], selection, rows.dim), 0)
    if w.rows(x) is None and dim % len(x.meta["val"].shape) != w.found[index].dim:
        raise NotSaid("it adds selected rows along another dim")
    return result_of(w, w.again(put=put), selection)


@rule("masked_scatter")
def _masked_scatter(w: RowsWriter) -> Any:
    source = w.rows(w.node.args[2])
    if source is None or source.dim or any(w.rows(one) is not None for one in w.node.args[:2]):
        raise NotSaid("it takes elements of rows that are not along the first dim")
    if source.selection.within is not None and source.selection.within[0].order != tuple(
        sorted(source.selection.within[0].order)
    ):
        raise NotSaid("it takes parts of rows that lie in another order")
    turn = w.in_turn(source.selection)
    return w.again(put={w.node.args[2]: w.emit("index_select.default", source.node, 0, turn)})
