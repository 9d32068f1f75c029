"""The fastest pipeline of a training step: choices in the order of expected seconds, but for what a bound excludes."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Protocol, Self, TypeVar

from autoshard.core.enumerate import divisors
from autoshard.ir.graph import DATA, Graph, Node
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.joint.blocks import blocks_of
from autoshard.pipeline.joint.estimate import StageEstimates
from autoshard.pipeline.joint.guided import Expected, GuidedOrder
from autoshard.pipeline.joint.space import BlockWork, StageChoice, choices
from autoshard.pipeline.planned.price import PipelinePrice, times_limit
from autoshard.pipeline.planned.searched import OtherPipeline, StageSearch, fastest_by_groups
from autoshard.pipeline.schedules import SCHEDULES, check, make_schedule
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stages.loss import nodes_of_loss
from autoshard.pipeline.transfers.group import Limits, RankGroup, meshes_label, stacked
from autoshard.search.modes.auto import shapes
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.micro.statistics import BATCH
from autoshard.util.errors import GraphError, MemoryLimitError, PlanError, ScheduleError, StageError
from costmodel import Hardware, format_bytes, preset

MOST_SHAPES = 16
"""Shapes of the meshes of all groups of a choice that are tried at most; of more, groups of one size have one shape."""
MOST_PRICED = 64
"""Pipelines that are planned at most unless one says how many."""
MOST_REFUSED = 128
"""Pipelines that the mode cannot plan, after which a search ends."""
NEAR, DOUBT, MOST_REFINED = 0.04, 0.25, 3
"""By how much, relatively, what was planned quickly may be expected to take longer than the best, to be planned
thoroughly, where groups of as many devices were before and where not; and how many of these there are at most besides
what takes no stages, and without stages."""
FEW = 16
"""Choices that are left, up to which all are planned, whatever is expected of them."""
FAR = 2.0
"""How many times the limit what is expected of a choice may be, to be planned although as many were and none fits."""
MOST_AXES = 2
"""Axes of a stage's mesh."""


@dataclass(frozen=True)
class StageRequest:
    """What is left to the search, and what is not.

    Attributes:
        graph: the training step.
        devices: how many there are.
        micro_batches, schedules: those to choose from; None: divisors of the batch, the named ones.
        limit: bytes of a device; None: no limit, but for `rooms`.
        rooms: bytes of a device of each kind, which hold beside the limit; () for none.
        most: pipelines that are planned at most.
        statistics, loss_pieces: as `transform.micro` takes them.
        kinds: where devices are unlike how many there are of each kind, in the order of ranks, and its name; `hardware`
            has the links that join all then.
    """

    graph: Graph
    devices: int
    hardware: Hardware
    micro_batches: tuple[int, ...] | None = None
    schedules: tuple[str, ...] | None = None
    limit: int | None = None
    most: int = MOST_PRICED
    statistics: str = BATCH
    kinds: tuple[tuple[int, str], ...] = ()
    rooms: tuple[int, ...] = ()
    loss_pieces: int = 1

    def step(self, graph: Graph, micro_batches: int) -> StepParts:
        """A step in so many micro batches.

        Raises:
            GraphError: it cannot be cut so, or has no loss in these pieces then.
        """
        found = StepParts.of(graph, micro_batches, self.statistics, self.loss_pieces)
        nodes_of_loss(found)
        return found

    @property
    def limits(self) -> Limits:
        """Bytes of a device of each kind."""
        rooms = self.rooms or (None,) * max(1, len(self.kinds))
        both = ([one for one in (self.limit, room) if one is not None] for room in rooms)
        return tuple(min(one, default=None) for one in both)

    @property
    def is_limited(self) -> bool:
        """Whether some devices have a limit."""
        return any(one is not None for one in self.limits)

    def limits_of(self, groups: Sequence[RankGroup]) -> Limits:
        """Bytes of a device of each of these groups."""
        if not self.kinds:
            return self.limits * len(groups)
        ends = tuple(itertools.accumulate(count for count, _ in self.kinds))
        return tuple(self.limits[bisect_right(ends, group.ranks[0])] for group in groups)

    @property
    def first(self) -> Hardware:
        """What the first devices are."""
        return preset(self.kinds[0][1]).for_ranks(self.kinds[0][0]) if self.kinds else self.hardware


class PricedPipeline(Protocol):
    """A planned pipeline."""

    @property
    def schedule(self) -> Schedule: ...

    @cached_property
    def price(self) -> PipelinePrice: ...

    def with_schedule(self, schedule: Schedule) -> Self: ...


Found = TypeVar("Found", bound=PricedPipeline)
Planner = Callable[[StepParts, Mapping[Node, int], Schedule, tuple[RankGroup, ...], Limits | None], Found]


