"""The order in which choices are priced: by what is expected of them, times what those of their kind took more before.

kind = devices of each group, group of each stage, micro batches; its choices cut elsewhere
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from autoshard.pipeline.joint.space import StageChoice

REFUSED = 2.0
"""How many times more is expected of a kind of which a choice cannot be planned."""


@dataclass(frozen=True)
class Expected:
    """A choice, the seconds that it takes at least, and the seconds and bytes of a device that are expected."""

    choice: StageChoice
    least: float
    seconds: float
    nbytes: float

    @property
    def kind(self) -> tuple:
        """What it has in common with choices that cut elsewhere."""
        return self.choice.devices, self.choice.places, self.choice.micro_batches


class GuidedOrder:
    """Choices of which `take` gives the most promising one; `learn` is told what came of it."""

    def __init__(self, every: Iterable[Expected], limit: float) -> None:
        self.limit = limit
        self._kinds: defaultdict[tuple, list[Expected]] = defaultdict(list)
        self._slower: defaultdict[tuple, float] = defaultdict(lambda: 1.0)
        self._larger: defaultdict[tuple, float] = defaultdict(lambda: 1.0)
        for one in every:
            self._kinds[one.kind].append(one)
        for kind in self._kinds:
            self._sort(kind)

    @property
    def least_left(self) -> Iterable[float]:
        """What each choice takes at least that was not taken."""
        return (one.least for left in self._kinds.values() for one in left)

    def take(self, below: float, most_groups: float = math.inf) -> Expected | None:
        """The next of the choices that may take less than so many seconds, of so many groups; None: there is none."""
        for kind, left in list(self._kinds.items()):
            while left and left[-1].least >= below:
                left.pop()
            if not left:
                del self._kinds[kind]
        some = (left for left in self._kinds.values() if len(left[-1].choice.devices) <= most_groups)
        found = min(some, key=lambda left: self._rank(left[-1]), default=None)
        return None if found is None else found.pop()

    def learn(self, one: Expected, seconds: float, nbytes: float) -> None:
        """Expect of its kind what came of a choice, in proportion."""
        self._slower[one.kind] = seconds / one.seconds if one.seconds else 1.0
        self._larger[one.kind] = nbytes / one.nbytes if one.nbytes else 1.0
        self._sort(one.kind)

    def learn_refused(self, one: Expected) -> None:
        """Expect less of the kind of a choice that cannot be planned."""
        self._slower[one.kind] *= REFUSED

    def _rank(self, one: Expected) -> tuple[bool, float, int]:
        over = one.nbytes * self._larger[one.kind] > self.limit
        return over, one.seconds * self._slower[one.kind], len(one.choice.places)

    def _sort(self, kind: tuple) -> None:
        if kind in self._kinds:
            self._kinds[kind].sort(key=self._rank, reverse=True)
