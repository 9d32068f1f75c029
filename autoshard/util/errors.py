"""The exception family: one base class, a class for each thing a caller may want to catch.

A message says what was being done, the values, and what would be right; `at` adds the user's source line.

>>> from autoshard import Mesh, errors
>>> try:
...     Mesh.parse("dp=0")
... except errors.AutoshardError as error:
...     print(type(error).__name__)
MeshError
"""

from __future__ import annotations

LONGEST = 1900
"""Characters of an error's message at most: what stands in a file is not repeated at any length."""


def shortened(text: str, most: int = LONGEST) -> str:
    """The text, or its begin and its end with the number of characters between them that are left out.

    Args:
        most: characters of the answer at most, not fewer than 60.

    >>> shortened("0123456789" * 10, 70)
    '01234567890123456789 ... (70 characters left out) ... 0123456789'
    """
    if len(text) <= most:
        return text
    tail = (most - 40) // 3
    head = 2 * tail
    return f"{text[:head]} ... ({len(text) - head - tail} characters left out) ... {text[len(text) - tail :]}"


class AutoshardError(Exception):
    """Base of all errors that autoshard raises on purpose; a message that is too long loses its middle."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(one) if isinstance(one, str) else one for one in args))


class MeshError(AutoshardError):
    """A mesh, or an axis of it, that cannot exist."""


class LayoutError(AutoshardError):
    """A layout that does not fit its mesh or its tensor."""


class ShardingError(AutoshardError):
    """A sharding that breaks an invariant of its mesh or its tensor."""


class RuleError(AutoshardError):
    """A factor rule that cannot be read, or does not fit the shapes it is used with."""


class ShapeError(AutoshardError):
    """Operands whose types an operator cannot take."""


class GraphError(AutoshardError):
    """A graph that breaks a law of the representation."""


class NoGradientError(GraphError):
    """An operator without a gradient lies between a loss and what it is differentiated for."""


class ParseError(AutoshardError):
    """Text that is no graph, layout, plan or dump."""


class StrategyError(AutoshardError):
    """A strategy that an operator cannot follow on the given devices."""


class PlanError(AutoshardError):
    """A plan that cannot be made or does not belong to the graph."""


class RedistributeError(AutoshardError):
    """A change of layout that no sequence of collectives can make."""


class ContextError(AutoshardError):
    """A setting that does not exist, or a value it cannot have."""


class RuntimeSetupError(AutoshardError):
    """Ranks, MPI or inputs that do not fit the program that should run."""


class ScheduleError(AutoshardError):
    """A schedule of a pipeline that does not exist, or cannot be run to its end."""


class StageError(AutoshardError):
    """A training step that cannot be cut into the stages that are asked for."""


class CheckpointError(AutoshardError):
    """A checkpoint that cannot be written, read, or loaded into a network."""


class UnknownNameError(AutoshardError, KeyError):
    """A name that is in no registry; the message lists the names that are."""

    __str__ = Exception.__str__


def at(source: object | None) -> str:
    """' at train.py:31' for a known source line, '' otherwise."""
    return f" at {source}" if source is not None else ""


class MemoryLimitError(PlanError):
    """A plan that needs more memory on a device than it may: `needed` and `limit` in bytes."""

    def __init__(self, message: str, needed: int, limit: int) -> None:
        super().__init__(message)
        self.needed, self.limit = needed, limit
