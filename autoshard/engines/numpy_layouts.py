"""Layouts of what a stretch makes: a result that is turned and then copied into another shape is made there at once.

    v0 = matmul(x1, x2)                                         v3 = empty((128, 256))
    v1 = v0.transpose((0, 2, 1, 3))              becomes        matmul(x1, x2, out=v3.reshape(...).transpose(...))
    v3 = v1.reshape((128, 256))

So heads of attention become tokens without a copy, as who writes numpy by hand would have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from autoshard.engines import numpy_values
from autoshard.engines.numpy_stretch import StretchLine, Var


def without_copies(lines: Sequence[StretchLine], results: Collection[Var]) -> list[StretchLine]:
    """The lines, of which those that make, turn and copy are one where nothing else reads what is in between."""
    read = Counter(one for line in lines for one in line.uses)
    read.update(results)
    maker = {one: line for line in lines for one in line.made}
    changed: dict[StretchLine, StretchLine | None] = {}
    for line in lines:
        turn = _only(line, numpy_values.reshape, maker, read)
        source = None if turn is None else _only(turn, numpy_values.transpose, maker, read)
        if turn is None or source is None or source.of.kind != numpy_values.UFUNC or source.parts or source.into:
            continue
        order = tuple(turn.args[1])
        if _is_copied(source.made[0], order, line.made[0].shape):
            into = turn.made[0].shape, tuple(int(one) for one in np.argsort(order))
            changed |= {line: None, turn: None, source: replace(source, made=line.made, into=into)}
    return [made for made in (changed.get(line, line) for line in lines) if made is not None]


def _only(
    line: StretchLine, of: numpy_values.NumpyCall, maker: dict[Var, StretchLine], read: Counter[Var]
) -> StretchLine | None:
    """The line that makes what this one takes, if it is such a call and alone reads that."""
    if line.of is not of or read[line.args[0]] != 1:
        return None
    return maker.get(line.args[0])


def _is_copied(source: Var, order: Sequence[int], shape: tuple[int, ...]) -> bool:
    """Whether numpy has to copy a contiguous array that is turned into that shape."""
    probe = np.empty(source.shape, bool)
    return not np.may_share_memory(probe.transpose(order).reshape(shape), probe)
