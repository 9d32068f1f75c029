"""Rows that a mask selects, of which only a run knows how many there are: here all rows, and which of them count.

torch.export gives `x[mask]` a size of its own, u0. A graph with such sizes is written anew: every row stays where it
is, and what mixes rows (sums, means, products over them, placing them back) leaves out those that are not selected.

    rows = x[mask]                       rows = x
    out.index_add_(0, mask.nonzero(), f(rows))    out = out + where(mask, f(rows), 0)

So experts that compute their own tokens alone compute all tokens, with the same numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.frontends.torch.markers import markers
from autoshard.util.errors import AutoshardError


class NotSaid(AutoshardError):
    """Why a node cannot be written with all rows."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Which rows count.

    Attributes:
        key: equal for masks that are the same expression.
        sizes: of the mask's dims; `order` is how they lie in the rows, the largest first, which splits best.
        holds: the node of the mask as one dim, in that order.
        within: of rows that each row of another selection was cut into: that selection, and how many parts there
            are before and behind its dim.
    """

    key: Any
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    holds: Any
    within: tuple[Selection, int, int] | None = None

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    @property
    def ordered(self) -> tuple[int, ...]:
        return tuple(self.sizes[i] for i in self.order)


@dataclass(frozen=True, eq=False)
class Rows:
    """A node with all rows, in the place of one with the selected ones; `coordinate` of the mask, if it is one."""

    node: Any
    selection: Selection
    dim: int
    coordinate: int | None = None


def selected_dims(node: Any) -> list[int]:
    """The dims of a node's (first) result whose size depends on the data."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, tuple | list) and value else value
    return [dim for dim, size in enumerate(getattr(first, "shape", ())) if not isinstance(size, int)]


def selected_dim(node: Any) -> int | None:
    """The one of them, None where there is none.

    Raises:
        NotSaid: there are several.
    """
    dims = selected_dims(node)
    if len(dims) > 1:
        raise NotSaid("several sizes of its result depend on the data")
    return dims[0] if dims else None


