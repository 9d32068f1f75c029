"""Convolutions and pools with MindSpore's names, arguments and defaults, on [N, C, H, W] (1d: [N, C, L])."""

from __future__ import annotations

from typing import Any

from autoshard.mindspore import ops
from autoshard.mindspore.nn.layers import biases, weights
from autoshard.mindspore.ops import windows
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.cell import Cell
from autoshard.util.errors import ShapeError


class Conv2d(Cell):
    """Sums of products under windows of `weight` [out_channels, in_channels / group, h, w], plus a bias per channel.

    Args:
        pad_mode: "same" (MindSpore's default: ceil(size / stride) windows), "valid" (none), or "pad" (`padding`).
        padding: a number, or four: above, below, left and right.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        pad_mode: str = "same",
        padding: Any = 0,
        dilation: Any = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        data_format: str = "NCHW",
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        kernel = windows.each(kernel_size, 2, "Conv2d: kernel_size")
        shape = weight_shape("Conv2d", in_channels, out_channels, kernel, group, pad_mode, padding)
        self.in_channels, self.out_channels, self.kernel_size, self.has_bias = (
            in_channels,
            out_channels,
            kernel,
            has_bias,
        )
        self.weight = weights(weight_init, shape, dtype)
        if has_bias:
            self.bias = biases(bias_init, (out_channels,), dtype, shape)
            self.bias_add = ops.BiasAdd()
        self.conv2d = ops.Conv2D(
            out_channel=out_channels, kernel_size=kernel, mode=1, pad_mode=pad_mode, pad=padding, stride=stride,
            dilation=dilation, group=group, data_format=data_format,
        )  # fmt: skip

    def construct(self, x: Any) -> Any:
        y = self.conv2d(x, self.weight)
        return self.bias_add(y, self.bias) if self.has_bias else y


def weight_shape(
    what: str, inputs: int, outputs: int, kernel: tuple[int, ...], group: int, mode: str, padding: Any
) -> tuple[int, ...]:
    """Of a convolution's weight. Raises ShapeError: channels, sizes or padding that do not fit together."""
    windows.pads(mode, padding, kernel, [(1, 1)] * len(kernel), what)
    if min(inputs, outputs, group, *kernel) < 1 or inputs % group or outputs % group:
        raise ShapeError(
            f"{what}: {inputs} in_channels, {outputs} out_channels, kernel {kernel}, {group} groups; all at least 1 "
            "and the groups divide both channels"
        )
    return (outputs, inputs // group, *kernel)


class Conv1d(Cell):
    """Sums of products under windows of `weight` [out_channels, in_channels / group, 1, length] along [N, C, L]."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        pad_mode: str = "same",
        padding: Any = 0,
        dilation: int = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        shape = weight_shape("Conv1d", in_channels, out_channels, (1, kernel_size), group, pad_mode, padding)
        self.weight = weights(weight_init, shape, dtype)
        self.has_bias = has_bias
        if has_bias:
            self.bias = biases(bias_init, (out_channels,), dtype, shape)
            self.bias_add = ops.BiasAdd()
        sides = (padding, padding) if isinstance(padding, int) else tuple(padding)
        self.expand_dims, self.squeeze = ops.ExpandDims(), ops.Squeeze(2)
        self.conv2d = ops.Conv2D(
            out_channel=out_channels, kernel_size=(1, kernel_size), mode=1, pad_mode=pad_mode,
            pad=(0, 0, *sides) if any(sides) else 0, stride=(1, stride), dilation=(1, dilation), group=group,
        )  # fmt: skip

    def construct(self, x: Any) -> Any:
        y = self.conv2d(self.expand_dims(x, 2), self.weight)
        return self.squeeze(self.bias_add(y, self.bias) if self.has_bias else y)


class Conv3d(Cell):
    """Sums of products under windows of `weight` [out_channels, in_channels / group, d, h, w] of [N, C, D, H, W]."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        pad_mode: str = "same",
        padding: Any = 0,
        dilation: Any = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        data_format: str = "NCDHW",
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        if data_format != "NCDHW":
            raise ShapeError(f"Conv3d: data_format is {data_format!r}; only 'NCDHW' is offered here")
        kernel = windows.each(kernel_size, 3, "Conv3d: kernel_size")
        shape = weight_shape("Conv3d", in_channels, out_channels, kernel, group, pad_mode, padding)
        self.weight = weights(weight_init, shape, dtype)
        self.has_bias, self.made = has_bias, (pad_mode, padding, stride, dilation, group, "Conv3d")
        if has_bias:
            self.bias = biases(bias_init, (out_channels,), dtype, shape)
            self.bias_add = ops.BiasAdd()

    def construct(self, x: Any) -> Any:
        y = windows.convolve(x, self.weight, *self.made)
        return self.bias_add(y, self.bias) if self.has_bias else as_tensors(y)


# -- pools


class _Pool(Cell):
    """Windows over the last `count` dims."""

    count: int

    def _windows(
        self, kernel_size: Any, stride: Any, pad_mode: str, padding: Any, ceil_mode: bool, dilation: Any
    ) -> None:
        what = type(self).__name__
        self.kernel, self.steps = (
            windows.each(one, self.count, f"{what}: {name}")
            for one, name in ((kernel_size, "kernel_size"), (stride, "stride"))
        )
        self.far = windows.each(dilation, self.count, f"{what}: dilation")
        self.pad_mode, self.padding, self.ceil_mode = pad_mode, padding, ceil_mode
        usual = (ceil_mode, self.far) == (False, (1,) * self.count)
        if pad_mode.lower() != "pad" and not usual:
            raise ShapeError(f"{what}: dilation and ceil_mode need pad_mode 'pad', not {pad_mode!r}")

    def _pads(self, x: Any) -> tuple[windows.Pairs, windows.Pairs]:
        """The padding asked for, and that with what `ceil_mode` adds."""
        if len(x.shape) not in (self.count + 1, self.count + 2):
            raise ShapeError(
                f"{type(self).__name__}: x is {tuple(x.shape)}; it has {self.count + 2} dims, the last are pooled"
            )
        sizes = x.shape[-self.count :]
        of = [(windows.reach(one, far), step) for one, far, step in zip(self.kernel, self.far, self.steps, strict=True)]
        own = windows.pads(self.pad_mode, self.padding, sizes, of, type(self).__name__)
        return own, windows.more_behind(sizes, own, of) if self.ceil_mode else own


class _MaxPool(_Pool):
    """The largest element under each window."""

    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        if return_indices:
            raise ShapeError(f"{type(self).__name__}: return_indices=True is not offered here")
        self._windows(kernel_size, stride, pad_mode, padding, ceil_mode, dilation)

    def construct(self, x: Any) -> Any:
        return as_tensors(
            windows.pooled(x, "max", windows.least(x), self.kernel, self.steps, self._pads(x)[1], self.far)
        )


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    count = 1


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    count = 2

    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        data_format: str = "NCHW",
    ) -> None:
        super().__init__(kernel_size, stride, pad_mode, padding, dilation, return_indices, ceil_mode)
        windows.check_format(data_format, "MaxPool2d")


