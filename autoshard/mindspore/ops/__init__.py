"""MindSpore's operators: primitives (`ops.MatMul()`) and functions (`ops.relu(x)`), with MindSpore's meaning.

    matmul = ops.MatMul(transpose_b=True).shard(((2, 1), (1, 4)))
    y = matmul(x, w)

A name stands here only if its arguments, defaults and results are MindSpore's; what MindSpore has beyond is not
offered.
`operations` has the primitives alone, `functional` the functions, `composite` what MindSpore has in its module of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from autoshard.mindspore.instead import INSTEAD
from autoshard.mindspore.ops import functional
from autoshard.mindspore.ops import index as _index
from autoshard.mindspore.ops import loss as _loss
from autoshard.mindspore.ops import math as _math
from autoshard.mindspore.ops import methods as _methods  # noqa: F401  (tensors have them from here on)
from autoshard.mindspore.ops import neural as _neural
from autoshard.mindspore.ops import shapes as _shapes
from autoshard.mindspore.ops import state as _state
from autoshard.mindspore.ops import windows as _windows
from autoshard.mindspore.ops.maps import HyperMap, Map, MultitypeFuncGraph, partial
from autoshard.mindspore.ops.primitive import PRIMITIVES as _PRIMITIVES
from autoshard.ops.primitive import Primitive
from autoshard.util.offered import NotOfferedError

_PAGES = (_math, _shapes, _index, _neural, _windows, _loss, _state)
_OFFERED: dict[str, Any] = {name: getattr(page, name) for page in _PAGES for name in _PRIMITIVES if name in vars(page)}
_OFFERED.update({name: getattr(functional, name) for name in functional.__all__}, Primitive=Primitive)
_OFFERED.update(HyperMap=HyperMap, Map=Map, MultitypeFuncGraph=MultitypeFuncGraph, partial=partial)

_ABOVE = dict.fromkeys(("GradOperation", "grad", "value_and_grad"), "autoshard.mindspore.gradients")

__all__ = sorted(_OFFERED)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _OFFERED:
        return _OFFERED[name]
    if name in _ABOVE:
        return getattr(import_module(_ABOVE[name]), name)
    raise NotOfferedError(
        f"autoshard.mindspore.ops does not offer MindSpore's {name!r}", name, lambda: __all__, INSTEAD.get(name, "")
    )


def __dir__() -> list[str]:
    return __all__
