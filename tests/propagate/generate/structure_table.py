"""The table of makers of structure: everything that is not one operation of a tensor program."""

from __future__ import annotations

from collections.abc import Callable

from tests.propagate.generate.scope import Scope
from tests.propagate.generate.table import OPERATIONS, M, Maker

STRUCTURES: list[tuple[str, Maker]] = []


def structure(feature: str) -> Callable[[M], M]:
    """Register a maker that is drawn if the module has the feature."""

    def register(maker: M) -> M:
        STRUCTURES.append((feature, maker))
        return maker

    return register


def fill(scope: Scope, count: int) -> None:
    """Write `count` random things into the scope."""
    makers = [maker for weight, maker in OPERATIONS for _ in range(weight)]
    special = [maker for feature, maker in STRUCTURES if feature in scope.module.features]
    for _ in range(count):
        chosen = special if special and scope.depth <= 3 and scope.module.chance(0.3) else makers
        scope.random.choice(chosen)(scope)
