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
    "autoshard.mindspore.tensor": ("Tensor", "from_numpy", "tensor"),
    "autoshard.trace.parameter": ("Parameter",),
    "autoshard.mindspore.layout": ("Layout",),
    "autoshard.mindspore.sharding": ("reshard", "shard"),
    "autoshard.mindspore.metrics": (
        "Accuracy", "Loss", "MAE", "MSE", "Metric", "Top1CategoricalAccuracy", "Top5CategoricalAccuracy",
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
    "autoshard.mindspore.checkpoint": ("load_checkpoint", "load_param_into_net", "save_checkpoint"),
    "autoshard.mindspore.context": (
        "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "get_auto_parallel_context", "get_context",
        "reset_auto_parallel_context", "set_auto_parallel_context", "set_context",
    ),
}  # fmt: skip
_MODULES = ("amp", "common", "communication", "context", "dataset", "nn", "ops", "parallel", "train")
_DTYPES = {
    "float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "float16": "f16", "half": "f16",
    "bfloat16": "bf16", "int64": "i64", "long": "i64", "int32": "i32", "int16": "i16", "short": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool_": "bool", "complex64": "c64",
    "complex128": "c128",
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_WHERE, *_MODULES, *_DTYPES])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{name}")
    elif name in _DTYPES:
        value = import_module("autoshard.core.tensortype").dtype(_DTYPES[name])
    else:
        raise NotOfferedError(
            f"autoshard.mindspore does not offer MindSpore's {name!r}", name, lambda: __all__, INSTEAD.get(name, "")
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