def fastest(
    wanted: StageRequest, planned: Planner[Found], quick: Planner[Found] | None = None
) -> tuple[Found, StageSearch]:
    """The pipeline of the fewest predicted seconds that keeps to the limit; of equal ones that with fewest stages.

    Args:
        planned: plans a step whose operators have stages, within so many bytes of a device of each group if it can.
        quick: plans it about as well in far less time; those that may be the best are then planned by `planned`, too.

    Raises:
        MemoryLimitError: none keeps to the limit.
        GraphError: the step cannot be cut into micro batches.
        PlanError, StageError: what stands in the way of the first choice, if none that was tried can be planned.
    """
    return _StageSearch(wanted, planned, quick).run()


def none_keeps(wanted: StageRequest, least: PricedPipeline | int) -> MemoryLimitError:
    """That no pipeline keeps to the limit: that which comes closest, and what is largest there; or how many bytes it
    needs."""
    limit, needed, where = wanted.limits[0] or 0, least, ""
    if not isinstance(least, int):
        memory, order = least.price.memory, least.schedule
        limits = wanted.limits_of(least.price.planned.groups)
        shares = [times_limit(one.nbytes, limit) for one, limit in zip(memory, limits, strict=True)]
        group = max(range(len(memory)), key=shares.__getitem__)
        limit, needed = limits[group] or 0, memory[group].nbytes
        meshes = "/".join(one.label for one in least.price.planned.groups)
        where = f", on {meshes} by {order.name} of {order.micro_batches} micro batches, where "
        where += memory[group].told(group, order.chunks(group))
    assert isinstance(needed, int)
    return MemoryLimitError(
        f"no pipeline of {wanted.graph.name!r} on {wanted.devices} devices that was tried keeps to the memory limit of "
        f"{format_bytes(limit)}: the least that one needs is {format_bytes(needed)}{where}",
        needed=needed,
        limit=limit,
    )


@dataclass(frozen=True)
class _Tried:
    """A choice that was priced on these meshes: seconds by its fastest schedule, or if one keeps to the limit by the
    fastest that does."""

    choice: StageChoice
    groups: tuple[RankGroup, ...]
    seconds: float
    is_over: bool


