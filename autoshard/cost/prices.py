"""Prices: what an operator's work and a redistribution cost on given hardware, in seconds; all memoized."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.cost.alone import price_alone
from autoshard.cost.blocks import divides, local_nbytes, local_operands, moved_bytes
from autoshard.cost.instructions import Costs, Price, computed_in
from autoshard.cost.links import LinkPrices, copied_share
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import size_of
from autoshard.partition.manual import is_manual_collective
from autoshard.redistribute.planner import evened, is_cut, plan_steps
from autoshard.redistribute.positions import uncovered
from autoshard.util.memo import Memo
from costmodel import Hardware, grouped_seconds, operator_seconds

Numbers = TypeVar("Numbers", float, np.ndarray)


class Prices(LinkPrices):
    """Asks costmodel for one mesh and one kind of hardware, and remembers."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self._redistributions: Memo[tuple[Layout, Layout, TensorType, float], float] = Memo()
        self._works: Memo[tuple, Price] = Memo()
        self.instructions = Costs(hardware)
        self._least: Memo[tuple[Layout, Layout, TensorType], float] = Memo()
        self._sure: Memo[tuple[Layout, Layout, TensorType, float], float] = Memo()
        self._fastest = max(link.bandwidth for _, link in hardware.topology.levels)
        self._nearest = min(0.0 if link.curves else link.latency for _, link in hardware.topology.levels)

    def redistribution(self, before: Layout, after: Layout, of: TensorType, share: float = 1.0) -> float:
        """Seconds to bring a tensor from one layout to another.

        Args:
            share: below 1 its collectives may share a buffer with others; then what they add to these counts, and that
                part of the latency (`bundling.latency_shares`).
        """
        if before is after:
            return 0.0
        key = (before, after, of, share)
        known = self._redistributions.get(key)
        if known is None:
            known = self._redistributions[key] = 0.0 if is_cut(before, after) else self._moved(*key)
        return known

    def _moved(self, before: Layout, after: Layout, of: TensorType, share: float) -> float:
        even = of.with_shape(evened(before, after, of.shape))
        steps = [step for step in plan_steps(before, after, even.shape) if step.communicates]
        if share >= 1.0:
            return sum(self.step(step, even) for step in steps)
        sent = [step.nbytes_priced(even.shape, even.dtype.itemsize) for step in steps]
        pairs = zip(steps, sent, strict=True)
        return sum(self.shared_step(step, nbytes, copied_share(step) * even.nbytes, share) for step, nbytes in pairs)

    def collectives(self, before: Layout, after: Layout, of: TensorType) -> int:
        """How many collectives the redistribution takes."""
        return sum(step.communicates for step in plan_steps(before, after, of.shape))

    def work(self, node: Node, strategy: Strategy) -> float:
        """Seconds of the operator on one rank, with what it exchanges with others while it runs."""
        return self.local_work(node, strategy) + self.exchange(node, strategy)

    def exchange(self, node: Node, strategy: Strategy) -> float:
        """Seconds of the collectives that belong to the operator itself: what its blocks need of other ranks."""
        return self._whole(node, strategy).talking if self.exchanges(node, strategy) else 0.0

    def exchanges(self, node: Node, strategy: Strategy) -> bool:
        """Whether `exchange` may be more than 0."""
        return strategy.exchanges or is_manual_collective(node)

    def local_work(self, node: Node, strategy: Strategy) -> float:
        """Seconds that a rank computes for the operator; the regions of a loop or branch are nodes of their own."""
        return 0.0 if is_nest(node) else self._whole(node, strategy).computing

    def _whole(self, node: Node, strategy: Strategy) -> Price:
        key = (node.key, strategy)
        known = self._works.get(key)
        if known is None:
            known = self._works[key] = self._priced(node, strategy)
        return known

    def _priced(self, node: Node, strategy: Strategy) -> Price:
        """What the operator costs where it is one call on blocks of one size; else what its instructions do."""
        if self.exchanges(node, strategy) or not divides(node, strategy):
            return price_alone(node, strategy, self.instructions)
        nbytes = moved_bytes(node, strategy)
        if node.op.uneven:
            most = node.op.most_flops(node.operand_types, local_operands(node, strategy), node.attrs)
            seconds = self._seconds(node, most, nbytes)
        else:
            seconds = self.works(node, strategy.work_ratio, nbytes)
        return Price(computing=float(seconds))

    def works(self, node: Node, split: float | np.ndarray, nbytes: int | np.ndarray) -> float | np.ndarray:
        """Seconds that a rank computes for a `split`-th part of the operator, whose blocks have `nbytes`; all parts
        are equal work (not `Operator.uneven`)."""
        return self._seconds(node, node.op.flops(node.operand_types, node.attrs) / split, nbytes)

    def _seconds(self, node: Node, flops: float | np.ndarray, nbytes: int | np.ndarray) -> float | np.ndarray:
        dtype = computed_in(node, node.operand_types, node.result_types)
        starts = node.traffic is None or node.traffic.launches
        return operator_seconds(flops, nbytes, self.hardware.device, dtype, node.op.name, starts)

    def completion(self, node: Node, strategy: Strategy) -> float:
        """Seconds to finish partial results, at best by reduce_scatter."""
        terms = strategy.reduced + strategy.carried
        if not terms:
            return 0.0
        levels = self.levels(strategy.mesh.groups(terms))
        return sum(
            grouped_seconds("reduce_scatter", local_nbytes(of, layout), levels)
            for of, layout in zip(node.result_types, strategy.result_layouts, strict=True)
        )

    def at_least(self, before: Layout, after: Layout, of: TensorType) -> float:
        """A bound below `redistribution`, without planning it: what a rank must receive over its fastest link."""
        key = (before, after, of)
        known = self._least.get(key)
        if known is None:
            known = self._least[key] = self._at_least(before, after, of)
        return known

    def _at_least(self, before: Layout, after: Layout, of: TensorType) -> float:
        if after.partial and before.partial and before.reduction != after.reduction:
            return 0.0
        if any(not any(term.contains(ref) for term in before.partial) for ref in after.partial):
            return 0.0  # terms may begin where the values are
        missing = math.prod(after.local_shape(of.shape))
        if all(any(term.contains(ref) for term in after.partial) for ref in before.partial):
            missing -= _held(before, after, of)  # nothing is summed, so a rank keeps what it has
        return self.receiving(missing, of)

    def surely(self, before: Layout, after: Layout, of: TensorType, share: float = 1.0) -> float:
        """`at_least`, and, where blocks are even, a share of the latency of messages that must follow each other."""
        key = (before, after, of, share)
        known = self._sure.get(key)
        if known is None:
            known = self.at_least(before, after, of)
            if known > 0.0 and before.divides(of.shape) and after.divides(of.shape):
                known += share * self._nearest * rounds_at_least(before, after)
            self._sure[key] = known
        return known

    def receiving(self, elements: Numbers, of: TensorType) -> Numbers:
        """Seconds in which a rank receives so many elements at best."""
        return elements * of.dtype.itemsize / self._fastest


