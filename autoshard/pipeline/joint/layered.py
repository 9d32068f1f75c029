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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from autoshard.core.enumerate import divisors
from autoshard.core.tensortype import TensorType
from autoshard.cost.prices import prices_for
from autoshard.ir.graph import DATA, PARAMETER, Graph, Node
from autoshard.layout.layout import Layout
from autoshard.pipeline.joint.layer_prices import LAYERS, LayerPrices, layer_prices
from autoshard.pipeline.joint.layered_step import (
    DATA_PARALLEL,
    FULL,
    NONE,
    ZERO1,
    ZERO3,
    LayeredChoice,
    LayeredPrice,
    LayeredStep,
    dealt_to_ranks,
    mesh_of,
    plan_name,
    rank_part,
    schedule_exists,
)
from autoshard.pipeline.joint.search import StageRequest, none_keeps
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.searched import MOST_OTHERS, OtherPipeline, StageSearch, fastest_by_groups
from autoshard.pipeline.schedules import SCHEDULES, make_schedule
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.pipeline.transfers.price import node_spans
from autoshard.transform.layers import RepeatedLayers
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.recompute import AGAIN, backward_begins, recompute
from autoshard.util.errors import AutoshardError, GraphError, StageError

DATA_PLANS, TENSOR_PLANS = (DATA_PARALLEL, ZERO1, ZERO3), ("megatron_sp",)
"""Each needs less memory than the one before it. ZeRO-3 is tried where ZeRO-1 does not fit: it gathers for each micro
batch twice what that gathers once in a step."""
MOST_ROWS, MOST_TENSOR, MOST_CHUNKS = 16, 16, 4
"""Rows of a micro batch of one replica, parts of the tensor axis, and stages of a group, that are tried at most."""
MOST_MESHES = 200
"""Meshes on which layers are planned at most."""

Planner = Callable[[Graph, StepParts, Mapping[Node, int], Schedule, tuple[RankGroup, ...], str], PipelineData]


