"""Breadth-first propagation (mode "bfs"): what MindSpore's documents and runs say, and what is our own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autoshard as ash
from autoshard import Layout, Parameter, nn, ops
from autoshard.transform import train_step
from tests.search import plans
from tests.search.plans import FFN, array, blocks, kind_of_cause, kinds, strategies

X = array(64, 64)


def checked(*arguments, **options):
    """`plans.checked` with this mode."""
    return plans.checked(*arguments, search="bfs", **options)


NAMES = ("dense1.matmul", "dense1.add", "relu", "dense2.matmul", "dense2.add")


def test_tutorial():
    planned = checked(FFN(((2, 1), (1, 4))), (X,))
    assert list(strategies(planned).items()) == list(
        zip(NAMES, ("((2, 1), (1, 4))", "((2, 4), (4))", "((2, 4))", "((2, 4), (4, 1))", "((2, 4), (4))"), strict=True)
    )
    (only,) = planned.program.collectives
    assert only.step.kind == "reduce_scatter" and only.step.dim == 1
    assert [only.step.groups.members(rank).tolist() for rank in (0, 3, 5)] == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]]
    assert planned.plan.started_from == "configured dense1.matmul"


@pytest.mark.parametrize(
    "first, second, expected, collectives",
    [
        # All data parallel, as in MindSpore.
        (
            ((8, 1), (1, 1)),
            None,
            ("((8, 1), (1, 1))", "((8, 1), (1))", "((8, 1))", "((8, 1), (1, 1))", "((8, 1), (1))"),
            [],
        ),
        # k split: MindSpore goes on with (1, 1); here the partial sum is scattered, and the work stays split.
        (
            ((1, 8), (8, 1)),
            None,
            ("((1, 8), (8, 1))", "((1, 8), (8))", "((1, 8))", "((1, 8), (8, 1))", "((1, 8), (8))"),
            ["reduce_scatter"] * 2,
        ),
        # The four ranks that hold equal results split the rows further, so that nothing has to be sent. (MindSpore
        # sends nothing either: it goes on with (2, 1), and has ((2, 1), (1, 4)) for the second product.)
        (
            ((2, 1), (1, 1)),
            None,
            ("((2, 1), (1, 1))", "((8, 1), (1))", "((8, 1))", "((8, 1), (1, 1))", "((8, 1), (1))"),
            [],
        ),
        # Only the second product is configured: backwards, MindSpore's ((2, 1), (1, 1)).
        (
            None,
            ((2, 1), (1, 4)),
            ("((2, 1), (1, 1))", "((2, 1), (1))", "((2, 1))", "((2, 1), (1, 4))", "((2, 4), (4))"),
            [],
        ),
        (
            None,
            ((2, 4), (4, 1)),
            ("((2, 1), (1, 4))", "((2, 4), (4))", "((2, 4))", "((2, 4), (4, 1))", "((2, 4), (4))"),
            ["reduce_scatter"],
        ),
        # Two configured products: what lies between keeps the first one's layout.
        (
            ((8, 1), (1, 1)),
            ((1, 1), (1, 8)),
            ("((8, 1), (1, 1))", "((8, 1), (1))", "((8, 1))", "((1, 1), (1, 8))", "((1, 8), (8))"),
            ["all_gather"],
        ),
    ],
)
def test_one_or_two_configured_products(first, second, expected, collectives):
    planned = checked(FFN(first, second), (X,))
    assert tuple(strategies(planned).values()) == expected
    assert kinds(planned) == collectives


def test_forwards_and_backwards_with_unequal_sizes():
    planned = checked(FFN(None, ((3, 2), (2, 1)), sizes=(10, 24, 6)), (array(12, 10),), "6")
    assert strategies(planned)["dense1.matmul"] == "((3, 1), (1, 2))"
    assert strategies(planned)["relu"] == "((3, 2))"
    assert kinds(planned) == ["reduce_scatter"]


# -- single facts ----------------------------------------------------------------------------------------------


def test_two_seeds_with_a_join():
    """MindSpore has (1, 8) here by its own tie-break; one of the two operands moves either way, once."""
    first, second = ops.ReLU().shard(((8, 1),)), ops.Sigmoid().shard(((1, 8),))
    planned = checked(lambda x: first(x) + second(x), (array(24, 16),))
    assert strategies(planned)["add"] in ("((8, 1), (8, 1))", "((1, 8), (1, 8))")
    assert kinds(planned) == ["all_to_all"]
    assert str(planned.plan.decisions[planned.graph.node("add")].cause) == "propagated from relu, sigmoid"


def test_softmax_after_a_split_of_its_axis_stays_there():
    relu, softmax = ops.ReLU().shard(((2, 4),)), ops.Softmax(axis=-1)
    planned = checked(lambda x: softmax(relu(x)), (array(240, 1200),))
    assert strategies(planned)["softmax"] == "((2, 4))"
    assert kinds(planned) == ["all_reduce", "all_reduce"], "the largest element of each row, and the sum"


def test_sorting_after_a_split_of_its_axis_is_redistributed():
    relu, sort = ops.ReLU().shard(((2, 4),)), ops.lookup("ArgSort")
    planned = checked(lambda x: sort(relu(x)), (array(24, 12),))
    assert strategies(planned)["arg_sort"] == "((8, 1))", "whole along its axis, and all eight ranks work"
    assert kinds(planned) == ["all_to_all"]
    _, moved = planned.plan.redistributions
    assert (moved.value.name, str(moved.before), str(moved.after)) == ("relu", "d:(1)2, d:(2)4", "d, -")


def test_transposes_keep_splits_for_free():
    relu = ops.ReLU().shard(((4, 2),))
    planned = checked(lambda x: ops.exp(ops.transpose(relu(x))), (array(12, 10),))
    assert strategies(planned) == {"relu": "((4, 2))", "transpose": "((4, 2))", "exp": "((2, 4))"}
    assert not kinds(planned)


def test_transposes_backwards_keep_which_ranks_hold_what():
    """MindSpore's producer becomes (1, 1, 2) here, because a tuple cannot name axes; a layout can."""
    relu = ops.ReLU().shard(((2, 1, 4),))
    planned = checked(lambda x: relu(ops.transpose(ops.exp(x), perm=(2, 0, 1))), (array(6, 12, 10),))
    assert strategies(planned) == {"exp": "((1, 4, 2))", "transpose": "((1, 4, 2))", "relu": "((2, 1, 4))"}
    assert str(planned.plan.layouts[planned.graph.node("exp").results[0]]) == "-, d:(2)4, d:(1)2"
    assert not kinds(planned)


