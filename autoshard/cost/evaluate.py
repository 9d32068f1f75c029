"""What a plan costs. `evaluate_plan(plan, hardware)` is the one judge of all search modes, and lowers nothing.

    seconds = work of each operator under its strategy
            + a redistribution for each layout in which a value is wanted but not left, paid once however many want it,
              outputs of the graph included, from the layout that the value is left in
            + where a result is pinned to another layout than its operator leaves, the redistribution to it.

`evaluate(program, graph, hardware)` prices the program that lowering and the passes made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.cost.instructions import Costs
from autoshard.cost.links import LinkPrices
from autoshard.cost.memory import MemoryUse, memory_of
from autoshard.cost.prices import Prices, prices_for
from autoshard.cost.program_memory import program_memory
from autoshard.cost.timeline import step_seconds, waiting_seconds
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Graph, Node, walk
from autoshard.layout.layout import Layout
from autoshard.partition.bundling import latency_shares
from autoshard.partition.manual_step import ManualStep
from autoshard.partition.program import Bundle, Collective, Compute, ManualCollective, Program, timed
from autoshard.partition.program import walk as walk_program
from autoshard.partition.traffic import bytes_sent
from autoshard.partition.windows import exchange_steps
from autoshard.plan.plan import Plan
from autoshard.redistribute.planner import evened, is_cut, plan_steps
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep
from autoshard.util.gc_paused import gc_paused
from costmodel import Hardware

Move = tuple[tuple[Layout, Layout, TensorType, float], int]
Counted = tuple[Step | WindowStep | ManualStep, TensorType, int, float]
"""A step, the type of the whole tensor, how often it is done in one step of the program, and which share of its time it
takes: less than 1 where it is done together with others."""


@dataclass(frozen=True)
class AxisCost:
    """What the collectives over some mesh axes ("tp", or "dp.tp" where they run over both at once) take in a step."""

    axes: str
    seconds: float
    nbytes: float
    collectives: int


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one step on one device: computing, communication, what of it hides behind computing, and how
    long the device waits for the host that starts all of it.

    `axes` splits the communication by the mesh axes that it runs over, in mesh order. `memory` tells what lies in
    memory when; its peak is `peak_memory_bytes`.
    """

    compute_seconds: float
    communication_seconds: float
    bytes_per_device: float
    peak_memory_bytes: int
    axes: tuple[AxisCost, ...] = ()
    memory: MemoryUse | None = field(default=None, compare=False, repr=False)
    hidden_seconds: float = 0.0
    waiting_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds - self.hidden_seconds + self.waiting_seconds


def evaluate_plan(plan: Plan, hardware: Hardware, prices: Prices | None = None) -> Cost:
    """Price a plan without lowering it: the sum in this module's text, and `peak_memory` of the plan.

    Args:
        hardware: whose times, made for the plan's number of ranks (`Hardware.for_ranks`).
        prices: of that hardware, where the caller has some at hand.
    """
    prices = prices or prices_for(hardware)
    moves, nodes = list(moves_of(plan)), _working(plan)
    work = sum(times * prices.local_work(node, strategy) for node, strategy, times in nodes)
    talk = sum(times * prices.redistribution(*of) for of, times in moves)
    talk += sum(times * prices.exchange(node, strategy) for node, strategy, times in nodes)
    axes, memory = _by_axes(_all_steps(moves, nodes), prices), memory_of(plan)
    return Cost(work, talk, sum(one.nbytes for one in axes), memory.peak, axes, memory)


def plan_seconds(plan: Plan, prices: Prices) -> float:
    """`evaluate_plan(...).seconds` and nothing else."""
    return redistribution_seconds(plan, prices) + operator_seconds(plan, prices)


def operator_seconds(plan: Plan, prices: Prices) -> float:
    """What of that the operators take."""
    return sum(times * prices.work(node, strategy) for node, strategy, times in _working(plan))


def redistribution_seconds(plan: Plan, prices: Prices) -> float:
    """What of that the redistributions take."""
    return sum(times * prices.redistribution(*of) for of, times in moves_of(plan))


def sending_seconds(plan: Plan, prices: Prices) -> float:
    """What the redistributions take beside the latency of their links."""
    return sum(
        times * prices.redistribution(before, after, of, 0.0) for (before, after, of, _), times in moves_of(plan)
    )


def moves_of(plan: Plan) -> Iterator[Move]:
    """The redistributions that a plan pays for, each once: before, after, the value's type, its share of the latency
    (`bundling.latency_shares`), and how often in a step."""
    shares = latency_shares(plan.graph)
    for one in plan.redistributions:
        yield (one.before, one.after, one.value.type, shares.get(one.value, 1.0)), one.times
    for node in walk(plan.graph.nodes):
        for value, layout in zip(node.results, plan.strategy(node).result_layouts, strict=True):
            if layout is not plan.layouts[value]:
                yield (layout, plan.layouts[value], value.type, shares.get(value, 1.0)), plan.runs.get(node, 1)


