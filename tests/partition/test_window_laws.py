"""Window steps as data: their rules' marks, the laws that programs with them keep, dumps, prices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autoshard.ops  # noqa: F401  (registers the operators)
from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.rule import Rule
from autoshard.core.rule_sdy import show_sdy
from autoshard.core.strategy import Strategy
from autoshard.cost.evaluate import evaluate_plan
from autoshard.cost.prices import Prices
from autoshard.exporters.ir_dump import dump_program
from autoshard.exporters.ir_parse import parse_dump, show_dump
from autoshard.layout import Layout, Mesh
from autoshard.ops.body import Body
from autoshard.ops.registry import lookup, operator, remove
from autoshard.partition.lower import lower
from autoshard.partition.program import Collective, Program, Register
from autoshard.partition.verify import verify_program
from autoshard.partition.windows import exchange_steps
from autoshard.redistribute.planner import plan_steps
from autoshard.redistribute.window import WindowStep
from autoshard.search import Problem, find_mode
from autoshard.util.errors import GraphError, RuleError, ShapeError
from costmodel import preset
from tests.oracle.check import plan_with, single

MESH = Mesh(a=2, b=4)
ATTRS = {
    "lhs_dims": (0, 2, 1), "rhs_dims": (1, 0, 2), "out_dims": (0, 2, 1), "padding": ((1, 1),),
}  # fmt: skip
ARRAYS = [np.ones(shape, np.float32) for shape in ((2, 48, 6), (5, 6, 3))]
GRAPH, NODE = single(lookup("Convolution"), ARRAYS, lookup("Convolution").check_attributes(ATTRS))
SPACE = next(i for i, factor in enumerate(NODE.rule.factors) if factor.exchange)


def split(name: str) -> Strategy:
    axes: list = [()] * len(NODE.rule.factors)
    axes[SPACE] = (MESH.axis(name),)
    return Strategy(NODE.rule, MESH, tuple(axes))


PROGRAM = lower(plan_with(GRAPH, NODE, split("b")))
AT, HALO = next((i, one) for i, one in enumerate(PROGRAM.instructions) if "halo" in str(getattr(one, "step", "")))
STEP: WindowStep = HALO.step  # type: ignore[union-attr]


# -- rules


@pytest.mark.parametrize("text", ["a <b>^4 -> a <b>^4 {a=2, b=8}", "<a>^2, [b]=a, c~^3 -> <a>^2 c~^3 {a=4, b=3, c=3}"])
def test_marks_are_read_as_they_are_printed(text):
    rule = Rule.parse(text)
    assert str(rule) == text and Rule.parse(str(rule)) == rule


def test_marks_say_what_can_be_split():
    free, follower, whole = Rule.parse("<a>^2, [b]=a, c~^3 -> <a>^2 c~^3 {a=4, b=3, c=3}").factors
    assert free.splittable and free.even == 2 and not follower.splittable and not whole.splittable
    strategies = enumerate_strategies(Rule.parse("<a>^2, [b]=a -> <a>^2 {a=4, b=2}"), Mesh(x=2))
    assert [strategy.in_strategy for strategy in strategies] == [((2,), (2,)), ((1,), (1,))]


def test_a_leader_has_to_exist():
    with pytest.raises(RuleError, match="b follows x, which it lacks"):
        Rule.parse("a, [b]=x -> a {a=4, b=2}")


def test_shardy_reads_the_same_rule_as_before():
    assert "^" not in show_sdy(NODE.rule) and "permutation" in show_sdy(NODE.rule)


def test_an_operator_has_to_say_what_it_exchanges():
    @operator("Unsaid", rule="a <b>^4 -> a <b>^4")
    def unsaid(x):
        return x

    try:
        graph, node = single(unsaid, [np.ones((3, 8), np.float32)], {})
        strategy = Strategy(node.rule, MESH, ((), (MESH.axis("b"),)))
        with pytest.raises(ShapeError, match="Unsaid does not say what its blocks need"):
            lower(plan_with(graph, node, strategy))
    finally:
        remove("Unsaid")


# -- laws


def test_what_a_step_tells():
    assert STEP.axes == (MESH.axis("b"),) and STEP.width == 14 and STEP.messages == 2 and STEP.elements_received == 2
    assert str(STEP).startswith("halo over=b dim=1 of=48 to=14 at [0,11,23,")
    verify_program(PROGRAM)


def swapped(made: Collective) -> Program:
    instructions = (*PROGRAM.instructions[:AT], made, *PROGRAM.instructions[AT + 1 :])
    return replace(PROGRAM, instructions=instructions, outputs=PROGRAM.outputs)


def with_run(**changes: Any) -> WindowStep:
    return replace(STEP, runs=(replace(STEP.runs[0], **changes),))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (with_run(starts=(0, 11, 23, 36)), "reads 13 elements from 36 on to place 1 of 14; the dim has 48"),
        (with_run(counts=(13, 15, 14, 13)), "reads 15 elements from 11 on"),
        (with_run(starts=(0, 11, 23)), "must tell 4 positions and a stride"),
        (replace(STEP, block=24), "blocks of 24 of 48, but they are 12 of 48"),
        (replace(STEP, size=40), "blocks of 12 of 40, but they are 12 of 48"),
        (with_run(width=20), "its result is a block of"),
    ],
)
def test_a_broken_law_is_named(step, message):
    assert isinstance(HALO, Collective)
    with pytest.raises(GraphError, match=message):
        verify_program(swapped(Collective(step, HALO.operand, HALO.result, HALO.serves)))


def test_only_blocks_along_its_axes():
    """A dim that lies along other axes than those of the step cannot be read by positions along these."""
    layout = Layout.parse("-, a, -", MESH)
    step = replace(STEP, before=layout)
    assert isinstance(HALO, Collective)
    operand = Register("other", HALO.operand.whole, layout)
    made = Register("made", HALO.result.whole, step.after)
    moved = Collective(step, operand, made, HALO.serves)
    program = replace(PROGRAM, inputs=(*PROGRAM.inputs, operand), instructions=(moved,), outputs=(made,))
    with pytest.raises(GraphError, match="it must be whole, or split along the axes of the step"):
        verify_program(program)


# -- dumps


def test_dumps_tell_who_sends_what():
    text = dump_program(PROGRAM, rank=1)
    assert "NeighborExchange" in text and show_dump(parse_dump(text)) == text
    exchanged = "dim: 1, recv_rank_ids: (0, 2), recv_lens: (1, 1), send_rank_ids: (0, 2), send_lens: (1, 1)"
    assert exchanged in text


# -- prices


def test_a_border_costs_less_than_a_gather():
    prices = Prices(preset("a100"))
    ((step, of),) = exchange_steps(NODE, split("b"))
    whole = Layout.replicated(MESH, 3)
    (gather,) = plan_steps(split("b").operand_layouts[0], whole, of.shape)
    assert step.elements_moved(of.shape) == 2 * 2 * 6 < gather.elements_moved(of.shape) == 3 * 2 * 12 * 6
    assert prices.exchange(NODE, split("b")) == prices.step(step, of) > 0
    assert prices.work(NODE, split("b")) == prices.local_work(NODE, split("b")) + prices.exchange(NODE, split("b"))
    assert prices.exchange(NODE, split("a")) < prices.exchange(NODE, split("b"))  # one neighbour, not two


@pytest.mark.parametrize("parts", [16, 4096])
def test_bytes_do_not_grow_with_the_mesh(parts):
    mesh = Mesh.flat(parts)
    axes = mesh.all_axes
    shape = (2, 8 * parts, 6)
    _, node = single(
        lookup("ReduceWindow"),
        [np.broadcast_to(np.float32(0), shape), np.array(0, np.float32)],
        lookup("ReduceWindow").check_attributes(
            {"dimensions": (1, 3, 1), "padding": ((0, 0), (1, 1), (0, 0)), "body": Body("max")}
        ),
    )
    ((step, of),) = exchange_steps(node, Strategy(node.rule, mesh, ((), axes, ())))
    assert step.elements_moved(of.shape) == 2 * 2 * 6 and step.messages == 2


@pytest.mark.parametrize("mode", ["bfs", "sharding_propagation"])
def test_searches_stay_in_space(mode):
    """Images that are fed split in space are convolved so: only borders move."""
    arrays = [np.ones((1, 480, 6), np.float32), np.ones((5, 6, 3), np.float32)]
    graph, node = single(lookup("Convolution"), arrays, lookup("Convolution").check_attributes(ATTRS))
    given = {graph.inputs[0]: Layout.parse("-, a.b, -", MESH)}
    plan = find_mode(mode)(Problem(graph, MESH, preset("cpu").for_ranks(8), given=given))
    assert plan.strategy(node).operand_layouts[0] is given[graph.inputs[0]] and plan.strategy(node).exchanges
    cost = evaluate_plan(plan, preset("cpu").for_ranks(8))
    program = lower(plan)
    halos = [one for one in program.collectives if one.serves is node]
    assert [one.step.kind for one in halos] == ["halo"] and halos[0].nbytes_moved == 2 * 6 * 4
    assert cost.communication_seconds >= Prices(preset("cpu").for_ranks(8)).exchange(node, plan.strategy(node)) > 0
