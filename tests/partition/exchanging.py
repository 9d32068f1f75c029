"""Operators run by every strategy that exchanges, on virtual ranks or those of a Comm; and what steps must receive."""

from __future__ import annotations

import numpy as np

import autoshard.ops  # noqa: F401  (registers the operators)
from autoshard.core.enumerate import enumerate_strategies
from autoshard.layout import Mesh
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.partition.program import Collective, Program
from autoshard.partition.verify import verify_program
from autoshard.redistribute.window import WindowStep
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from tests.oracle.check import assert_same, plan_with, single


def exchanging(op: str, arrays: list[np.ndarray], attrs: dict, mesh: str, comm: Comm | None = None) -> int:
    """Run every strategy that exchanges; compare with the whole run, and check the program. How many there were."""
    operator, chosen = lookup(op), Mesh.parse(mesh)
    graph, node = single(operator, arrays, attrs)
    whole = operator.evaluate(arrays, node.attrs)
    strategies = [one for one in enumerate_strategies(node.rule, chosen) if one.exchanges]
    for strategy in strategies:
        program = lower(plan_with(graph, node, strategy))
        verify_program(program)
        check_bytes(program)
        outputs = Executor(program, comm or LocalComm(chosen.devices))(*arrays)
        for got, want in zip(outputs, whole, strict=True):
            assert_same(got, want, 1e-5, f"{op} {attrs} of {[one.shape for one in arrays]} by {strategy} on {mesh}")
    return len(strategies)


def check_bytes(program: Program) -> None:
    """What a window step counts as received is what its ranks lack, and no more than a gather would bring."""
    for one in program.collectives:
        step = one.step
        if not isinstance(one, Collective) or not isinstance(step, WindowStep):
            continue
        most, sent = 0, [0] * step.parts
        for position in range(step.parts):
            own = {*range(position * step.block, (position + 1) * step.block)}
            needed = [
                (run.starts[position] + i * run.stride) % step.size
                for run in step.runs
                for i in range(run.counts[position])
            ]
            lacked = [index for index in needed if index not in own]
            most = max(most, len(lacked))
            for index in lacked:
                sent[index // step.block] += 1
        assert step.elements_received == most
        assert one.nbytes_moved == max(sent) * one.operand.local.nbytes / step.block
        if len(set(needed)) == len(needed):
            assert most <= (step.parts - 1) * step.block


def drawn(rng_seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(rng_seed).normal(size=shape).astype(np.float32)


def multiple(count: int, of: int) -> int:
    """The nearest multiple of `of`, at least one, so that meshes divide it."""
    return max(of, round(count / of) * of)
