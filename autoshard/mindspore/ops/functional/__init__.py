"""Functions with MindSpore's names, arguments, defaults and meaning: `ops.relu(x)`, `ops.split(x, 2, axis=1)`, ...

Most apply a primitive of the same operands (`calls`); the others say what MindSpore's functions do besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from autoshard.mindspore.ops.functional import arithmetic, calls, images, layers, losses, moving, reductions


def _offered(page: ModuleType) -> Iterator[str]:
    for name, value in vars(page).items():
        if callable(value) and getattr(value, "__module__", "") == page.__name__ and name[0] != "_":
            yield name


_FUNCTIONS = {
    name: getattr(page, name)
    for page in (arithmetic, calls, images, layers, losses, moving, reductions)
    for name in _offered(page)
}
globals().update(_FUNCTIONS)
__all__ = sorted(_FUNCTIONS)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    # `F.partial`, `F.grad` and primitives, which MindSpore's module has, too; an error names near names.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module("autoshard.mindspore.ops"), name)
