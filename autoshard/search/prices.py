"""Prices: what an operator's work and a redistribution cost on given hardware, in seconds; all memoized."""

from __future__ import annotations

import math

from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.redistribute.planner import is_cut, plan_steps
from autoshard.redistribute.step import Step
from autoshard.strategy import Strategy
from autoshard.tensortype import TensorType
from costmodel import Hardware, operator_seconds, seconds


class Prices:
    """Asks costmodel for one mesh and one kind of hardware, and remembers."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._redistributions: dict[tuple[Layout, Layout, TensorType], float] = {}

    def redistribution(self, before: Layout, after: Layout, of: TensorType) -> float:
        """Seconds to bring a tensor from one layout to another."""
        if before is after or is_cut(before, after):
            return 0.0
        key = (before, after, of)
        known = self._redistributions.get(key)
        if known is None:
            steps = plan_steps(before, after, of.shape)
            known = sum(self.step(step, of) for step in steps)
            self._redistributions[key] = known
        return known

    def step(self, step: Step, of: TensorType) -> float:
        """Seconds of one step; local steps are free."""
        if not step.communicates:
            return 0.0
        link = self.hardware.topology.link(step.groups.span)
        return float(seconds(step.kind, step.nbytes_priced(of.shape, of.dtype.itemsize), step.groups.size, link))

    def work(self, node: Node, strategy: Strategy) -> float:
        """Seconds of the operator on one rank."""
        return float(
            operator_seconds(
                node.op.flops(node.operand_types, node.attrs) / strategy.work_split,
                local_bytes(node, strategy),
                self.hardware.device,
                node.result_types[0].dtype.name,
            )
        )

    def completion(self, node: Node, strategy: Strategy) -> float:
        """Seconds to finish the partial results of the operator's own split, at best by reduce_scatter."""
        if not strategy.reduced:
            return 0.0
        groups = strategy.mesh.groups(strategy.reduced)
        link = self.hardware.topology.link(groups.span)
        return sum(
            float(seconds("reduce_scatter", local_nbytes(of, layout), groups.size, link))
            for of, layout in zip(node.result_types, strategy.result_layouts, strict=True)
        )


def local_nbytes(of: TensorType, layout: Layout) -> int:
    return math.prod(layout.local_shape(of.shape)) * of.dtype.itemsize


def local_bytes(node: Node, strategy: Strategy) -> int:
    """Bytes of all local operands and results: what the operator touches, and the memory it needs."""
    tensors = zip(
        (*node.operand_types, *node.result_types), (*strategy.operand_layouts, *strategy.result_layouts), strict=True
    )
    return sum(local_nbytes(of, layout) for of, layout in tensors)
