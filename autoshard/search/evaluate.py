"""What a plan costs: seconds, bytes moved and peak memory of its program, per device and step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.partition.program import Compute, Program, Register
from autoshard.plan import Plan
from autoshard.search.prices import Prices
from costmodel import Hardware, peak


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one step on one device; compute and communication one after the other."""

    compute_seconds: float
    communication_seconds: float
    bytes_per_device: float
    peak_memory_bytes: int

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds


def evaluate(plan: Plan, program: Program, hardware: Hardware) -> Cost:
    """Price the program that `plan` was lowered to.

    Memory: inputs live throughout (parameters, optimizer states, the batch), every other register from its making to
    its last use; outputs to the end.
    """
    prices = Prices(hardware)
    work = sum(
        prices.work(one.node, plan.strategy(one.node)) for one in program.instructions if isinstance(one, Compute)
    )
    talk = sum(prices.step(one.step, one.operand.whole) for one in program.collectives)
    moved = sum(one.nbytes_moved for one in program.collectives)
    return Cost(work, talk, moved, _peak(program))


def _peak(program: Program) -> int:
    end = len(program.instructions)
    born: dict[Register, int] = dict.fromkeys(program.inputs, 0)
    died: dict[Register, int] = dict.fromkeys((*program.inputs, *program.outputs), end)
    for step, (instruction, ending) in enumerate(zip(program.instructions, program.last_uses, strict=True)):
        for register in instruction.results:
            born[register] = step
        for register in ending:
            died.setdefault(register, step)
    rows = [(born[one], died.get(one, end), one.local.nbytes) for one in born]
    return int(peak(np.asarray(rows, dtype=np.int64).reshape(-1, 3))[0])