class _StageSearch(Generic[Found]):
    """One search; its schedules are remembered as long as it is."""

    def __init__(self, wanted: StageRequest, planned: Planner[Found], quick: Planner[Found] | None) -> None:
        self.wanted, self.thorough, self.quick = wanted, planned, quick
        self.planned = quick or planned
        self.steps = _steps(wanted)
        self.blocks = {count: blocks_of(step, wanted.first) for count, step in self.steps.items()}
        self.work = {count: self._work(count) for count in self.steps}
        self.best: Found | None = None
        self.least: tuple[float, Found] | None = None
        self.tried: list[_Tried] = []
        self.orders: dict[tuple, tuple[Schedule, ...]] = {}
        self.estimates = StageEstimates(self.work, self._schedules)
        self.priced = 0
        self.refused: list[PlanError | StageError] = []
        self.others: dict[str, OtherPipeline] = {}

    def run(self) -> tuple[Found, StageSearch]:
        every = list(self._choices())
        order = GuidedOrder(every, self.estimates.seconds)
        one = order.take(math.inf, most_stages=1) or order.take(math.inf)  # first what takes no stages
        left = math.inf
        while one is not None:
            if self._is_enough(*order.expects(one), order.left):
                left = one.least
                break
            prices = [price for groups in self._groups(one.choice) for price in self._price(one.choice, groups)]
            if prices:
                order.learn(one, *min(prices))
            else:
                order.learn_refused(one)
            one = order.take(math.inf if self.best is None else self.best.price.seconds)
        priced = self.priced
        if self.quick is not None:
            self._refine()  # of what has been priced
        if self.best is None:
            self._refuse()
        assert self.best is not None
        left = min((left, *order.least_left))
        bound = min((one.least for one in every), default=math.inf)
        others = fastest_by_groups(self.others.values(), _label(self.best))
        return self.best, StageSearch(self.best.price.seconds, left, bound, priced, len(every), others)

    def _is_enough(self, seconds: float, fullness: float, left: int) -> bool:
        """Whether a choice of which so much is expected, the most promising one of so many that are left, is not to be
        planned. Few are planned all the same, which proves what is best."""
        if self.priced >= self.wanted.most or len(self.refused) >= MOST_REFUSED:
            return self.best is not None or not self.priced or not self.wanted.is_limited or fullness > FAR
        return self.best is not None and seconds >= self.best.price.seconds and left > FEW

    def _choices(self) -> Iterator[Expected]:
        counts = tuple(self.steps)
        fewest = min(counts, key=lambda count: self.blocks[count].count)
        work, devices = self.work[fewest], [count for count, _ in self.wanted.kinds] or [self.wanted.devices]
        limits = [math.inf if one is None else max(1, one) for one in self.wanted.limits]
        for choice in choices(devices, work.whole, counts, most_groups=self.wanted.devices, speeds=work.speeds):
            if self._schedules(choice):
                work = self.work[choice.micro_batches]
                yield Expected(choice, work.least_seconds(choice), *work.expected(choice, limits))

    def _groups(self, choice: StageChoice) -> Iterator[tuple[RankGroup, ...]]:
        """The meshes of the groups, in all shapes."""
        each = [_meshes(size) for size in choice.devices]
        if math.prod(map(len, each)) <= MOST_SHAPES:
            for meshes in itertools.product(*each):
                yield self._laid(meshes, choice)
            return
        sizes = sorted(set(choice.devices))
        for meshes in itertools.product(*(_meshes(size) for size in sizes)):
            of = dict(zip(sizes, meshes, strict=True))
            yield self._laid([of[size] for size in choice.devices], choice)

    def _laid(self, meshes: Sequence[Mesh], choice: StageChoice) -> tuple[RankGroup, ...]:
        """Groups of these meshes on the ranks of their kinds."""
        if not self.wanted.kinds:
            return stacked(meshes)
        free = [0, *itertools.accumulate(count for count, _ in self.wanted.kinds)]
        found = []
        for mesh, kind in zip(meshes, choice.kinds, strict=True):
            start, free[kind] = free[kind], free[kind] + mesh.devices
            found.append(RankGroup(mesh, tuple(range(start, free[kind])), self.wanted.kinds[kind][1]))
        return tuple(found)

    def _schedules(self, choice: StageChoice) -> tuple[Schedule, ...]:
        """The schedules that place stages so."""
        key = len(choice.devices), choice.places, choice.micro_batches
        if key not in self.orders:
            self.orders[key] = tuple(self._placing(*key))
        return self.orders[key]

    def _placing(self, groups: int, places: tuple[int, ...], micro_batches: int) -> Iterator[Schedule]:
        for kind in SCHEDULES.values():
            if self.wanted.schedules is not None and kind.name not in self.wanted.schedules:
                continue
            chunks = len(places) // groups
            if kind.fixed and kind.chunks != chunks:
                continue
            try:
                order = check(make_schedule(kind.name, groups, micro_batches, chunks))
            except ScheduleError:
                continue
            if order.ranks_of_stages == places:
                yield order

    def _price(self, choice: StageChoice, groups: tuple[RankGroup, ...]) -> list[tuple[float, float]]:
        """Plan a choice on its meshes, and keep it by the fastest of its schedules if none before is as fast; seconds
        and fullness by each of them."""
        orders = self._schedules(choice)
        step, stages = self.steps[choice.micro_batches], self.blocks[choice.micro_batches].stages(choice.cuts)
        try:
            first = self.planned(step, stages, orders[0], groups, None)
        except (PlanError, StageError) as error:
            self.refused.append(error)  # a stage that the mode cannot split so, or that reads what a later one makes
            return []
        self.priced += 1
        self.estimates.learn(choice, first.price)
        found, limits = self._by_schedules(first, orders), self.wanted.limits_of(groups)
        if min(full for _, full, _ in found) > 1:
            least = min(found, key=lambda one: one[1])[2]
            found = self._by_schedules(self.planned(step, stages, least, groups, limits), orders)
        over, seconds = min((full > 1, seconds) for seconds, full, _ in found)
        self.tried.append(_Tried(choice, groups, seconds, over))
        return [(seconds, full) for seconds, full, _ in found]

    def _by_schedules(self, planned: Found, orders: Sequence[Schedule]) -> list[tuple[float, float, Schedule]]:
        """Seconds and fullness by each schedule; the fastest that fits is kept if none before was as fast."""
        found, limits = [], self.wanted.limits_of(planned.price.planned.groups)
        for order in orders:
            one = planned if order is planned.schedule else planned.with_schedule(order)
            full = one.price.fullness(limits) if self.wanted.is_limited else 0.0
            if self.least is None or full < self.least[0]:
                self.least = full, one
            found.append((one.price.seconds, full, order))
            is_over, label = full > 1, _label(one)
            self.others[label] = OtherPipeline(label, order.ranks, one.price.seconds, not is_over)
            if is_over:
                continue
            if self.best is None or one.price.seconds < self.best.price.seconds * (1 - 1e-9):
                self.best = one
        return found

    def _refine(self) -> None:
        """Plan what may be the best once more, thoroughly: what takes no stages, then what took the fewest seconds,
        each choice on its best meshes first. Others are expected to take as much less as any that was refined."""
        self.planned, less = self.thorough, 1.0
        refined: set[tuple[int, ...]] = set()
        tried = sorted(self.tried, key=lambda one: (one.is_over, one.seconds))
        whole = _without_stages(tried) or tried[:1]
        meshes, rest = Counter[StageChoice](), []
        for one in (one for one in tried if one not in whole):
            meshes[one.choice] += 1
            rest.append((meshes[one.choice], one))
        others = [one for _, one in sorted(rest, key=lambda pair: pair[0])]
        for number, one in enumerate([*whole, *others[:MOST_REFINED]]):
            near = NEAR if one.choice.devices in refined else DOUBT
            most = math.inf if self.best is None else self.best.price.seconds * (1 + near)
            refined.add(one.choice.devices)
            if number >= len(whole) and (one.seconds * less > most or one.is_over and self.best is not None):
                continue
            if prices := self._price(one.choice, one.groups):
                less = min(less, min(prices)[0] / one.seconds if one.seconds else 1.0)

    def _refuse(self) -> None:
        if not self.priced:
            raise self.refused[0] if self.refused else StageError(f"{self.wanted.graph.name!r} has no such stages")
        assert self.least is not None, "what was priced is the best, or is over the limit"
        raise none_keeps(self.wanted, self.least[1])

    def _work(self, count: int) -> BlockWork:
        """What each block takes on one device of each kind."""
        kinds = [name for _, name in self.wanted.kinds] or [""]
        first, *others = [self._work_on(count, kind) for kind in kinds]
        return replace(first, others=tuple(others))

    def _work_on(self, count: int, kind: str) -> BlockWork:
        """What each block takes on one device, planned alone."""
        blocks, step = self.blocks[count], self.steps[count]
        groups = stacked([Mesh.flat(1)] * blocks.count, [kind] * blocks.count)
        stages = blocks.stages(range(1, blocks.count))
        one = self.planned(step, stages, make_schedule("gpipe", blocks.count, count), groups, None)
        line = one.price.durations
        nbytes = tuple(each.states + each.accumulators for each in one.price.memory)
        kept = tuple(each.activations / count for each in one.price.memory)  # GPipe holds all
        forward, first, second = (
            tuple(map(float, one)) for one in (line.forward, line.input_gradient, line.weight_gradient)
        )
        onward, back = map(float, line.forward_transfers[:-1]), map(float, line.backward_transfers[1:])
        started, update = one.price.started
        actions, sent = (forward, first, second), (tuple(onward), tuple(back))
        return BlockWork(actions, started, update, one.price.updates, nbytes, kept, *sent)


