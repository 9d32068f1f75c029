"""Normalizing layers with MindSpore's names, arguments and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore import ops
from autoshard.mindspore.ops.math import along
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.cell import Cell
from autoshard.trace.initializer import deferred
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ShapeError


def _held(init: Any, shape: tuple[int, ...], dtype: Any, name: str | None = None, trained: bool = True) -> Parameter:
    return Parameter(deferred(init, shape, element(dtype)), name=name, requires_grad=trained)


def _check_features(what: str, num_features: int, momentum: float) -> None:
    """Raises ShapeError: no features, or a share of the moving statistics that is none."""
    if num_features < 1 or not 0 <= momentum <= 1:
        raise ShapeError(
            f"{what}: num_features is {num_features} and momentum {momentum}; they are at least 1, and between 0 and 1"
        )


class LayerNorm(Cell):
    """x without mean and scale over its dims from `begin_norm_axis` on, times gamma plus beta of `normalized_shape`."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        begin_norm_axis: int = -1,
        begin_params_axis: int = -1,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        epsilon: float = 1e-7,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if begin_norm_axis != begin_params_axis or begin_norm_axis < 0 and begin_norm_axis != -len(shape):
            raise ShapeError(
                f"LayerNorm of normalized_shape {shape}: begin_norm_axis is {begin_norm_axis} and begin_params_axis "
                f"{begin_params_axis}; both must name the first of these dims, such as {-len(shape)}"
            )
        self.gamma, self.beta = _held(gamma_init, shape, dtype), _held(beta_init, shape, dtype)
        self.layer_norm = core.primitive_class(core.layer_norm)(begin_norm_axis=begin_norm_axis, epsilon=epsilon)

    def construct(self, x: Any) -> Any:
        return as_tensors(self.layer_norm(x, self.gamma, self.beta))


