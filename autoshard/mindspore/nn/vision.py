"""Cells of images with MindSpore's names, arguments and defaults: functions of `ops` with their settings."""

from __future__ import annotations

from typing import Any

from autoshard.mindspore import ops
from autoshard.trace.cell import Cell


class Upsample(Cell):
    """`ops.interpolate` with these settings."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.made = (size, scale_factor, mode, align_corners, recompute_scale_factor)

    def construct(self, x: Any) -> Any:
        return ops.interpolate(x, *self.made)


class PixelShuffle(Cell):
    """x [..., C r^2, H, W] as [..., C, H r, W r], for r = `upscale_factor`."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def construct(self, input: Any) -> Any:
        return ops.pixel_shuffle(input, self.upscale_factor)


class PixelUnshuffle(Cell):
    """x [..., C, H r, W r] as [..., C r^2, H, W], for r = `downscale_factor`."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def construct(self, input: Any) -> Any:
        return ops.pixel_unshuffle(input, self.downscale_factor)
