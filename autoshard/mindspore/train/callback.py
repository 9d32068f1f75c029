"""The same as in `autoshard.mindspore.train`, under the name of MindSpore's module."""

from autoshard.mindspore.callbacks import Callback, CheckpointConfig, History, LossMonitor, ModelCheckpoint, TimeMonitor
from autoshard.mindspore.early_stopping import EarlyStopping, LambdaCallback

__all__ = [
    "Callback", "CheckpointConfig", "EarlyStopping", "History", "LambdaCallback", "LossMonitor", "ModelCheckpoint",
    "TimeMonitor",
]  # fmt: skip
