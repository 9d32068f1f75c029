"""`SCRIPT.py:function`: load a script by its path and call a function in it for what is to be planned; or a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from autoshard.errors import AutoshardError


def is_module(target: str | Path) -> bool:
    """Whether a target is the path of a StableHLO module, not of a script."""
    return Path(target).suffix in (".mlir", ".mlirbc")


class TargetError(AutoshardError):
    """A SCRIPT.py:function that does not lead to a model."""


def load_target(text: str) -> tuple[Any, tuple]:
    """The model and the example inputs that `function()` returns, as `autoshard.plan` takes them.

    The function takes no arguments. It returns (model, inputs), where inputs is one array or a tuple of
    them, or something traced, which needs no inputs.

    Raises:
        TargetError: no such file or function, or the function returns something else.
    """
    path, separator, name = text.rpartition(":")
    if not separator or not path or not name:
        raise TargetError(
            f"cannot read the target {text!r}; write SCRIPT.py:function, e.g. train.py:forward, or MODULE.mlir"
        )
    function = _function(_load(Path(path)), name, path)
    return _check(function(), text)


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"cannot load {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetError(f"cannot load {path}: a Python script is expected, its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    # As when Python runs a script: its neighbours can be imported, and it is found by its name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, path: str) -> Any:
    function = getattr(module, name, None)
    if callable(function):
        return function
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    known = ", ".join(key for key in own if callable(vars(module)[key]) and not key.startswith("_")) or "none"
    raise TargetError(f"{path} has no function {name!r}; its functions are: {known}")


def _check(found: Any, text: str) -> tuple[Any, tuple]:
    if hasattr(found, "graph"):
        return found, ()
    if isinstance(found, tuple) and len(found) == 2 and callable(found[0]):
        model, inputs = found
        return model, tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    shown = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
    raise TargetError(f"{text} must return (model, inputs) or something traced, but returned {shown}")
