"""Op priority: which operators may spread shardings at which level, and which way.

A level is a run to the fixed point; a later level allows all that earlier ones do, and more. `ORDER` is Shardy's
(op_priority_propagation.cc): first what only moves data along, last what would make data larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.ops.options import SPREADS
from autoshard.ops.registry import Operator, lookup
from autoshard.propagate.step import BACKWARD, BOTH, FORWARD, NONE, Direction, flags_of
from autoshard.util.errors import UnknownNameError


@dataclass(frozen=True)
class Level:
    """What one level allows.

    Attributes:
        spreads: directions by spread class, see `ops.options.SPREADS`.
        operators: directions by operator name, which come before those of the class.
        others: direction of what neither mentions.
        single_use: holds only where each operand that is no scalar has no other use.
        pass_only: only factors that pass through the operator spread.

    Raises:
        UnknownNameError: no such spread class or operator.
    """

    spreads: Mapping[str, Direction] = field(default_factory=dict)
    operators: Mapping[str, Direction] = field(default_factory=dict)
    others: Direction = NONE
    single_use: bool = False
    pass_only: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.spreads) - set(SPREADS))
        if unknown:
            raise UnknownNameError(f"unknown spread class {unknown[0]!r}; known are {', '.join(map(repr, SPREADS))}")
        for name in self.operators:
            lookup(name)

    def direction(self, operator: Operator, spread: str) -> Direction:
        return self.operators.get(operator.name, self.spreads.get(spread, self.others))


_MOVING = {"pointwise": BOTH, "move": BOTH, "slice": FORWARD}
_NOT_BROADCASTS_FORWARD = {"broadcast": BACKWARD}
ORDER = (
    Level(_MOVING, single_use=True),
    Level(_MOVING),
    Level(_NOT_BROADCASTS_FORWARD, others=BOTH, pass_only=True),
    Level(_NOT_BROADCASTS_FORWARD, others=BOTH),
    Level(others=BOTH),
)
ANY = (Level(others=BOTH),)


@dataclass(frozen=True)
class Mode:
    """How steps are done, apart from the direction."""

    aggressive: bool = True
    conservative: bool = False


def flags(
    levels: Sequence[Level], operator: Operator, spread: str, single: bool, pointwise: bool, mode: Mode
) -> int | None:
    """The flags of a step of an operator where all of `levels` are allowed; None if it may not spread anything.

    Args:
        single: each operand that is no scalar has one use.
        pointwise: the operator is elementwise.

    Of factors that do not pass through the operator, all or nothing is allowed: where the levels allow them another
    direction than the others (dynamic slices, whose such factors are in one tensor only) it is nothing.
    """
    allowed = [level for level in levels if single or not level.single_use]
    # Plain numbers, whose operators are quicker than those of flags.
    passing = every = 0
    for level in allowed:
        direction = level.direction(operator, spread).value
        passing |= direction
        every |= 0 if level.pass_only else direction
    if passing == NONE:
        return None
    return flags_of(
        passing,
        pass_only=every != passing,
        aggressive=mode.aggressive,
        conservative=mode.conservative,
        pointwise=pointwise,
    )
