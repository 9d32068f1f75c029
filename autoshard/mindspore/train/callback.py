"""The same as in `autoshard.mindspore.train`, under the name of MindSpore's module."""

from autoshard.mindspore.callbacks import Callback, CheckpointConfig, History, LossMonitor, ModelCheckpoint, TimeMonitor

__all__ = ["Callback", "CheckpointConfig", "History", "LossMonitor", "ModelCheckpoint", "TimeMonitor"]
