"""Which operator of the registry each StableHLO operation is, with its attributes in our words.

A translator takes the MLIR operation and returns (operator name, attributes). Operands keep their order and number.
The modules beside this one each hold a family of translators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Translation = tuple[str, dict[str, Any]]
Translator = Callable[[Any], Translation]
TABLE: dict[str, Translator] = {}


def translates(*names: str) -> Callable[[Translator], Translator]:
    """Register a translator for operations, by their full names such as `stablehlo.dot_general`."""

    def register(translator: Translator) -> Translator:
        for name in names:
            assert name not in TABLE, f"{name} has a translator already"
            TABLE[name] = translator
        return translator

    return register


def plain(pairs: dict[str, str]) -> None:
    """Register operations that are an operator without attributes: operation name -> operator name."""
    for name, operator in pairs.items():
        translates(name)(lambda op, operator=operator: (operator, {}))