def _label(planned: PricedPipeline) -> str:
    """A pipeline in words: its groups, schedule and micro batches."""
    order, meshes = planned.schedule, meshes_label(planned.price.planned.groups)
    micro = f"{order.micro_batches} micro batch{'es' * (order.micro_batches > 1)}"
    if order.ranks == 1:
        return f"in one piece on {meshes}, {micro}"
    return f"{order.stages} stages on {meshes}, {order.name}, {micro}"


def _without_stages(tried: Sequence[_Tried]) -> list[_Tried]:
    """Of what was priced, the fastest first, what is in one piece and fits: the fastest on each of few meshes."""
    found: dict[Mesh, _Tried] = {}
    for one in tried:
        if len(one.choice.places) == 1 and not one.is_over:
            found.setdefault(one.groups[0].mesh, one)
    return list(found.values())[:MOST_REFINED]


def _meshes(devices: int) -> list[Mesh]:
    return [Mesh.flat(1)] if devices == 1 else list(shapes(devices, MOST_AXES))


def _steps(wanted: StageRequest) -> dict[int, StepParts]:
    """The step in each number of micro batches; without those that have too few rows for statistics of their own, or
    for a loss in pieces.

    Raises:
        GraphError: a number that is given, or all but 1, and the step cannot be cut so.
    """
    found: dict[int, StepParts] = {}
    refused: list[GraphError] = []
    for count in wanted.micro_batches or micro_batch_counts(wanted.graph):
        try:
            found[count] = wanted.step(wanted.graph, count)
        except GraphError as error:
            refused.append(error)
    few_rows = wanted.statistics != BATCH or wanted.loss_pieces != 1
    if refused and (wanted.micro_batches or not few_rows or max(found, default=1) == 1):
        raise refused[0]
    return found


def micro_batch_counts(graph: Graph) -> tuple[int, ...]:
    """Into how many parts the batch of a step can be cut: the divisors of its rows."""
    data = [value for value in graph.inputs if graph.role_of[value] == DATA and value.type.shape]
    return tuple(divisors(data[0].type.shape[0])) if data else (1,)
