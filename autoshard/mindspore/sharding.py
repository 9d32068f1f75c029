"""shard and reshard: strategies for functions and cells, and a layout for a tensor on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoshard import ops as core
from autoshard.layout.layout import Layout
from autoshard.trace.cell import Cell
from autoshard.util.errors import StrategyError


class _FunctionCell(Cell):
    """A function as a cell, which can be given strategies."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def shard(
    fn: Callable, in_strategy: Any, out_strategy: Any = None, parameter_plan: Mapping[str, Any] | None = None
) -> Cell:
    """The function or cell, with fixed strategies for its inputs, outputs and parameters; call it in its place.

    Args:
        in_strategy: per tensor among the arguments the parts of each dim, or a layout; None leaves one open.
        out_strategy: the same per result.
        parameter_plan: the same by parameter; of a cell alone.

    Raises:
        StrategyError: not of this form.
    """
    cell = fn if isinstance(fn, Cell) else _FunctionCell(fn)
    if parameter_plan is not None and cell is not fn:
        raise StrategyError("shard: parameter_plan is for a cell; a function has no parameters of its own")
    return cell.shard(in_strategy, out_strategy, parameter_plan)


def reshard(tensor: Any, layout: Layout) -> Any:
    """The tensor, which lies as the layout says from here on.

    Raises:
        StrategyError: no layout.
    """
    if not isinstance(layout, Layout):
        raise StrategyError(f"reshard: layout is {layout!r}; it is what Layout(...)(...) makes")
    pinned = core.primitive_class(core.identity)()
    pinned.shard((layout,))
    return pinned(tensor)
