"""What the tests of searches share: small models of unequal sizes, and `checked`, which also runs what it plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import Parameter, nn, ops
from autoshard.api import Planned, plan
from autoshard.ir.verify import verify
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.trace.evaluate import evaluate
from tests.oracle.check import assert_same


def array(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers that differ between shapes and seeds."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


class Dense(nn.Cell):
    """The tutorial's layer: MatMul and Add."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = Parameter(array(rows, columns) / rows**0.5, name="weight")
        self.bias = Parameter(array(columns), name="bias")
        self.matmul, self.add = ops.MatMul(), ops.Add()

    def construct(self, x):
        return self.add(self.matmul(x, self.weight), self.bias)


class FFN(nn.Cell):
    """The tutorial's network, with strategies for its two products."""

    def __init__(self, first=None, second=None, out=None, sizes: Sequence[int] = (64, 64, 64)) -> None:
        super().__init__()
        self.dense1, self.relu, self.dense2 = Dense(*sizes[:2]), ops.ReLU(), Dense(*sizes[1:])
        if first:
            self.dense1.matmul.shard(first, out)
        if second:
            self.dense2.matmul.shard(second)

    def construct(self, x):
        return self.dense2(self.relu(self.dense1(x)))


def checked(target: Any, inputs: Sequence[np.ndarray], mesh: str = "8", **options: Any) -> Planned:
    """The plan, whose graph and program are legal and whose run on virtual ranks equals the run on whole tensors."""
    traced = getattr(target, "traced", None)
    planned = plan(target, () if traced is not None else tuple(inputs), mesh, **options)
    assert_runs_as_whole(planned, inputs)
    return planned


def assert_runs_as_whole(planned: Planned, inputs: Sequence[np.ndarray], rtol: float = 1e-5) -> None:
    """Verify graph and program, run on virtual ranks, and compare every output with `evaluate`'s."""
    verify(planned.graph)
    verify_program(planned.program)
    feeds = planned.traced.inputs(*inputs)
    whole = evaluate(planned.graph, feeds)
    got = Executor(planned.program, LocalComm(planned.plan.mesh.devices))(*feeds)
    assert len(got) == len(whole)
    for i, (ours, theirs) in enumerate(zip(got, whole, strict=True)):
        assert_same(ours, theirs, rtol, f"output {i} of {planned.graph.name} on {planned.plan.mesh}")


def strategies(planned: Planned) -> dict[str, str]:
    """Operator -> its strategy as MindSpore prints it."""
    return {node.label: str(planned.plan.strategy(node)) for node in planned.graph.nodes}


def kinds(planned: Planned) -> list[str]:
    """The kinds of the program's collectives in order."""
    return [one.step.kind for one in planned.program.collectives]


def kind_of_cause(planned: Planned, label: str) -> str:
    return planned.plan.decisions[planned.graph.node(label)].cause.kind


def blocks(planned: Planned) -> dict[str, list]:
    """Value -> which block each rank holds: what plans on different meshes can be compared by."""
    return {
        value.name: [layout.block(rank, value.type.shape) for rank in range(layout.mesh.devices)]
        for value, layout in planned.plan.layouts.items()
    }
