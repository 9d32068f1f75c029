"""autoshard: splits a model over devices by propagating the strategies of a few operators, and runs it.

    import autoshard as ash

    planned = ash.plan(model, (x,), mesh="dp=2 tp=4")
    print(planned.report())

The public names are on this page and are loaded when first used. For models: `nn`, `ops`, `optim`. MindSpore's names
are in `autoshard.mindspore`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autoshard.util import moved

if TYPE_CHECKING:
    from autoshard import nn, ops, optim
    from autoshard.annotate import Ask, annotate
    from autoshard.api import Planned, plan
    from autoshard.api.propagate import Propagated, propagate
    from autoshard.core.tensortype import TensorType
    from autoshard.frontends import from_jax, from_stablehlo, from_torch
    from autoshard.frontends.targets import evaluate
    from autoshard.layout.layout import Layout
    from autoshard.layout.mesh import Mesh
    from autoshard.layout.sharding import Sharding
    from autoshard.layout.show import show_layout
    from autoshard.ops.registry import operator
    from autoshard.pipeline.compare import compare
    from autoshard.search import search_mode
    from autoshard.trace.function import trace
    from autoshard.trace.parameter import Parameter
    from autoshard.util import errors

__version__ = "0.1.0"
__all__ = [
    "Ask",
    "Layout",
    "Mesh",
    "Parameter",
    "Planned",
    "Propagated",
    "Sharding",
    "TensorType",
    "__version__",
    "annotate",
    "compare",
    "errors",
    "evaluate",
    "from_jax",
    "from_stablehlo",
    "from_torch",
    "nn",
    "operator",
    "ops",
    "optim",
    "plan",
    "propagate",
    "search_mode",
    "show_layout",
    "trace",
]

_HOME = {
    "autoshard.annotate": ("Ask", "annotate"),
    "autoshard.api": ("Planned", "plan"),
    "autoshard.core.tensortype": ("TensorType",),
    "autoshard.frontends": ("from_jax", "from_stablehlo", "from_torch"),
    "autoshard.frontends.targets": ("evaluate",),
    "autoshard.layout.layout": ("Layout",),
    "autoshard.layout.mesh": ("Mesh",),
    "autoshard.layout.sharding": ("Sharding",),
    "autoshard.layout.show": ("show_layout",),
    "autoshard.ops.registry": ("operator",),
    "autoshard.api.propagate": ("Propagated", "propagate"),
    "autoshard.pipeline.compare": ("compare",),
    "autoshard.search": ("search_mode",),
    "autoshard.trace.function": ("trace",),
    "autoshard.trace.parameter": ("Parameter",),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}
_MODULES = {"errors": "util.errors", "nn": "nn", "ops": "ops", "optim": "optim"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _MODULES:
        value = import_module(f"autoshard.{_MODULES[name]}")
    else:
        return moved.former("autoshard", name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """`autoshard.annotate`, `plan`, `propagate` and `trace` are the functions, not the modules of these names, which
    importing them would set as attributes; nor is `compare` the module that lay there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
moved.install()
