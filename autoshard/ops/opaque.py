"""Operators that are known by name only: what a frontend meets and has no meaning for.

They stand in the graph so that all else can be planned and read; they have no rule, so shardings stop at them, and the
report lists them. Running one is an error that names it. Their regions stay in the graph, so that what these use from
outside counts as used.
"""

from __future__ import annotations

from autoshard.ops.control import typed
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError


@operator("Opaque", **typed(), effects=lambda attrs: attrs["effects"])
def opaque(*xs, name, types, effects=True, text="", regions=()):
    """The operation `name`, of which only its operands and the types of its results are known."""
    raise ShapeError(f"cannot run {name!r}: autoshard has no operator for it")
