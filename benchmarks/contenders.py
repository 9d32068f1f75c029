"""Many plans of one training step that do different things, the one that `optimal` picks first.

`contenders(traced, devices, hardware)` plans on all shapes of the mesh in every way there is: searches, named plans,
optima under a strategy that some product would not have chosen, and plans that follow from strategies drawn for the
products. Two that cost the same in time, bytes and memory are taken for the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.api import Planned
from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Node
from autoshard.layout.mesh import Mesh
from autoshard.plan.plan import Plan
from autoshard.propagate.traced import mutable_module
from autoshard.search import find_mode
from autoshard.search.named import named_plans
from autoshard.search.named.completion import Completion
from autoshard.search.named.structure import Structure
from autoshard.search.problem import Problem
from autoshard.trace.function import Traced
from autoshard.transform.plannable import plannable
from autoshard.util.errors import AutoshardError
from costmodel import Hardware

PICK = "optimal"
SEARCHES = ("sharding_propagation", "bfs", "dynamic_programming", "factor")
HEAVY = 6
"""Products whose strategies are varied: those with the most operations."""
DRAWS = 40
_BESIDE = 2
"""Strategies of a product beside the chosen one that it is held to in turn."""
_FARTHEST = 6.0
"""Plans that cost more than so many times the least are measured for nothing."""


@dataclass(frozen=True)
class Contender:
    """A plan by name, and the seconds of a step that are predicted for it."""

    name: str
    planned: Planned
    seconds: float


def without_annotations(traced: Traced) -> Traced:
    """The same model with nothing asked of it."""
    return replace(traced, annotations={})


def meshes(devices: int) -> list[Mesh]:
    """The flat mesh, all with two axes, and that with the most axes."""
    found = [Mesh.flat(devices)]
    found += [Mesh([("a", devices // inner), ("b", inner)]) for inner in range(2, devices) if devices % inner == 0]
    factors = [2] * (devices.bit_length() - 1)
    if devices > 4 and 2 ** len(factors) == devices:
        found.append(Mesh(list(zip("abcdefgh", factors, strict=False))))
    return found


def contenders(traced: Traced, devices: int, hardware: Hardware, most: int, quick: bool = False) -> list[Contender]:
    """At most so many plans: the pick of `optimal` over the meshes first, then by predicted time.

    Args:
        quick: no optima but the pick's, on the flat mesh and one with two axes.
    """
    hardware = hardware.for_ranks(devices)
    shapes = meshes(devices)[: 2 if quick else None]
    problems = [problem_of(traced, mesh, hardware) for mesh in shapes]
    best = min((_contender(PICK, find_mode(PICK)(one), traced, hardware) for one in problems), key=_seconds)
    found: dict[tuple, Contender] = {_likeness(best): best}
    home = next(one for one in problems if one.mesh is best.planned.plan.mesh)
    for name, plan in _others(home, problems, traced, best.planned.plan, quick):
        one = _contender(name, plan, traced, hardware)
        found.setdefault(_likeness(one), one)
    rest = sorted((one for one in found.values() if one is not best), key=_seconds)
    near = [one for one in rest if one.seconds <= _FARTHEST * best.seconds]
    return [best, *_spread(near if len(near) >= most - 1 else rest, most - 1)]


def problem_of(traced: Traced, mesh: Mesh, hardware: Hardware, fixed: Mapping[Node, Strategy] | None = None) -> Problem:
    """What to plan: nothing is asked, data lies whole on each rank."""
    graph = plannable(traced.graph)
    free = Problem(graph, mesh, hardware, fixed=fixed or {}, work=lambda: mutable_module(traced, mesh))
    return replace(free, given={one: free.input_layouts[one] for one in free.input_layouts})


def _contender(name: str, plan: Plan, traced: Traced, hardware: Hardware) -> Contender:
    planned = Planned(traced, plan, hardware)
    return Contender(f"{name} on {plan.mesh}", planned, planned.cost.seconds)


def _seconds(one: Contender) -> float:
    return one.seconds


def _likeness(one: Contender) -> tuple:
    cost = one.planned.cost
    return f"{cost.seconds:.6e}", round(cost.bytes_per_device), cost.peak_memory_bytes


def _others(
    home: Problem, problems: Sequence[Problem], traced: Traced, pick: Plan, quick: bool
) -> Iterator[tuple[str, Plan]]:
    for problem in problems:
        for mode in (*SEARCHES, *named_plans(), *(() if quick else (PICK,))):
            yield from _found(mode, mode, problem)
    if not quick:
        for node in _heavy(home):
            for i, option in enumerate(pick.decisions[node].alternatives[:_BESIDE]):
                held = problem_of(traced, home.mesh, home.hardware, {node: option.strategy})
                yield from _found(f"{PICK} with choice {i + 2} of {node.label}", PICK, held)
    for seed in range(DRAWS):
        yield from _drawn(problems[seed % len(problems)], seed)


def _found(name: str, mode: str, problem: Problem) -> Iterator[tuple[str, Plan]]:
    """The plan of a mode, unless that does not fit the model."""
    try:
        yield name, find_mode(mode)(problem)
    except AutoshardError:
        return


def _drawn(problem: Problem, seed: int) -> Iterator[tuple[str, Plan]]:
    """The plan in which heavy products have strategies drawn by chance, and all else follows its operands."""
    chance = random.Random(seed)
    menus = {node: enumerate_strategies(node.rule, problem.mesh) for node in _heavy(problem)}
    drawn = {node: chance.choice(menu) for node, menu in menus.items() if chance.random() < 0.7}
    completion = Completion(problem, Structure(problem.graph), {}, lambda node, strategy: drawn.get(node))
    try:
        yield f"draw {seed}", completion.plan("drawn", f"strategies of {len(drawn)} products drawn by chance")
    except AutoshardError:
        return


def _heavy(problem: Problem) -> list[Node]:
    work = {node: node.op.flops(node.operand_types, node.attrs) for node in problem.graph.nodes if node.op.has_rule}
    return sorted(work, key=lambda node: -work[node])[:HEAVY]


def _spread(ranked: Sequence[Contender], count: int) -> list[Contender]:
    """So many of a ranked list: half of them its first ones, the others at even distances over the rest."""
    if len(ranked) <= count:
        return list(ranked)
    near = count // 2
    rest, wanted = ranked[near:], count - near
    return [*ranked[:near], *(rest[round(i * (len(rest) - 1) / max(wanted - 1, 1))] for i in range(wanted))]
