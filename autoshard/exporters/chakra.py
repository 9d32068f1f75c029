"""Execution traces in the form of MLCommons Chakra, one for each rank: what network simulators such as ASTRA-sim run.

A node for each operator and collective, which depends on those whose results it reads; messages of permutes and halos
are pairs of send and receive. Operations and bytes stand there for simulators that time operators themselves, and the
predicted time for those that replay. Loops are unrolled; of a branch all ways are taken, as its price has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoshard.cost.instructions import Costs, flops, traffic_bytes
from autoshard.cost.prices import prices_for
from autoshard.exporters.wire import framed, number, numbers, text
from autoshard.partition.manual import completed, sources
from autoshard.partition.program import (
    Bundle,
    Collective,
    Compute,
    Instruction,
    ManualCollective,
    Nest,
    NestBody,
    Program,
    Register,
    Start,
    Wait,
    communicates,
)
from autoshard.redistribute.messages import POINT_TO_POINT, received
from autoshard.search.planned import PlannedData
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically

VERSION = "0.0.4"
"""Of the schema, `et_def.proto` of mlcommons/chakra."""
MOST_NODES = 5_000_000
"""Nodes that are written at most; loops may run long."""
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""The schema's NodeType."""
TYPES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
"""The schema's CollectiveCommType."""
_UINT32, _UINT64, _BOOL, _STRING = 9, 11, 27, 29
Deps = frozenset[int]


def save_chakra(planned: PlannedData, path: str | Path) -> list[Path]:
    """Write `PATH.0.et`, `PATH.1.et`, ... and `PATH.json`, the ranks of each group by its number; the files.

    Raises:
        PlanError: a file cannot be written, or loops run too long to be unrolled.
    """
    world, groups = planned.plan.mesh.devices, ProcessGroups()
    costs = prices_for(planned.hardware).instructions
    paths = []
    for rank in planned.plan.mesh.listed("write a trace for each rank"):
        data = rank_trace(planned.program, rank, costs, groups)
        paths.append(write_atomically(f"{path}.{rank}.et", data, PlanError, durable=rank == world - 1))
    ranks_of = {str(i): list(members) for members, i in groups.numbers.items()}
    return [*paths, write_atomically(f"{path}.json", json.dumps(ranks_of), PlanError)]


def rank_trace(program: Program, rank: int, costs: Costs, groups: ProcessGroups) -> bytes:
    """The trace of one rank."""
    writer = _ChakraWriter(rank, program.mesh.devices, costs, groups)
    for one in program.inputs:
        writer.made[one] = frozenset()
    writer.play(program.instructions)
    return b"".join((framed(text(1, VERSION)), *map(framed, writer.nodes)))


@dataclass
class ProcessGroups:
    """Groups of ranks, numbered from 1 as they come up."""

    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def number(self, members: Iterable[int]) -> int:
        return self.numbers.setdefault(tuple(int(one) for one in members), len(self.numbers) + 1)


