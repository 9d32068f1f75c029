"""What planning a pipeline leads to: the plan of each stage, and the programs that follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Graph, Value, walk
from autoshard.optimize import DEFAULT
from autoshard.pipeline.planned.programs import Maker, Place, Programs
from autoshard.pipeline.planned.searched import StageSearch
from autoshard.pipeline.planned.stage_plan import StageGraph
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stages.whole import ONCE, StagedStep, update_rounds
from autoshard.pipeline.transfers.group import RankGroup, meshes_label
from autoshard.plan.plan import Plan
from autoshard.search.planned import PlannedData
from autoshard.trace.function import Traced
from autoshard.transform.micro.statistics import BATCH
from autoshard.transform.train import accumulated
from costmodel import Hardware

MOST_NAMED = 4
"""Groups whose ranks are named in a line."""


@dataclass(frozen=True, eq=False)
class PipelineData:
    """A training step in stages: each on a group of devices with a plan of its own.

    Attributes:
        traced: the step in one piece.
        whole: all pieces of all stages.
        schedule: who does what when; its ranks are the groups.
        groups: the devices of each rank of the schedule.
        graphs, plans: by stage.
        hardware: by stage, and of all devices.
        searched: how far the search came that found the stages, and what others take, if one did.
    """

    traced: Traced
    whole: StagedStep
    schedule: Schedule
    groups: tuple[RankGroup, ...]
    graphs: tuple[StageGraph, ...]
    plans: tuple[Plan, ...]
    stage_hardware: tuple[Hardware, ...]
    hardware: Hardware
    passes: tuple[str, ...] = DEFAULT
    searched: StageSearch | None = None

    @property
    def graph(self) -> Graph:
        """The step in one piece, as it was cut."""
        return self.whole.pipeline.step.graph

    @property
    def devices(self) -> int:
        """How many devices there are in all."""
        return sum(len(group.ranks) for group in self.groups)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.plans)

    def group_of(self, stage: int) -> RankGroup:
        """The devices of a stage."""
        return self.groups[self.schedule.ranks_of_stages[stage]]

    @cached_property
    def programs(self) -> Programs:
        """The programs of all pieces."""
        groups = [self.group_of(stage) for stage in range(self.stages)]
        return Maker(self.whole, self.graphs, self.plans, groups, self.stage_hardware, self.hardware, self.passes).run()

    def pieces_of(self, group: int) -> list[tuple[Place, int | None]]:
        """What the ranks of a group run in a step, in order, and of which micro batch: once before, the actions of the
        schedule, the update."""
        stages = self.schedule.chunks(group)
        own = {place: one for place, one in self.programs.pieces.items() if place[0] in stages}
        found: list[tuple[Place, int | None]] = [((stage, ONCE), None) for stage in stages if (stage, ONCE) in own]
        for action in self.schedule.orders[group]:
            found += [(place, action.micro) for place in self.programs.places(action)]
        return found + [(place, None) for place in update_rounds(own)]

    def stage_planned(self, number: int) -> PlannedData:
        """What a stage does for one micro batch and once in a step, as one program."""
        return PlannedData(self.traced, self.plans[number], self.stage_hardware[number], self.passes)

    def with_schedule(self, schedule: Schedule) -> Self:
        """The same stages on the same groups in another order."""
        assert schedule.ranks_of_stages == self.schedule.ranks_of_stages, "the stages stay where they are"
        found = replace(self, schedule=schedule)
        found.__dict__["programs"] = self.programs  # these do not depend on the order
        return found

    def result_type(self, value: Value) -> TensorType:
        """The type of the step's output that a value of a stage is, or is a part of."""
        return self.graph.outputs[self.whole.outputs.index(value)].type

    # -- what is told of a run

    @property
    def statistics(self) -> str:
        """Whose statistics the step takes: the batch's, or each micro batch's own."""
        return self.whole.pipeline.step.statistics

    @property
    def loss_pieces(self) -> int:
        """In how many pieces each micro batch has its logits and loss."""
        return self.whole.pipeline.step.loss_pieces

    @cached_property
    def uncut(self) -> Traced | None:
        """The step in one piece, with micro batches where they have statistics of their own; None: `traced` is that."""
        parts = self.schedule.micro_batches
        return None if self.statistics == BATCH else accumulated(self.traced, parts, self.statistics)

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Those of all operators, stage by stage."""
        return tuple(plan.strategy(node) for plan in self.plans for node in walk(plan.graph.nodes))

    @property
    def collectives(self) -> int:
        """How many collectives the programs of all pieces have."""
        return sum(len(one.program.collectives) for one in self.programs.pieces.values())

    def room(self, number: int) -> int:
        """Bytes that a device of a group has."""
        return min(self.stage_hardware[stage].device.memory_bytes for stage in self.schedule.chunks(number))

    @property
    def hardware_label(self) -> str:
        """What the devices are."""
        return ", ".join(dict.fromkeys(one.name for one in self.stage_hardware))

    @property
    def described_devices(self) -> str:
        """What it is planned for, in words."""
        many = len(self.groups) > MOST_NAMED
        groups = meshes_label(self.groups) if many else "; ".join(map(str, self.groups))
        parts = f"{self.schedule.micro_batches} micro batch{'es' * (self.schedule.micro_batches != 1)}"
        return f"{self.stages} stages ({self.schedule.name or 'a schedule'}, {parts}) on {groups}"
