"""Mode "communication": the plan whose program sends the fewest bytes, for machines that the network slows down.

Rules alone (mode "factor") give one plan, the default mode on hardware where bytes decide gives another: fast devices
behind slow links, on which work counts little, and a message about as much as a few bytes. Both are lowered, and the
one whose program sends less in a step is taken; with equal bytes the one that takes less time.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.cost.evaluate import evaluate_plan
from autoshard.partition.lower import lower
from autoshard.partition.traffic import bytes_moved, traffic_of
from autoshard.plan.plan import Plan
from autoshard.search.modes.default import sharding_propagation
from autoshard.search.modes.factor import factor
from autoshard.search.problem import Problem
from autoshard.search.registry import plan_flat, search_mode
from costmodel import Hardware, Link, Topology, preset

NAME = "communication"
_BANDWIDTH, _LATENCY = 1e9, 1e-7
"""Of the links that the plan is searched for, in bytes per second and seconds."""


@search_mode(NAME, regions=True)
def communication(problem: Problem) -> Plan:
    """The plan that sends the fewest bytes among those of rules and of prices.

    Times in its decisions are those of the slow network, not of the problem's hardware.

    Raises:
        PlanError: shardings on another mesh than the plan's.
        StrategyError: an annotation that does not fit, or two that want one parameter in different layouts.
    """
    slow = replace(problem, hardware=slow_network())
    plans = [sharding_propagation(slow)]
    if problem.work is not None:
        plans.append(plan_flat(factor, slow))  # flat: what people configured inside of loops is followed, too
    return replace(min(plans, key=lambda plan: _sent(plan, slow.hardware)), search=NAME)


def slow_network() -> Hardware:
    """Fast devices whose network is what takes time: what a rank computes in a second is much more than it sends."""
    fast = preset("h100")
    device = replace(fast.device, launch_seconds=0.0)
    return Hardware("slow network", device, Topology(((None, Link("slow", _LATENCY, _BANDWIDTH)),)))


def _sent(plan: Plan, hardware: Hardware) -> tuple[float, float]:
    return bytes_moved(traffic_of(lower(plan)), executed=True), evaluate_plan(plan, hardware).seconds
