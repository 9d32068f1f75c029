"""The collectives of a program as a list: what each is, how many bytes it moves, and which operator it serves.

Bytes are what one device sends under a bandwidth-optimal algorithm: (g-1)/g of an all-gather's result, of a
reduce-scatter's operand and of an all-to-all, 2(g-1)/g of an all-reduce, and what a permute sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.ir.graph import Node
from autoshard.layout.layout import Refs
from autoshard.partition.program import Collective, ManualCollective, Program, timed
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep
from autoshard.util.errors import at

KINDS = {
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "permute": "collective-permute",
    "halo": "collective-permute",
}
"""Steps' kinds by the names that HLO has for them; an exchange of window borders is made of permutes."""


@dataclass(frozen=True)
class Traffic:
    """One collective of a program.

    Attributes:
        kind: HLO's name of it.
        bytes_moved: what one device sends each time it runs.
        group_size: how many ranks take part together.
        axes: the mesh axes (or parts of them) that it runs along.
        operator: the node it serves, its operator and source line; or that it serves an output.
        executions: how often one step of the program runs it: the trips of the loops around it.
    """

    kind: str
    bytes_moved: float
    group_size: int
    axes: tuple[str, ...]
    operator: str
    executions: int

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "bytes_moved": self.bytes_moved,
            "group_size": self.group_size,
            "axes": list(self.axes),
            "operator": self.operator,
        }


def traffic_of(program: Program) -> tuple[Traffic, ...]:
    """The collectives of a program, in program order, those in loops, branches and manual computations too."""
    moving = (
        (one, times) for one, times in timed(program.instructions) if isinstance(one, Collective | ManualCollective)
    )
    return tuple(_traffic(one, times) for one, times in moving if one.step.communicates)


def _traffic(one: Collective | ManualCollective, times: int) -> Traffic:
    step = one.step
    axes = tuple(map(step.before.mesh.show_ref, step.axes))
    kind = KINDS.get(step.kind, step.kind.replace("_", "-"))
    return Traffic(kind, float(one.nbytes_moved), step.groups.size, axes, _served(one.serves), times)


def _served(node: Node | None) -> str:
    return "an output" if node is None else f"{node.label} ({node.op.name}){at(node.source)}"


def bytes_moved(found: Sequence[Traffic], executed: bool = False) -> float:
    """Their bytes together, each counted once; `executed`: as often as a step runs it."""
    return sum(one.bytes_moved * (one.executions if executed else 1) for one in found)


LISTED = 1 << 16
"""On so many ranks it is looked up which one sends most; beyond that each exchange counts by its own such rank."""


def bytes_sent(program: Program) -> float:
    """The bytes that the rank which sends most sends in a step of the program.

    In exchanges of window borders ranks send different amounts, those at the ends of a tensor less, and where boxes are
    fetched those that hold them; in all other collectives each sends as much.
    """
    alike = 0.0
    unlike: dict[Refs, np.ndarray] = {}
    of_ranks = np.zeros(0)
    for one, times in timed(program.instructions):
        if not isinstance(one, Collective | ManualCollective) or not one.step.communicates:
            continue
        if isinstance(one, Collective) and isinstance(one.step, WindowStep):
            sent = np.array(one.step.elements_sent(one.of.shape)) * one.of.dtype.itemsize * times
            unlike[one.step.axes] = unlike.get(one.step.axes, 0.0) + sent
        elif isinstance(one, Collective) and isinstance(one.step, Step) and one.step.fetched is not None:
            sent = np.array(one.step.fetched.elements_sent(one.of.shape)) * one.of.dtype.itemsize * times
            of_ranks = of_ranks + sent if len(of_ranks) else sent
        else:
            alike += times * one.nbytes_moved
    mesh = program.mesh
    if len(unlike) + bool(len(of_ranks)) < 2 or mesh.devices > LISTED:
        return alike + sum(float(sent.max()) for sent in (*unlike.values(), of_ranks) if len(sent))
    totals = of_ranks if len(of_ranks) else np.zeros(mesh.devices)
    for refs, sent in unlike.items():
        totals = totals + sent[[mesh.index(rank, refs) for rank in mesh.listed("find which rank sends most")]]
    return alike + float(totals.max())


def to_json(found: Sequence[Traffic]) -> dict[str, Any]:
    """The list as plain data; what a step runs in all is told apart, as loops run collectives several times."""
    return {
        "collectives": [one.to_json() for one in found],
        "total_bytes_moved": bytes_moved(found),
        "executed": {
            "times": [one.executions for one in found],
            "total_bytes_moved": bytes_moved(found, executed=True),
        },
    }
