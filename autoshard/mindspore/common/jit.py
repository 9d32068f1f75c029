"""jit: MindSpore's sign of a function that is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from autoshard.util.errors import GraphError


def jit(
    function: Callable | None = None,
    *,
    capture_mode: str = "ast",
    jit_level: str = "O0",
    dynamic: int = 0,
    fullgraph: bool = False,
    backend: Any = "",
) -> Callable:
    """The function as it is: called with arrays it computes at once, inside of a cell it is part of the cell's graph.

    Args:
        function: what is compiled in MindSpore.
        capture_mode, jit_level, dynamic, fullgraph, backend: MindSpore's; they make no difference.

    Example:
        >>> from autoshard.mindspore import jit, ops
        >>> @jit(jit_level="O1")
        ... def twice(x):
        ...     return ops.add(x, x)
        >>> float(twice(1.5))
        3.0
    """
    if function is None:
        return partial(
            jit,
            capture_mode=capture_mode,
            jit_level=jit_level,
            dynamic=dynamic,
            fullgraph=fullgraph,
            backend=backend,
        )
    if not callable(function):
        raise GraphError(f"jit stands before a function or a cell, not {function!r}")
    return function
