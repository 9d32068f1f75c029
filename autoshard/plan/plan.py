"""Plan: what was decided for a graph, beside it. A strategy per operator, a layout per value, each with its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoshard.core.strategy import Strategy
from autoshard.ir.flow import borders, is_nest
from autoshard.ir.graph import Graph, Node, Value, inner_values, walk
from autoshard.ir.trips import runs
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.plan.diff import PlanDiff, diff
from autoshard.util.errors import PlanError

CONFIGURED, PROPAGATED, STARTED, RELEASED, ADOPTED, GIVEN, ASKED, PRICED, IMPROVED = (
    "configured", "propagated", "started", "released", "adopted", "given", "asked", "priced", "improved",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """Why something is as it is.

    kind: configured (a user's shard()), propagated (followed from decided neighbours), started (nothing was configured:
    the search began here), released (decided although some inputs were still open), adopted (a graph input takes the
    layout of its first user), given (the data strategy), asked (the sharding that a person asked for), priced (rules
    are silent or disagree, so costs decided), improved (a local improvement of a whole plan changed it). `neighbours`
    are labels of what it followed from; `lost` tells which asked or propagated splits were left out, and why; `instead`
    what it was chosen over, and what that would cost.
    """

    kind: str
    neighbours: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    instead: str = ""

    def renamed(self, name: Callable[[str], str]) -> Cause:
        """The cause where the neighbours are called otherwise."""
        neighbours = tuple(map(name, self.neighbours))
        return self if neighbours == self.neighbours else replace(self, neighbours=neighbours)

    def __str__(self) -> str:
        followed = f"{self.kind} from {', '.join(self.neighbours)}" if self.neighbours else self.kind
        instead = (f"instead of {self.instead}",) if self.instead else ()
        return "; ".join((followed, *instead, *(f"left out: {one}" for one in self.lost)))


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

    def renamed(self, name: Callable[[str], str]) -> Decision:
        """The decision where the neighbours are called otherwise."""
        cause = self.cause.renamed(name)
        return self if cause is self.cause else replace(self, cause=cause)


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
    """A value that is wanted in another layout than it has; one for all users that want the same.

    `times` tells how often a step does it: more than once where the value is made inside a loop.
    """

    value: Value
    before: Layout
    after: Layout
    users: tuple[Node | None, ...]
    times: int = 1


@dataclass(frozen=True, eq=False)
class Plan:
    """A layout for every value and a strategy for every operator of a graph, those inside of regions too.

    `layouts` tells how each value is left by its producer (or held, for an input); `outputs` how each graph output
    leaves the program. `started_from` says in words where the search began; `compared` has the seconds of whole plans
    that the mode weighed, by what they are; `search_stats` what it knows of the plan as a whole: "seconds", "bound" (no
    plan of the strategies that it considers costs less), "gap" (relative), "proven" (0 or 1), sizes of the problem.
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
    compared: Mapping[str, float] = field(default_factory=dict)
    search_stats: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = [node.label for node in walk(self.graph.nodes) if node not in self.decisions]
        if missing:
            raise PlanError(f"the plan for {self.graph.name!r} has no strategy for {', '.join(missing[:5])}")
        values = (*self.graph.values, *inner_values(self.graph))
        open_values = [value.name for value in values if value not in self.layouts]
        if open_values:
            raise PlanError(f"the plan for {self.graph.name!r} has no layout for {', '.join(open_values[:5])}")

    def strategy(self, node: Node) -> Strategy:
        return self.decisions[node].strategy

    def diff(self, other: Plan) -> PlanDiff:
        """What is different in another plan of the same graph; PlanError if it is of another one."""
        return diff(self, other)

    @cached_property
    def runs(self) -> Mapping[Node, int]:
        """How often each node inside of loops runs in a step; nodes that run once are absent."""
        return runs(self.graph)

    @cached_property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """What must change layout, in order of first use; a copy that several users want is listed once.

        What a loop captures from outside changes layout once, before the loop.
        """
        wanted: dict[tuple[Value, Layout], list[Node | None]] = {}
        for value, layout, user in self._wants():
            if layout is not self.layouts[value]:
                wanted.setdefault((value, layout), []).append(user)
        makers = {value: node for node in walk(self.graph.nodes) for value in _made_at(node)}
        return tuple(
            Redistribution(value, self.layouts[value], layout, tuple(users), self._times(makers.get(value), value))
            for (value, layout), users in wanted.items()
        )

    def _wants(self) -> Iterator[tuple[Value, Layout, Node | None]]:
        """All uses of values: which layout is wanted, and who wants it; None is an output of the graph."""
        for node in walk(self.graph.nodes):
            yield from ((*pair, node) for pair in zip(node.operands, self.strategy(node).operand_layouts, strict=True))
            if is_nest(node):
                for i, region in enumerate(node.regions):
                    ends = borders(node, self.strategy(node), i).yields
                    yield from ((*pair, node) for pair in zip(region.outputs, ends, strict=True))
        yield from ((*pair, None) for pair in zip(self.graph.outputs, self.outputs, strict=True))

    def _times(self, maker: Node | None, value: Value) -> int:
        """How often a value is made in a step."""
        if maker is None:
            return 1
        if value in maker.results:
            return self.runs.get(maker, 1)
        region = next(one for one in maker.regions if value in one.args)
        return self.runs.get(region.nodes[0], 1) if region.nodes else 1


def _made_at(node: Node) -> Iterator[Value]:
    """The results of a node and the arguments of its regions."""
    yield from node.results
    for region in node.regions:
        yield from region.args