def test_reshapes_keep_splits_for_free():
    relu = ops.ReLU().shard(((2, 4),))

    def heads(x):
        y = ops.reshape(relu(x), shape=(4, 6, 4, 10))
        return ops.reshape(ops.exp(y), shape=(24, 40))

    planned = checked(heads, (array(24, 40),))
    assert strategies(planned)["exp"] == "((2, 1, 4, 1))"
    assert strategies(planned)["reshape_1"] == "((2, 1, 4, 1))"
    assert not kinds(planned)


def test_a_residual_follows_the_product():
    """Data lies whole, so its part is cut out for free."""
    weight, matmul = Parameter(array(24, 24), name="weight"), ops.MatMul().shard(((2, 1), (1, 4)))
    planned = checked(lambda x: x + matmul(x, weight), (array(12, 24),))
    assert strategies(planned)["add"] == "((2, 4), (2, 4))"
    assert not kinds(planned)


def test_a_residual_around_two_layers():
    net = FFN(((2, 1), (1, 4)), sizes=(24, 48, 24))
    planned = checked(lambda x: ops.exp(x) + net(ops.exp(x)), (array(12, 24),))
    assert strategies(planned)["dense2.matmul"] == "((2, 4), (4, 1))"
    assert kinds(planned) == ["reduce_scatter"]


