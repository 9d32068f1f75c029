"""The fastest pipeline of a model of many equal layers, which are planned once for each mesh and micro batch.

    choice = groups x their mesh (dp, tp) x rows of a micro batch x named plan x recomputation x schedule and chunks

Best first, in three steps, each with a bound that none of its choices can beat: what layers take on one device, shared
by the tensor axis; what they take there on the tensor axis alone; and the price on the whole mesh, simulated. A micro
batch is no faster with more replicas of its stage, so the second bounds the third.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from autoshard.core.enumerate import divisors
from autoshard.ir.graph import DATA, Graph, Node
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.joint.layer_prices import LAYERS, LayerPrices, PartPrice, layer_prices
from autoshard.pipeline.joint.search import StageSearch
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.schedules import SCHEDULES, make_schedule, schedule_kind
from autoshard.pipeline.schedules.memory import Activations, peak_activations
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.schedules.simulate import Durations, simulate
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.transform.layers import RepeatedLayers
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.recompute import AGAIN, backward_begins, recompute
from autoshard.util.errors import AutoshardError, MemoryLimitError, ScheduleError
from costmodel import Hardware, format_bytes, format_seconds

NONE, FULL = "none", "full"
DATA_PLANS, TENSOR_PLANS = ("data_parallel", "zero1"), ("megatron_sp", "megatron")
MOST_ROWS, MOST_TENSOR, MOST_CHUNKS = 16, 32, 6
"""Rows of a micro batch of one replica, parts of the tensor axis, and stages of a group, that are tried at most."""
WARM = 2
"""Micro batches for each group that are simulated at most, and as many again as there are groups: from there on a
schedule goes on at one pace."""


@dataclass(frozen=True)
class LayeredChoice:
    """A pipeline of equal groups.

    Attributes:
        groups: how many there are, each of `data` x `tensor` devices.
        rows: of the batch in a micro batch of each replica.
        plan: the named plan of each stage.
        recompute: what layers make again, "none" or "full".
    """

    groups: int
    data: int
    tensor: int
    rows: int
    micro_batches: int
    plan: str
    recompute: str = NONE
    schedule: str = "1f1b"
    chunks: int = 1

    @property
    def mesh(self) -> Mesh:
        """That of a group."""
        return mesh_of(self.data, self.tensor)

    def __str__(self) -> str:
        again = ", layers made again" if self.recompute == FULL else ""
        chunks = f" of {self.chunks} chunks" if self.chunks > 1 else ""
        return (
            f"pp={self.groups} dp={self.data} tp={self.tensor}, {self.micro_batches} micro batches of {self.rows} a "
            f"replica, {self.plan}, {self.schedule}{chunks}{again}"
        )


def mesh_of(data: int, tensor: int) -> Mesh:
    """The mesh of a group; axes of one device are left out."""
    sizes = {name: size for name, size in (("dp", data), ("tp", tensor)) if size > 1}
    return Mesh(**(sizes or {"dp": 1}))


def plan_name(data_plan: str, tensor_plan: str, data: int, tensor: int) -> str:
    """The named plan of a group's mesh."""
    if data > 1 and tensor > 1:
        return f"{data_plan}(dp) + {tensor_plan}(tp)"
    return tensor_plan if tensor > 1 else data_plan if data > 1 else DATA_PLANS[0]


@dataclass(frozen=True)
class LayeredPrice:
    """What a choice takes.

    Attributes:
        layers: of each stage.
        seconds: of a step.
        busy: seconds of each group's own work in the schedule.
        nbytes: of one device of each group.
    """

    choice: LayeredChoice
    layers: tuple[int, ...]
    seconds: float
    busy: tuple[float, ...]
    nbytes: tuple[float, ...]

    @property
    def idle(self) -> float:
        """The part of a step, from 0 to 1, for which groups wait or update, in the mean."""
        return 1 - sum(self.busy) / len(self.busy) / self.seconds

    def __str__(self) -> str:
        most = format_bytes(int(max(self.nbytes)))
        counts = f"{min(self.layers)} to {max(self.layers)}" if len(set(self.layers)) > 1 else f"{self.layers[0]}"
        return f"{format_seconds(self.seconds)}, {most}: {self.choice}; {counts} layers a stage"


