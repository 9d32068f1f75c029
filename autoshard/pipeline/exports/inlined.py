"""Functions of JAX without calls of functions of their own: what JAX's library jits is written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_REGIONS = ("while", "scan", "cond")


def inlined(function: Callable) -> Callable:
    """The function, which calls none when JAX lowers it; in its loops and branches neither.

    >>> import jax, jax.numpy as jnp
    >>> told = jax.jit(inlined(lambda x: (jnp.where(x > 0, x, 0),))).lower(jnp.ones(3)).as_text()
    >>> "call @" in told
    False
    """

    def run(*given: Any) -> tuple:
        return tuple(_evaluated(jax.make_jaxpr(function)(*given), given))

    return run


def _evaluated(closed: ClosedJaxpr, given: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(closed.jaxpr.invars, given, strict=True))

    def value(one: Any) -> Any:
        return one.val if isinstance(one, Literal) else known[one]

    for equation in closed.jaxpr.eqns:
        known.update(zip(equation.outvars, _made(equation, [value(one) for one in equation.invars]), strict=True))
    return [value(one) for one in closed.jaxpr.outvars]


def _made(equation: Any, operands: list[Any]) -> Sequence[Any]:
    """The results of an equation."""
    primitive, params = equation.primitive, equation.params
    called = next((params[key] for key in _CALLED if key in params), None)
    if called is not None and primitive.name not in _REGIONS:
        return _evaluated(called if hasattr(called, "consts") else ClosedJaxpr(called, ()), operands)
    if primitive.name in _REGIONS:
        params = {key: _region(param) for key, param in params.items()}
    made = primitive.bind(*operands, **params)
    return made if primitive.multiple_results else [made]


def _region(param: Any) -> Any:
    """A body of a loop or branch, all of them of a branching, or another parameter as it is."""
    if isinstance(param, tuple):
        return tuple(map(_region, param))
    if not hasattr(param, "consts"):
        return param
    return jax.make_jaxpr(lambda *given: _evaluated(param, given))(*param.in_avals)