class RowsWriter:
    """Writes nodes before the one that is looked at, and knows what stands for those that were."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.found: dict[Any, Rows] = {}
        self.node: Any = None
        self.keys: dict[Any, Any] = {}
        self.selections: dict[Any, Selection] = {}
        values = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
        self.fake_mode: Any = next((one.fake_mode for one in values if hasattr(one, "fake_mode")), None)

    # -- nodes

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A new node; `target` is an overload, or the name of one of aten."""
        import torch

        overload = target
        if isinstance(target, str):
            name, _, which = target.partition(".")
            overload = getattr(getattr(torch.ops.aten, name), which)
        made = self.graph.call_function(overload, args, kwargs)
        values: list[Any] = [torch.fx.map_arg(one, lambda node: node.meta["val"]) for one in (args, kwargs)]
        with self.fake_mode:
            made.meta["val"] = overload(*values[0], **values[1])
        made.meta |= {key: value for key, value in self.node.meta.items() if key not in ("val", "tensor_meta")}
        return made

    def reshaped(self, node: Any, shape: Sequence[int]) -> Any:
        return node if tuple(shape_of(node)) == tuple(shape) else self.emit("reshape.default", node, list(shape))

    def permuted(self, node: Any, order: Sequence[int]) -> Any:
        return node if [*order] == sorted(order) else self.emit("permute.default", node, list(order))

    def cast(self, node: Any, dtype: Any) -> Any:
        return node if node.meta["val"].dtype == dtype else self.emit("_to_copy.default", node, dtype=dtype)

    # -- selections

    def key(self, node: Any) -> Any:
        """What is equal for nodes that compute the same of the same."""
        if node not in self.keys:
            self.keys[node] = self._key(node)
        return self.keys[node]

    def _key(self, node: Any) -> Any:
        import torch

        if node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return node.name
        args = [self._key_of(one) for one in (node.args, tuple(sorted(node.kwargs.items())))]
        made = (str(node.target), *args)
        return self.keys.setdefault(("made", made), node.name)

    def _key_of(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(self._key_of, value))
        return ("node", self.key(value)) if hasattr(value, "users") else repr(value)

    def selection(self, mask: Any) -> Selection:
        """That of a node of bools, or of numbers that count unless they are 0."""
        if mask in self.found or selected_dims(mask):
            raise NotSaid("it selects among rows that are selected already; make one mask of both by &")
        key = self.key(mask)
        if key not in self.selections:
            sizes = shape_of(mask)
            largest = max(range(len(sizes)), key=lambda i: (sizes[i], -i), default=0)
            order = (largest, *(i for i in range(len(sizes)) if i != largest)) if sizes else ()
            bools = mask if str(mask.meta["val"].dtype) == "torch.bool" else self.emit("ne.Scalar", mask, 0)
            holds = self.reshaped(self.permuted(bools, order), (math.prod(sizes),))
            self.selections[key] = Selection(key, sizes, order, holds)
        return self.selections[key]

    def rows_of(self, x: Any, first: int, count: int, selection: Selection) -> Any:
        """x whose dims of a mask are one dim of rows."""
        shape = shape_of(x)
        order = [*range(first), *(first + i for i in selection.order), *range(first + count, len(shape))]
        return self.reshaped(self.permuted(x, order), (*shape[:first], selection.size, *shape[first + count :]))

    def apart(self, rows: Rows) -> Any:
        """The rows' dim as the dims of the mask."""
        shape, selection, dim = shape_of(rows.node), rows.selection, rows.dim
        wide = self.reshaped(rows.node, (*shape[:dim], *selection.ordered, *shape[dim + 1 :]))
        rank = len(selection.order)
        places = [selection.order.index(i) for i in range(rank)]
        order = [*range(dim), *(dim + i for i in places), *range(dim + rank, len(shape) + rank - 1)]
        return self.permuted(wide, order)

    def holding(self, rows: Rows) -> Any:
        """The mask as one that broadcasts with rows."""
        shape = [1] * len(shape_of(rows.node))
        shape[rows.dim] = rows.selection.size
        return self.reshaped(rows.selection.holds, shape)

    def masked(self, rows: Rows, value: Any) -> Any:
        """The rows with a number in the place of those that do not count."""
        kind = rows.node.meta["val"].dtype
        other = self.emit("scalar_tensor.default", value, dtype=kind)
        return self.emit("where.self", self.holding(rows), rows.node, other)

    def legal(self, rows: Rows) -> Any:
        """Rows with the first that counts in the place of those that do not: what may be asked of one, may of all."""
        selection = rows.selection
        size = [1]
        first = self.emit("argmax.default", self.cast(selection.holds, _torch().int32))
        row = self.emit("index_select.default", rows.node, rows.dim, self.reshaped(first, size))
        some = self.emit("any.default", selection.holds)
        one = self.emit("scalar_tensor.default", 1, dtype=rows.node.meta["val"].dtype)
        row = self.emit("where.self", some, row, one)
        return self.emit("where.self", self.holding(rows), rows.node, row)

    def count(self, selection: Selection) -> Any:
        """How many rows count, as a whole number."""
        return self.emit("sum.default", selection.holds)

    def in_turn(self, selection: Selection) -> Any:
        """The places of all rows: of those that count in their turn, then of the others."""
        if selection.order != tuple(sorted(selection.order)):
            turned = self.permuted(
                self.reshaped(selection.holds, selection.ordered),
                [selection.order.index(i) for i in range(len(selection.order))],
            )
            kinds = self.reshaped(turned, (selection.size,))
        else:
            kinds = selection.holds
        others = self.cast(self.emit("logical_not.default", kinds), _torch().int32)
        turn = self.emit(operator.getitem, self.emit("sort.stable", others, stable=True), 1)
        return (
            self.emit("index_select.default", self.places(selection), 0, turn) if kinds is not selection.holds else turn
        )

    def places(self, selection: Selection) -> Any:
        """Where the rows lie that come one after the other in the mask."""
        every = self.emit("arange.start_step", 0, selection.size, 1, dtype=_torch().int64)
        wide = self.reshaped(every, selection.ordered)
        order = [selection.order.index(i) for i in range(len(selection.order))]
        return self.reshaped(self.permuted(wide, order), (selection.size,))

    def aligned(self, rows: Rows, selection: Selection) -> Any:
        """Rows as those of another selection of as many: the first for the first, and so on."""
        if rows.selection.key == selection.key:
            return rows.node
        if any(one.within is not None for one in (rows.selection, selection)):
            raise NotSaid("rows of two different masks meet, parts of rows among them; select both by one mask")
        turn = self.in_turn(rows.selection)
        holds = self.cast(self.apart(Rows(selection.holds, selection, 0)), _torch().int64)
        before = self.emit("cumsum.default", self.reshaped(holds, (selection.size,)), 0)
        nth = self.emit("clamp.default", self.emit("sub.Tensor", before, 1), 0, rows.selection.size - 1)
        taken = self.emit("index_select.default", turn, 0, nth)
        taken = self.rows_of(self.reshaped(taken, selection.sizes), 0, len(selection.sizes), selection)
        return self.emit("index_select.default", rows.node, rows.dim, taken)

    # -- arguments

    def rows(self, value: Any) -> Rows | None:
        return self.found.get(value) if hasattr(value, "users") else None

    def is_count(self, value: Any) -> bool:
        """Whether a node is a size that depends on the data, or made of such."""
        return hasattr(value, "users") and not hasattr(value.meta.get("val"), "shape") and _is_symbolic(value)

    def most(self, value: Any) -> int:
        """How large a size is with all rows."""
        if not hasattr(value, "users"):
            return value
        if str(value.target).startswith("aten.sym_size"):
            return shape_of(self.found[value.args[0]].node if value.args[0] in self.found else value.args[0])[
                value.args[1]
            ]
        if value.target in (operator.mul, operator.add, operator.sub, operator.floordiv):
            return value.target(*map(self.most, value.args))
        raise NotSaid(f"a size is made by {value.target}")

    def sized_by(self, value: Any) -> Selection:
        """The selection that a size counts the rows of."""
        if value.args[0] in self.found and str(value.target).startswith("aten.sym_size"):
            return self.found[value.args[0]].selection
        raise NotSaid("a size is made of others")

    def number(self, value: Any) -> Any:
        """A size that depends on the data, or another number of a tensor, as a tensor of one number."""
        if not self.is_count(value):
            return value
        name = str(value.target)
        if name.startswith("aten.sym_size"):
            return self.count(self.found[value.args[0]].selection)
        if name in ITEMS:
            return self.emit(markers().stop_gradient.default, self.reshaped(value.args[0], ()))
        made = [self.number(one) for one in value.args]
        if value.target in _ARITHMETIC:
            return self.arithmetic(_ARITHMETIC[value.target], made)
        name = getattr(value.target, "__name__", "")
        if name == "sym_float":
            return self.cast(made[0], _torch().float32)
        if name == "sym_not":
            return self.emit("logical_not.default", made[0])
        if name == "sym_ite":
            one, other = (self.emit("scalar_tensor.default", part) for part in made[1:])
            return self.emit("where.self", made[0], one, other)
        if name in ("sym_max", "sym_min"):
            return self.arithmetic("maximum.default" if name == "sym_max" else "minimum.default", made)
        raise NotSaid(f"it takes a number of a tensor through {value.target}")

    def arithmetic(self, target: str, given: Sequence[Any]) -> Any:
        """A function of two numbers, of which one is a tensor."""
        kind = next(one.meta["val"].dtype for one in given if hasattr(one, "users"))
        return self.emit(target, *(self._as_tensor(one, kind) for one in given))

    def _as_tensor(self, number: Any, kind: Any) -> Any:
        return number if hasattr(number, "users") else self.emit("scalar_tensor.default", number, dtype=kind)

    def again(self, target: Any = None, *, put: dict[Any, Any] | None = None) -> Any:
        """The node once more, with all rows.

        Args:
            target: another overload.
            put: what stands for rows, where they are not taken as they are.
        """
        put = put or {}
        args = [self._given(one, put) for one in self.node.args]
        return self.emit(
            target or self.node.target, *args, **{k: self._given(v, put) for k, v in self.node.kwargs.items()}
        )

    def _given(self, value: Any, put: dict[Any, Any], inside: bool = False) -> Any:
        if isinstance(value, tuple | list):
            return [self._given(one, put, True) for one in value]
        if not hasattr(value, "users"):
            return value
        if value in put:
            return put[value]
        if value in self.found:
            return self.found[value].node
        if self.is_count(value):
            return self.most(value) if inside else self.number(value)
        return value


def shape_of(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _is_symbolic(node: Any) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def _torch() -> Any:
    import torch

    return torch


_ARITHMETIC: dict[Callable, str] = {
    operator.mul: "mul.Tensor",
    operator.add: "add.Tensor",
    operator.sub: "sub.Tensor",
    operator.truediv: "div.Tensor",
    operator.eq: "eq.Tensor",
    operator.ne: "ne.Tensor",
    operator.lt: "lt.Tensor",
    operator.le: "le.Tensor",
    operator.gt: "gt.Tensor",
    operator.ge: "ge.Tensor",
    operator.and_: "logical_and.default",
    operator.or_: "logical_or.default",
}
ITEMS = ("aten._local_scalar_dense.default", "aten.item.default")
"""Overloads that make a number of a tensor."""
