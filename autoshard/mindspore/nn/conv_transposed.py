"""Transposed convolutions with MindSpore's names, arguments and defaults: the gradients of convolutions for their x."""

from __future__ import annotations

from typing import Any

from autoshard import ops as core
from autoshard.mindspore import ops
from autoshard.mindspore.nn.conv import weight_shape
from autoshard.mindspore.nn.layers import biases, weights
from autoshard.mindspore.ops import windows
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.cell import Cell
from autoshard.util.errors import ShapeError


class _Transposed(Cell):
    """What both have: `weight` [in_channels, out_channels / group, ...], a bias per channel of the result."""

    def _hold(
        self, inputs: int, outputs: int, kernel: tuple[int, ...], group: int, mode: str, padding: Any, bias: Any,
        weight_init: Any, bias_init: Any, dtype: Any,
    ) -> None:  # fmt: skip
        weight_shape(type(self).__name__, inputs, outputs, kernel, group, mode, padding)
        shape = (inputs, outputs // group, *kernel)
        self.in_channels, self.out_channels, self.kernel_size, self.has_bias = inputs, outputs, kernel, bias
        self.weight = weights(weight_init, shape, dtype)
        if bias:
            self.bias = biases(bias_init, (outputs,), dtype, shape)
            self.bias_add = ops.BiasAdd()

    def _check(self, x: Any, rank: int) -> None:
        if len(x.shape) != rank or x.shape[1] != self.in_channels:
            dims = "[N, C, H, W]" if rank == 4 else "[N, C, L]"
            raise ShapeError(
                f"{type(self).__name__}: x is {tuple(x.shape)}; it is {dims} with {self.in_channels} channels"
            )


class Conv2dTranspose(_Transposed):
    """Each element of x [N, C, H, W] times a window of `weight` [in_channels, out_channels / group, h, w], windows
    added up where they overlap, plus a bias per channel.

    Args:
        pad_mode: "same" (MindSpore's default): the result is `stride` times as large; "valid": and as much more as the
            last window reaches; "pad": `padding` less on each side of that.
        output_padding: so many zeros below and right of the result, with pad_mode "pad" and without a bias.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        pad_mode: str = "same",
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        kernel = windows.each(kernel_size, 2, "Conv2dTranspose: kernel_size")
        more = windows.each(output_padding, 2, "Conv2dTranspose: output_padding")
        steps, far = (windows.each(one, 2, "Conv2dTranspose: stride, dilation") for one in (stride, dilation))
        most = [max(pair) for pair in zip(steps, far, strict=True)]
        fits = all(0 <= one < end for one, end in zip(more, most, strict=True))
        if any(more) and (not fits or pad_mode != "pad" or has_bias):
            raise ShapeError(
                f"Conv2dTranspose: output_padding is {output_padding!r}; it is 0, or with pad_mode 'pad' and without a "
                f"bias below {tuple(most)} (MindSpore adds zeros there, and leaves them out where there is a bias)"
            )
        self._hold(in_channels, out_channels, kernel, group, pad_mode, padding, has_bias, weight_init, bias_init, dtype)
        self.made = {"pad_mode": pad_mode, "pad": padding, "stride": steps, "dilation": far, "group": group}
        self.more = ((0, 0), (0, 0), (0, more[0]), (0, more[1]))
        self.conv2d_transpose = ops.Conv2DTranspose(out_channel=in_channels, kernel_size=kernel, **self.made)

    def construct(self, x: Any) -> Any:
        self._check(x, 4)
        sizes = windows.back_sizes(x.shape[2:], self.kernel_size, **self.made)
        y = self.conv2d_transpose(x, self.weight, (x.shape[0], self.out_channels, *sizes))
        y = self.bias_add(y, self.bias) if self.has_bias else y
        return as_tensors(core.pad(y, paddings=self.more)) if any(map(any, self.more)) else y


class Conv1dTranspose(_Transposed):
    """Each element of x [N, C, L] times a window of `weight` [in_channels, out_channels / group, 1, length]; as
    Conv2dTranspose.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        pad_mode: str = "same",
        padding: int = 0,
        dilation: int = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        kernel = (1, kernel_size)
        self._hold(in_channels, out_channels, kernel, group, pad_mode, padding, has_bias, weight_init, bias_init, dtype)
        pad = (0, 0, padding, padding) if padding else 0
        self.made = {
            "pad_mode": pad_mode, "pad": pad, "stride": (1, stride), "dilation": (1, dilation), "group": group,
        }  # fmt: skip
        self.conv2d_transpose = ops.Conv2DTranspose(out_channel=in_channels, kernel_size=kernel, **self.made)

    def construct(self, x: Any) -> Any:
        self._check(x, 3)
        x = core.expand_dims(x, axis=2)
        sizes = windows.back_sizes(x.shape[2:], self.kernel_size, **self.made)
        y = self.conv2d_transpose(x, self.weight, (x.shape[0], self.out_channels, *sizes))
        y = self.bias_add(y, self.bias) if self.has_bias else y
        return as_tensors(core.squeeze(y, axis=(2,)))
