"""Plan: what was decided for a graph, beside it. A strategy per operator, a layout per value, each with its cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.errors import PlanError
from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.strategy import Strategy

CONFIGURED, PROPAGATED, STARTED, RELEASED, ADOPTED, GIVEN = (
    "configured", "propagated", "started", "released", "adopted", "given",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """Why something is as it is.

    kind: configured (a user's shard()), propagated (followed from decided neighbours), started (nothing was configured:
    the search began here), released (decided although some inputs were still open), adopted (a graph input takes the
    layout of its first user), given (the data strategy), asked (the sharding that a person asked for). `neighbours` are
    labels of what it followed from; `lost` tells which asked or propagated splits were left out, and why.
    """

    kind: str
    neighbours: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        followed = f"{self.kind} from {', '.join(self.neighbours)}" if self.neighbours else self.kind
        return "; ".join((followed, *(f"left out: {one}" for one in self.lost)))


@dataclass(frozen=True)
class Option:
    """A strategy and what it costs at the moment of decision, in seconds per step.

    edge_seconds: redistributions to and from decided neighbours; completion_seconds: completing partial results that
    no decided neighbour takes; work_seconds: the operator itself on one rank. `collectives` counts the edges' ones.
    """

    strategy: Strategy
    edge_seconds: float
    completion_seconds: float
    work_seconds: float
    collectives: int = 0


@dataclass(frozen=True)
class Decision:
    """A node's chosen option, why, and the best of those that were not chosen."""

    chosen: Option
    cause: Cause
    alternatives: tuple[Option, ...] = ()

    @property
    def strategy(self) -> Strategy:
        return self.chosen.strategy


@dataclass(frozen=True)
class Conflict:
    """Two configured operators that want one value in different layouts, and what the difference costs per step."""

    value: str
    producer: str
    consumer: str
    before: Layout
    after: Layout
    nbytes: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.producer} leaves {self.value} as [{self.before}], {self.consumer} wants [{self.after}]: "
            f"{self.nbytes:.0f} bytes per device, {self.seconds * 1e6:.1f} us a step"
        )


@dataclass(frozen=True)
class Redistribution:
    """A value that is wanted in another layout than it has; one for all users that want the same."""

    value: Value
    before: Layout
    after: Layout
    users: tuple[Node | None, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """A layout for every value and a strategy for every operator of a graph.

    `layouts` tells how each value is left by its producer (or held, for an input); `outputs` how each graph output
    leaves the program. `started_from` says in words where the search began.
    """

    graph: Graph
    mesh: Mesh
    decisions: Mapping[Node, Decision]
    layouts: Mapping[Value, Layout]
    outputs: tuple[Layout, ...]
    input_causes: Mapping[Value, Cause] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()
    started_from: str = ""
    search: str = ""

    def __post_init__(self) -> None:
        missing = [node.label for node in self.graph.nodes if node not in self.decisions]
        if missing:
            raise PlanError(f"the plan for {self.graph.name!r} has no strategy for {', '.join(missing[:5])}")
        open_values = [value.name for value in self.graph.values if value not in self.layouts]
        if open_values:
            raise PlanError(f"the plan for {self.graph.name!r} has no layout for {', '.join(open_values[:5])}")

    def strategy(self, node: Node) -> Strategy:
        return self.decisions[node].strategy

    @cached_property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """What must change layout, in order of first use; a copy that several users want is listed once."""
        wanted: dict[tuple[Value, Layout], list[Node | None]] = {}
        for node in self.graph.nodes:
            for value, layout in zip(node.operands, self.strategy(node).operand_layouts, strict=True):
                if layout is not self.layouts[value]:
                    wanted.setdefault((value, layout), []).append(node)
        for value, layout in zip(self.graph.outputs, self.outputs, strict=True):
            if layout is not self.layouts[value]:
                wanted.setdefault((value, layout), []).append(None)
        return tuple(
            Redistribution(value, self.layouts[value], layout, tuple(users))
            for (value, layout), users in wanted.items()
        )
