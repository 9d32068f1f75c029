"""What instructions cost on given hardware: bytes that a rank sends, collectives, seconds; and a program's peak.

Operators are priced by the blocks that they really run on, which passes may have changed against the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from autoshard.core.tensortype import TensorType
from autoshard.cost.blocks import moved
from autoshard.cost.links import LinkPrices
from autoshard.cost.program_memory import program_peak
from autoshard.ir.graph import Node
from autoshard.ops.attributes import resolve
from autoshard.partition.program import (
    Bundle,
    Collective,
    Compute,
    Instruction,
    ManualCollective,
    Nest,
    Program,
    Start,
    Wait,
)
from autoshard.redistribute.step import Step
from autoshard.util.errors import AutoshardError
from costmodel import Hardware, operator_seconds


class Price(NamedTuple):
    """Bytes that one rank sends, collectives, seconds of computing and of communication; for one run of a step."""

    nbytes: float = 0.0
    collectives: float = 0.0
    computing: float = 0.0
    talking: float = 0.0

    def plus(self, other: Price, times: int = 1) -> Price:
        return Price(
            self.nbytes + times * other.nbytes,
            self.collectives + times * other.collectives,
            self.computing + times * other.computing,
            self.talking + times * other.talking,
        )

    @property
    def seconds(self) -> float:
        """One after the other."""
        return self.computing + self.talking


_FREE = Price()


class BundleSize(NamedTuple):
    """The bytes that links are priced by, and those that are copied into the common buffer and out of it; how many
    tensors they are of."""

    sent: float = 0
    copied: int = 0
    tensors: int = 0

    def plus(self, other: BundleSize) -> BundleSize:
        return BundleSize(self.sent + other.sent, self.copied + other.copied, self.tensors + other.tensors)


class Costs:
    """Prices of instructions on `hardware`, remembered."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware, self.links = hardware, LinkPrices(hardware)
        self._known: dict[Instruction, Price] = {}
        self._works: dict[tuple, float] = {}
        self._steps: dict[tuple, tuple[Collective, Price]] = {}
        self._sizes: dict[Collective, BundleSize] = {}
        self._peaks: dict[int, tuple[Program, int]] = {}

    def of(self, one: Instruction) -> Price:
        """The price of an instruction; a Start has that of what it begins, a Wait none."""
        found = self._known.get(one)
        if found is None:
            found = self._known[one] = self._price(one)
        return found

    @property
    def has_host(self) -> bool:
        """Whether a host starts what the device does, which may wait for it."""
        return self.hardware.device.host_seconds > 0 or self.hardware.device.host_collective_seconds > 0

    @cached_property
    def without_host(self) -> Costs:
        """The prices where nothing waits for a host."""
        device = replace(self.hardware.device, host_seconds=0.0, host_collective_seconds=0.0)
        return Costs(replace(self.hardware, device=device))

    def host(self, one: Instruction) -> float:
        """Seconds in which the host starts an instruction; what a loop or a branch starts counts inside of it."""
        device = self.hardware.device
        if not self.has_host or isinstance(one, Wait | Nest):
            return 0.0
        if isinstance(one, Compute):
            return device.host_seconds if self.of(one).computing and starts_kernel(one) else 0.0
        return device.host_collective_seconds if self.of(one).collectives else 0.0

    def total(self, instructions: Iterable[Instruction]) -> Price:
        """The price of all together, loops as often as they run."""
        nbytes = collectives = computing = talking = 0.0
        for one in instructions:
            price = self.of(one)
            nbytes += price.nbytes
            collectives += price.collectives
            computing += price.computing
            talking += price.talking
        return Price(nbytes, collectives, computing, talking)

    def moved(self, instructions: Iterable[Instruction]) -> tuple[float, float]:
        """The bytes (to a thousandth) and collectives of all together, without a look at what they compute."""
        nbytes = collectives = 0.0
        for one in instructions:
            if not isinstance(one, Compute):
                price = self.of(one)
                nbytes += price.nbytes
                collectives += price.collectives
        return round(nbytes, 3), collectives

    def _price(self, one: Instruction) -> Price:
        if isinstance(one, Compute):
            return Price(computing=self._work(one))
        if isinstance(one, Start):
            return self.of(one.of)
        if isinstance(one, Wait):
            return _FREE
        if isinstance(one, Bundle):
            size = BundleSize()
            for part in one.parts:
                size = size.plus(self.size(part))
            return Price(one.nbytes_moved, 1, 0.0, self.together(one.parts[0], size))
        if isinstance(one, Nest):
            return Price().plus(self._inside(one), one.trips)
        if not one.step.communicates:
            return _FREE
        return self._talk(one) if isinstance(one, Collective) else self._talking(one)

    def _talk(self, one: Collective) -> Price:
        # Steps are found by identity, for their hashes take long; the one that is kept holds its own.
        key = id(one.step), one.operand.whole, one.result.whole
        known = self._steps.get(key)
        if known is None:
            known = self._steps[key] = one, self._talking(one)
        return known[1]

    def _talking(self, one: Collective | ManualCollective) -> Price:
        return Price(one.nbytes_moved, 1, 0.0, self.links.step(one.step, one.of))

    def _inside(self, nest: Nest) -> Price:
        """One run of a loop's bodies, or of all branches: each counts as if it were always taken (`ir.trips`)."""
        found = Price()
        for body in nest.bodies:
            found = found.plus(self.total(body.instructions))
        return found

    def _work(self, one: Compute) -> float:
        operands, results = (tuple(r.local for r in some) for some in (one.operands, one.results))
        if not results:
            return 0.0
        whole = tuple(register.whole for register in one.results)
        key = (one.op.name, one.node.key, operands, results, whole, tuple(one.attrs.items()))
        try:
            known = self._works.get(key)
        except TypeError:  # an attribute that cannot be looked up
            return self._computing(one, results)
        if known is None:
            known = self._works[key] = self._computing(one, results)
        return known

    def _computing(self, one: Compute, results: tuple[TensorType, ...]) -> float:
        nbytes, dtype = traffic_bytes(one), self._computed_in(one, results)
        return float(operator_seconds(flops(one), nbytes, self.hardware.device, dtype, one.op.name, starts_kernel(one)))

    @classmethod
    def measured(cls, one: Compute) -> tuple[str, str, float, int]:
        """What a measured operator is known by: its name and dtype, its operations, and the bytes it touches."""
        results = tuple(register.local for register in one.results)
        return one.op.name, cls._computed_in(one, results), float(flops(one)), traffic_bytes(one)

    @staticmethod
    def _computed_in(one: Compute, results: tuple[TensorType, ...]) -> str:
        """`computed_in` of an instruction; a turn of a ring, which has no rule, computes as the whole operator does."""
        if one.composite is not None and not one.node.op.has_rule:
            return computed_in(one.composite, one.composite.operand_types, results)
        return computed_in(one.node, tuple(of.local for of in one.operands), results)

    def size(self, one: Collective) -> BundleSize:
        """What a collective adds to a bundle."""
        known = self._sizes.get(one)
        if known is None:
            sent = one.step.nbytes_priced(one.of.shape, one.of.dtype.itemsize)
            known = self._sizes[one] = BundleSize(sent, one.operand.local.nbytes + one.result.local.nbytes, 1)
        return known

    def together(self, first: Collective, size: BundleSize) -> float:
        """Seconds of a bundle of that size which begins with `first`: on the links, and to copy what its parts send
        into a common buffer and what has come out of it, each read and written."""
        assert isinstance(first.step, Step)
        return self.links.sized_step(first.step, size.sent) + self.links.packing(size.copied, size.tensors)

    def peak(self, program: Program) -> int:
        """Bytes that a rank holds at most; remembered, as a pass asks and then what it saved."""
        known = self._peaks.get(id(program))
        if known is None:
            known = self._peaks[id(program)] = program, program_peak(program)
        return known[1]


