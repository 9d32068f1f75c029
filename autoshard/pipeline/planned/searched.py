"""What a search for stages tells of its answer: how far it came, and what others would take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from costmodel import format_seconds

MOST_OTHERS = 8


@dataclass(frozen=True)
class OtherPipeline:
    """A pipeline that a search has priced and not taken: in words, of how many groups, and the seconds of a step.

    `fits` is whether it keeps to the limit of memory.
    """

    label: str
    groups: int
    seconds: float
    fits: bool = True


def fastest_by_groups(found: Iterable[OtherPipeline], chosen: str) -> tuple[OtherPipeline, ...]:
    """Of each number of groups the fastest, those that fit before those that do not, without the chosen one."""
    best: dict[int, OtherPipeline] = {}
    for one in found:
        known = best.get(one.groups)
        if one.label != chosen and (known is None or _order(one) < _order(known)):
            best[one.groups] = one
    return tuple(sorted(best.values(), key=_order))[:MOST_OTHERS]


def _order(one: OtherPipeline) -> tuple[bool, float, int]:
    return not one.fits, one.seconds, one.groups


@dataclass(frozen=True)
class StageSearch:
    """How far a search has come: what the best found takes, what none can take less than, and how many there were.

    `bound` is of all choices: seconds of work that devices share evenly. `gap` is what the best found takes more than
    the least that any choice not priced may take, relatively; 0 if there is none. `others` are the fastest of each
    number of groups.
    """

    seconds: float
    least_left: float
    bound: float
    priced: int
    choices: int
    others: tuple[OtherPipeline, ...] = ()

    @property
    def gap(self) -> float:
        """0 where the found one is proven to be the fastest."""
        return max(0.0, self.seconds / min(self.least_left, self.seconds) - 1) if self.seconds else 0.0

    def __str__(self) -> str:
        proven = (
            "none of them is faster" if not self.gap else f"at most {100 * self.gap:.1f} % from the fastest of them"
        )
        return (
            f"{self.priced} pipeline{'s' * (self.priced != 1)} priced of {self.choices} choices; {proven}; "
            f"none of them takes less than {format_seconds(self.bound)}"
        )
