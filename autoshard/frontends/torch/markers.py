"""Operators that are put into torch's graphs to say of gradients what decompositions would forget.

`stop_gradient` is where gradients stop; `cotangent` and `with_gradient` are a torch.autograd.Function's own backward
pass (see `autoshard.ops.custom_gradient`). To torch they are functions that copy, so that every pass keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from autoshard import ops
from autoshard.frontends.torch.table import Call, do, translates

_SCHEMAS = (
    "stop_gradient(Tensor x) -> Tensor",
    "cotangent(Tensor x, int index) -> Tensor",
    "with_gradient(Tensor[] outputs, Tensor[] inputs, Tensor[] cotangents, Tensor[] gradients, str refusal) "
    "-> Tensor[]",
)  # fmt: skip


@cache
def markers() -> Any:
    """The namespace of the markers in torch.ops, which is filled when it is first asked for."""
    for schema, run in zip(_SCHEMAS, (_copy, _copy, _copies), strict=True):
        marker(schema, run)
    import torch

    return torch.ops.autoshard


@cache
def marker(schema: str, run: Callable) -> Any:
    """An operator of autoshard in torch.ops; `run` makes results of its shapes and types, with numbers or without."""
    import torch

    library = torch.library.Library("autoshard", "FRAGMENT")
    _KEPT.append(library)
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, run, "CompositeExplicitAutograd")
    return getattr(torch.ops.autoshard, name).default


_KEPT: list[Any] = []
"""A library is gone from torch when it is collected."""


def _copy(x: Any, index: int = 0) -> Any:
    return x.clone()


def _copies(
    outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any], gradients: Sequence[Any], refusal: str
) -> list[Any]:
    return [one.clone() for one in outputs]


@translates("autoshard.stop_gradient.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.stop_gradient, x)


@translates("autoshard.cotangent.default")
def _(call: Call, x: Any, index: int) -> Any:
    return do(ops.cotangent, x)


@translates("autoshard.with_gradient.default")
def _(
    call: Call, outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any], gradients: Sequence[Any],
    refusal: str,
) -> Any:  # fmt: skip
    given = (*outputs, *inputs, *cotangents, *gradients)
    made = do(ops.custom_gradient, *given, outputs=len(outputs), inputs=len(inputs), refusal=refusal)
    return made if isinstance(made, tuple | list) else [made]
