"""Body: the scalar function inside an operator (what Reduce combines with, what Sort compares by), as an attribute.

The usual ones are known by name, so that a split operator knows how its parts combine; any other is a callable on
arrays, which runs elementwise on whole arrays at once, and is told apart by its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

KNOWN: dict[str, Callable] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "ge": np.greater_equal,
    "le": np.less_equal,
    "replace": lambda a, b: b,
}
# What partial results of a split reduction combine by, as layouts name it.
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Body:
    """A scalar function of any number of arguments. Equal names (or, for unnamed ones, equal texts) are equal."""

    name: str
    text: str = ""
    function: Callable | None = field(default=None, compare=False, repr=False)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Apply elementwise; always a tuple of results."""
        results = (self.function or KNOWN[self.name])(*arrays)
        return results if isinstance(results, tuple) else (results,)

    @property
    def reduction(self) -> str | None:
        """The layouts' name of the reduction, None for any other function."""
        return REDUCTIONS.get(self.name)

    def __str__(self) -> str:
        return self.name or self.text
