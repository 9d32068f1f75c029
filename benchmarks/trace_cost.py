"""What recording a step costs (`autoshard run --trace`): steps with and without it, in turns, on ranks.

    autoshard run -n 2 benchmarks/trace_cost.py [STEPS]

A step of training of a transformer of four layers (`MODEL`). Rank 0 prints the median step of each kind, on the clock
and of its own processor time, and what recording adds to a step whose instructions do nothing: that figure is the one
to go by on a busy machine, where steps differ by more than recording takes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

import autoshard
from autoshard import nn
from autoshard.mindspore.communication import get_group_size, get_rank
from autoshard.runtime.interpret import Executor
from autoshard.runtime.recording import recording
from autoshard.trace.cell import Cell
from autoshard.transform.train import train_step

WORDS, WIDTH, LAYERS, BATCH, LENGTH = 800, 192, 4, 8, 48
"""MODEL."""


class Model(Cell):
    """Embedding, blocks, vocabulary projection; the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.CellList([nn.TransformerBlock(WIDTH, 6, 3 * WIDTH, causal=True) for _ in range(LAYERS)])
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)
        self.loss = nn.TokenLoss()

    def construct(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x), labels)


def main(steps: int) -> None:
    network, ids = Model(), np.zeros((BATCH, LENGTH), np.int32)
    step = train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), ids, ids)
    planned = autoshard.plan(step, (), devices=get_group_size(), search="megatron" if get_group_size() > 1 else None)
    executor = planned.session.executor
    assert isinstance(executor, Executor)
    took: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with TemporaryDirectory() as folder, recording(executor, planned.session.comm, Path(folder)):
        times = executor.times
        for i in range(2 * steps + 4):
            executor.times = times if i % 2 else None
            wall, own = time.perf_counter(), time.process_time()
            planned.run(ids, ids)
            took[bool(i % 2)].append((time.perf_counter() - wall, time.process_time() - own))
        alone = recording_alone(executor, times)
        del times
    if get_rank() == 0:
        report({kind: rows[2:] for kind, rows in took.items()}, len(executor.program.instructions), alone)


def recording_alone(executor: Executor, times: memoryview | None, rounds: int = 200) -> float:
    """Seconds of processor time that recording adds to a step whose instructions do nothing."""
    nothing = [(None, lambda slots: None)] * len(executor.program.instructions)
    executor.times = times
    found = []
    for play in (executor._play, executor._play_timed):
        begin = time.process_time()
        for _ in range(rounds):
            play(nothing, [])
        found.append(time.process_time() - begin)
    executor.times = None
    return (found[1] - found[0]) / rounds


def report(took: dict[bool, list[tuple[float, float]]], instructions: int, alone: float) -> None:
    """Print the medians."""
    (wall, own), (wall_traced, own_traced) = (
        [median(column) for column in zip(*took[kind], strict=True)] for kind in (False, True)
    )
    print(f"{instructions} instructions, {len(took[True])} steps of each kind")
    print(f"on the clock:   {1e3 * wall:.2f} ms, traced {1e3 * wall_traced:.2f} ms: {wall_traced / wall - 1:+.1%}")
    print(f"processor time: {1e3 * own:.2f} ms, traced {1e3 * own_traced:.2f} ms: {own_traced / own - 1:+.1%}")
    each = f"{1e6 * alone:.0f} us a step, {1e9 * alone / instructions:.0f} ns an instruction"
    print(f"recording alone: {each}: {alone / own:.2%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
