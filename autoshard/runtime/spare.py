"""Memory that is free to be written: an array that nobody else can see any more, told by CPython's reference counts.

Numpy makes temporaries of an expression in each other's memory by the same sign (its temporary elision). It errs on the
safe side: a view, another name, a buffer that MPI still sends from, all count as somebody who looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount

import numpy as np


def spare(arrays: list, places: Sequence[int], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    """The first array at these places of the list that has this shape and type and that nothing but the list holds."""
    for i in places:
        if _counted(arrays, i) == _ALONE:
            array = arrays[i]
            if array.shape == shape and array.dtype == dtype and array.flags.writeable and _owns(array):
                return array
    return None


def _owns(array: np.ndarray) -> bool:
    """Whether its memory is all its own, or that of an array as large which it is the only view of."""
    if array.base is None:
        return array.flags.owndata
    if _counted_base(array) != _BASE_ALONE:
        return False
    base = array.base
    return type(base) is np.ndarray and base.nbytes == array.nbytes and base.flags.owndata


def _counted(arrays: list[np.ndarray], i: int) -> int:
    return getrefcount(arrays[i])


def _counted_base(array: np.ndarray) -> int:
    return getrefcount(array.base)


# What the counts are of arrays that nobody else holds: releases of CPython count their own hands differently.
_ALONE = _counted([np.empty(1)], 0)
_BASE_ALONE = _counted_base(np.empty(2)[:1])
