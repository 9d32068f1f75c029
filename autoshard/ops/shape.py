"""Operators that give the same elements another shape: reshape, transpose, unit dims, broadcast, tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.core.rule import Rule
from autoshard.ops.axes import axis_indices, letters, whole_numbers, words
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.options import Storage
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Bound = tuple[str, dict[str, int]]


@operator("Identity", rule="... -> ...", linear=((0,),), flops=0, storage=Storage(view="same"))
def identity(x):
    """The operand itself: a place to hang a name or a strategy on."""
    return x


@identity.gradient
def _(g, y, x):
    return g


# -- reshape


@dataclass
class _ReshapeSide:
    """One shape in the walk of `reshape_rule`: the open dim, what is left of it, and the product of all factors."""

    tensor: int
    sizes: tuple[int, ...]
    dim: int = 0
    rest: int = 1
    done: int = 1

    @property
    def at_one(self) -> bool:
        """Whether it stands before a dim of size 1."""
        return self.rest == 1 and self.dim < len(self.sizes) and self.sizes[self.dim] == 1

    def open(self) -> None:
        if self.rest == 1 and self.dim < len(self.sizes):
            self.rest = self.sizes[self.dim]

    def take(self, size: int) -> None:
        self.rest //= size
        self.done *= size
        self.dim += self.rest == 1


def reshape_rule(source: Sequence[int], target: Sequence[int]) -> Rule:
    """The rule of a reshape: both shapes are cut into factors at their common boundaries.

    Two pointers walk over the cumulative products of both shapes (Shardy's op_sharding_rule_registry.cc).
    Where both stand at the same product, the gcd of what is left of the open dims is a factor of both;
    elsewhere one side gets a factor of its own, which every rank needs whole. `(8, 16, 6) -> (128, 6)` gives
    `a b c -> (a b) c`. Shapes without elements have nothing in common.
    """
    sides = left, right = _ReshapeSide(0, tuple(source)), _ReshapeSide(1, tuple(target))
    made = FactorBuilder([len(source)], [len(target)])
    if 0 in source:
        for side in sides:
            for dim, size in enumerate(side.sizes):
                made.factor({side.tensor: dim}, size, whole=True)
        return made.build()
    while left.dim < len(source) or right.dim < len(target):
        for owners, size in _next_factors(left, right):
            made.factor({side.tensor: side.dim for side in owners}, size, whole=len(owners) == 1)
            for side in owners:
                side.take(size)
    return made.build()


def _next_factors(left: _ReshapeSide, right: _ReshapeSide) -> list[tuple[tuple[_ReshapeSide, ...], int]]:
    for side in (left, right):
        if side.at_one:
            return [((side,), 1)]
    left.open()
    right.open()
    if left.done == right.done:
        common = math.gcd(left.rest, right.rest)
        return [((left, right), common)] if common > 1 else [((left,), left.rest), ((right,), right.rest)]
    behind, ahead = (left, right) if left.done < right.done else (right, left)
    gap, uneven = divmod(ahead.done, behind.done)
    if not uneven and behind.rest % gap == 0:
        return [((behind,), gap)]
    common = math.gcd(behind.rest, ahead.rest)
    return [((behind,), behind.rest // common if behind.rest > common else behind.rest)]


def full_shape(source: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` with its -1, if it has one, replaced by what is left of the elements of `source`.

    Raises:
        ShapeError: the numbers of elements differ.
    """
    shape = whole_numbers(shape, "Reshape")
    elements, known = math.prod(source), math.prod(size for size in shape if size != -1)
    fits = shape.count(-1) <= (elements > 0) and all(size >= -(elements > 0) for size in shape)
    if fits and -1 in shape and known and elements % known == 0:
        return tuple(elements // known if size == -1 else size for size in shape)
    if not fits or elements != known:
        raise ShapeError(
            f"Reshape of {tuple(source)} to {shape}: the operand has {elements} elements; the new dims must "
            f"multiply to that, and hold at most one -1"
        )
    return shape


@operator(
    "Reshape",
    rule=lambda x, shape: reshape_rule(x, full_shape(x, shape)),
    linear=((0,),),
    flops=0,
    call=("shape",),
    spread="move",
    constant="fold",
    storage=Storage(view="reshape"),
)
def reshape(x, *, shape):
    """The elements of x in row-major order under another shape; one dim may be -1."""
    return x.reshape(shape)


@reshape.gradient
def _(g, y, x, shape):
    return reshape(g, shape=x.shape)


@reshape.localize
def _(attrs, placement):
    return {"shape": placement.local_result()}


# -- order of dims, dims of size 1


def _order(rank: int, perm: Sequence[int] | None) -> tuple[int, ...]:
    if perm is None:
        return tuple(range(rank))[::-1]
    if axis_indices(perm, rank, "Transpose") != tuple(range(rank)):
        raise ShapeError(f"Transpose: perm {perm} does not name each of the {rank} dims once")
    return tuple(axis % rank for axis in perm)


def _transpose_rule(x: Sequence[int], perm: Sequence[int] | None) -> Rule:
    order = _order(len(x), perm)
    made = FactorBuilder([len(x)], [len(x)])
    for dim, source in enumerate(order):
        made.factor({0: source, 1: dim}, x[source])
    return made.build()


@operator(
    "Transpose",
    rule=_transpose_rule,
    linear=((0,),),
    flops=0,
    call=("perm",),
    spread="move",
    storage=Storage(view="strided"),
)
def transpose(x, *, perm=None):
    """Dim i of the result is dim perm[i] of x; without perm the dims are reversed."""
    return x.transpose(perm)


@transpose.gradient
def _(g, y, x, perm):
    order = _order(len(x.shape), perm)
    return transpose(g, perm=tuple(order.index(i) for i in range(len(order))))


def _expand_rule(x: Sequence[int], axis: int | tuple[int, ...]) -> str:
    count = len(axis) if isinstance(axis, tuple) else 1
    new = axis_indices(axis, len(x) + count, "ExpandDims")
    names = letters(len(x))
    rest = iter(names)
    return f"{words(names)} -> {words('1' if i in new else next(rest) for i in range(len(x) + count))}"


@operator(
    "ExpandDims",
    rule=_expand_rule,
    linear=((0,),),
    flops=0,
    call=("axis",),
    spread="move",
    constant="fold",
    storage=Storage(view="same"),
)
def expand_dims(x, *, axis):
    """Insert dims of size 1 so that they stand at `axis` (an int, or a tuple) of the result."""
    return np.expand_dims(x, axis)


@expand_dims.gradient
def _(g, y, x, axis):
    return squeeze(g, axis=axis)


def _unit_dims(x: Sequence[int], axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if axis is None:
        return tuple(i for i, size in enumerate(x) if size == 1)
    found = axis_indices(axis, len(x), "Squeeze")
    for i in found:
        if x[i] != 1:
            raise ShapeError(f"Squeeze of {tuple(x)}: dim {i} has size {x[i]}; only dims of size 1 can go")
    return found


def _squeeze_rule(x: Sequence[int], axis: int | tuple[int, ...] | None) -> str:
    gone = _unit_dims(x, axis)
    names = ["1" if i in gone else name for i, name in enumerate(letters(len(x)))]
    return f"{words(names)} -> {words(name for i, name in enumerate(names) if i not in gone)}"


@operator(
    "Squeeze", rule=_squeeze_rule, linear=((0,),), flops=0, spread="move", constant="fold", storage=Storage(view="same")
)
def squeeze(x, *, axis=None):
    """Remove the dims of size 1 at `axis`: an int, a tuple, or None for all of them."""
    return np.squeeze(x, axis)


@squeeze.gradient
def _(g, y, x, axis):
    return expand_dims(g, axis=_unit_dims(x.shape, axis))


@squeeze.localize
def _(attrs, placement):
    # A local dim may be 1 because it is split; only those that are 1 in the whole tensor go.
    return {"axis": _unit_dims(placement.operands[0].shape, attrs["axis"])}


# -- repetition


def _broadcast_shape(x: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` with each -1 replaced by the operand's size; operand dims are aligned at the right."""
    shape = whole_numbers(shape, "BroadcastTo")
    lead = len(shape) - len(x)
    aligned = (0,) * lead + tuple(x)
    full = tuple(old if new == -1 else new for new, old in zip(shape, aligned, strict=False))
    fits = lead >= 0 and all(
        shape[i] >= 0 if i < lead else old in (1, new) for i, (new, old) in enumerate(zip(full, aligned, strict=True))
    )
    if not fits:
        raise ShapeError(f"BroadcastTo: {tuple(x)} cannot be broadcast to {shape}")
    return full


def _broadcast_rule(x: Sequence[int], shape: Sequence[int]) -> Bound:
    full = _broadcast_shape(x, shape)
    names = letters(len(full))
    lead = len(full) - len(x)
    old = (name if size == new else "1" for name, size, new in zip(names[lead:], x, full[lead:], strict=True))
    return f"{words(old)} -> {words(names)}", dict(zip(names, full, strict=True))


@operator(
    "BroadcastTo",
    rule=_broadcast_rule,
    linear=((0,),),
    flops=0,
    spread="broadcast",
    constant="fold",
    storage=Storage(view="strided"),
)
def broadcast_to(x, *, shape):
    """Repeat x along new leading dims and along its dims of size 1; -1 keeps a dim."""
    return np.broadcast_to(x, _broadcast_shape(x.shape, shape))


@broadcast_to.gradient
def _(g, y, x, shape):
    from autoshard.ops.reduce import sum_to  # reductions need this module for their own gradients

    return sum_to(g, x.shape)


@broadcast_to.localize
def _(attrs, placement):
    return {"shape": placement.local_result()}


def _repeats(x: Sequence[int], multiples: Sequence[int]) -> tuple[int, ...]:
    multiples = whole_numbers(multiples, "Tile")
    if len(multiples) < len(x) or any(count < 1 for count in multiples):
        raise ShapeError(f"Tile of {tuple(x)}: multiples {multiples} must be positive, at least one per dim")
    return multiples


def _tile_rule(x: Sequence[int], multiples: Sequence[int]) -> Bound:
    multiples = _repeats(x, multiples)
    names, copies = letters(len(multiples)), letters(len(multiples), skip=len(multiples))
    lead = len(multiples) - len(x)
    sizes = (1,) * lead + tuple(x)
    old = [name if size > 1 else "1" for name, size in zip(names, sizes, strict=True)]
    new = [_tile_dim(*one) for one in zip(copies, old, multiples, strict=True)]
    return f"{words(old[lead:])} -> {words(new)}", dict(zip(copies, multiples, strict=True))


def _tile_dim(copy: str, old: str, count: int) -> str:
    if count == 1:
        return old
    return copy if old == "1" else f"({copy} {old})"


@operator("Tile", rule=_tile_rule, linear=((0,),), flops=0, call=("multiples",), spread="broadcast", constant="fold")
def tile(x, *, multiples):
    """Lay multiples[i] copies of x side by side along dim i, after adding leading dims of size 1 to x."""
    return np.tile(x, multiples)


@tile.gradient
def _(g, y, x, multiples):
    from autoshard.ops.reduce import reduce_sum  # reductions need this module for their own gradients

    sizes = (1,) * (len(multiples) - len(x.shape)) + tuple(x.shape)
    apart = reshape(g, shape=tuple(size for pair in zip(multiples, sizes, strict=True) for size in pair))
    return reshape(reduce_sum(apart, axis=tuple(range(0, 2 * len(multiples), 2))), shape=x.shape)


@tile.localize
def _(attrs, placement):
    result, operand = placement.local_result(), placement.local_operand(0)
    operand = (1,) * (len(result) - len(operand)) + operand
    return {"multiples": tuple(new // old for new, old in zip(result, operand, strict=True))}
