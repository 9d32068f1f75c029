"""Names of MindSpore's former module of composite functions: `from autoshard.mindspore.ops import composite as C`."""

from __future__ import annotations

from typing import Any

from autoshard.mindspore import ops as _ops

_NAMES: tuple[str, ...] = (
    "GradOperation", "HyperMap", "Map", "MultitypeFuncGraph", "clip_by_global_norm", "clip_by_value", "count_nonzero",
    "dot", "matmul", "repeat_elements", "sequence_mask",
)  # fmt: skip
__all__: list[str] = list(_NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(_ops, name)
    raise AttributeError(f"autoshard.mindspore.ops.composite does not offer MindSpore's {name!r}")


def __dir__() -> list[str]:
    return __all__
