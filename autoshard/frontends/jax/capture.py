"""A JAX function of a list of arrays as a graph, by lowering it; what it says of its derivative is kept.

Lowering drops `jax.lax.stop_gradient`; here it leaves a mark in the module. Functions with a derivative of their own
(`jax.custom_vjp`, `jax.custom_jvp`) lose it: those of JAX's own packages compute what they say, others are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core.primitives import stop_gradient_p
from jax.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo

from autoshard.frontends.jax.checkpoints import with_checkpoints
from autoshard.frontends.jax.gradients import marked_gradients
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.frontends.stablehlo.load import from_stablehlo

STOPPED = "autoshard.stop_gradient"
_MARKING: ContextVar[bool] = ContextVar("marking", default=False)
_OWN = ("custom_vjp_call", "custom_jvp_call", "custom_vjp_call_jaxpr")
# What these define computes the derivative of its function, in a better way.
_EXACT = ("/jax/", "/flax/", "/optax/")


@dataclass(frozen=True, eq=False)
class Captured:
    """A lowered function.

    Attributes:
        imported: its graph; inputs and outputs are the leaves in order.
        returned: the structure of what it returns.
        own: functions in it that have a derivative of their own, as "name at file:line".
    """

    imported: Imported
    returned: Any
    own: tuple[str, ...]


def capture(function: Callable, leaves: Sequence[Any], marked: bool = False, gradients: bool = False) -> Captured:
    """Lower `function(*leaves)`.

    Args:
        function: of arrays, to any pytree of arrays.
        leaves: arrays or jax.ShapeDtypeStruct.
        marked: whether places that stop gradients are kept, as custom calls to `STOPPED`, and what `jax.checkpoint`
            makes again, as scopes.
        gradients: whether gradients that it takes become marks, see `frontends.jax.gradients`.

    Raises:
        ShapeError: the function's shapes are not all known.
        ParseError: it calls itself.
    """
    shapes: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        found, structure = jax.tree.flatten(function(*given))
        shapes.append(structure)
        return found

    with marked_gradients() if gradients else nullcontext():
        traced = jax.jit(flat, keep_unused=True).trace(*leaves)
        own = dict.fromkeys(_own(traced.jaxpr.jaxpr))
        if marked:
            traced = with_checkpoints(traced)
        token = _MARKING.set(marked)
        try:
            lowered = traced.lower()
        finally:
            _MARKING.reset(token)
    return Captured(from_stablehlo(lowered), shapes[0], tuple(own))


def _marked(context: Any, x: Any) -> list[Any]:
    """What stop_gradient lowers to: nothing, or while a model is captured a custom call."""
    if not _MARKING.get():
        return [x]
    return [stablehlo.custom_call([x.type], [x], call_target_name=STOPPED)]


mlir.register_lowering(stop_gradient_p, _marked)


def _own(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        inner = [one for one in map(_jaxpr, _params(eqn)) if one is not None]
        if eqn.primitive.name in _OWN:
            for one in inner[:1]:
                source = str(one.debug_info.func_src_info or eqn.primitive.name)
                if not any(package in source for package in _EXACT):
                    yield source
        for one in inner:
            yield from _own(one)


def _params(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        yield from value if isinstance(value, tuple | list) else (value,)


def _jaxpr(value: Any) -> Any:
    found = getattr(value, "jaxpr", value)
    return found if hasattr(found, "eqns") else None
