"""The order in which choices are priced: by what is expected of them, from rough to close, and what came of others.

kind = devices of each group and of which kind, group of each stage, micro batches; its choices cut elsewhere
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autoshard.pipeline.joint.space import StageChoice

REFUSED = 2.0
"""How many times more is expected of a kind of which a choice cannot be planned."""


@dataclass(frozen=True)
class Expected:
    """A choice, the seconds that it takes at least, the seconds that are expected, and how many times what it has the
    fullest device is expected to need."""

    choice: StageChoice
    least: float
    seconds: float
    fullness: float

    @property
    def kind(self) -> tuple:
        """What it has in common with choices that cut elsewhere."""
        return self.choice.devices, self.choice.kinds, self.choice.places, self.choice.micro_batches


class GuidedOrder:
    """Choices of which `take` gives the most promising one; `learn` is told what came of it.

    Args:
        every: those that are expected to need more than devices have come last, the least full first.
        estimate: seconds of a choice, closer than what is expected at first; asked of choices that would be next.
    """

    def __init__(self, every: Iterable[Expected], estimate: Callable[[StageChoice], float]) -> None:
        self.estimate = estimate
        self._kinds: defaultdict[tuple, list[Expected]] = defaultdict(list)
        self._slower: defaultdict[tuple, float] = defaultdict(lambda: 1.0)
        self._off: defaultdict[tuple, float] = defaultdict(lambda: 1.0)  # what came of the kind, by its estimate
        self._fuller: defaultdict[tuple, float] = defaultdict(lambda: 1.0)
        self._estimated: dict[tuple, tuple[StageChoice, int]] = {}
        self._learned = 0
        for one in every:
            self._kinds[one.kind].append(one)
        for kind in self._kinds:
            self._sort(kind)

    @property
    def least_left(self) -> Iterable[float]:
        """What each choice takes at least that was not taken."""
        return (one.least for left in self._kinds.values() for one in left)

    @property
    def left(self) -> int:
        """How many choices were not taken."""
        return sum(map(len, self._kinds.values()))

    def take(self, below: float, most_stages: float = math.inf) -> Expected | None:
        """The next of the choices that may take less than so many seconds, of so many stages; None: there is none."""
        for kind, left in list(self._kinds.items()):
            while left and left[-1].least >= below:
                left.pop()
            if not left:
                del self._kinds[kind]
        some = [left for left in self._kinds.values() if len(left[-1].choice.places) <= most_stages]
        waiting = [(self._rank(left[-1]), i) for i, left in enumerate(some)]
        heapq.heapify(waiting)
        while waiting:
            _, i = waiting[0]
            one = some[i][-1]
            if self._estimated.get(one.kind) == (one.choice, self._learned):
                return some[i].pop()
            self._estimate(one)
            heapq.heapreplace(waiting, (self._rank(one), i))
        return None

    def expects(self, one: Expected) -> tuple[float, float]:
        """Seconds and fullness that are expected of a choice now."""
        return one.seconds * self._slower[one.kind], one.fullness * self._fuller[one.kind]

    def learn(self, one: Expected, seconds: float, fullness: float) -> None:
        """Expect of its kind what came of a choice, in proportion."""
        self._learned += 1
        self._off[one.kind] = 1.0
        self._estimate(one)
        self._off[one.kind] = seconds / self.expects(one)[0] if self.expects(one)[0] else 1.0
        self._fuller[one.kind] = fullness / one.fullness if one.fullness else 1.0
        self._estimate(one)
        self._sort(one.kind)

    def learn_refused(self, one: Expected) -> None:
        """Expect less of the kind of a choice that cannot be planned."""
        self._off[one.kind] *= REFUSED
        self._slower[one.kind] *= REFUSED

    def _estimate(self, one: Expected) -> None:
        """Expect of a kind what is estimated of its next choice, in proportion."""
        self._estimated[one.kind] = one.choice, self._learned
        self._slower[one.kind] = self.estimate(one.choice) * self._off[one.kind] / one.seconds if one.seconds else 1.0

    def _rank(self, one: Expected) -> tuple[bool, float, int]:
        seconds, fullness = self.expects(one)
        over = fullness > 1
        return over, float(f"{fullness if over else seconds:.9g}"), len(one.choice.places)

    def _sort(self, kind: tuple) -> None:
        if kind in self._kinds:
            self._kinds[kind].sort(key=self._rank, reverse=True)
