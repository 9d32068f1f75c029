"""What the definition of an operator declares of it: see `autoshard.ops.registry.operator` for the meaning of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from autoshard.core.tensortype import DType, dtype, promote

# How eagerly shardings spread through an operator, most eager first: elementwise operators; those that only move
# elements (reshape, transpose); dynamic slices (forwards only at first); the rest; broadcasts, which give to their
# operand but take from it last. The levels of Shardy's op-priority propagation are made of these.
SPREADS = ("pointwise", "move", "slice", "", "broadcast")

# How a result can lie in the memory of the first operand: just as it; under another shape, which takes a copy where the
# operand's elements do not lie one behind the other; or turned, in part, or repeated, so that they do not.
VIEWS = ("same", "reshape", "strided")


@dataclass(frozen=True)
class Spreading:
    """How shardings spread through an operator: `order` is one of SPREADS, None where the rule tells it.

    Attributes:
        edges: `function(node) -> data-flow edges`.
        foreign: Shardy has no rule for it, so that propagation that is to equal Shardy's has to stop here.
    """

    order: str | None = None
    edges: Callable | None = None
    foreign: bool = False


@dataclass(frozen=True)
class Storage:
    """What an operator does with memory.

    Attributes:
        view: one of VIEWS, where the result lies in the memory of the first operand.
        scratch: memory that the numpy meaning takes for a while besides operands and results: a multiple of the largest
            of them, or `function(operand types, result types, **attrs) -> bytes`, of local types.
    """

    view: str = ""
    scratch: float | Callable | None = None


@dataclass(frozen=True)
class Filling:
    """What padding may and must hold, and which operands a result may be written over.

    Attributes:
        neutral: 'yes' or 'own', see `Operator.neutral`.
        fills: per operand index the number that its padding must hold, see `Operator.fills`; or `function(attrs)`.
        over: for an operator with a parameter `out`, see `Operator.over`; an elementwise one takes any operand.
    """

    neutral: str = ""
    fills: Mapping[int, float] | Callable[[Mapping[str, Any]], Mapping[int, float]] | None = None
    over: Iterable[Iterable[int]] | None = None


@dataclass(frozen=True)
class UnequalFlops:
    """Operations, and how many times those of local shapes the rank with the most of them has.

    Attributes:
        count: per index combination of the rule's factors, or `function(*shapes, **attrs)` that tells.
        imbalance: `function(types, local types, **attrs)` of the operands, where ranks with equal blocks have unequal
            work.
    """

    count: float | Callable[..., float] | None
    imbalance: Callable[..., float]


# Former keyword of `operator` -> the one that takes it now, and the field of its value.
FORMER = {
    "edges": ("spread", "edges"), "foreign": ("spread", "foreign"), "view": ("storage", "view"),
    "scratch": ("storage", "scratch"), "neutral": ("filling", "neutral"), "fills": ("filling", "fills"),
    "over": ("filling", "over"), "imbalance": ("flops", "imbalance"),
}  # fmt: skip


def with_former(given: dict[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `operator` with those that go by keywords of 0.1, and a warning. To be dropped with release 0.2.

    Raises:
        TypeError: a keyword that there never was.
    """
    for keyword, value in former.items():
        if keyword not in FORMER:
            raise TypeError(f"operator() got an unexpected keyword argument {keyword!r}")
        name, what = FORMER[keyword]
        text = f"operator({keyword}=) is a field of {name}= now; the keyword goes with release 0.2"
        warnings.warn(text, DeprecationWarning, 3)
        now: Any = given[name]
        if name == "flops":
            given[name] = UnequalFlops(now, value)
            continue
        fields = Spreading(now) if name == "spread" and not isinstance(now, Spreading) else now
        given[name] = replace(fields, **{what: value})
    return given


@dataclass(frozen=True)
class OperatorOptions:
    """The arguments of `operator` but the name, those of its values one by one."""

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
    numbers: frozenset[str]

    def elements(self, operands: Sequence[DType], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
        """The element types of the results, one if all are of it: as declared, by default that of the operands."""
        declared = self.dtype(*operands, **attrs) if callable(self.dtype) else self.dtype
        several: tuple = declared if isinstance(declared, tuple) else (declared or promote(operands),)
        return tuple(dtype(one) for one in several)


@cache
def fitting(sets: tuple[tuple[int, ...], ...], operands: int) -> tuple[tuple[int, ...], ...]:
    """Sets of operands, () for all, where there are so many: those of which all are there."""
    every = tuple(range(operands))
    return tuple(members or every for members in sets if max(members, default=0) < operands)
