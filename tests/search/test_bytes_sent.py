"""The bytes that "a device sends" are those that the executor hands over on the rank that sends most."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.cost.evaluate import evaluate
from autoshard.ir.graph import walk
from autoshard.partition.lower import lower
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from costmodel import preset
from tests.oracle.many import case

SHARES = {
    "all_gather": lambda size, nbytes: (size - 1) * nbytes,
    "all_reduce": lambda size, nbytes: 2 * nbytes * (size - 1) / size,
    "reduce_scatter": lambda size, nbytes: nbytes * (size - 1) / size,
    "all_to_all": lambda size, nbytes: nbytes * (size - 1) / size,
}


class Counting(LocalComm):
    """Counts what each rank sends, by bandwidth-optimal algorithms."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self.sent = np.zeros(world)

    def _run(self, name, size, parts, call, *rest):
        for rank in range(self.world):
            if name == "exchange":
                self.sent[rank] += sum(one.nbytes for one in rest[1][rank].values())
            else:
                self.sent[rank] += SHARES.get(name, lambda size, nbytes: nbytes)(size, parts[rank].nbytes)
        return super()._run(name, size, parts, call, *rest)


def measured(seed: int) -> tuple[float, float]:
    """Predicted and counted bytes of a random program's step."""
    one = case(seed)
    program, comm = lower(one.plan), Counting(one.plan.mesh.devices)
    executor = Executor(program, comm)
    parts = executor.scatter(one.made.feeds)
    comm.sent[:] = 0
    executor.run(parts)
    hardware = preset("cpu").for_ranks(one.plan.mesh.devices)
    return evaluate(program, one.graph, hardware).bytes_per_device, float(comm.sent.max())


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_of_random_programs(seed):
    predicted, counted = measured(seed)
    if any(node.op.name == "Case" for node in walk(case(seed).graph.nodes)):
        assert predicted >= counted * (1 - 1e-9), "each branch counts as if it were taken"
    else:
        assert predicted == pytest.approx(counted, rel=1e-9)
