"""lazy_inline: MindSpore's sign of a cell that is compiled once however often it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.util.errors import GraphError


def lazy_inline(fn: Callable | None = None, attrs: Any = None, policy: Any = None) -> Callable:
    """The function as it is: equal layers are always planned once.

    Args:
        fn: the `__init__` of a cell.
        attrs, policy: MindSpore's; they make no difference.

    Example:
        >>> from autoshard.mindspore import lazy_inline, nn
        >>> class Block(nn.Cell):
        ...     @lazy_inline
        ...     def __init__(self):
        ...         super().__init__()
        >>> Block()
        Block()
    """
    if fn is None:
        return lazy_inline
    if not callable(fn):
        raise GraphError(f"lazy_inline stands before a function such as __init__, not {fn!r}")
    return fn