class LayeredSearch:
    """A model of equal layers, the prices of its parts as far as they are known, and the search.

    Args:
        planned: plans a step in stages on groups by a mode.
    """

    def __init__(self, wanted: StageRequest, layers: RepeatedLayers, planned: Planner) -> None:
        self.wanted, self.layers, self.planned = wanted, layers, planned
        self._short = {NONE: layers.only(LAYERS)}
        self._parts: dict[tuple[str, int], StepParts] = {}
        self._prices: dict[tuple[int, int, int, str, str], LayerPrices | None] = {}
        self._shares: dict[int, float] = {}
        self._refused: list[GraphError] = []
        self.planned_meshes = 0
        self._larger: defaultdict[tuple, float] = defaultdict(lambda: 1.0)
        self._leanest: tuple[float, LayeredChoice | LayeredPrice] | None = None
        self._others: dict[str, OtherPipeline] = {}

    @cached_property
    def batch(self) -> int:
        """Rows of the batch."""
        graph = self.wanted.graph
        return next(v.type.shape[0] for v in graph.inputs if graph.role_of[v] == DATA and v.type.shape)

    @cached_property
    def recomputes(self) -> tuple[str, ...]:
        """What layers may make again; a step that makes something again is left as it is."""
        own = any(value.name.endswith(AGAIN) for node in self._short[NONE].nodes for value in node.results)
        return (NONE,) if own else (NONE, FULL)

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
        try:
            step = self._step(again, count)
        except GraphError as error:
            if self.wanted.loss_pieces == 1:
                raise
            self._refused.append(error)  # other micro batches may have rows enough
            return None
        self.planned_meshes += 1
        stages, mesh = self._stages(step), mesh_of(data, tensor)
        far = max((2 * mesh.devices, *node_spans(self.wanted.hardware)))
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
            self._parts[key] = self.wanted.step(self.short(again), count)
        return self._parts[key]

    def _stages(self, step: StepParts) -> dict[Node, int]:
        last = self.layers.count - 1
        nodes = replace(self.layers, graph=step.graph).forward
        return {node: 0 if layer == 0 else 2 if layer == last else 1 for node, layer in nodes}

    # -- prices of choices

    def price(self, choice: LayeredChoice) -> LayeredPrice | None:
        """What a choice takes; None where its plan or its schedule does not fit."""
        parts = self.prices(choice.data, choice.tensor, choice.rows, choice.plan, choice.recompute)
        if parts is None or choice.groups * choice.chunks > self.layers.count or not schedule_exists(choice):
            return None
        return LayeredStep(choice, parts, self.layers.count, node_spans(self.wanted.hardware)).price

    @property
    def leanest(self) -> LayeredPrice:
        """Of the choices that were over the limit that which needs least, as far as it is known.

        Raises:
            StageError: none was, or it cannot be planned.
        """
        found = None if self._leanest is None else self._leanest[1]
        found = self.price(found) if isinstance(found, LayeredChoice) else found
        if found is None:
            raise StageError(f"no named plan fits the stages of {self.wanted.graph.name!r} on any mesh that was tried")
        return found

    def learn(self, priced: LayeredPrice, nbytes: float) -> None:
        """Expect that all choices of one plan and schedule need as much more as one that is planned whole."""
        kind, most = _kind(priced.choice), max(priced.nbytes)
        self._larger[kind] = max(self._larger[kind], nbytes / most if most else 1.0)

    def run(self) -> tuple[LayeredPrice, StageSearch]:
        """The fastest choice that keeps to the limit, and how far the search came.

        Raises:
            MemoryLimitError: none does.
            StageError: no named plan fits.
        """
        self._leanest = None
        waiting: list[tuple[float, int, tuple]] = []
        number = itertools.count()

        def push(least: float, item: tuple) -> None:
            if least < math.inf:
                heapq.heappush(waiting, (least, next(number), item))

        for item in self._space():
            push(self._least_alone(item), item)
        size, bound = len(waiting), waiting[0][0] if waiting else 0.0
        best: LayeredPrice | None = None
        left = math.inf
        while waiting:
            least, _, item = heapq.heappop(waiting)
            if best is not None and least >= best.seconds or self.planned_meshes >= MOST_MESHES:
                left = least
                heapq.heappush(waiting, (least, next(number), item))
                break
            if len(item) == 5:
                self._push_data_plans(item, push)
                continue
            groups, data, tensor, rows, kind, data_plan = item
            best, over = self._scheduled(item, best)
            if data_plan == ZERO1 and over < math.inf:
                least = self._least_of_tensor(groups, data, tensor, rows, kind, ZERO3)
                push(max(over, least), (groups, data, tensor, rows, kind, ZERO3))
        if best is None and self._leanest is None:
            if self._refused:
                raise self._refused[0]
            raise StageError(f"no named plan fits the stages of {self.wanted.graph.name!r} on any mesh that was tried")
        if best is None:
            assert self._leanest is not None
            raise none_keeps(self.wanted, int(self._leanest[0]))
        priced = self.planned_meshes
        self._price_others(waiting)
        others = fastest_by_groups(self._others.values(), str(best.choice))
        return best, StageSearch(best.seconds, left, bound, priced, size, others)

    def _price_others(self, waiting: list[tuple[float, int, tuple]]) -> None:
        """Of numbers of groups of which nothing that fits is priced what promises most, to tell what it takes: few, as
        each mesh has to be planned."""
        known, most = self._known_groups(), min(MOST_MESHES, self.planned_meshes + MOST_OTHERS)
        number = itertools.count(waiting[-1][1] + len(waiting) + 1) if waiting else itertools.count()

        def push(least: float, item: tuple) -> None:
            if least < math.inf:
                heapq.heappush(waiting, (least, next(number), item))

        while waiting and len(known) < MOST_OTHERS and self.planned_meshes < most:
            _, _, item = heapq.heappop(waiting)
            if item[0] in known:
                continue
            if len(item) == 5:
                self._push_data_plans(item, push)
                continue
            self._scheduled(item, None)
            known = self._known_groups()

    def _known_groups(self) -> set[int]:
        return {one.groups for one in self._others.values() if one.fits}

    def _note(self, nbytes: float, of: LayeredChoice | LayeredPrice) -> None:
        if self._leanest is None or nbytes < self._leanest[0]:
            self._leanest = nbytes, of

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
        if parts is None or self._is_over(parts, self._choice((*item, DATA_PLANS[-1])), DATA_PLANS[-1], tensor):
            return math.inf
        return self._least(parts, groups, data, rows, tensor)

    def _least_of_tensor(
        self, groups: int, data: int, tensor: int, rows: int, kind: tuple[str, str], data_plan: str
    ) -> float:
        """Seconds at least, by what parts take on the tensor axis alone; never, where memory cannot do."""
        plan, again = plan_name(DATA_PLANS[0], kind[0], 1, tensor), kind[1]
        parts = self.prices(1, tensor, rows, plan, again)
        choice = self._choice((groups, data, tensor, rows, kind, data_plan))
        if parts is None or self._is_over(parts, choice, data_plan):
            return math.inf
        least = self._least(parts, groups, data, rows, 1)
        if data_plan != ZERO3:
            return least
        # A group of the most layers gathers their weights forward and, but for its first layer, backward.
        passes = 2 * -(-self.layers.count // groups) - 1
        return max(least, self.batch // (data * rows) * passes * self._gathering(data, tensor, rows))

    def _gathering(self, data: int, tensor: int, rows: int) -> float:
        """Seconds for which ZeRO-3 moves at least for a pass of a micro batch through a layer: the layer's weights, or
        where that is less what they multiply."""
        graph = self.wanted.graph
        shape = next(v.type.shape for v in graph.inputs if graph.role_of[v] == DATA and v.type.shape)
        tokens = data * rows * math.prod(shape[1:2])
        own = (
            v.type.shape for v in graph.inputs if graph.role_of[v] == PARAMETER and self.layers.layer_of(v.name) == 1
        )
        weights = sum(min(math.prod(one), tokens * min(one)) for one in own if len(one) > 1)
        narrow = min(v.type.dtype.itemsize for n in graph.nodes for v in n.results if v.type.dtype.is_float)
        mesh = mesh_of(data, tensor)
        of = TensorType.of((weights * narrow // (2 * tensor * data) * data,), "bf16")
        split, whole = Layout(mesh, ((mesh.axis("dp"),),)), Layout.replicated(mesh, 1)
        return prices_for(self.wanted.hardware).redistribution(split, whole, of)

    def _choice(self, item: tuple, schedule: str = "1f1b", chunks: int = 1) -> LayeredChoice:
        groups, data, tensor, rows, (tensor_plan, again), data_plan = item
        plan, count = plan_name(data_plan, tensor_plan, data, tensor), self.batch // (data * rows)
        return LayeredChoice(groups, data, tensor, rows, count, plan, again, schedule, chunks)

    def _is_over(self, parts: LayerPrices, choice: LayeredChoice, data_plan: str, shared: int = 1) -> bool:
        """Whether a device of the first group needs more than it has in any named schedule: parameters lie whole on
        each replica, of ZeRO-1 states of the optimizer in parts, of ZeRO-3 all that is held, and as many micro batches
        wait as there are groups. What an action takes besides is known where the tensor axis is (`shared` is 1)."""
        if self.wanted.limit is None:
            return False
        groups = choice.groups
        dealt = dealt_to_ranks(parts, self.layers.count, groups, groups - 1)
        stage = rank_part(parts, dealt, 0, groups, groups - 1)
        parted = {ZERO1: stage.optimizer, ZERO3: stage.states}.get(data_plan, 0.0) * self._parted(choice.data)
        waiting = min(groups, choice.micro_batches) * stage.kept
        held = (stage.states - parted + waiting) / shared + (parts.transient if shared == 1 else 0.0)
        if held > self.wanted.limit:
            self._note(held, choice)
        return held > self.wanted.limit

    def _parted(self, data: int) -> float:
        """The share of states that a rank is without at most, if so many replicas hold them in parts: of parameters of
        which they divide a dim; of layers, or of what lies around them, whichever is more."""
        if data not in self._shares:
            whole, split = Counter[bool](), Counter[bool]()
            graph = self.wanted.graph
            for value in (one for one in graph.inputs if graph.role_of[one] == PARAMETER):
                is_layer = self.layers.layer_of(value.name) is not None
                whole[is_layer] += value.type.elements
                split[is_layer] += value.type.elements * any(size % data == 0 for size in value.type.shape)
            self._shares[data] = max(split[one] / whole[one] for one in whole) * (1 - 1 / data)
        return self._shares[data]

    def _least(self, parts: LayerPrices, groups: int, data: int, rows: int, shared: int) -> float:
        """Seconds that any schedule takes at least on so many groups: work of the slowest one, layers dealt out as well
        as can be, and the way of the first micro batch to the last group."""
        count = self.batch // (data * rows)
        dealt = dealt_to_ranks(parts, self.layers.count, groups, groups - 1)
        most = max(range(1, groups - 1), key=dealt.__getitem__, default=0)
        work = max(rank_part(parts, dealt, rank, groups, groups - 1).seconds for rank in {0, most, groups - 1})
        head = (groups - 1) * parts.layer.forward
        last = rank_part(parts, dealt, groups - 1, groups, groups - 1).seconds
        return max(count * work, head + count * min(last, work)) / shared

    def _push_data_plans(
        self, item: tuple[int, int, int, int, tuple[str, str]], push: Callable[[float, tuple], None]
    ) -> None:
        for data_plan in DATA_PLANS if item[1] > 1 else DATA_PLANS[:1]:
            least = self._least_of_tensor(*item, data_plan)
            push(least, (*item, data_plan))
            if data_plan == ZERO1 and least < math.inf:
                return

    def _scheduled(self, item: tuple, best: LayeredPrice | None) -> tuple[LayeredPrice | None, float]:
        """The fastest of the schedules and of the best one so far, and the least seconds of what has no room."""
        choices = [self._choice(item, name, chunks) for name, chunks in self._schedules(item[0])]
        one = self._choice(item)
        parts = self.prices(one.data, one.tensor, one.rows, one.plan, one.recompute)
        if parts is None:
            return best, math.inf
        without_room, spans = math.inf, node_spans(self.wanted.hardware)
        steps = [LayeredStep(one, parts, self.layers.count, spans) for one in choices if schedule_exists(one)]
        for step in sorted(steps, key=lambda step: step.least):
            if best is not None and step.least >= best.seconds:
                break
            if not self._fits([step.least_bytes]):
                self._note(step.least_bytes, step.choice)
                without_room = min(without_room, step.least)
                continue
            one = step.price
            nbytes = max(one.nbytes) * self._larger[_kind(one.choice)]
            self._note(nbytes, one)
            fits, label = self._fits([nbytes]), str(one.choice)
            self._others[label] = OtherPipeline(label, one.choice.groups, one.seconds, fits)
            if not fits:
                without_room = min(without_room, one.seconds)
            elif best is None or one.seconds < best.seconds:
                best = one
        return best, without_room

    def _fits(self, nbytes: Sequence[float]) -> bool:
        return self.wanted.limit is None or max(nbytes) <= self.wanted.limit

    def _schedules(self, groups: int) -> Iterator[tuple[str, int]]:
        """Names and chunks. On one group all take equally long; 1F1B holds one micro batch there, and GPipe all."""
        if groups == 1:
            names = self.wanted.schedules or ("1f1b",)
            yield from ((name, 1) for name in names if SCHEDULES[name].chunks == 1)
            return
        for kind in SCHEDULES.values():
            if self.wanted.schedules is not None and kind.name not in self.wanted.schedules:
                continue
            most = min(MOST_CHUNKS, self.layers.count // groups)
            several = range(kind.chunks, most + 1) if not kind.fixed and kind.chunks > 1 else [kind.chunks]
            yield from ((kind.name, chunks) for chunks in several if chunks <= most)


def _kind(choice: LayeredChoice) -> tuple:
    return choice.plan, choice.recompute, choice.schedule


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
