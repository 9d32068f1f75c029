"""autoshard: splits a model over devices by propagating the strategies of a few operators, and runs it.

    import autoshard as ash

    planned = ash.plan(model, (x,), mesh="dp=2 tp=4")
    print(planned.report())

The public names are on this page and are loaded when first used. For models: `nn`, `ops`, `dataset`,
`communication`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from autoshard.util import moved

__version__ = "0.1.0"

_HOME = {
    "autoshard.annotate": ("Ask", "annotate"),
    "autoshard.api": ("Planned", "plan"),
    "autoshard.mindspore.callbacks": (
        "Callback", "CheckpointConfig", "History", "LossMonitor", "ModelCheckpoint", "Progress",
        "ShardedCheckpoint", "TimeMonitor",
    ),
    "autoshard.mindspore.checkpoint": ("load_checkpoint", "load_param_into_net", "save_checkpoint"),
    "autoshard.mindspore.context": (
        "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "get_auto_parallel_context", "get_context",
        "reset_auto_parallel_context", "reset_context", "set_auto_parallel_context", "set_context",
    ),
    "autoshard.frontends": ("from_jax", "from_stablehlo", "from_torch"),
    "autoshard.frontends.targets": ("evaluate",),
    "autoshard.layout.layout": ("Layout",),
    "autoshard.layout.mesh": ("Mesh",),
    "autoshard.layout.show": ("show_layout",),
    "autoshard.mindspore.model": ("Model",),
    "autoshard.layout.sharding": ("Sharding",),
    "autoshard.ops.registry": ("operator",),
    "autoshard.propagate.api": ("Propagated", "propagate"),
    "autoshard.search": ("search_mode",),
    "autoshard.core.tensortype": ("TensorType",),
    "autoshard.trace.cell": ("Cell", "CellList", "SequentialCell"),
    "autoshard.trace.function": ("trace",),
    "autoshard.trace.initializer": ("initializer", "set_seed"),
    "autoshard.trace.parameter": ("Parameter",),
}  # fmt: skip
_MODULES = {
    "communication": "mindspore.communication", "context": "mindspore.context", "dataset": "mindspore.dataset",
    "errors": "util.errors", "nn": "nn", "ops": "ops",
}  # fmt: skip
_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32", "int16": "i16",
    "int8": "i8", "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool_": "bool",
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_WHERE, *_MODULES, *_DTYPES, "Tensor", "__version__"])


def Tensor(data: Any, dtype: Any = None) -> Any:
    """A numpy array, as MindSpore's `Tensor(data, dtype)` is written: arrays are the tensors of this package.

    Args:
        data: anything numpy makes an array of; Python floats become float32 unless `dtype` says otherwise.
        dtype: `float32` and the like from this page, numpy's types, or names such as "f32".
    """
    import numpy as np

    from autoshard.core.tensortype import dtype as element

    array = np.array(data)
    if dtype is None:
        plain_floats = array.dtype == np.float64 and not isinstance(data, np.ndarray | np.generic)
        return array.astype(np.float32) if plain_floats else array
    return array.astype(element(dtype).numpy)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _MODULES:
        value = import_module(f"autoshard.{_MODULES[name]}")
    elif name in _DTYPES:
        value = import_module("autoshard.core.tensortype").dtype(_DTYPES[name])
    else:
        raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """`autoshard.annotate`, `plan`, `propagate` and `trace` are the functions, not the modules of these names.

    Importing `autoshard.plan` would set the attribute to the module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in ("annotate", "plan", "propagate", "trace") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
moved.install()
