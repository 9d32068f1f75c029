"""Tokens to experts and back, for mixtures of experts: rows by expert, weighted sums over the experts of a token.

The tokens are cut into `blocks` of equal size; each expert has `room` rows for each block (Lepikhin et al. 2020,
"GShard", section 2.2, whose groups these are). So the rows of a block lie where its tokens do, and each mesh axis
either splits blocks, and each rank has rows for all experts, or experts, and each rank has the rows of all blocks for
its own: the redistribution from one to the other is the all-to-all of tokens. With blocks of a single token there is
room for whatever is chosen (dropless). Else an expert that more tokens of a block choose than it has room for is an
error: nothing is dropped in silence.

Tokens may have dims before theirs (the batch, and then the sequence), which rows then have before that of the experts:
blocks are of the tokens of one sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType, dtype, promote
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import operator
from autoshard.ops.unary import cast
from autoshard.util.errors import ShapeError

Shape = Sequence[int]
_ABSENT = -1


def _type(*of: DType, **_: object) -> DType:
    """That of the numbers, which `chosen` is not one of."""
    numbers = [one for one in of if one.numpy.kind not in "iu"]
    if len(numbers) != len(of) - 1:
        raise ShapeError(f"tokens to experts: only chosen experts are whole numbers, not {', '.join(map(str, of))}")
    return promote(numbers)


def _like(gradient: Any, of: Any) -> Any:
    """A gradient in the element type of what it is the gradient of: tokens may be of a shorter one than gates."""
    to = dtype(of.dtype)
    return gradient if dtype(gradient.dtype) == to else cast(gradient, dtype=to.name)


def _tokens(of: Shape, blocks: int, room: int, what: str) -> tuple[str, str, dict[str, int]]:
    """How the dims of tokens and those of experts' rows are written in a rule, and what their factors come to."""
    tokens = of[-2]
    if blocks < 1 or tokens % blocks or room < 1:
        raise ShapeError(f"{what}: {blocks} blocks with room for {room} do not divide {tokens} tokens")
    size = tokens // blocks
    token, row = "(b [r])" if size > 1 else "b", "(b [s])" if room > 1 else "b"
    return (
        f"... {token}",
        f"... e {row}",
        {"b": blocks, **({"r": size} if size > 1 else {}), **({"s": room} if room > 1 else {})},
    )


def _work(tokens: Shape, other: Shape, of: Shape, *, room: int, experts: int = 0, **_: object) -> float:
    """Two operations for each token, choice and column."""
    return 2.0 / (room * max(experts, 1))


def _dispatch_rule(x: Shape, chosen: Shape, gates: Shape, *, experts: int, blocks: int, room: int, **_: object) -> Any:
    token, row, sizes = _tokens(x, blocks, room, "DispatchTokens")
    return f"{token} d, {token} [k], {token} [k] -> {row} d", {**sizes, "e": experts}


@operator(
    "DispatchTokens",
    rule=_dispatch_rule,
    dtype=_type,
    linear=((0,), (2,)),
    flops=_work,
    filling=Filling(fills={1: _ABSENT}),
    storage=Storage(scratch=0),
)
def dispatch_tokens(x, chosen, gates, *, experts, blocks, room, first=0):
    """rows[e, c] = gates[t, j] x[t] for each token t that chooses expert e as its j-th; other rows are zero.

    x is [..., t, d], chosen and gates [..., t, k], the result [..., e, blocks * room, d]. Of a block's tokens those
    that choose an expert come in order. Where the experts are a block themselves, `first` is the number of the first.
    """
    mask = _weights(chosen, gates, first, experts, blocks, room)
    found = np.matmul(mask, _by_block(x, 1, blocks))
    return np.reshape(found, (*x.shape[:-2], experts, blocks * room, x.shape[-1]))


@dispatch_tokens.gradient
def _(g, y, x, chosen, gates, *, experts, blocks, room, **_):
    back = combine_tokens(g, chosen, gates, blocks=blocks, room=room)
    return _like(back, x), None, _like(gate_products(x, g, chosen, blocks=blocks, room=room), gates)


@dispatch_tokens.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    dim = len(placement.local_result()) - 3
    return {
        "experts": placement.local_result()[dim],
        "blocks": _local_blocks(attrs, placement, 0),
        "first": placement.result_offset(dim),
    }


def _combine_rule(rows: Shape, chosen: Shape, gates: Shape, *, blocks: int, room: int, **_: object) -> Any:
    token, row, sizes = _tokens(chosen, blocks, room, "CombineTokens")
    return f"{row} d, {token} [k], {token} [k] -> {token} d", sizes


@operator(
    "CombineTokens",
    rule=_combine_rule,
    dtype=_type,
    linear=((0,), (2,)),
    flops=lambda rows, chosen, gates, **attrs: _work(rows, chosen, gates, experts=rows[-3], **attrs),
    filling=Filling(fills={1: _ABSENT}),
    storage=Storage(scratch=0),
)
def combine_tokens(rows, chosen, gates, *, blocks, room, first=0):
    """y[t] = the sum over j of gates[t, j] times the row of token t for its j-th expert, as DispatchTokens lays rows.

    rows is [..., e, blocks * room, d], chosen and gates are [..., t, k], the result is [..., t, d].
    """
    experts, width = rows.shape[-3], rows.shape[-1]
    mask = np.swapaxes(_weights(chosen, gates, first, experts, blocks, room), -1, -2)
    found = np.sum(np.matmul(mask, _by_block(rows, experts, blocks)), axis=1)
    return np.reshape(found, (*chosen.shape[:-1], width))


