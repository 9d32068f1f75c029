"""What one rank of a training step does beside what it sends: numpy's engine, and numpy by hand, on a silent network.

    python -m benchmarks.without_messages [--task ffn|attention|llama] [--hidden 256] [--ranks 2]

One process plays one rank of several; what it sends comes back as it was. So nothing waits for others, and processor
time says what Python and numpy take, also where other work runs beside. Printed are milliseconds of a step, medians of
blocks that alternate, and the median of the blocks' ratios. Losses mean nothing here: learning rates are 0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.engines.session import Session
from autoshard.runtime import prepared
from autoshard.runtime.comm import Comm
from benchmarks import engines
from benchmarks.stepping import ByAutoshard, Stepwise, Task


class SilentMpi:
    """What stands for mpi4py's communicator in a step by hand."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return self._ranks

    def _back(self, sent: Any, received: Any, *_: Any) -> None:
        source, target = (one[0] if isinstance(one, tuple) else one for one in (sent, received))
        if isinstance(source, np.ndarray):
            count = min(source.size, target.size)
            target.reshape(-1)[:count] = source.reshape(-1)[:count]

    Allreduce = Reduce_scatter_block = Allgather = Alltoall = _back


class SilentComm(Comm):
    """Rank 0 of several; what it sends comes back."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks, (0,))

    def prepared(
        self, kind: str, shape: Any, dtype: Any, groups: Any, dim: int = 0, to_dim: int = 0, op: str = "sum"
    ) -> Callable[[Any], list[np.ndarray]]:
        """As MpiComm has it, with the stand-in for MPI's communicator."""
        mpi, rest = SilentMpi(groups.size), {"all_reduce": (), "all_to_all": (dim, to_dim)}.get(kind, (dim,))
        action = (None,) if kind in ("all_reduce", "reduce_scatter") else ()
        move = getattr(prepared, kind)(mpi, shape, dtype, None, *action, *rest)
        return lambda parts: [move(parts[0])]

    def barrier(self) -> None:
        return

    def _all_reduce(self, parts: Any, groups: Any, op: str) -> list[np.ndarray]:
        return [np.array(one) for one in parts]

    def _all_gather(self, parts: Any, groups: Any, dim: int) -> list[np.ndarray]:
        return [np.concatenate([one] * groups.size, dim) for one in parts]

    def _reduce_scatter(self, parts: Any, groups: Any, dim: int, op: str) -> list[np.ndarray]:
        return [np.ascontiguousarray(np.split(one, groups.size, dim)[0]) for one in parts]

    def _all_to_all(self, parts: Any, groups: Any, split: int, concat: int) -> list[np.ndarray]:
        return [np.concatenate(np.split(one, groups.size, split), concat) for one in parts]

    def _permute(self, parts: Any, sources: Any) -> list[np.ndarray]:
        return [np.array(one) for one in parts]

    def _broadcast(self, parts: Any, shape: Any, dtype: Any, root: int) -> list[np.ndarray]:
        return [np.array(one) for one in parts]

    def _exchange(self, *_: Any) -> Any:
        raise NotImplementedError("no message from rank to rank has a stand-in")

    def _collect(self, parts: Any, root: int) -> Any:
        raise NotImplementedError("no message to one rank has a stand-in")


class _Ours(ByAutoshard):
    """The planned step on a silent network."""

    def __init__(self, task: Task, ranks: int) -> None:
        super().__init__(SilentMpi(ranks), task)
        self.session = Session(self.planned, SilentComm(ranks))
        self.session.load()


class _Still(Task):
    """A task that changes no parameter."""

    rate = 0.0  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]


def measure(given: argparse.Namespace, blocks: int = 25, steps: int = 20) -> tuple[float, float, float]:
    """Seconds of processor of a step, by autoshard and by hand; and the median ratio."""
    told = engines.task_of(given)
    task = replace(_Still(**{name: getattr(told, name) for name in told.__dataclass_fields__}))
    ours, hand = _Ours(task, given.ranks), task.by_hand(SilentMpi(given.ranks), task)
    rows = [(_block(ours, task, steps), _block(hand, task, steps)) for _ in range(blocks + 1)][1:]
    return (
        *(statistics.median(one) for one in zip(*rows, strict=True)),
        statistics.median(one / other for one, other in rows),
    )  # type: ignore[return-value]


def _block(one: Stepwise, task: Task, steps: int) -> float:
    begun = time.process_time()
    for _ in range(steps):
        one.step(task.x, task.y)
    return (time.process_time() - begun) / steps


def main(arguments: Sequence[str]) -> int:
    given = engines.parse(arguments)
    ours, hand, ratio = measure(given)
    sizes = f"{given.task}, {given.hidden} wide, one rank of {given.ranks}"
    print(f"{sizes}: numpy {1e3 * ours:.3f} ms, by hand {1e3 * hand:.3f} ms of processor; ratio {ratio:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