def _held(before: Layout, after: Layout, of: TensorType) -> int:
    """The largest part of a rank's wanted block that it can hold already, in elements."""
    held = math.prod(after.local_shape(of.shape))
    for old, new in zip(before.dims, after.dims, strict=True):
        held //= lost(old, new)
    return held


@lru_cache(maxsize=1 << 12)
def rounds_at_least(before: Layout, after: Layout) -> int:
    """How many messages must follow each other where any must be sent: each at most doubles the number of ranks on
    which a block can depend, and a block depends on as many as have different parts or terms of it."""
    ranks = size_of(uncovered(before.partial, after.partial))
    for old, new in zip(before.parts, after.parts, strict=True):
        ranks *= -(-old // new)
    return max(1, (ranks - 1).bit_length())


@lru_cache(maxsize=1 << 12)
def lost(old: Refs, new: Refs) -> int:
    """How many times more of a dim that is split by `new` a rank wants than it may hold, split by `old`."""
    common = 0
    while common < min(len(old), len(new)) and old[common] == new[common]:
        common += 1
    if common == len(old):
        return 1
    shared = old[common].overlap(new[common]) if common < len(new) else None
    return size_of(old[common:]) // (shared.size if shared else 1)


@lru_cache(maxsize=16)
def prices_for(hardware: Hardware) -> Prices:
    """Prices that all evaluations on this hardware share."""
    return Prices(hardware)