class RMSNorm(Cell):
    """x divided by its root mean square over its last dims of `normalized_shape`, times gamma."""

    def __init__(
        self, normalized_shape: int | Sequence[int], gamma_init: Any = "ones", epsilon: float = 1e-6, dtype: Any = "f32"
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.gamma = _held(gamma_init, shape, dtype)
        self.rms_norm = core.primitive_class(core.rms_norm)(begin_norm_axis=-len(shape), epsilon=epsilon)

    def construct(self, x: Any) -> Any:
        return as_tensors(self.rms_norm(x, self.gamma))


class _BatchNorm(Cell):
    """Takes mean and scale of each channel (dim 1) out of x, then times gamma plus beta.

    While training they are those of the batch, and `moving_mean` and `moving_variance` keep `momentum` of what they
    are and take the rest from the batch (its variance with n - 1); else these two are taken. True or False as
    `use_batch_statistics` fixes one of both for ever.
    """

    ranks: tuple[int, ...]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        moving_mean_init: Any = "zeros",
        moving_var_init: Any = "ones",
        use_batch_statistics: bool | None = None,
        data_format: str = "NCHW",
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        _check_features(type(self).__name__, num_features, momentum)
        self.num_features, self.momentum, self.eps = num_features, momentum, eps
        self.use_batch_statistics = use_batch_statistics
        shape = (num_features,)
        self.moving_mean = _held(moving_mean_init, shape, dtype, trained=False)
        self.moving_variance = _held(moving_var_init, shape, dtype, trained=False)
        self.gamma, self.beta = (
            _held(gamma_init, shape, dtype, trained=affine),
            _held(beta_init, shape, dtype, trained=affine),
        )
        made = {"epsilon": eps, "momentum": 1 - momentum, "data_format": data_format}
        self.bn_train, self.bn_infer = ops.BatchNorm(is_training=True, **made), ops.BatchNorm(**made)

    def construct(self, x: Any) -> Any:
        if len(x.shape) not in self.ranks or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__} of {self.num_features} features: x is {tuple(x.shape)}; it has "
                f"{' or '.join(map(str, self.ranks))} dims, and the features are dim 1"
            )
        batch = self.training if self.use_batch_statistics is None else self.use_batch_statistics
        norm = self.bn_train if batch else self.bn_infer
        return norm(x, self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    ranks = (4,)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of x [N, C] or [N, C, H, W] by the statistics of the whole batch, on all ranks that share it:
    as every batch normalization here is, split or not.
    """

    ranks = (2, 4)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        moving_mean_init: Any = "zeros",
        moving_var_init: Any = "ones",
        use_batch_statistics: bool | None = None,
        process_groups: Any = None,
        dtype: Any = "f32",
    ) -> None:
        if process_groups is not None:
            raise ShapeError(
                f"SyncBatchNorm: process_groups is {process_groups!r}; only None, all ranks, is offered here"
            )
        made = (num_features, eps, momentum, affine, gamma_init, beta_init, moving_mean_init, moving_var_init)
        super().__init__(*made, use_batch_statistics, dtype=dtype)


class BatchNorm3d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    ranks = (5,)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        moving_mean_init: Any = "zeros",
        moving_var_init: Any = "ones",
        use_batch_statistics: bool | None = None,
        dtype: Any = "f32",
    ) -> None:
        given = (num_features, eps, momentum, affine, gamma_init, beta_init, moving_mean_init, moving_var_init)
        super().__init__(*given, use_batch_statistics=use_batch_statistics, dtype=dtype)


class GroupNorm(Cell):
    """Takes mean and scale of each group of channels (dim 1) out of each sample, then times gamma plus beta."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(f"GroupNorm: {num_groups} groups do not divide {num_channels} channels")
        self.num_groups, self.num_channels = num_groups, num_channels
        shape = (num_channels,)
        self.gamma, self.beta = (
            _held(gamma_init, shape, dtype, trained=affine),
            _held(beta_init, shape, dtype, trained=affine),
        )
        self.apart, self.together = core.primitive_class(core.reshape)(), core.primitive_class(core.reshape)()
        self.standardize = core.primitive_class(core.standardize)(begin_norm_axis=2, epsilon=eps)
        self.mul, self.add = ops.Mul(), ops.Add()

    def construct(self, x: Any) -> Any:
        if len(x.shape) != 4 or x.shape[1] != self.num_channels:
            raise ShapeError(f"GroupNorm of {self.num_channels} channels: x is {tuple(x.shape)}; it is [N, C, H, W]")
        batch, channels, *space = x.shape
        grouped = self.apart(x, shape=(batch, self.num_groups, channels // self.num_groups, *space))
        unit = self.together(self.standardize(grouped)[0], shape=tuple(x.shape))
        gamma, beta = (core.reshape(one, shape=(channels, 1, 1)) for one in (self.gamma, self.beta))
        return self.add(self.mul(unit, gamma), beta)


class _InstanceNorm(Cell):
    """Takes mean and scale of each channel (dim 1) out of each sample, then times gamma plus beta.

    They are those of the sample while training and else; `momentum` is of moving ones that MindSpore keeps and never
    takes, which are not kept here.
    """

    rank: int

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        _check_features(type(self).__name__, num_features, momentum)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.gamma = _held(gamma_init, (num_features,), dtype, trained=affine)
        self.beta = _held(beta_init, (num_features,), dtype, trained=affine)
        self.standardize = core.primitive_class(core.standardize)(begin_norm_axis=2, epsilon=eps)
        self.mul, self.add = ops.Mul(), ops.Add()

    def construct(self, x: Any) -> Any:
        if len(x.shape) != self.rank or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__} of {self.num_features} features: x is {tuple(x.shape)}; it has {self.rank} "
                "dims, and the features are dim 1"
            )
        gamma, beta = (along(one, x, 1) for one in (self.gamma, self.beta))
        return self.add(self.mul(self.standardize(x)[0], gamma), beta)


class InstanceNorm1d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    rank = 3


class InstanceNorm2d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    rank = 4


class InstanceNorm3d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    rank = 5
