"""A second way to the fixed point: visit only what changed, whatever changed first going first.

Shardings spread evenly from where people put them, one step at a time on all sides, and an op is visited again at a
later level only if it may do more there or something near it has changed. The outcome may differ from Shardy's where
it depends on the order of steps.
"""

from __future__ import annotations

from collections import deque

from autoshard.propagate.driver import Spreader, is_dead, visit
from autoshard.propagate.infos import Infos, StepMemo
from autoshard.propagate.levels import Level, Mode
from autoshard.propagate.work import Op, Work


class EvenSpreader(Spreader):
    """A Spreader with the order of this module. Dead ops are erased before anything spreads."""

    into_bodies = True

    def __init__(self, work: Work, infos: Infos) -> None:
        super().__init__(work, infos)
        self._sweep()
        self._place = {op: i for i, op in enumerate(self.ops)}
        # What each op that is settled was visited with last.
        self._settled: dict[Op, tuple[StepMemo | None, StepMemo | None]] = {}

    def _sweep(self) -> None:
        for op in reversed(self.ops):
            if op.parent is not None and is_dead(op):
                self._erase(op)
        self.ops = [op for op in self.ops if op.parent is not None]

    def run(self, levels: tuple[Level, ...], mode: Mode) -> None:
        self.spread_outputs(mode)
        self.allow(levels, mode)
        self._evenly()
        self.spread_outputs(mode)

    def _evenly(self) -> None:
        queue = deque(op for op in self.ops if self._may_do_something(op))
        waiting = set(queue)
        while queue:
            op = queue.popleft()
            waiting.discard(op)
            info = op.info
            self._settled[op] = info.now, info.now_shared
            found, before = visit(op)
            # Seen from inside a body, a step may add what its boundary cannot keep; then nothing has changed.
            if not found or all(op.held[index].sharding is kept for index, kept, _ in found[1]):  # type: ignore[index]
                continue
            for other in self.apply(op, found, before):
                self._settled.pop(other, None)
                if other not in waiting and other.info.now is not None:
                    waiting.add(other)
                    queue.append(other)

    def _may_do_something(self, op: Op) -> bool:
        info = op.info
        if info.now is None or self._settled.get(op) == (info.now, info.now_shared):
            return False
        return any(value.sharding is not None for value in op.held)  # type: ignore[union-attr]
