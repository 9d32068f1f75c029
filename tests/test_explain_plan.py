"""`planned.explain(name)` is right for every operator and value of a plan: it says how the plan has it, and why."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard
import autoshard.ops as ops
from autoshard.cost.prices import prices_for
from autoshard.ir.graph import walk
from autoshard.report.explained import explainer
from autoshard.search.alternatives import options_around
from autoshard.util.errors import UnknownNameError
from tests.search.plans import FFN
from tests.view.models import biting, trained


def looped():
    """A loop, whose body has values of its own."""

    def model(x):
        start = (ops.reduce_sum(x * 0), x)
        return ops.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, ops.tanh(s[1] @ s[1])), start)[1]

    return autoshard.plan(model, (np.ones((16, 16), np.float32),), "a=2 b=2")


def two_layers(mode, first=None):
    """The tutorial's network, of unequal sizes."""
    return autoshard.plan(FFN(first, sizes=(12, 24, 8)), (np.ones((24, 12), np.float32),), "dp=2 tp=4", search=mode)


PLANS = {
    "megatron": lambda: trained("megatron"),
    "zero3": lambda: trained("zero3"),
    "data_parallel": lambda: trained("data_parallel"),
    "hsdp": lambda: trained("hsdp"),
    "megatron_sp": lambda: trained("megatron_sp"),
    "small": biting,
    "loop": looped,
    "annotated": lambda: two_layers("sharding_propagation", ((2, 1), (1, 4))),
    "factor": lambda: two_layers("factor", ((2, 1), (1, 4))),
    "optimal": lambda: two_layers("optimal"),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_name_is_told_as_the_plan_has_it(name):
    planned = PLANS[name]()
    known = explainer(planned).names
    assert {node.label for node in walk(planned.graph.nodes)} <= set(known)
    assert {value.name for value in planned.plan.layouts} <= set(known)
    for one, values in known.items():
        told = planned.explain(one)
        for value in values:
            layout = planned.plan.layouts[value]
            lies = f"{value.name} lies as [{layout}]" if layout.used else f"{value.name} lies whole on each device"
            assert lies in told
        assert "nothing splits" not in told and "no rule" not in told and planned.plan.search in told


def test_operators_tell_cause_price_and_line():
    planned = trained("megatron")
    told = planned.explain("blocks.0.attention.query.matmul")
    decision = planned.plan.decisions[planned.graph.node("blocks.0.attention.query.matmul")]
    assert f"as {decision.strategy}: {decision.cause}" in told and "% of the step" in told and "models.py:" in told
    moved = planned.explain("blocks.0.attention.output.matmul")
    assert "after a redistribution to" in moved and "all_reduce over tp" in moved and "KiB in" in moved


def test_alternatives_say_what_they_cost_more():
    planned = trained("megatron")  # a mode that weighs nothing by itself
    told = planned.explain("blocks.0.feed_forward.mapping.matmul")
    assert "instead ((" in told and "work" in told and "more (" in told


def test_alternatives_are_priced_with_all_else_as_it_is():
    planned = biting()
    prices = prices_for(planned.hardware)
    for node, (own, *others) in options_around(planned.plan, prices).items():
        assert own.strategy == planned.plan.strategy(node) and others
        for option in (own, *others):
            left = [planned.plan.layouts[value] for value in node.operands]
            needed = zip(left, option.strategy.operand_layouts, node.operand_types, strict=True)
            assert option.edge_seconds == sum(prices.redistribution(*one) for one in needed)
            assert option.work_seconds == prices.work(node, option.strategy)
        costs = [one.edge_seconds + one.completion_seconds + one.work_seconds for one in others]
        assert costs == sorted(costs) and own.strategy not in {one.strategy for one in others}


def test_a_name_that_is_not_there_gets_near_ones():
    with pytest.raises(UnknownNameError, match="did you mean .*blocks.0.attention.query.matmul"):
        trained("megatron").explain("blocks.0.attention.query.matmull")
