"""What a search led to: a traced model, its plan, and the program and cost that follow. `api.Planned` adds readers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autoshard.core.strategy import Strategy
from autoshard.cost.evaluate import Cost, evaluate
from autoshard.ir.graph import Graph, walk
from autoshard.optimize import DEFAULT, Saving
from autoshard.partition.program import Program
from autoshard.plan.plan import Plan
from autoshard.search.program_price import program_of
from autoshard.trace.function import Traced
from autoshard.util.doing import doing
from costmodel import Hardware


@dataclass(frozen=True, eq=False)
class PlannedData:
    """A traced model and its plan; program and cost are worked out when first asked for."""

    traced: Traced
    plan: Plan
    hardware: Hardware
    passes: tuple[str, ...] = DEFAULT
    module: Any = None
    """The imported StableHLO module that was planned, if it was one."""
    ignored: tuple[str, ...] = ()
    """What people asked for and the mode did not follow: operators that they configured, inputs and outputs."""
    uncut: Traced | None = None
    """What was traced, if `traced` does it in micro batches that lead to the same."""
    statistics: str = "batch"
    """Whose statistics the step takes: the batch's, or each micro batch's own."""
    memory: int | None = None
    """The limit of a device's memory in bytes, if one was given, or kept to as the hardware says."""

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def program(self) -> Program:
        """What every rank runs."""
        return self._optimized[0]

    @property
    def savings(self) -> tuple[Saving, ...]:
        """What each pass saved over the program that the plan was lowered to."""
        return self._optimized[1]

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Those of all operators, in graph order."""
        return tuple(self.plan.strategy(node) for node in walk(self.graph.nodes))

    @property
    def collectives(self) -> int:
        """How many collectives the program has."""
        return len(self.program.collectives)

    @property
    def described_devices(self) -> str:
        """What it is planned for, in words."""
        return f"mesh {self.plan.mesh}"

    @cached_property
    def _optimized(self) -> tuple[Program, tuple[Saving, ...]]:
        with doing("making the program"):
            return program_of(self.plan, self.hardware, self.passes, self.memory)

    @cached_property
    def cost(self) -> Cost:
        """Predicted seconds, bytes and peak memory of a step on one device."""
        program = self.program
        with doing("pricing a step"):
            return evaluate(program, self.graph, self.hardware)
