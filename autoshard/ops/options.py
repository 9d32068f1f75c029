"""What the definition of an operator declares of it: see `autoshard.ops.registry.operator` for the meaning of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# How eagerly shardings spread through an operator, most eager first: elementwise operators; those that only move
# elements (reshape, transpose); dynamic slices (forwards only at first); the rest; broadcasts, which give to their
# operand but take from it last. The levels of Shardy's op-priority propagation are made of these.
SPREADS = ("pointwise", "move", "slice", "", "broadcast")

# How a result can lie in the memory of the first operand: just as it; under another shape, which takes a copy where the
# operand's elements do not lie one behind the other; or turned, in part, or repeated, so that they do not.
VIEWS = ("same", "reshape", "strided")


@dataclass(frozen=True)
class OperatorOptions:
    """The arguments of `operator` but the name."""

    rule: Any
    shape: Callable | None
    dtype: Any
    linear: tuple[tuple[int, ...], ...]
    flops: float | Callable | None
    call: tuple[str, ...]
    spread: str | None
    constant: str
    effects: bool | Callable
    edges: Callable | None
    foreign: bool
    view: str
    scratch: float | Callable | None
    neutral: str
    fills: Mapping[int, float] | Callable[[Mapping[str, Any]], Mapping[int, float]]
    over: tuple[tuple[int, ...], ...] | None
    imbalance: Callable | None