def test_partial_sums_are_carried_to_one_reduction():
    """Three gradients of column-split products meet in a sum: reduced once, not three times."""
    weights = [Parameter(array(12, 24, seed=i), name=f"weight{i}") for i in range(3)]
    products = [ops.MatMul(transpose_b=True).shard(((2, 4), (1, 4))) for _ in weights]

    def joined(add):
        def model(a, b, c):
            return ops.relu(add([product(g, w) for product, g, w in zip(products, (a, b, c), weights, strict=True)]))

        return checked(model, tuple(array(48, 24, seed=i) for i in range(3)))

    planned = joined(ops.AddN())
    assert strategies(planned)["add_n"] == "((2, 1), (2, 1), (2, 1)) carrying +d:(2)4"
    assert kinds(planned) == ["reduce_scatter"]
    planned = joined(lambda terms: ops.add(ops.add(*terms[:2]), terms[2]))
    assert [strategies(planned)[name] for name in ("add", "add_1")] == ["((2, 1), (2, 1)) carrying +d:(2)4"] * 2
    assert kinds(planned) == ["reduce_scatter"]


def test_an_operator_that_is_not_linear_ends_a_partial_sum():
    weight, product = Parameter(array(24, 10), name="weight"), ops.MatMul().shard(((2, 4), (4, 1)))
    planned = checked(lambda x: ops.exp(ops.neg(product(x, weight))), (array(12, 24),), "2x4")
    layouts = {value.name: str(layout) for value, layout in planned.plan.layouts.items()}
    assert layouts["neg"] == "x0, - +x1", "neg is linear"
    assert "+" not in layouts["exp"]


def test_out_strategy_scatters():
    planned = checked(FFN(((2, 4), (4, 1)), out=((8, 1),), sizes=(12, 24, 10)), (array(24, 12),))
    assert str(planned.plan.layouts[planned.graph.node("dense1.matmul").results[0]]) == "d, -"
    assert strategies(planned)["relu"] == "((8, 1))"
    assert kinds(planned) == ["reduce_scatter"]
    assert planned.program.collectives[0].step.dim == 0
    reduced = checked(FFN(((2, 4), (4, 1)), out=((2, 1),), sizes=(12, 24, 10)), (array(24, 12),))
    assert kinds(reduced)[0] == "all_reduce", "asked for whole columns, the sum is completed in place"


# -- what it reaches, and where it begins ----------------------------------------------------------------------


def test_everything_is_decided():
    """Constants, operators that no configured one leads to, and such as wait for an operand that none leads to."""
    relu = ops.ReLU().shard(((2, 3),))

    def model(x, y, z):
        a = ops.exp(relu(x)) * np.arange(60, dtype=np.float32).reshape(6, 10)[:, :6]
        return a + ops.tanh(y), ops.sigmoid(ops.sin(z)), ops.reduce_sum(ops.fill(shape=(4, 6), value=1))

    planned = checked(model, (array(6, 6), array(6, 6, seed=1), array(10, 24)), "6")
    causes = {node.label: planned.plan.decisions[node].cause for node in planned.graph.nodes}
    assert causes["relu"].kind == "configured" and causes["exp"].neighbours == ("relu",)
    assert causes["add"].kind == "released", "nothing leads to tanh but the sum that waits for it"
    assert causes["tanh"].kind == "propagated" and causes["tanh"].neighbours == ("y", "add")
    assert causes["sin"].kind == "started" and str(causes["sigmoid"]) == "propagated from sin"
    assert strategies(planned)["tanh"] == "((2, 3))", "as the sum wants it"


def test_constants_lie_as_their_users_want():
    relu = ops.ReLU().shard(((2, 4),))
    planned = checked(lambda x: relu(x) * ops.fill(shape=(12, 24), value=0.5), (array(12, 24),))
    constant = next(node for node in planned.graph.nodes if not node.operands)
    assert str(planned.plan.layouts[constant.results[0]]) == "d:(1)2, d:(2)4"
    assert not kinds(planned)