def _working(plan: Plan) -> list[tuple[Node, Strategy, int]]:
    """The nodes that compute themselves, those inside of loops and branches too, and how often in a step."""
    nodes = (node for node in walk(plan.graph.nodes) if not is_nest(node))
    return [(node, plan.strategy(node), plan.runs.get(node, 1)) for node in nodes]


def _all_steps(moves: Iterable[Move], nodes: Iterable[tuple[Node, Strategy, int]]) -> Iterator[Counted]:
    for (before, after, of, _), times in moves:
        even = of if of.shape == (shape := evened(before, after, of.shape)) else of.with_shape(shape)
        yield from ((step, even, times, 1.0) for step in _steps(before, after, of))
    for node, strategy, times in nodes:
        yield from ((step, of, times, 1.0) for step, of in exchange_steps(node, strategy))


def _steps(before: Layout, after: Layout, of: TensorType) -> tuple[Step, ...]:
    return () if is_cut(before, after) else plan_steps(before, after, of.shape)


@gc_paused()
def evaluate(program: Program, graph: Graph, hardware: Hardware) -> Cost:
    """The price of a program, the one number that is told of a plan: the seconds of its timeline, and its memory.

    Args:
        graph: what the program was lowered from, which tells what its inputs are.
        hardware: whose times, made for the program's number of ranks (`Hardware.for_ranks`).
    """
    costs = prices_for(hardware).instructions
    total = costs.total(program.instructions)
    waiting = waiting_seconds(program, costs)
    hidden = max(0.0, total.seconds + waiting - step_seconds(program, costs))
    memory, axes = program_memory(program, graph), _by_axes(_program_steps(program, costs), costs.links)
    return Cost(total.computing, total.talking, bytes_sent(program), memory.peak, axes, memory, hidden, waiting)


def program_seconds(program: Program, hardware: Hardware) -> float:
    """`evaluate(...).seconds` and nothing else."""
    return step_seconds(program, prices_for(hardware).instructions)


def _program_steps(program: Program, costs: Costs) -> Iterator[Counted]:
    shares = bundle_shares(program, costs)
    for one, times in timed(program.instructions):
        if isinstance(one, Collective | ManualCollective) and one.step.communicates:
            yield one.step, one.of, times, shares.get(one, 1.0)


def bundle_shares(program: Program, costs: Costs) -> dict[Collective | ManualCollective, float]:
    """For collectives done together: the time of the bundle to that of its parts one by one."""
    found: dict[Collective | ManualCollective, float] = {}
    for bundle in walk_program(program.instructions):
        if isinstance(bundle, Bundle):
            alone = sum(costs.of(one).talking for one in bundle.parts)
            found.update(dict.fromkeys(bundle.parts, costs.of(bundle).talking / alone if alone else 1.0))
    return found


def seconds_of_nodes(program: Program, costs: Costs) -> dict[Node, float]:
    """What each node of the graph computes in a step of the program, and what collectives do that it says itself."""
    found: dict[Node, float] = {}
    for one, times in timed(program.instructions):
        if isinstance(one, Compute):
            node, seconds = one.composite or one.node, costs.of(one).computing
        elif isinstance(one, ManualCollective):
            node, seconds = one.node, costs.of(one).talking
        else:
            continue
        found[node] = found.get(node, 0.0) + times * seconds
    return found


def axes_of(step: Step | WindowStep | ManualStep) -> tuple[str, ...]:
    """The mesh axes that a step's collective runs over, in mesh order."""
    names = {ref.name for ref in step.axes}
    return tuple(name for name, _ in step.before.mesh.axes if name in names)


def _by_axes(steps: Iterable[Counted], links: LinkPrices) -> tuple[AxisCost, ...]:
    found: dict[tuple[str, ...], list[tuple[float, float, int]]] = {}
    order: dict[str, int] = {}
    for step, of, times, share in steps:
        if not step.communicates:
            continue
        order = order or {name: i for i, (name, _) in enumerate(step.before.mesh.axes)}
        names = axes_of(step)
        nbytes = step.elements_moved(of.shape) * of.dtype.itemsize
        found.setdefault(names, []).append((times * share * links.step(step, of), times * nbytes, times))
    ordered = sorted(found, key=lambda names: [order[name] for name in names])
    return tuple(_axis_cost(".".join(names), found[names]) for names in ordered)


def _axis_cost(axes: str, priced: Sequence[tuple[float, float, int]]) -> AxisCost:
    seconds, nbytes, times = zip(*priced, strict=True)
    return AxisCost(axes, sum(seconds), sum(nbytes), sum(times))
