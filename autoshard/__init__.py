"""autoshard: splits a model over devices by propagating the strategies of a few operators, and runs it.

    import autoshard as ash

    planned = ash.plan(model, (x,), mesh="dp=2 tp=4")
    print(planned.report())

The public names are on this page and are loaded when first used. For models: `nn`, `ops`, `optim`. MindSpore's names
are in `autoshard.mindspore`.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

from autoshard.util import moved

__version__ = "0.1.0"

_HOME = {
    "autoshard.annotate": ("Ask", "annotate"),
    "autoshard.api": ("Planned", "plan"),
    "autoshard.frontends": ("from_jax", "from_stablehlo", "from_torch"),
    "autoshard.frontends.targets": ("evaluate",),
    "autoshard.layout.layout": ("Layout",),
    "autoshard.layout.mesh": ("Mesh",),
    "autoshard.layout.show": ("show_layout",),
    "autoshard.layout.sharding": ("Sharding",),
    "autoshard.ops.registry": ("operator",),
    "autoshard.propagate.api": ("Propagated", "propagate"),
    "autoshard.search": ("search_mode",),
    "autoshard.core.tensortype": ("TensorType",),
    "autoshard.trace.cell": ("Cell", "CellList", "SequentialCell"),
    "autoshard.trace.function": ("trace",),
    "autoshard.trace.initializer": ("initializer", "set_seed"),
    "autoshard.trace.parameter": ("Parameter",),
}
_MODULES = {"errors": "util.errors", "nn": "nn", "ops": "ops", "optim": "optim"}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

_MINDSPORE = {
    "autoshard.mindspore": (
        "Callback", "CheckpointConfig", "GRAPH_MODE", "History", "LossMonitor", "Model", "ModelCheckpoint",
        "PYNATIVE_MODE", "ParallelMode", "Tensor", "TimeMonitor", "bool_", "communication", "context", "dataset",
        "float16", "float32", "float64", "get_auto_parallel_context", "get_context", "int16", "int32", "int64", "int8",
        "load_checkpoint", "load_param_into_net", "reset_auto_parallel_context", "save_checkpoint",
        "set_auto_parallel_context", "set_context", "uint16", "uint32", "uint64", "uint8",
    ),
    "autoshard.mindspore.callbacks": ("Progress", "ShardedCheckpoint"),
    "autoshard.mindspore.context": ("reset_context",),
}  # fmt: skip
"""Names that lie in the MindSpore face now; here they go with release 0.2."""
_FORMER = {name: module for module, names in _MINDSPORE.items() for name in names}

__all__ = sorted([*_WHERE, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _MODULES:
        value = import_module(f"autoshard.{_MODULES[name]}")
    elif name in _FORMER:
        where = _FORMER[name]
        warnings.warn(f"autoshard.{name} is {where}.{name} now; it goes here with release 0.2", DeprecationWarning, 2)
        return getattr(import_module(where), name)
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