class _ChakraWriter:
    """Plays a program without its numbers: which nodes must have run for each register."""

    def __init__(self, rank: int, world: int, costs: Costs, groups: ProcessGroups) -> None:
        self.rank, self.world, self.costs, self.groups = rank, world, costs, groups
        self.made: dict[Register, Deps] = {}
        self.nodes: list[bytes] = []
        self.messages = 0  # counted on all ranks alike: both ends of a message have one tag

    def play(self, instructions: Iterable[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Compute):
                self._compute(one)
            elif isinstance(one, Nest):
                self._nest(one)
            elif not isinstance(one, Wait):  # what waits has what the start made
                self._communication(one.of if isinstance(one, Start) else one)

    def _communication(self, one: Collective | ManualCollective | Bundle) -> None:
        if isinstance(one, Bundle):
            self._bundle(one)
        else:
            self._collective(one)

    def _node(self, name: str, kind: int, deps: Deps, seconds: float, attributes: Iterable[bytes]) -> Deps:
        if len(self.nodes) >= MOST_NODES:
            raise PlanError(f"cannot write a trace for Chakra: unrolled, the program has more than {MOST_NODES} nodes")
        head = number(1, len(self.nodes) + 1) + text(2, name) + number(3, kind) + numbers(5, sorted(deps))
        body = b"".join(text(10, one) for one in (_attribute("is_cpu_op", _BOOL, False), *attributes))
        self.nodes.append(head + number(7, math.ceil(1e6 * seconds)) + body)
        return frozenset((len(self.nodes),))

    def _needs(self, registers: Iterable[Register]) -> Deps:
        return frozenset().union(*(self.made[one] for one in registers))

    def _leaves(self, results: Iterable[Register], deps: Deps) -> None:
        self.made.update(dict.fromkeys(results, deps))

    def _compute(self, one: Compute) -> None:
        size = traffic_bytes(one)
        amounts = (_attribute("num_ops", _UINT64, round(flops(one))), _attribute("tensor_size", _UINT64, size))
        label = one.results[0].name if one.results else one.node.label
        deps = self._node(label, COMPUTE, self._needs(one.operands), self.costs.of(one).computing, amounts)
        self._leaves(one.results, deps)

    def _bundle(self, one: Bundle) -> None:
        if one.parts[0].step.kind not in TYPES:
            for part in one.parts:
                self._collective(part)
            return
        names = ", ".join(part.operand.name for part in one.parts)
        size = sum(_size(part) for part in one.parts)
        self._leaves(one.results, self._collected(one.parts[0], names, self._needs(one.operands), size, one))

    def _collective(self, one: Collective | ManualCollective) -> None:
        needs = self._needs(one.operands)
        if not communicates(one):
            self._leaves(one.results, needs)
        elif one.step.kind in TYPES:
            name = one.operands[0].name
            self._leaves(one.results, self._collected(one, name, needs, _size(one), one))
        elif one.step.kind in POINT_TO_POINT:
            self._leaves(one.results, self._exchanged(one, needs))
        else:
            raise PlanError(f"cannot write a trace for Chakra: it has no word for a {one.step.kind}")

    def _collected(
        self, one: Collective | ManualCollective, name: str, needs: Deps, size: int, priced: Instruction
    ) -> Deps:
        group = self.groups.number(one.step.groups.members(self.rank))
        attributes = (
            _attribute("comm_type", _UINT64, TYPES[one.step.kind]),
            _attribute("comm_size", _UINT64, size),
            _attribute("pg_name", _STRING, str(group)),
        )
        seconds = self.costs.of(priced).talking
        return self._node(f"{one.step.kind} {name}", COLLECTIVE, needs, seconds, attributes)

    def _exchanged(self, one: Collective | ManualCollective, needs: Deps) -> Deps:
        """Messages of this rank; what it receives, and what it has already, is its result."""
        self.messages += 1
        table, name = _messages(one, self.world), f"{one.step.kind} {one.operands[0].name}"
        seconds, found = self.costs.of(one).talking, needs

        def attributes(source: int, target: int, size: int) -> tuple[bytes, ...]:
            ends = (("comm_src", source), ("comm_dst", target), ("comm_tag", self.messages))
            return (_attribute("comm_size", _UINT64, size), *(_attribute(key, _UINT32, at) for key, at in ends))

        for target in range(self.world):
            if size := table[target].get(self.rank):
                self._node(f"send {name}", SEND, needs, seconds, attributes(self.rank, target, size))
        for source, size in table[self.rank].items():
            found |= self._node(f"receive {name}", RECEIVE, needs, seconds, attributes(source, self.rank, size))
        return found

    def _nest(self, nest: Nest) -> None:
        state = [self.made[one] for one in nest.entering]
        for _ in range(nest.trips):
            ends = [self._body(body, state, self._needs(nest.operands)) for body in nest.bodies]
            state = _joined(ends, max(len(nest.results), len(state)))
        ready = frozenset().union(*state) if state else self._needs(nest.operands)
        own = state if len(state) == len(nest.results) else [ready] * len(nest.results)
        self.made.update(zip(nest.results, own, strict=True))

    def _body(self, body: NestBody, state: Sequence[Deps], otherwise: Deps) -> list[Deps]:
        for i, one in enumerate(body.args):
            self.made[one] = state[i] if len(state) == len(body.args) else otherwise
        self.play(body.instructions)
        return [self.made[one] for one in body.outputs]


def _joined(ends: Sequence[Sequence[Deps]], count: int) -> list[Deps]:
    """What the bodies of a loop or a branch leave: each result of all that make one, and after what decides."""
    deciding = frozenset().union(*(deps for one in ends if len(one) != count for deps in one))
    making = [one for one in ends if len(one) == count]
    return [deciding.union(*(one[i] for one in making)) for i in range(count)]


def _size(one: Collective | ManualCollective) -> int:
    """Bytes that a collective works on: of a gather its result, of the others what a rank brings."""
    return round(one.step.nbytes_priced(one.of.shape, one.of.dtype.itemsize))


def _messages(one: Collective | ManualCollective, world: int) -> list[dict[int, int]]:
    """For each rank the bytes that come to it, by whom they come from."""
    if isinstance(one, ManualCollective):
        pairs = completed(sources(one.node, one.results[0].layout.mesh), world)
        size = sum(each.local.nbytes for each in one.operands)
        return [{source: size} if source != rank and size else {} for rank, source in enumerate(pairs)]
    itemsize = one.of.dtype.itemsize
    rows = (received(one.step, one.of.shape, rank) for rank in range(world))
    return [{source: round(count * itemsize) for source, count in row.items()} for row in rows]


def _attribute(name: str, kind: int, value: int | str | bool) -> bytes:
    return text(1, name) + (text(kind, value) if isinstance(value, str) else number(kind, value))
