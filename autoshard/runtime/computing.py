"""Operators bound to the slots of a program: operands, attributes, and memory for results, told once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from autoshard.ops.attributes import resolve
from autoshard.partition.program import Compute, Register
from autoshard.runtime.array import array_dtype
from autoshard.runtime.spare import spare

Kinds = list[tuple[tuple[int, ...], np.dtype]]
"""Shape and numpy's dtype of each result."""
Run = Callable[[list[np.ndarray]], Sequence[np.ndarray]]


def bind_compute(
    one: Compute, places: Mapping[Register, int], ending: Collection[Register], ranks: Sequence[int]
) -> Callable[[list], None]:
    """An action on the slots, which hold one array for each of `ranks`; `ending` are the registers to let go.

    A result is made in the memory of an operand that ends here, where the operator can do so and nobody else holds it.
    """
    if len(ranks) == 1:
        return _on_own_rank(one, places, ending, ranks[0])
    operands = [places[register] for register in one.operands]
    results = [None if register in ending else places[register] for register in one.results]
    free = [places[register] for register in ending if register not in one.results]
    runs = [(k, _on_rank(one, rank, one.givers(ending))) for k, rank in enumerate(ranks)]

    def action(slots: list) -> None:
        columns = [[slots[slot][k] for slot in operands] for k, _ in runs]
        for slot in free:  # before they run, so that what is held by nobody else can be seen to be so
            slots[slot] = None
        made = [run(column) for (_, run), column in zip(runs, columns, strict=True)]
        for slot, parts in zip(results, zip(*made, strict=True), strict=True):
            if slot is not None:
                slots[slot] = list(parts)

    return action


def _on_own_rank(
    one: Compute, places: Mapping[Register, int], ending: Collection[Register], rank: int
) -> Callable[[list], None]:
    """The same where one rank is hosted: between the kernels of a small step each line of Python counts, as little of
    what it runs is left in the processor's caches."""
    call, givers = _call_of(one, rank), one.givers(ending)
    operands = [places[register] for register in one.operands]
    free = [places[register] for register in ending if register not in one.results]
    kinds = [(register.local.shape, array_dtype(register.whole.dtype)) for register in one.results]
    targets = [None if register in ending else places[register] for register in one.results]
    if len(targets) == 1:
        return _making_one(call, operands, free, targets[0], *kinds[0], givers[0] if givers else ())
    run = _several(call, kinds, givers if any(givers) else ())

    def action(slots: list) -> None:
        arrays = [slots[slot][0] for slot in operands]
        for slot in free:
            slots[slot] = None
        for slot, made in zip(targets, run(arrays), strict=True):
            if slot is not None:
                slots[slot] = [made]

    return action


def _making_one(
    call: Callable,
    operands: Sequence[int],
    free: Sequence[int],
    target: int | None,
    shape: tuple[int, ...],
    dtype: np.dtype,
    givers: tuple[int, ...],
) -> Callable[[list], None]:
    def put(slots: list, made: Any) -> None:
        if target is not None:
            slots[target] = [_of_type(made[0] if isinstance(made, tuple) else made, dtype)]

    def anew(slots: list) -> None:
        made = call(*[slots[slot][0] for slot in operands])
        for slot in free:
            slots[slot] = None
        if type(made) is np.ndarray and made.dtype is dtype and target is not None:
            slots[target] = [made]
        else:
            put(slots, made)

    def over(slots: list) -> None:
        arrays = [slots[slot][0] for slot in operands]
        for slot in free:  # before it runs, so that what is held by nobody else can be seen to be so
            slots[slot] = None
        out = spare(arrays, givers, shape, dtype)
        made = call(*arrays) if out is None else call(*arrays, out=out)
        if type(made) is np.ndarray and made.dtype is dtype and target is not None:
            slots[target] = [made]
        else:
            put(slots, made)

    return over if givers else anew


def _call_of(one: Compute, rank: int) -> Callable:
    """The operator with its attributes as they are on a rank."""
    attrs = {name: resolve(value, rank) for name, value in one.attrs.items()}
    return partial(one.op.run, **attrs) if attrs else one.op.run


def _on_rank(one: Compute, rank: int, givers: tuple[tuple[int, ...], ...]) -> Run:
    """A function from the arrays of the operands on a rank to those of the results."""
    call = _call_of(one, rank)
    kinds = [(register.local.shape, array_dtype(register.whole.dtype)) for register in one.results]
    if len(kinds) == 1:
        return _single(call, *kinds[0], givers[0] if givers else ())
    return _several(call, kinds, givers if any(givers) else ())


def _single(call: Callable, shape: tuple[int, ...], dtype: np.dtype, givers: tuple[int, ...]) -> Run:
    def run(arrays: list[np.ndarray]) -> tuple[np.ndarray]:
        out = spare(arrays, givers, shape, dtype) if givers else None
        made = call(*arrays) if out is None else call(*arrays, out=out)
        return (_of_type(made[0] if isinstance(made, tuple) else made, dtype),)

    return run


def _several(call: Callable, kinds: Kinds, givers: tuple[tuple[int, ...], ...]) -> Run:
    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        outs: list[np.ndarray | None] = []
        for taken, kind in zip(givers, kinds, strict=False):
            outs.append(spare(arrays, taken, *kind))  # what one result takes is held by `outs` then
        made = call(*arrays, out=tuple(outs)) if outs else call(*arrays)
        return [_of_type(array, dtype) for array, (_, dtype) in zip(made, kinds, strict=True)]

    return run


def _of_type(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if type(array) is np.ndarray and array.dtype is dtype:
        return array
    return np.asarray(array, dtype=dtype)
