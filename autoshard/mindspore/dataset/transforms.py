"""What `Dataset.map` may do to the arrays of a row, under the names of `mindspore.dataset.transforms`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.dataset.rows import DataError


class Compose:
    """Functions one behind the other; what one gives, the next takes."""

    def __init__(self, transforms: Sequence[Callable]) -> None:
        self.transforms = tuple(transforms)

    def __call__(self, *arrays: Any) -> Any:
        for one in self.transforms:
            found = one(*arrays)
            arrays = found if isinstance(found, tuple) else (found,)
        return arrays if len(arrays) != 1 else arrays[0]


class TypeCast:
    """In another element type: `TypeCast(mstype.int32)`."""

    def __init__(self, output_type: Any) -> None:
        self.kind = element(output_type).numpy

    def __call__(self, array: Any) -> np.ndarray:
        return np.asarray(array).astype(self.kind)


class OneHot:
    """Class numbers as rows of 0s with a 1; with a `smoothing_rate` that much of it is shared by the other classes."""

    def __init__(self, num_classes: int, smoothing_rate: float = 0.0) -> None:
        if num_classes < 1 or not 0 <= smoothing_rate <= 1:
            raise DataError(
                f"OneHot: num_classes is {num_classes} and smoothing_rate {smoothing_rate}; they are at least 1, and "
                "between 0 and 1"
            )
        self.num_classes, self.rate = num_classes, smoothing_rate

    def __call__(self, array: Any) -> np.ndarray:
        classes = np.asarray(array)
        if classes.dtype.kind not in "iu" or ((classes < 0) | (classes >= self.num_classes)).any():
            raise DataError(f"OneHot of {classes.dtype} {classes}: whole numbers from 0 to below {self.num_classes}")
        rows = (classes[..., None] == np.arange(self.num_classes)).astype(classes.dtype)
        if not self.rate:
            return rows
        return np.where(rows == 1, 1 - self.rate, self.rate / (self.num_classes - 1)).astype(np.float32)
