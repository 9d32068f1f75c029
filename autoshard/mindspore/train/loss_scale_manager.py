"""The same as in `autoshard.mindspore.train`, under the name of MindSpore's module."""

from autoshard.mindspore.loss_scale import DynamicLossScaleManager, FixedLossScaleManager, LossScaleManager

__all__ = ["DynamicLossScaleManager", "FixedLossScaleManager", "LossScaleManager"]
