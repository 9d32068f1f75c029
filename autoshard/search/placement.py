"""The option placement="search" of every mode: which axes of the mesh lie on which links.

A mesh's last axis joins the nearest devices, as long as it has no device order. Here each axis may lie anywhere: an
order of the axes, from the widest apart to the nearest, is a device order of the same mesh. Meshes with few orders that
differ by their links are planned in all of them, and the cheapest plan is taken. Of more, the order is searched in
which the collectives of the best plan so far take least time (`best_order`, exact), and planned in turn, until a plan
gets no cheaper. The plan's mesh has the device order, and its `compared` the seconds of each order that was planned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.cost.instructions import BundleSize, Costs
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import Groups, Mesh
from autoshard.partition.program import Bundle, Collective, Instruction, ManualCollective, Nest, Program, Start
from autoshard.plan.plan import Plan
from autoshard.redistribute.window import WindowStep
from autoshard.search.problem import Problem
from autoshard.search.program_price import price_of, program_of, retold
from autoshard.util.errors import PlanError
from costmodel import Topology, group_levels, grouped_seconds

PLACEMENT, SEARCH = "placement", "search"
PLANNED = 6
"""So many orders that differ by their links are all planned: those of three axes."""
ROUNDS = 4
"""How often a better order is looked for at most."""
BOUNDED = 4096
"""So many ways in which the axes of some collectives can lie are tried for a bound on their time."""

Order = tuple[str, ...]
"""The axes of a mesh from the one whose neighbours are the farthest apart to the one whose are the nearest."""
Steps = tuple[tuple[int, int], ...]


def mesh_in(mesh: Mesh, order: Sequence[str]) -> Mesh:
    """The mesh with the device order in which its axes lie so.

    >>> mesh_in(Mesh(dp=2, tp=2), ("tp", "dp"))
    Mesh(dp=2 tp=2 order=0.2.1.3)
    """
    whole = [name for name in mesh.names if name not in order]  # axes of size 1 lie anywhere
    outermost = [*whole, *order]
    grid = np.arange(mesh.devices).reshape([mesh.sizes[name] for name in outermost])
    return Mesh(mesh.axes, grid.transpose([outermost.index(name) for name in mesh.names]).reshape(-1).tolist())


def orders(mesh: Mesh) -> Iterator[Order]:
    """All orders of the axes that have several parts; the mesh's own first."""
    return itertools.permutations(ref.name for ref in mesh.all_axes)


@dataclass(frozen=True)
class AxisTraffic:
    """What the ranks of a program send along the same axes: kind, bytes as `grouped_seconds` has them, how often."""

    refs: Refs
    sent: tuple[tuple[str, float, float], ...]

    def seconds(self, levels: Sequence) -> float:
        return sum(times * grouped_seconds(kind, nbytes, levels) for kind, nbytes, times in self.sent)


def traffic_of(program: Program, costs: Costs) -> list[AxisTraffic]:
    """The collectives of one step of a program, by their axes; those that no axes tell (listed groups) left out."""
    found: dict[Refs, list[tuple[str, float, float]]] = {}
    for refs, kind, nbytes, times in _sent(program.instructions, costs, 1):
        found.setdefault(refs, []).append((kind, nbytes, times))
    return [AxisTraffic(refs, tuple(sent)) for refs, sent in found.items()]


def _sent(instructions: Iterable[Instruction], costs: Costs, times: int) -> Iterator[tuple[Refs, str, float, float]]:
    for one in instructions:
        done = one.of if isinstance(one, Start) else one
        if isinstance(done, Nest):
            for body in done.bodies:
                yield from _sent(body.instructions, costs, times * done.trips)
        elif isinstance(done, Bundle):
            size = BundleSize()
            for part in done.parts:
                size = size.plus(costs.size(part))
            yield from _message(done.parts[0], size.sent, times)
        elif isinstance(done, Collective | ManualCollective) and done.step.communicates:
            yield from _message(done, done.step.nbytes_priced(done.of.shape, done.of.dtype.itemsize), times)


def _message(one: Collective | ManualCollective, nbytes: float, times: int) -> Iterator[tuple[Refs, str, float, float]]:
    step, groups = one.step, one.step.groups
    if not isinstance(groups, Groups):
        return
    if isinstance(step, WindowStep):
        yield groups.refs, "permute", nbytes / step.messages, times * step.messages
    elif step.rounds > 1:
        yield groups.refs, step.kind, nbytes / step.rounds, times * step.messages
    else:
        yield groups.refs, step.kind, nbytes, times


