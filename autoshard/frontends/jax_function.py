"""`from_jax`: a JAX function as a graph, by lowering it; arguments may be arrays or only say their shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoshard.frontends.extra import need_jax
from autoshard.frontends.stablehlo.load import from_stablehlo

if TYPE_CHECKING:
    from autoshard.frontends.stablehlo.imported import Imported


def from_jax(function: Callable, *args: Any, **kwargs: Any) -> Imported:
    """The graph of a JAX function for these arguments.

    Inputs are named after the arguments (`params['w1']`), outputs after their place in what is returned; arguments
    that the function does not use are inputs all the same, so that inputs are the leaves of (args, kwargs) in order.

    Args:
        function: a function, or what jax.jit made of one (with its static arguments and shardings).
        args: arrays or jax.ShapeDtypeStruct, which may have shardings; pytrees of them; static arguments.
        kwargs: the same.

    Raises:
        RuntimeSetupError: jax is not installed.
        ShapeError: the function's shapes are not all known.
    """
    need_jax("importing a JAX function")
    import jax

    lowering = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
    return from_stablehlo(lowering.lower(*args, **kwargs))