def test_without_any_annotation():
    planned = checked(FFN(sizes=(10, 24, 6)), (array(12, 10),), "4")
    assert planned.plan.started_from == "no operator is configured; started from x [-, -]"
    assert kind_of_cause(planned, "dense1.matmul") == "propagated"
    given = checked(FFN(sizes=(10, 24, 6)), (array(12, 10),), "4", dataset_strategy=((4, 1),))
    assert given.plan.started_from == "no operator is configured; started from x [d, -]"
    assert strategies(given)["relu"] == "((4, 1))", "it follows the data"
    assert not kinds(given)


def test_updates_keep_the_layout_of_what_they_replace():
    net = FFN(((2, 1), (1, 4)), sizes=(96, 192, 80))
    x, label = array(192, 96), array(192, 80)
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01, eps=1e-4), x, label)
    planned = checked(step, (x, label))
    assert len(planned.graph.tied) >= 12, "four parameters with two moments each"
    for new, old in planned.graph.tied.items():
        place = planned.graph.outputs.index(new)
        assert planned.plan.outputs[place] is planned.plan.layouts[old], new.name
    weight = next(value for value in planned.graph.inputs if value.name == "dense1.weight")
    assert planned.plan.layouts[weight].parts == (1, 4)


def test_an_update_made_in_another_layout_is_brought_back():
    class Running(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.state = Parameter(array(12, 10), name="state", requires_grad=False)
            self.read, self.write = ops.ReLU().shard(((3, 1),)), ops.Tanh().shard(((1, 2),))

        def construct(self, x):
            y = self.read(self.state) + x
            self.state.assign(self.write(y))
            return y

    planned, x = checked(Running(), (array(12, 10),), "6"), array(12, 10, seed=1)
    ((new, old),) = planned.graph.tied.items()
    assert (planned.plan.layouts[old].parts, planned.plan.layouts[new].parts) == ((3, 1), (1, 2))
    assert planned.plan.outputs[planned.graph.outputs.index(new)] is planned.plan.layouts[old]
    alone = Running()
    for _ in range(3):
        np.testing.assert_allclose(planned.run(x), alone(x), rtol=1e-5, atol=1e-6)


# -- causes, alternatives, conflicts ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def training():
    net = FFN(((2, 1), (1, 4)), sizes=(96, 192, 80))
    x, label = array(192, 96), array(192, 80)
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), x, label)
    return checked(step, (x, label))


def _order(option, free: bool) -> tuple:
    """The first entries of the documented order, as far as they look at nothing that was open then."""
    edges, completion = round(option.edge_seconds, 15), round(option.completion_seconds, 15)
    return (edges, completion) if free else (round(edges + completion + option.work_seconds, 12),)


def test_every_decision_has_a_cause(training):
    labels = {node.label for node in training.graph.nodes} | {value.name for value in training.graph.inputs}
    for node in training.graph.nodes:
        cause = training.plan.decisions[node].cause
        assert cause.kind in ("configured", "propagated", "released", "started"), node.label
        assert labels.issuperset(cause.neighbours), node.label
        assert (cause.kind == "propagated") == bool(cause.neighbours) or cause.kind == "released"
    for value in training.graph.inputs:
        assert training.plan.input_causes[value].kind in ("given", "adopted")
    weight = next(value for value in training.graph.inputs if value.name == "dense1.weight")
    assert str(training.plan.input_causes[weight]) == "adopted from dense1.matmul"


def test_alternatives_are_priced_and_no_better(training):
    seen = 0
    for node in training.graph.nodes:
        decision = training.plan.decisions[node]
        options = (decision.chosen, *decision.alternatives)
        assert len({option.strategy for option in options}) == len(options)
        orders = [_order(option, not decision.chosen.edge_seconds) for option in options]
        assert orders == sorted(orders), node.label
        for option in options:
            assert option.edge_seconds >= 0 and option.completion_seconds >= 0 and option.work_seconds > 0
        seen += len(decision.alternatives)
    assert seen > len(training.graph.nodes), "most decisions had a choice"