def best_order(traffic: Sequence[AxisTraffic], mesh: Mesh, topology: Topology) -> tuple[Order, float]:
    """The order of axes in which the traffic takes least time, and that time: proven by branch and bound.

    Axes are laid from the innermost out. What is sent along axes is known once all of them lie; of the rest a bound is.
    Of two ways to lay the same axes that leave open traffic alike only the cheaper is followed.
    """
    return _Orders(traffic, mesh, topology).run()


def order_seconds(traffic: Sequence[AxisTraffic], mesh: Mesh, topology: Topology, order: Order) -> float:
    """The time that the traffic takes in an order."""
    search = _Orders(traffic, mesh, topology)
    strides = search.strides(order)
    return sum(search.seconds(i, strides) for i in range(len(traffic)))


class _Orders:
    def __init__(self, traffic: Sequence[AxisTraffic], mesh: Mesh, topology: Topology) -> None:
        self.traffic, self.mesh, self.topology = traffic, mesh, topology
        self.axes = tuple(ref.name for ref in mesh.all_axes)
        self.names = [tuple(dict.fromkeys(ref.name for ref in one.refs)) for one in traffic]
        self.known: dict[tuple[int, Steps], float] = {}
        self.seen: dict[tuple, float] = {}
        self.best: tuple[float, Order] = (math.inf, self.axes)

    def strides(self, order: Order) -> dict[str, int]:
        found, stride = {}, 1
        for name in reversed(order):
            found[name] = stride
            stride *= self.mesh.sizes[name]
        return found

    def seconds(self, i: int, strides: Mapping[str, int]) -> float:
        """What one kind of traffic takes where its axes lie so."""
        sizes = self.mesh.sizes
        steps = tuple((ref.size, strides[ref.name] * (sizes[ref.name] // ref.next)) for ref in self.traffic[i].refs)
        key = i, steps
        if key not in self.known:
            self.known[key] = self.traffic[i].seconds(group_levels(self.topology, steps))
        return self.known[key]

    def run(self) -> tuple[Order, float]:
        self.bounds = [self._bound(i) for i in range(len(self.traffic))]
        self._lay((), {}, 1, 0.0)
        return self.best[1], self.best[0]

    def _bound(self, i: int) -> float:
        """The least time of one kind of traffic, wherever its axes lie."""
        names = self.names[i]
        choices = [self._possible(name) for name in names]
        if math.prod(map(len, choices)) > BOUNDED:
            return 0.0
        inner = itertools.product(*choices)
        known = (dict(zip(names, strides, strict=True)) for strides in inner)
        return min((self.seconds(i, strides) for strides in known if self._apart(strides)), default=0.0)

    def _possible(self, name: str) -> list[int]:
        """The strides that an axis can have: the sizes of some of the others, multiplied."""
        found = {1}
        for other in self.axes:
            found |= {stride * self.mesh.sizes[other] for stride in found} if other != name else set()
        return sorted(found)

    def _apart(self, strides: Mapping[str, int]) -> bool:
        """Whether axes with these strides do not reach into each other or beyond the mesh."""
        reach = 1
        for name in sorted(strides, key=strides.__getitem__):
            if strides[name] < reach:
                return False
            reach = strides[name] * self.mesh.sizes[name]
        return reach <= self.mesh.devices

    def _lay(self, inner: Order, strides: dict[str, int], stride: int, spent: float) -> None:
        """All ways to lay the rest outside of what lies already."""
        if len(inner) == len(self.axes):
            if spent < self.best[0]:
                self.best = spent, inner[::-1]
            return
        for name in self.axes:
            if name not in strides:
                now = {**strides, name: stride}
                laid = [i for i, names in enumerate(self.names) if name in names and now.keys() >= set(names)]
                cost = spent + sum(self.seconds(i, now) for i in laid)
                if self._promising(now, cost):
                    self._lay((*inner, name), now, stride * self.mesh.sizes[name], cost)

    def _promising(self, strides: Mapping[str, int], cost: float) -> bool:
        still = [i for i, names in enumerate(self.names) if not strides.keys() >= set(names)]
        if cost + sum(self.bounds[i] for i in still) >= self.best[0]:
            return False
        counted = {name for i in still for name in self.names[i]}
        key = frozenset(strides), tuple(sorted((name, at) for name, at in strides.items() if name in counted))
        if self.seen.get(key, math.inf) <= cost:
            return False
        self.seen[key] = cost
        return True


def placed(search: Callable[[Problem], Plan], problem: Problem) -> Plan:
    """The best plan that a search finds over the orders of the axes.

    Raises:
        PlanError: an option that is not "search"; a mesh that has a device order already, or on which shardings are.
    """
    again = _elsewhere(problem)
    first, topology = problem.mesh, problem.hardware.topology
    alike: dict[tuple, Order] = {}
    for order in itertools.islice(orders(first), math.factorial(4)):
        alike.setdefault(_links(first, order, topology), order)
    found = _Found(search, again, first, problem)
    few = math.factorial(len(first.all_axes)) <= math.factorial(4) and len(alike) <= PLANNED
    if few:
        for order in alike.values():
            found.plan(order)
    else:
        _improved(found, first, topology)
    return found.told(f"all {len(alike)} different" if few else str(len(found.plans)))


def _links(mesh: Mesh, order: Order, topology: Topology) -> tuple:
    """Which links all groups along whole axes need."""
    strides = _Orders((), mesh, topology).strides(order)
    some = itertools.chain.from_iterable(itertools.combinations(mesh.all_axes, n) for n in range(1, len(order)))
    return tuple(group_levels(topology, [(ref.size, strides[ref.name]) for ref in refs]) for refs in some)


def _improved(found: _Found, mesh: Mesh, topology: Topology) -> None:
    """Plan, lay the axes as is best for the plan's collectives, and plan again, while that gets cheaper."""
    order = next(orders(mesh))
    for _ in range(ROUNDS):
        before = found.least
        plan = found.plan(order)
        if found.least >= before:
            return
        order, _ = best_order(found.traffic(plan), mesh, topology)
        if order in found.plans:
            return


class _Found:
    """Plans by the order of axes."""

    def __init__(
        self, search: Callable[[Problem], Plan], again: Callable[[Mesh], Problem], mesh: Mesh, problem: Problem
    ) -> None:
        self.search, self.again, self.mesh, self.problem = search, again, mesh, problem
        self.plans: dict[Order, Plan] = {}
        self.seconds: dict[Order, float] = {}

    @property
    def least(self) -> float:
        return min(self.seconds.values(), default=math.inf)

    def plan(self, order: Order) -> Plan:
        one = self.again(mesh_in(self.mesh, order))
        options = {name: value for name, value in self.problem.options.items() if name != PLACEMENT}
        one = replace(one, options=options)
        self.plans[order] = self.search(one)
        self.seconds[order] = price_of(one, self.plans[order])
        return self.plans[order]

    def traffic(self, plan: Plan) -> list[AxisTraffic]:
        hardware = self.problem.hardware
        program, _ = program_of(plan, hardware, self.problem.passes, self.problem.limit)
        return traffic_of(program, Costs(hardware))

    def told(self, which: str) -> Plan:
        order = min(self.seconds, key=self.seconds.__getitem__)
        plan = self.plans[order]
        words = f"the axes lie on the links as {'.'.join(order)}, the last one innermost; {which} orders were planned"
        compared = {".".join(one): seconds for one, seconds in self.seconds.items()}
        return retold(plan, started_from=f"{words}; {plan.started_from}", compared=compared)


def _elsewhere(problem: Problem) -> Callable[[Mesh], Problem]:
    """What makes the same problem on a mesh with a device order."""
    if problem.options[PLACEMENT] != SEARCH:
        raise PlanError(f"the option {PLACEMENT} is {problem.options[PLACEMENT]!r}; it can be {SEARCH!r}")
    if problem.mesh.order is not None:
        raise PlanError(f"placement=search orders the devices, but mesh '{problem.mesh}' has an order; leave one out")
    if problem.elsewhere is None or problem.asked or any(problem.asked_outputs):
        raise PlanError(
            f"placement=search orders the devices of the mesh, but shardings on '{problem.mesh}' are asked of "
            f"{problem.graph.name!r}; leave them out, or give the mesh with the order that you want"
        )
    return problem.elsewhere
