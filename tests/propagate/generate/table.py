"""The table of makers of operations, and texts that several of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tests.propagate.generate.scope import F32, Scope

Maker = Callable[[Scope], object]
M = TypeVar("M", bound=Maker)
OPERATIONS: list[tuple[int, Maker]] = []


def kind(weight: int = 1) -> Callable[[M], M]:
    """Register a maker, drawn `weight` times as often as one of weight 1."""

    def register(maker: M) -> M:
        OPERATIONS.append((weight, maker))
        return maker

    return register


def ints(values: Iterable[int]) -> str:
    listed = list(values)
    return f"array<i64: {', '.join(map(str, listed))}>" if listed else "array<i64>"


def pairs(values: Iterable[tuple[int, int]]) -> str:
    """An attribute of padding: low and high per dim."""
    listed = [f"[{low}, {high}]" for low, high in values]
    return f"dense<[{', '.join(listed)}]> : tensor<{len(listed)}x2xi64>"


def reducer(scope: Scope, body: str = "add", element: str = F32, count: int = 1) -> str:
    """The region of a reduction of `count` tensors, in braces."""
    names = [scope.module.fresh() for _ in range(2 * count)]
    made = [scope.module.fresh() for _ in range(count)]
    of = f"tensor<{element}>"
    steps = " ".join(f"{made[i]} = stablehlo.{body} {names[i]}, {names[count + i]} : {of}" for i in range(count))
    return (
        f"{{ ^bb0({', '.join(f'{name}: {of}' for name in names)}): {steps} "
        f"stablehlo.return {', '.join(made)} : {', '.join([of] * count)} }}"
    )


def comparator(scope: Scope, direction: str = "LT", count: int = 1) -> str:
    """The region that compares the first of `count` pairs of scalars, in braces."""
    names = [scope.module.fresh() for _ in range(2 * count)]
    made = scope.module.fresh()
    return (
        f"{{ ^bb0({', '.join(f'{name}: tensor<f32>' for name in names)}): {made} = stablehlo.compare {direction}, "
        f"{names[0]}, {names[1]} : (tensor<f32>, tensor<f32>) -> tensor<i1> stablehlo.return {made} : tensor<i1> }}"
    )
