"""MindSpore's primitives alone, under the name of MindSpore's module of them."""

from __future__ import annotations

from typing import Any

from autoshard.mindspore import ops as _ops

__all__ = [name for name in _ops.__all__ if name[0].isupper()]  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(_ops, name)
    raise AttributeError(f"autoshard.mindspore.ops.operations does not offer MindSpore's {name!r}")


def __dir__() -> list[str]:
    return __all__