@dataclass(frozen=True)
class Setting:
    """What passes go by: prices, whether they may change the place of that name, and operators to be left as they are.

    The `fixed` ones run as somebody asked for, and leave results as asked for. A common buffer has `buffer` bytes at
    most.
    """

    costs: Costs
    ok: Callable[[str], bool] = lambda name: True
    fixed: Collection[Node] = frozenset()
    buffer: float = math.inf


def _is_own(one: Compute) -> bool:
    """Whether an instruction is its node's operator as it stands in the graph, with nothing added."""
    return one.op is one.node.op and len(one.operands) == len(one.node.operands)


def computed_in(node: Node, operands: Sequence[TensorType], results: Sequence[TensorType]) -> str:
    """The type whose rate an operator has: of products that of what is multiplied, the wider of the two largest
    operands that hold what is summed over, whatever sums are in; of others that of the first result."""
    multiplied = [of for i, of in enumerate(operands) if of.dtype.is_inexact and _is_summed(node, i)]
    if len(multiplied) < 2:
        return results[0].dtype.name
    largest = sorted(multiplied, key=lambda of: of.elements, reverse=True)[:2]
    return max(largest, key=lambda of: of.dtype.itemsize).dtype.name


def _is_summed(node: Node, operand: int) -> bool:
    """Whether a product sums over dims of an operand; what a pass has added to the node's own operands is no factor."""
    if not node.is_product or operand >= len(node.operands):
        return False
    return any(i in node.rule.multiplied for dim in node.rule.operands[operand] for i in dim)


def starts_kernel(one: Compute) -> bool:
    """Whether an operator is a kernel of its own, or stands for one of several."""
    traffic = one.node.traffic if _is_own(one) else None
    return traffic is None or traffic.launches


def traffic_bytes(one: Compute) -> int:
    """Bytes that an operator reads and writes on a rank's blocks."""
    blocks = tuple(register.local for register in (*one.operands, *one.results))
    return sum(of.nbytes for of in (moved(one.node, blocks) if _is_own(one) else blocks))


def flops(one: Compute) -> float:
    """Operations on the blocks of the first rank; a share of the whole operator's where blocks do not fit its rule."""
    attrs: Mapping = {name: resolve(value, 0) for name, value in one.attrs.items()}
    try:
        local, whole = (tuple(getattr(of, side) for of in one.operands) for side in ("local", "whole"))
        return one.op.most_flops(whole, local, attrs)
    except AutoshardError:
        return mean_flops(one)


def mean_flops(one: Compute) -> float:
    """Operations of a rank in the mean: its share of the whole operator's, or, without a rule, those of its blocks."""
    node = one.node
    if not one.op.has_rule:
        attrs = {name: resolve(value, 0) for name, value in one.attrs.items()}
        return one.op.flops(tuple(of.local for of in one.operands), attrs)
    share = one.results[0].local.elements / max(1, math.prod(one.results[0].whole.shape))
    return node.op.flops(node.operand_types, node.attrs) * share