def test_configured_operators_had_no_alternatives(training):
    decision = training.plan.decisions[training.graph.node("dense1.matmul")]
    assert decision.cause.kind == "configured" and decision.alternatives == ()


def test_conflicts_are_listed_with_their_price():
    first, second = ops.ReLU().shard(((8, 1),)), ops.Sigmoid().shard(((1, 8),))
    planned = checked(lambda x: second(first(x)), (array(24, 16),))
    (conflict,) = planned.plan.conflicts
    assert (conflict.producer, conflict.consumer, conflict.value) == ("relu", "sigmoid", "relu")
    assert (str(conflict.before), str(conflict.after)) == ("d, -", "-, d")
    assert conflict.nbytes == planned.cost.bytes_per_device == 7 / 8 * (24 * 16 // 8) * 4
    assert conflict.seconds == pytest.approx(planned.cost.communication_seconds)
    assert str(conflict).startswith("relu leaves relu as [d, -], sigmoid wants [-, d]: 168 bytes per device, ")
    assert "168" in planned.report()


def test_configured_neighbours_that_agree_are_no_conflict():
    first, second = ops.ReLU().shard(((4, 1),)), ops.Sigmoid().shard(((4, 2),))
    planned = checked(lambda x: second(first(x)), (array(24, 16),))
    assert planned.plan.conflicts == () and not kinds(planned), "a cut costs nothing"


# -- the same plan, however it is asked for --------------------------------------------------------------------


def test_layouts_and_named_meshes_say_the_same():
    sizes, x = (12, 24, 10), array(24, 12)
    flat = checked(FFN(((2, 1), (1, 4)), sizes=sizes), (x,))
    named = Layout((2, 4), ("dp", "tp"))
    others = [
        checked(FFN(((2, 1), (1, 4)), sizes=sizes), (x,), "dp=2 tp=4"),
        checked(FFN((named("dp", None), named(None, "tp")), sizes=sizes), (x,), "dp=2 tp=4"),
        checked(FFN((named("dp", None), named(None, "tp")), sizes=sizes), (x,), "8"),
    ]
    for other in others:
        assert strategies(other) == strategies(flat)
        assert blocks(other) == blocks(flat)
        assert kinds(other) == kinds(flat)
        assert replace(other.cost, axes=()) == replace(flat.cost, axes=()), "the same, but for the names of axes"


PLAN_TEXT = """
import numpy as np
from autoshard import nn
from autoshard.api import plan
from autoshard.transform import train_step
from tests.search.plans import FFN, array
net = FFN(((2, 1), (1, 4)), sizes=(96, 192, 80))
x, label = array(192, 96), array(192, 80)
step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01, eps=1e-4), x, label)
planned = plan(step, (), "{mesh}")
for node in planned.graph.nodes:
    decision = planned.plan.decisions[node]
    print(node.label, decision.strategy, decision.cause, *[one.strategy for one in decision.alternatives])
for value, layout in planned.plan.layouts.items():
    print(value.name, layout)
for one in planned.program.instructions:
    print(type(one).__name__, getattr(one, "step", ""), *one.results)
"""


@pytest.mark.parametrize("mesh", ["8", "dp=2 tp=4"])
def test_the_same_plan_in_every_process(mesh):
    root = str(Path(ash.__file__).parents[1])

    def text(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        command = [sys.executable, "-c", PLAN_TEXT.format(mesh=mesh)]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    first = text("1")
    assert first.count("\n") > 60
    assert text("4242") == first


def test_the_same_plan_twice(training):
    net = FFN(((2, 1), (1, 4)), sizes=(96, 192, 80))
    x, label = array(192, 96), array(192, 80)
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), x, label)
    again = checked(step, (x, label))
    assert strategies(again) == strategies(training)
    assert blocks(again) == blocks(training)
    assert again.cost == training.cost
