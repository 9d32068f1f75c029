"""A stage's plan that is soon made: the best of few that are known by name, by the sum of seconds.

A search over pipelines plans hundreds of stages. By these plans it finds out which pipelines are worth a search for the
plans of their stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from autoshard.api import DEFAULT_SEARCH
from autoshard.cost.evaluate import plan_seconds
from autoshard.cost.memory import peak_memory
from autoshard.plan.plan import Plan
from autoshard.search import find_mode
from autoshard.search.greedy.bfs import propagations
from autoshard.search.named import is_named
from autoshard.search.problem import Problem
from autoshard.search.program_price import retold
from autoshard.search.registry import plan_flat
from autoshard.search.unmet_constraints import unmet_constraints
from autoshard.util.errors import PlanError, StrategyError

QUICK = "quick"
"""What stands for these plans where a mode is named."""
_ON_ONE = ("batch", "zero1", "zero3", "megatron_sp", "expert_parallel", "context_parallel")
_ON_MORE = ("batch", "megatron_sp", "hsdp", "fsdp_ep", "context_parallel")
_ON_TWO = ("zero1({0}) + megatron_sp({1})", "zero1({1}) + megatron_sp({0})")
"""Names by the axes of the mesh, without those that are others there."""


def quick_plan(problem: Problem, named: Problem) -> Plan:
    """The plan of a stage, as one of the default mode, which has these among others: the cheapest that keeps to the
    memory limit, or that of the fewest bytes.

    Args:
        named: the problem as plans known by name have it.

    Raises:
        AutoshardError: as breadth-first propagation.
    """

    def rank(plan: Plan) -> tuple[float, float]:
        over = 0 if problem.limit is None else max(0, peak_memory(plan) - problem.limit)
        return over, plan_seconds(plan, problem.prices)

    best = min(_plans(problem, named), key=rank)
    started = f"as mode {best.search} has it, the best of few; {best.started_from}"
    return retold(best, graph=problem.graph, search=DEFAULT_SEARCH, started_from=started)


def _plans(problem: Problem, named: Problem) -> Iterator[Plan]:
    yield plan_flat(lambda flat: propagations(flat)[0], problem)
    if problem.mesh.devices == 1 or problem.annotations:
        return  # all plans are the same, or others need not keep to what people configured
    axes = [name for name, _ in problem.mesh.axes]
    names = _ON_ONE if len(axes) == 1 else _ON_MORE
    for name in (*names, *(one.format(*axes) for one in _ON_TWO if len(axes) == 2)):
        with suppress(PlanError, StrategyError):
            plan = find_mode(name)(named if is_named(name) else problem)
            if plan.graph.nodes == problem.graph.nodes and not unmet_constraints(problem, plan):
                yield plan