class _AvgPool(_Pool):
    """The mean of the elements under each window; `count_include_pad` says whether padding counts as elements."""

    def _construct(self, x: Any, include: bool, divisor: int | None) -> Any:
        own, pads = self._pads(x)
        counted = own if include and self.pad_mode.lower() == "pad" else None
        return as_tensors(windows.average(x, self.kernel, self.steps, pads, counted, divisor))


class AvgPool1d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    count = 1

    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self._windows(kernel_size, stride, pad_mode, padding, ceil_mode, 1)
        self.count_include_pad = count_include_pad

    def construct(self, x: Any) -> Any:
        return self._construct(x, self.count_include_pad, None)


class AvgPool2d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    count = 2

    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        data_format: str = "NCHW",
    ) -> None:
        super().__init__()
        windows.check_format(data_format, "AvgPool2d")
        self._windows(kernel_size, stride, pad_mode, padding, ceil_mode, 1)
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def construct(self, x: Any) -> Any:
        return self._construct(x, self.count_include_pad, self.divisor_override)


class AdaptiveAvgPool2d(Cell):
    """Means of windows, so many that the result's last two dims are `output_size`; None keeps a dim."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)

    def construct(self, x: Any) -> Any:
        return ops.adaptive_avg_pool2d(x, self.output_size)
