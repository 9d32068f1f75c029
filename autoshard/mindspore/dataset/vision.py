"""What `Dataset.map` may do to images [height, width, channels], under the names of `mindspore.dataset.vision`.

What draws at random, or reads and resizes pictures, is not offered: a function of one's own does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard.mindspore.dataset.rows import DataError


class Rescale:
    """`rescale * x + shift`, as float32."""

    def __init__(self, rescale: float, shift: float) -> None:
        self.rescale, self.shift = rescale, shift

    def __call__(self, image: Any) -> np.ndarray:
        return np.asarray(image).astype(np.float32) * np.float32(self.rescale) + np.float32(self.shift)


class Normalize:
    """Less the mean and divided by the deviation of each channel, which is the last dim, or, without `is_hwc`, the
    third from behind; as float32.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_hwc: bool = True) -> None:
        if len(mean) != len(std) or min(std) <= 0:
            raise DataError(f"Normalize: mean is {mean} and std {std}; one number for each channel, and std is above 0")
        shape = (-1,) if is_hwc else (-1, 1, 1)
        self.mean, self.std = (np.asarray(one, np.float32).reshape(shape) for one in (mean, std))

    def __call__(self, image: Any) -> np.ndarray:
        return (np.asarray(image).astype(np.float32) - self.mean) / self.std


class HWC2CHW:
    """[height, width, channels] as [channels, height, width]; without channels as it is."""

    def __call__(self, image: Any) -> np.ndarray:
        array = np.asarray(image)
        return array if array.ndim < 3 else np.moveaxis(array, -1, -3)


class ToTensor:
    """Images of 0 to 255 as float32 of 0 to 1, [channels, height, width]."""

    def __init__(self, output_type: Any = np.float32) -> None:
        self.kind = output_type

    def __call__(self, image: Any) -> np.ndarray:
        array = np.asarray(image)
        array = array[..., None] if array.ndim == 2 else array
        return (HWC2CHW()(array).astype(np.float32) / np.float32(255)).astype(getattr(self.kind, "numpy", self.kind))
