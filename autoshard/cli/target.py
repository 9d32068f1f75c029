"""`SCRIPT.py:name`: load a script by its path and take what is to be planned from it: a value, or what a function
returns; or the path of a module.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from autoshard.util.doing import doing
from autoshard.util.errors import AutoshardError
from autoshard.util.near import did_you_mean

_EXTRAS = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "ml_dtypes": "jax"}
"""Packages that an extra of this one brings."""


def is_module(target: str | Path) -> bool:
    """Whether a target is the path of a StableHLO module, not of a script."""
    return Path(target).suffix in (".mlir", ".mlirbc")


def in_script(target: str | Path) -> bool:
    """Whether a target is a name in a script, `SCRIPT.py:name`."""
    return ".py:" in str(target)


class TargetError(AutoshardError):
    """A SCRIPT.py:name that does not lead to a model."""


def prints_apart() -> contextlib.AbstractContextManager[Any]:
    """What a user's code prints meanwhile goes to the standard error output; on the other one is what was asked
    for, which programs read."""
    return contextlib.redirect_stdout(sys.stderr)


def load_target(text: str) -> tuple[Any, tuple]:
    """The model and the example inputs behind a name in a script, as `autoshard.plan` takes them.

    The name is that of a function without arguments, or of a value. What it gives is (model, inputs), where inputs is
    one array or a tuple of them; or something traced or imported, which needs no inputs; or a torch.nn.Module with its
    arguments: (module, args), (module, kwargs) or (module, args, kwargs), args a tuple and kwargs a dict.

    Raises:
        TargetError: no such file or name, or it gives something else.
    """
    path, separator, name = text.rpartition(":")
    if not separator or not path or not name:
        raise TargetError(
            f"cannot read the target {text!r}; write SCRIPT.py:function, e.g. train.py:forward, or MODULE.mlir"
        )
    with doing(f"loading {text}"), prints_apart():
        found = _named(_load(Path(path)), name, path)
        return _check(found if _is_given(found) else _called(found, text), text)


def _called(function: Any, text: str) -> Any:
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # nobody knows its arguments
    except TypeError:
        wants = inspect.signature(function)
        raise TargetError(
            f"{text} takes the arguments {wants}; a function without arguments is needed, which returns "
            "(model, example inputs)"
        ) from None
    return function()


def _is_given(found: Any) -> bool:
    """Whether this is what is asked for itself, and no function that makes it."""
    return not callable(found) or hasattr(found, "traced") or _is_torch(found)


def _is_tensor(one: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(one, torch.Tensor)


def _is_torch(found: Any) -> bool:
    from autoshard.frontends.targets import is_torch_model

    return is_torch_model(found)


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
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        extra = _EXTRAS.get(missing)
        how = f"pip install 'autoshard[{extra}]'" if extra else f"install it, or add its folder to {path.parent}"
        raise TargetError(f"cannot load {path}: it imports {missing}, which is not installed; {how}") from error
    return module


def _named(module: ModuleType, name: str, path: str) -> Any:
    found = getattr(module, name, None)
    if callable(found) or isinstance(found, tuple) or hasattr(found, "graph"):
        return found
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    known = ", ".join(key for key in own if callable(vars(module)[key]) and not key.startswith("_")) or "none"
    meant = did_you_mean(name, [key for key, value in vars(module).items() if callable(value)])
    raise TargetError(f"{path} has no function {name!r}{meant}; its functions are: {known}")


def _check(found: Any, text: str) -> tuple[Any, tuple]:
    if _is_torch(found[0] if isinstance(found, tuple) and found else found):
        return _from_torch(found, text), ()
    if hasattr(found, "graph") or hasattr(type(found), "traced") or hasattr(found, "compiler_ir"):
        return found, ()
    if isinstance(found, tuple) and len(found) == 2 and (callable(found[0]) or hasattr(found[0], "graph")):
        model, inputs = found
        inputs = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
        foreign = hasattr(model, "arrays") and any(_is_tensor(one) for one in inputs)
        return model, model.arrays(*inputs) if foreign else inputs
    shown = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
    raise TargetError(f"{text} must return (model, inputs) or something traced, but returned {shown}")


def _from_torch(found: Any, text: str) -> Any:
    from autoshard.frontends.torch.load import from_torch

    module, *arguments = found if isinstance(found, tuple) else (found,)
    args, kwargs = (), {}
    for one in arguments:
        if isinstance(one, dict):
            kwargs = one
        else:
            args = tuple(one) if isinstance(one, list | tuple) else (one,)
    if len(arguments) > 2 or not (args or kwargs or hasattr(module, "graph_signature")):
        raise TargetError(
            f"{text} gives a torch module, which needs its arguments: return (module, args), (module, kwargs) or "
            "(module, args, kwargs), args a tuple and kwargs a dict"
        )
    return from_torch(module, args, kwargs)
