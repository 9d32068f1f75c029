"""Checks shared by the operator tests: gradients by finite differences, and the law of split execution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import type_of
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.ops.attributes import OperatorPlacement, resolve
from autoshard.ops.registry import Operator
from autoshard.ops.windows import Exchange
from tests.oracle.check import differing

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def check_gradient(
    op: Operator, arrays: Sequence[np.ndarray], attrs: dict, seed: int = 0, constant: Sequence[int] = ()
) -> int:
    """Compare gradients of f64 and c128 operands with central differences in a random direction; returns how many.

    That of a complex operand is the c with dL = Re(c dx).

    Args:
        constant: operands that the operator takes for constants, and gives no gradient.
    """
    attrs = op.check_attributes(attrs)
    results = op.evaluate(arrays, attrs)
    rng = np.random.default_rng(seed)
    gs = tuple(_random(rng, result) if result.dtype.kind in "fc" else None for result in results)
    one = len(results) == 1
    grads = op.cotangents(gs[0] if one else gs, results[0] if one else results, arrays, attrs)
    floats = [i for i, array in enumerate(arrays) if array.dtype.kind in "fc" and i not in constant]
    assert all(grads[i] is None for i in constant)
    grads = grads + (None,) * (len(arrays) - len(grads))

    def loss(inputs: Sequence[np.ndarray]) -> float:
        return sum(np.sum(g * y).real for g, y in zip(gs, op.evaluate(inputs, attrs), strict=True) if g is not None)

    for i in floats:
        assert grads[i].shape == arrays[i].shape, f"{op.name}: gradient {grads[i].shape} of {arrays[i].shape}"
        way = _random(rng, arrays[i])
        ends = [[a + e * way if j == i else a for j, a in enumerate(arrays)] for e in (1e-6, -1e-6)]
        slope = (loss(ends[0]) - loss(ends[1])) / 2e-6
        np.testing.assert_allclose(np.sum(grads[i] * way).real, slope, rtol=1e-6, atol=1e-7, err_msg=op.name)
    return len(floats)


def _random(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    normal = rng.standard_normal(like.shape)
    return normal + 1j * rng.standard_normal(like.shape) if like.dtype.kind == "c" else normal


def check_split(op: Operator, arrays: Sequence[np.ndarray], attrs: dict, mesh: Mesh) -> int:
    """Run all differing strategies rank by rank, compare with the blocks of the whole run; returns how many.

    Strategies with which an operator runs as its parts are a matter of lowering, not of the operator.
    """
    attrs = op.check_attributes(attrs)
    operands = tuple(map(type_of, arrays))
    strategies = differing(enumerate_strategies(op.rule(operands, attrs), mesh))
    whole = op.evaluate(arrays, attrs)
    for strategy in strategies:
        if not (op.runs_decomposed and strategy.exchanges):
            check_strategy(op, arrays, attrs, strategy, whole)
    return len(strategies)


def check_strategy(
    op: Operator, arrays: Sequence[np.ndarray], attrs: dict, strategy: Strategy, whole: Sequence[np.ndarray]
) -> None:
    operands, results = tuple(map(type_of, arrays)), tuple(map(type_of, whole))
    place = OperatorPlacement(operands, results, strategy.operand_layouts, strategy.result_layouts)
    exchange = op.exchanged(attrs, place) if strategy.exchanges else Exchange()
    local = {**op.local_attributes(attrs, place), **(exchange.attrs or {})}
    outputs = []
    for rank in range(strategy.mesh.devices):
        cut = [
            fetched(a, i, exchange, x, rank) for i, (a, x) in enumerate(zip(arrays, place.operand_layouts, strict=True))
        ]
        totals = exchange.totals
        if totals is not None:
            layout = place.operand_layouts[totals.operands[0]]
            members = layout.mesh.groups(layout.dims[totals.dim]).members(rank)
            each = []
            for one in members:
                blocks = [arrays[i][place.operand_layouts[i].block(one, arrays[i].shape)] for i in totals.operands]
                attrs_there = {name: resolve(value, one) for name, value in totals.attrs.items()}
                each.append(totals.total.evaluate(blocks, attrs_there))
            cut += [np.concatenate(parts, totals.dim) for parts in zip(*each, strict=True)]
        run = op if totals is None else totals.after
        taken = {name: resolve(value, rank) for name, value in local.items() if name in run.attributes}
        outputs.append(run.evaluate(cut, taken))
    groups = strategy.mesh.groups(strategy.reduced)
    for i, (want, layout) in enumerate(zip(whole, strategy.result_layouts, strict=True)):
        for rank in range(strategy.mesh.devices):
            terms = [outputs[int(member)][i] for member in groups.members(rank)]
            got = REDUCE[strategy.rule.reduction].reduce(terms)
            block = want[layout.block(rank, want.shape)]
            assert got.shape == block.shape and terms[0].dtype == want.dtype
            np.testing.assert_allclose(got, block, rtol=1e-5, atol=1e-5, err_msg=f"{op.name} {attrs} by {strategy}")


def fetched(array: np.ndarray, operand: int, exchange: Exchange, layout: Layout, rank: int) -> np.ndarray:
    """The rank's block of an operand, with what its windows say in place of blocks along their dims."""
    block = list(layout.block(rank, array.shape))
    windows = [one for one in exchange.windows if one.operand == operand]
    for window in windows:
        block[window.dim] = slice(None)
    array = array[tuple(block)]
    for window in windows:
        position, size = layout.mesh.index(rank, window.axes), array.shape[window.dim]
        pieces = []
        for run in window.runs:
            places = run.starts[position] + run.stride * np.arange(run.counts[position])
            taken = np.take(array, places % size if window.wraps else places, window.dim)
            ends = [(0, 0)] * array.ndim
            ends[window.dim] = (run.place(position), run.width - run.place(position) - len(places))
            pieces.append(np.pad(taken, ends))
        array = np.concatenate(pieces, window.dim)
    return array


def check_linear(op: Operator, arrays: Sequence[np.ndarray], attrs: dict, seed: int = 0) -> int:
    """Terms of a sum in all operands of a linear set must add up to the whole; returns how many sets."""
    attrs, rng = op.check_attributes(attrs), np.random.default_rng(seed)
    whole = op.evaluate(arrays, attrs)
    for members in op.linear_in(len(arrays)):
        terms = [rng.standard_normal(a.shape) if i in members else a for i, a in enumerate(arrays)]
        rests = [a - b if i in members else a for i, (a, b) in enumerate(zip(arrays, terms, strict=True))]
        for want, one, other in zip(whole, op.evaluate(terms, attrs), op.evaluate(rests, attrs), strict=True):
            np.testing.assert_allclose(one + other, want, rtol=1e-9, atol=1e-9, err_msg=op.name)
    return len(op.linear_in(len(arrays)))
