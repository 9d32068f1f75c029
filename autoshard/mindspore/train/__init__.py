"""Training under MindSpore's names: Model, callbacks, metrics, checkpoints."""

from __future__ import annotations

from autoshard.mindspore.callbacks import (
    Callback,
    CheckpointConfig,
    History,
    LossMonitor,
    ModelCheckpoint,
    TimeMonitor,
)
from autoshard.mindspore.checkpoint import load_checkpoint, load_param_into_net, save_checkpoint
from autoshard.mindspore.early_stopping import EarlyStopping, LambdaCallback
from autoshard.mindspore.loss_scale import DynamicLossScaleManager, FixedLossScaleManager, LossScaleManager
from autoshard.mindspore.metrics import (
    F1,
    MAE,
    MSE,
    Accuracy,
    Fbeta,
    Loss,
    Metric,
    Precision,
    Recall,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
    get_metric_fn,
)
from autoshard.mindspore.model import Model
from autoshard.mindspore.parallel import (
    load_distributed_checkpoint,
    merge_sliced_parameter,
)

__all__ = [
    "MAE", "MSE", "Accuracy", "Callback", "CheckpointConfig", "DynamicLossScaleManager", "EarlyStopping", "F1", "Fbeta",
    "FixedLossScaleManager", "History", "LambdaCallback", "Loss", "LossMonitor", "LossScaleManager", "Metric",
    "Model", "ModelCheckpoint", "Precision", "Recall", "TimeMonitor", "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy", "TopKCategoricalAccuracy", "get_metric_fn", "load_checkpoint",
    "load_distributed_checkpoint",
    "load_param_into_net", "merge_sliced_parameter", "save_checkpoint",
]  # fmt: skip
