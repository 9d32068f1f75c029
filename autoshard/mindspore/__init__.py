"""The MindSpore face: a script for MindSpore works with `import autoshard.mindspore as ms`.

    import autoshard.mindspore as ms
    from autoshard.mindspore import nn, ops, Tensor, Model

What stands here has MindSpore's arguments, defaults and meaning; what MindSpore has beyond does not exist here. Names
are loaded when first used. Plans, meshes and imported models are in `autoshard` itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from autoshard.mindspore.instead import INSTEAD
from autoshard.util.offered import NotOfferedError

_HOME = {
    "autoshard.mindspore.common.dtype": (
        "bfloat16", "bool_", "complex128", "complex64", "double", "dtype_to_nptype", "float", "float16", "float32",
        "float64", "half", "int16", "int32", "int64", "int8", "long", "short", "uint16", "uint32", "uint64", "uint8",
    ),
    "autoshard.mindspore.ops.methods": ("Tensor", "from_numpy", "tensor"),
    "autoshard.trace.parameter": ("Parameter",),
    "autoshard.mindspore.layout": ("Layout",),
    "autoshard.mindspore.sharding": ("reshard", "shard"),
    "autoshard.mindspore.metrics": (
        "Accuracy", "F1", "Fbeta", "Loss", "MAE", "MSE", "Metric", "Precision", "Recall",
        "Top1CategoricalAccuracy", "Top5CategoricalAccuracy",
        "TopKCategoricalAccuracy", "get_metric_fn",
    ),
    "autoshard.mindspore.parallel": (
        "get_algo_parameters", "load_distributed_checkpoint", "merge_sliced_parameter", "rank_list_for_transform",
        "reset_algo_parameters", "set_algo_parameters", "transform_checkpoint_by_rank", "transform_checkpoints",
    ),
    "autoshard.mindspore.common": ("ParameterTuple", "get_seed", "jit", "lazy_inline", "set_seed"),
    "autoshard.mindspore.gradients": ("grad", "value_and_grad"),
    "autoshard.mindspore.loss_scale": ("DynamicLossScaleManager", "FixedLossScaleManager", "LossScaleManager"),
    "autoshard.mindspore.model": ("Model",),
    "autoshard.mindspore.callbacks": (
        "Callback", "CheckpointConfig", "History", "LossMonitor", "ModelCheckpoint", "TimeMonitor",
    ),
    "autoshard.mindspore.early_stopping": ("EarlyStopping", "LambdaCallback"),
    "autoshard.mindspore.checkpoint": ("load_checkpoint", "load_param_into_net", "save_checkpoint"),
    "autoshard.mindspore.context": (
        "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "get_auto_parallel_context", "get_context",
        "reset_auto_parallel_context", "set_auto_parallel_context", "set_context",
    ),
}  # fmt: skip
_MODULES = {
    name: f"{__name__}.{name}"
    for name in ("amp", "common", "communication", "context", "dataset", "mint", "nn", "ops", "parallel", "train")
}
_MODULES["dtype"] = f"{__name__}.common.dtype"
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_WHERE, *_MODULES])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise NotOfferedError(
            f"autoshard.mindspore does not offer MindSpore's {name!r}", name, lambda: __all__, INSTEAD.get(name, "")
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
