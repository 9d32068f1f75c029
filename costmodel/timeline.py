"""When each piece of a rank's program runs: `simulate(tasks, overlap=True)`.

A rank has an engine that computes and one that communicates for each stream: the levels of links, say, which work side
by side. Each takes its tasks in the order of the list, and a task waits for those that it names. Without overlap a
collective blocks the rank: all share one engine. A host starts the tasks, one after the other and ahead of the engines:
where it takes longer than these, they wait for it.

>>> tasks = [Task(4.0), Task(3.0, communicates=True, after=(0,)), Task(2.0), Task(1.0, after=(1, 2))]
>>> simulate(tasks).seconds, simulate(tasks, overlap=False).seconds
(8.0, 10.0)
>>> simulate([Task(1.0, host=3.0), Task(2.0, host=3.0)]).seconds
8.0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.hierarchy import Level, grouped_seconds


@dataclass(frozen=True)
class Task:
    """A piece of work of `seconds` on one of the engines, `after` tasks earlier in the list (by their position).

    `stream` says which of the engines that communicate. The host takes `host` seconds to start it. It may stand for
    several equal `pieces`, each of which the host starts by itself.
    """

    seconds: float
    communicates: bool = False
    after: tuple[int, ...] = ()
    name: str = ""
    stream: str = ""
    host: float = 0.0
    pieces: int = 1

    def __post_init__(self) -> None:
        for what, value in (("takes", self.seconds), ("is started in", self.host)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"task {self.name!r} {what} {value} seconds; it is a finite number from 0 up")
        if self.pieces < 1:
            raise ValueError(f"task {self.name!r} has {self.pieces} pieces; it has 1 or more")

    @staticmethod
    def collective(
        kind: str, nbytes: float, levels: Sequence[Level], after: tuple[int, ...] = (), name: str = ""
    ) -> Task:
        """A collective over a group with these levels of links; `nbytes` and errors as in `grouped_seconds`."""
        return Task(grouped_seconds(kind, nbytes, levels), True, after, name or kind)


@dataclass(frozen=True)
class Timeline:
    """When each task starts and ends, in seconds from the start of the step."""

    tasks: tuple[Task, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """When the last task ends."""
        return max(self.ends, default=0.0)

    @cached_property
    def compute_seconds(self) -> float:
        return sum(task.seconds for task in self.tasks if not task.communicates)

    @cached_property
    def communication_seconds(self) -> float:
        return sum(task.seconds for task in self.tasks if task.communicates)

    @cached_property
    def hidden_seconds(self) -> float:
        """Time that compute and communication ran at once."""
        computing, talking = self._computing, self._talking
        hidden, i, j = 0.0, 0, 0
        while i < len(computing) and j < len(talking):
            hidden += max(0.0, min(computing[i][1], talking[j][1]) - max(computing[i][0], talking[j][0]))
            if computing[i][1] <= talking[j][1]:
                i += 1
            else:
                j += 1
        return hidden

    @property
    def exposed_seconds(self) -> float:
        """Time of communication during which nothing was computed."""
        return sum(end - start for start, end in self._talking) - self.hidden_seconds

    @cached_property
    def _computing(self) -> list[tuple[float, float]]:
        return _united((start, end) for task, start, end in self._rows() if not task.communicates)

    @cached_property
    def _talking(self) -> list[tuple[float, float]]:
        return _united((start, end) for task, start, end in self._rows() if task.communicates)

    @cached_property
    def critical(self) -> tuple[int, ...]:
        """Tasks, first to last, that the end waited for: each starts when the one before it ends, and the first with
        the step or as soon as the host gets to it."""
        if not self.tasks:
            return ()
        path = [max(range(len(self.tasks)), key=lambda i: (self.ends[i], -i))]
        while self.starts[path[-1]] > 0:
            at = path[-1]
            before = next((i for i in range(at - 1, -1, -1) if self.ends[i] == self.starts[at]), None)
            if before is None:
                break
            path.append(before)
        return tuple(reversed(path))

    def _rows(self) -> zip[tuple[Task, float, float]]:
        return zip(self.tasks, self.starts, self.ends, strict=True)


def simulate(tasks: Sequence[Task], overlap: bool = True) -> Timeline:
    """Run the tasks on a rank's engines, in order.

    Raises:
        ValueError: a task waits for itself, or for one that does not come before it.
    """
    starts: list[float] = []
    ends: list[float] = []
    free: dict[str, float] = {}
    host = 0.0
    for i, task in enumerate(tasks):
        if not all(0 <= j < i for j in task.after):
            raise ValueError(
                f"task {i} ({task.name!r}) waits for {task.after}; tasks wait for earlier ones, 0 .. {i - 1}"
            )
        engine = f"link {task.stream}" if task.communicates and overlap else "compute"
        first, host = host + task.host / task.pieces, host + task.host
        start = max((first, free.get(engine, 0.0), *(ends[j] for j in task.after)))
        starts.append(start)
        ends.append(max(start + task.seconds, host + task.seconds / task.pieces))
        free[engine] = ends[-1]
    return Timeline(tuple(tasks), tuple(starts), tuple(ends))


def _united(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans of time in order, those that touch joined."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found