Planner = Callable[[Graph, StepParts, Mapping[Node, int], Schedule, tuple[RankGroup, ...], str], PipelineData]


@dataclass(frozen=True)
class LayeredRequest:
    """What is left to the search, and what is not.

    Attributes:
        graph: the training step.
        devices: how many there are.
        micro_batches, schedules: those to choose from; None: all.
        limit: bytes of a device; None: no limit.
        recompute: what layers may make again.
        most: meshes that are planned at most.
    """

    graph: Graph
    devices: int
    hardware: Hardware
    micro_batches: tuple[int, ...] | None = None
    schedules: tuple[str, ...] | None = None
    limit: int | None = None
    recompute: tuple[str, ...] = (NONE, FULL)
    most: int = 200


class LayeredSearch:
    """A model of equal layers, the prices of its parts as far as they are known, and the search.

    Args:
        planned: plans a step in stages on groups by a mode.
    """

    def __init__(self, wanted: LayeredRequest, layers: RepeatedLayers, planned: Planner) -> None:
        self.wanted, self.layers, self.planned = wanted, layers, planned
        self._short = {NONE: layers.only(LAYERS)}
        self._parts: dict[tuple[str, int], StepParts] = {}
        self._prices: dict[tuple[int, int, int, str, str], LayerPrices | None] = {}
        self.planned_meshes = 0

    @cached_property
    def batch(self) -> int:
        """Rows of the batch."""
        graph = self.wanted.graph
        return next(v.type.shape[0] for v in graph.inputs if graph.role_of[v] == DATA and v.type.shape)

    @cached_property
    def recomputes(self) -> tuple[str, ...]:
        """What layers may make again; a step that makes something again is left as it is."""
        own = any(value.name.endswith(AGAIN) for node in self._short[NONE].nodes for value in node.results)
        return (NONE,) if own else self.wanted.recompute

    # -- prices of parts

    def prices(self, data: int, tensor: int, rows: int, plan: str, again: str) -> LayerPrices | None:
        """Those of a mesh and micro batch; None where the plan does not fit."""
        key = data, tensor, rows, plan, again
        if key not in self._prices:
            self._prices[key] = self._priced(*key)
        return self._prices[key]

    def _priced(self, data: int, tensor: int, rows: int, plan: str, again: str) -> LayerPrices | None:
        count, left = divmod(self.batch, data * rows)
        if left:
            return None
        self.planned_meshes += 1
        step = self._step(again, count)
        stages, mesh = self._stages(step), mesh_of(data, tensor)
        spans = [span for span, _ in self.wanted.hardware.topology.levels if span is not None]
        far = max([2 * mesh.devices, *(span for span in spans)])
        starts = 0, mesh.devices, -(-far // mesh.devices) * mesh.devices
        groups = tuple(RankGroup(mesh, tuple(range(start, start + mesh.devices))) for start in starts)
        order = make_schedule("gpipe", len(groups), 1)
        try:
            return layer_prices(self.planned(self.short(again), step, stages, order, groups, plan))
        except AutoshardError:
            return None

    def short(self, again: str) -> Graph:
        """The step of few layers, with layers made again or not."""
        if again not in self._short:
            self._short[again] = made_again(replace(self.layers, graph=self._short[NONE]))
        return self._short[again]

    def _step(self, again: str, count: int) -> StepParts:
        key = again, count
        if key not in self._parts:
            self._parts[key] = StepParts.of(self.short(again), count)
        return self._parts[key]

    def _stages(self, step: StepParts) -> dict[Node, int]:
        last = self.layers.count - 1
        nodes = replace(self.layers, graph=step.graph).forward
        return {node: 0 if layer == 0 else 2 if layer == last else 1 for node, layer in nodes}

    # -- prices of choices

    def price(self, choice: LayeredChoice) -> LayeredPrice | None:
        """What a choice takes; None where its plan or its schedule does not fit."""
        parts = self.prices(choice.data, choice.tensor, choice.rows, choice.plan, choice.recompute)
        fits = choice.groups * choice.chunks <= self.layers.count and _exists(choice)
        return None if parts is None or not fits else LayeredStep(choice, parts, self.layers.count, self._span).price

    @property
    def _span(self) -> Sequence[int]:
        return [span for span, _ in self.wanted.hardware.topology.levels if span is not None]

    def run(self) -> tuple[LayeredPrice, StageSearch]:
        """The fastest choice that keeps to the limit, and how far the search came.

        Raises:
            MemoryLimitError: none does.
        """
        waiting: list[tuple[float, int, tuple]] = []
        number = itertools.count()

        def push(least: float, item: tuple) -> None:
            if least < math.inf:
                heapq.heappush(waiting, (least, next(number), item))

        for item in self._space():
            push(self._least_alone(item), item)
        size, bound = len(waiting), waiting[0][0] if waiting else 0.0
        best: LayeredPrice | None = None
        left, smallest = math.inf, math.inf
        while waiting:
            least, _, item = heapq.heappop(waiting)
            if best is not None and least >= best.seconds or self.planned_meshes >= self.wanted.most:
                left = least
                break
            if len(item) == 5:
                for data_plan in DATA_PLANS if item[1] > 1 else DATA_PLANS[:1]:
                    push(self._least_of_tensor(*item, data_plan), (*item, data_plan))
                continue
            groups, data, tensor, rows, (tensor_plan, again), data_plan = item
            plan = plan_name(data_plan, tensor_plan, data, tensor)
            for one in self._scheduled(groups, data, tensor, rows, plan, again, best):
                smallest = min(smallest, max(one.nbytes))
                fits = self.wanted.limit is None or max(one.nbytes) <= self.wanted.limit
                if fits and (best is None or one.seconds < best.seconds):
                    best = one
        if best is None:
            self._refuse(smallest)
        assert best is not None
        return best, StageSearch(best.seconds, left, bound, self.planned_meshes, size)

    def _refuse(self, smallest: float) -> None:
        limit = self.wanted.limit or 0
        least = "" if math.isinf(smallest) else f": the least that one needs is {format_bytes(int(smallest))}"
        raise MemoryLimitError(
            f"no pipeline of {self.wanted.graph.name!r} on {self.wanted.devices} devices that was tried keeps to the "
            f"memory limit of {format_bytes(limit)}{least}",
            needed=0 if math.isinf(smallest) else int(smallest),
            limit=limit,
        )

    def _space(self) -> Iterator[tuple]:
        """Groups, parts of their axes, rows of a micro batch, plan of the tensor axis and what is made again."""
        for groups in divisors(self.wanted.devices):
            each = self.wanted.devices // groups
            if groups > self.layers.count:
                continue
            for tensor in divisors(each):
                data = each // tensor
                for rows in self._rows(data) if tensor <= MOST_TENSOR else ():
                    count = self.batch // (data * rows)
                    if self.wanted.micro_batches is None or count in self.wanted.micro_batches:
                        plans = TENSOR_PLANS if tensor > 1 else TENSOR_PLANS[:1]
                        for kind in itertools.product(plans, self.recomputes):
                            yield groups, data, tensor, rows, kind

    def _rows(self, data: int) -> Iterator[int]:
        """Rows of a replica's micro batch: powers of 2 that divide its rows of the batch."""
        rows = 1
        while rows <= MOST_ROWS and self.batch % (data * rows) == 0:
            yield rows
            rows *= 2

    def _least_alone(self, item: tuple) -> float:
        """Seconds at least, by what parts take on one device; never, where memory cannot do."""
        groups, data, tensor, rows, (_, again) = item
        parts = self.prices(1, 1, rows, DATA_PLANS[0], again)
        if parts is None or self._is_over(parts, DATA_PLANS[-1], groups, data, rows, tensor):
            return math.inf
        return self._least(parts, groups, data, rows, tensor)

    def _least_of_tensor(
        self, groups: int, data: int, tensor: int, rows: int, kind: tuple[str, str], data_plan: str
    ) -> float:
        """Seconds at least, by what parts take on the tensor axis alone; never, where memory cannot do."""
        plan, again = plan_name(DATA_PLANS[0], kind[0], 1, tensor), kind[1]
        parts = self.prices(1, tensor, rows, plan, again)
        if parts is None or self._is_over(parts, data_plan, groups, data, rows):
            return math.inf
        return self._least(parts, groups, data, rows, 1)

    def _is_over(self, parts: LayerPrices, data_plan: str, groups: int, data: int, rows: int, shared: int = 1) -> bool:
        """Whether a device of the first group needs more than it has in any named schedule: parameters lie whole on
        each replica, of ZeRO-1 states of the optimizer in parts, and as many micro batches wait as there are groups."""
        if self.wanted.limit is None:
            return False
        dealt = dealt_to_ranks(parts, self.layers.count, groups, groups - 1)
        stage = _rank_part(parts, dealt, 0, groups, groups - 1)
        split = 1 - 1 / data if data_plan == "zero1" else 0.0
        waiting = min(groups, self.batch // (data * rows)) * stage.kept
        return (stage.states - split * stage.optimizer + waiting) / shared > self.wanted.limit

    def _least(self, parts: LayerPrices, groups: int, data: int, rows: int, shared: int) -> float:
        """Seconds that any schedule takes at least on so many groups: work of the slowest one, layers dealt out as well
        as can be, and the way of the first micro batch to the last group."""
        count = self.batch // (data * rows)
        dealt = dealt_to_ranks(parts, self.layers.count, groups, groups - 1)
        work = max(_rank_part(parts, dealt, rank, groups, groups - 1).seconds for rank in range(groups))
        head = (groups - 1) * parts.layer.forward
        last = _rank_part(parts, dealt, groups - 1, groups, groups - 1).seconds
        return max(count * work, head + count * min(last, work)) / shared

    def _scheduled(
        self, groups: int, data: int, tensor: int, rows: int, plan: str, again: str, best: LayeredPrice | None
    ) -> Iterator[LayeredPrice]:
        """The prices of all schedules that may be faster than the best one so far."""
        parts = self.prices(data, tensor, rows, plan, again)
        if parts is None:
            return
        count = self.batch // (data * rows)
        tried = []
        for name, chunks in self._schedules(groups):
            choice = LayeredChoice(groups, data, tensor, rows, count, plan, again, name, chunks)
            step = LayeredStep(choice, parts, self.layers.count, self._span)
            if _exists(choice):
                tried.append((step.least, step))
        for least, step in sorted(tried, key=lambda pair: pair[0]):
            over = self.wanted.limit is not None and step.least_bytes > self.wanted.limit
            if best is not None and least >= best.seconds or over:
                continue
            yield (one := step.price)
            fits = self.wanted.limit is None or max(one.nbytes) <= self.wanted.limit
            best = one if fits and (best is None or one.seconds < best.seconds) else best

    def _schedules(self, groups: int) -> Iterator[tuple[str, int]]:
        """Names and chunks; on one group they are all alike."""
        for kind in SCHEDULES.values():
            if self.wanted.schedules is not None and kind.name not in self.wanted.schedules:
                continue
            if groups == 1:
                yield from [(kind.name, 1)] if kind.chunks == 1 else []
                if kind.chunks == 1 and self.wanted.schedules is None:
                    return
                continue
            most = min(MOST_CHUNKS, self.layers.count // groups)
            several = range(kind.chunks, most + 1) if not kind.fixed and kind.chunks > 1 else [kind.chunks]
            yield from ((kind.name, chunks) for chunks in several if chunks <= most)


def made_again(layers: RepeatedLayers) -> Graph:
    """The step in which each layer is made again from what enters it ("full" recomputation)."""
    graph, own = layers.graph, dict(layers.forward)
    forward = graph.nodes[: backward_begins(graph)]
    fed = {value for value in graph.inputs if graph.role_of[value] == DATA}
    home = {value: own.get(node) for node in forward for value in node.results}
    leaving = {value for node in forward for value in node.uses if home.get(value) != own.get(node)}
    chosen = []
    for node in forward:
        if any(value in fed for value in node.uses):
            fed.update(node.results)
            if node in own and not node.regions and not node.op.has_effects(node.attrs):
                chosen += [node] if leaving.isdisjoint(node.results) else []
    return recompute(graph, chosen)


def dealt_to_ranks(parts: LayerPrices, layers: int, groups: int, last: int) -> list[int]:
    """Layers of each group, one at least, so that the slowest is as fast as can be; logits lie on group `last`."""
    dealt = [1] * groups
    load = [_rank_part(parts, dealt, rank, groups, last).seconds for rank in range(groups)]
    waiting = [(seconds + parts.layer.seconds, rank) for rank, seconds in enumerate(load)]
    heapq.heapify(waiting)
    for _ in range(layers - groups):
        seconds, rank = waiting[0]
        dealt[rank] += 1
        heapq.heapreplace(waiting, (seconds + parts.layer.seconds, rank))
    return dealt


def _rank_part(parts: LayerPrices, dealt: Sequence[int], rank: int, groups: int, last: int) -> PartPrice:
    return parts.stage(dealt[rank], rank == 0, rank == last)


class LayeredStep:
    """A step of a choice: its stages, simulated.

    Args:
        spans: how many devices lie near each other, at each level.
    """

    def __init__(self, choice: LayeredChoice, parts: LayerPrices, layers: int, spans: Sequence[int]) -> None:
        self.choice, self.parts, self.spans = choice, parts, spans
        self.places = _places(choice)
        self.layers = self._dealt(layers)
        count = len(self.places)
        self.stages = [parts.stage(n, i == 0, i == count - 1) for i, n in enumerate(self.layers)]

    def _dealt(self, layers: int) -> tuple[int, ...]:
        """Layers of each stage: of a group's own as evenly as can be."""
        groups, chunks = self.choice.groups, self.choice.chunks
        most = dealt_to_ranks(self.parts, layers, groups, self.places[-1])
        while any(short := [rank for rank in range(groups) if most[rank] < chunks]):
            most[short[0]] += 1  # each chunk has a layer
            most[max(range(groups), key=most.__getitem__)] -= 1
        seen = [0] * groups
        found = []
        for rank in self.places:
            i = seen[rank]
            found.append(most[rank] * (i + 1) // chunks - most[rank] * i // chunks)
            seen[rank] += 1
        return tuple(found)

    @cached_property
    def work(self) -> list[float]:
        """Seconds of each group's own work on a micro batch."""
        found = [0.0] * self.choice.groups
        for place, stage in zip(self.places, self.stages, strict=True):
            found[place] += stage.seconds
        return found

    def _once(self, name: str) -> list[float]:
        found = [0.0] * self.choice.groups
        for place, stage in zip(self.places, self.stages, strict=True):
            found[place] += getattr(stage, name)
        return found

    @property
    def _rare(self) -> list[float]:
        """Bytes that what is done once in a step takes besides: stages of a group do it in turn."""
        found = [0.0] * self.choice.groups
        for place, stage in zip(self.places, self.stages, strict=True):
            found[place] = max(found[place], stage.once)
        return found

    @cached_property
    def least(self) -> float:
        """Seconds at least: no group begins before its first stage is reached, and where a backward action is whole,
        those of the stages before follow its last one."""
        whole = self.choice.schedule in _WHOLE
        ahead = behind = 0.0
        seen: set[int] = set()
        most = 0.0
        updates = self._once("update")
        for place, stage in zip(self.places, self.stages, strict=True):
            if place not in seen:
                seen.add(place)
                own = self.choice.micro_batches * self.work[place]
                most = max(most, ahead + own + updates[place] + (behind if whole else 0.0))
            ahead += stage.forward
            behind += stage.input_gradient + stage.weight_gradient
        return most + max(self._once("before"))

    @property
    def least_bytes(self) -> float:
        """Bytes at least of the fullest device."""
        sizes = zip(self._once("states"), self._once("kept"), self._rare, strict=True)
        return max(own + max(kept + self.parts.transient, once) for own, kept, once in sizes)

    @cached_property
    def durations(self) -> Durations:
        """Seconds of all actions and messages."""
        onward, back = [0.0] * len(self.places), [0.0] * len(self.places)
        for i, (one, other) in enumerate(itertools.pairwise(self.places)):
            far = not self._near(one, other)
            onward[i], back[i + 1] = self.parts.onward[far], self.parts.back[far]
        forward, first, second = (
            tuple(getattr(stage, name) for stage in self.stages)
            for name in ("forward", "input_gradient", "weight_gradient")
        )
        return Durations(forward, first, second, 0.0, tuple(onward), tuple(back))

    def _near(self, one: int, other: int) -> bool:
        each = self.choice.data * self.choice.tensor
        return any(one * each // span == other * each // span for span in self.spans)

    @cached_property
    def price(self) -> LayeredPrice:
        """The step, simulated; of many micro batches as many as it takes until all groups go on at one pace."""
        choice, groups = self.choice, self.choice.groups
        count = choice.micro_batches
        few = count if count <= (WARM + 2) * groups else WARM * groups + count % groups
        ends, held = self._simulated(few)
        if few < count:
            later, more = self._simulated(few + groups)
            times = (count - few) / groups
            ends = [one + times * (other - one) for one, other in zip(ends, later, strict=True)]
            held = [one + times * (other - one) for one, other in zip(held, more, strict=True)]
        tails = zip(ends, self._once("update"), strict=True)
        seconds = max(self._once("before")) + max(end + update for end, update in tails)
        sizes = zip(self._once("states"), held, self._rare, strict=True)
        nbytes = tuple(own + max(most + self.parts.transient, once) for own, most, once in sizes)
        return LayeredPrice(choice, self.layers, seconds, tuple(count * one for one in self.work), nbytes)

    def _simulated(self, count: int) -> tuple[list[float], list[float]]:
        """When each group has ended, and the bytes of activations that it holds at most."""
        order = _schedule(self.choice.schedule, self.choice.groups, count, self.choice.chunks)
        line = simulate(order, self.durations)
        ends = [max(float(line.ends[action]) for action in some) for some in order.orders]
        kept = [(stage.kept, min(stage.for_weights, stage.kept)) for stage in self.stages]
        held = Activations(tuple(all_ - own for all_, own in kept), tuple(own for _, own in kept))
        return ends, [float(one) for one in peak_activations(order, held)]


_WHOLE = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")
"""Schedules in which the gradients of inputs and weights are one action."""


@lru_cache(maxsize=64)
def _schedule(name: str, groups: int, micro_batches: int, chunks: int) -> Schedule:
    return make_schedule(name, groups, micro_batches, chunks)


def _exists(choice: LayeredChoice) -> bool:
    """Whether there is the schedule for so many groups, micro batches and chunks."""
    kind, groups, count = schedule_kind(choice.schedule), choice.groups, choice.micro_batches
    if kind.fixed and kind.chunks != choice.chunks or count < kind.fewest_per_rank * groups:
        return False
    try:
        _schedule(choice.schedule, groups, min(count, 2 * groups + count % groups), choice.chunks)
    except ScheduleError:
        return False
    return True


def _places(choice: LayeredChoice) -> tuple[int, ...]:
    """The group of each stage."""
    straight = tuple(range(choice.groups))
    if schedule_kind(choice.schedule).v_shaped:
        return (*straight, *reversed(straight))
    return straight * choice.chunks