@combine_tokens.gradient
def _(g, y, rows, chosen, gates, *, blocks, room, **_):
    sent = dispatch_tokens(g, chosen, gates, experts=rows.shape[-3], blocks=blocks, room=room)
    return _like(sent, rows), None, _like(gate_products(g, rows, chosen, blocks=blocks, room=room), gates)


@combine_tokens.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return _local_rows(attrs, placement, 0, 1)


def _products_rule(x: Shape, rows: Shape, chosen: Shape, *, blocks: int, room: int, **_: object) -> Any:
    token, row, sizes = _tokens(x, blocks, room, "GateProducts")
    return f"{token} d, {row} d, {token} [k] -> {token} [k]", sizes


@operator(
    "GateProducts",
    rule=_products_rule,
    dtype=_type,
    linear=((0,), (1,)),
    flops=lambda x, rows, chosen, **attrs: _work(x, rows, chosen, experts=rows[-3], **attrs),
    filling=Filling(fills={2: _ABSENT}),
    storage=Storage(scratch=0),
)
def gate_products(x, rows, chosen, *, blocks, room, first=0):
    """p[t, j] = the product of x[t] and the row of token t for its j-th expert: the gradient of gates.

    x is [..., t, d], rows [..., e, blocks * room, d], chosen [..., t, k], the result [..., t, k].
    """
    experts = rows.shape[-3]
    products = np.matmul(_by_block(x, 1, blocks), np.swapaxes(_by_block(rows, experts, blocks), -1, -2))
    hit, beside = _rows_of(chosen, first, experts, blocks, room)
    found = np.sum(np.where(hit, products[..., None, :], np.asarray(beside, products.dtype)), axis=(1, 5))
    return np.reshape(found, chosen.shape)


@gate_products.gradient
def _(g, y, x, rows, chosen, *, blocks, room, **_):
    sent = dispatch_tokens(x, chosen, g, experts=rows.shape[-3], blocks=blocks, room=room)
    back = combine_tokens(rows, chosen, g, blocks=blocks, room=room)
    return _like(back, x), _like(sent, rows), None


@gate_products.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    return _local_rows(attrs, placement, 1, 0)


def _local_rows(attrs: Mapping[str, Any], placement: OperatorPlacement, rows: int, tokens: int) -> dict[str, Any]:
    first = placement.operand_offset(rows, len(placement.local_operand(rows)) - 3)
    return {"blocks": _local_blocks(attrs, placement, tokens), "first": first}


def _local_blocks(attrs: Mapping[str, Any], placement: OperatorPlacement, tokens: int) -> int:
    return placement.local_operand(tokens)[-2] // (placement.operands[tokens].shape[-2] // attrs["blocks"])


def _by_block(x: Any, experts: int, blocks: int) -> Any:
    """Tokens (of one "expert") or rows as [sample, expert, block, token or row, d]."""
    count = math.prod(x.shape[:-2]) // experts
    return np.reshape(x, (count, experts, blocks, x.shape[-2] // blocks, x.shape[-1]))


def _rows_of(chosen: Any, first: int, experts: int, blocks: int, room: int) -> tuple[Any, Any]:
    """Whether a token's j-th choice is a row of an expert, as [sample, expert, block, token, j, row]; and what stands
    for a row that is not.

    Raises:
        ShapeError: more tokens of a block choose an expert than it has room for.
    """
    samples, count = math.prod(chosen.shape[:-2]), chosen.shape[-2] // blocks
    size = count * chosen.shape[-1]
    of = np.reshape(first + np.arange(experts), (1, experts, 1, 1))
    hit = np.reshape(chosen, (samples, 1, blocks, size)) == of
    if count == 1 and room == 1:  # a token's own row, also if it chooses an expert twice
        return np.reshape(hit, (samples, experts, blocks, count, chosen.shape[-1], 1)), 0.0
    position = np.add.accumulate(np.where(hit, 1, 0), axis=3) - 1
    beside = nothing_beyond(np.any(hit & (position >= room)), hit, room)
    rows = np.reshape(np.arange(room), (1, 1, 1, 1, room))
    found = hit[..., None] & (position[..., None] == rows)
    return np.reshape(found, (samples, experts, blocks, count, chosen.shape[-1], room)), beside


def nothing_beyond(beyond: Any, hit: Any, room: int) -> Any:
    """What stands for a row that is of no token: 0.

    Raises:
        ShapeError: there is a token beyond the room of its expert.
    """
    if beyond:
        most, size = int(np.max(np.sum(hit, axis=3))), hit.shape[3]
        raise ShapeError(
            f"tokens to experts: {most} of {size} choices in a block are of one expert, which has room for {room}; "
            "import the model with a larger capacity_factor (inf: room for all)"
        )
    return 0.0


def _weights(chosen: Any, gates: Any, first: int, experts: int, blocks: int, room: int) -> Any:
    """The gate with which a token goes to a row of an expert, as [sample, expert, block, row, token]."""
    hit, beside = _rows_of(chosen, first, experts, blocks, room)
    gates = np.reshape(gates, (hit.shape[0], 1, blocks, chosen.shape[-2] // blocks, chosen.shape[-1], 1))
    found = np.sum(np.where(hit, gates, np.asarray(beside, gates.dtype)), axis=4)
    return np.swapaxes(found, -1, -2)
