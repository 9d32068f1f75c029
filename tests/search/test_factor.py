"""The search mode factor on Python models: what is asked is spread by rules and run; what cannot run is told."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autoshard as ash
from autoshard import Parameter, nn, ops
from autoshard.core.rule import Rule
from autoshard.core.strategy import is_runnable
from autoshard.layout import Layout
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.search import Problem, find_mode
from autoshard.search.rules.strategy_from_shardings import ANY, strategy_from_shardings
from autoshard.trace import trace
from autoshard.trace.function import Traced
from autoshard.transform import train_step
from autoshard.util.errors import PlanError, ShardingError
from costmodel import preset
from tests.search.plans import FFN, array, assert_runs_as_whole, kind_of_cause, kinds, strategies

X = array(8, 12)


class Mlp(nn.Cell):
    """Two products; what is asked of the weights is given from outside."""

    def __init__(self, first=None, second=None, sizes=(12, 24, 6)) -> None:
        super().__init__()
        self.first = Parameter(array(*sizes[:2]) / 4, name="first", sharding=first)
        self.second = Parameter(array(*sizes[1:]) / 4, name="second", sharding=second)
        self.up, self.gelu, self.down = ops.MatMul(), ops.GeLU(), ops.MatMul()

    def construct(self, x):
        return self.down(self.gelu(self.up(x, self.first)), self.second)


def asked(fn, *args, **shardings):
    return trace(fn, *args, **shardings)


def layouts(planned) -> dict[str, str]:
    return {value.name: str(layout) for value, layout in planned.plan.layouts.items()}


def factor(target, *inputs, mesh="dp=2 tp=4", **options):
    """The plan, which runs on virtual ranks as the model runs whole."""
    known = isinstance(getattr(target, "traced", target), Traced)
    planned = ash.plan(target, () if known else inputs, mesh, search="factor", **options)
    assert_runs_as_whole(planned, inputs)
    return planned


def test_megatron_from_two_shardings():
    """Columns of the first weight and the batch are asked for; the rest follows, with one sum at the end."""
    planned = factor(asked(Mlp('[{?}, {"tp", ?}]'), X, in_shardings=('[{"dp"}, {}]',)), X)
    assert strategies(planned) == {"up": "((2, 1), (1, 4))", "gelu": "((2, 4))", "down": "((2, 4), (4, 1))"}
    assert layouts(planned)["second"] == "tp, -"
    assert kinds(planned) == ["all_reduce"]
    assert kind_of_cause(planned, "up") == "asked"
    assert str(planned.plan.decisions[planned.graph.node("gelu")].cause) == "propagated from up"
    causes = {value.name: str(cause) for value, cause in planned.plan.input_causes.items()}
    assert causes["first"] == "asked" and causes["second"] == "propagated from down"
    assert planned.plan.search == "factor"
    assert "asked of x, first" in planned.report()


def test_data_inputs_follow_unless_they_are_closed():
    open_x = factor(asked(Mlp('[{"tp", ?}, {?}]'), X), X)
    assert layouts(open_x)["x"] == "-, tp"
    closed_x = factor(asked(Mlp('[{"tp", ?}, {?}]'), X, in_shardings=("[{}, {}]",)), X)
    assert layouts(closed_x)["x"] == "-, -"


def test_priorities_decide():
    """The batch and the weight want one axis; the more urgent has it."""
    for batch, weight, result in (("p0", "p1", "tp, -"), ("p1", "p0", "-, tp")):
        model = asked(
            ops.matmul, X, array(12, 24), in_shardings=(f'[{{"tp", ?}}{batch}, {{?}}]', f'[{{?}}, {{"tp", ?}}{weight}]')
        )
        planned = factor(model, X, array(12, 24))
        assert [str(layout) for layout in planned.plan.outputs] == [result]


def test_constraints_and_barriers():
    def fn(x):
        y = ops.relu(x)
        z = ops.optimization_barrier(ops.sharding_constraint(y, '[{"dp"}, {"tp"}]'))
        return ops.exp(z)

    planned = factor(asked(fn, X), X)
    assert layouts(planned)["relu"] == "dp, tp"
    assert {str(layout) for layout in planned.plan.outputs} == {"dp, tp"}
    assert kinds(planned) == []


def test_a_closed_constraint_moves_its_operand():
    def fn(x):
        return ops.exp(ops.sharding_constraint(ops.relu(x), '[{"tp"}, {}]'))

    planned = factor(asked(fn, X, in_shardings=('[{}, {"tp"}]',)), X)
    assert kinds(planned) == ["all_to_all"]
    assert str(planned.plan.outputs[0]) == "tp, -"


@pytest.mark.parametrize("mode", ("sharding_propagation", "optimal", "dynamic_programming", "factor"))
def test_a_constraint_that_leaves_ranks_without_rows_is_kept_as_far_as_it_divides(mode):
    def fn(x):
        return ops.tanh(ops.sharding_constraint(ops.sin(x), '[{"dp", ?}, {?}]'))

    planned = ash.plan(trace(fn, X), mesh="dp=6", search=mode)
    assert str(planned.plan.decisions[planned.graph.nodes[1]].strategy.result_layouts[0]).startswith("dp")
    np.testing.assert_allclose(planned.run(X), np.tanh(np.sin(X)), rtol=1e-6)


def test_groups_lie_alike():
    def fn(x, y):
        ops.shard_group(x, y)
        return ops.relu(x), ops.exp(y)

    planned = factor(asked(fn, X, X, in_shardings=('[{"dp", ?}, {"tp", ?}]', None)), X, X)
    assert {str(layout) for layout in planned.plan.outputs} == {"dp, tp"}


def test_outputs_leave_as_asked():
    planned = factor(asked(ops.relu, X, in_shardings=("[{}, {}]",), out_shardings='[{"dp"}, {"tp"}]'), X)
    assert [str(layout) for layout in planned.plan.outputs] == ["dp, tp"]


def test_configured_operators_keep_their_strategy_and_others_follow():
    planned = factor(FFN(((2, 1), (1, 4)), sizes=(12, 24, 8)), X)
    assert strategies(planned)["dense1.matmul"] == "((2, 1), (1, 4))"
    assert kind_of_cause(planned, "dense1.matmul") == "configured"
    assert strategies(planned)["relu"] == "((2, 4))"
    assert strategies(planned)["dense2.matmul"] == "((2, 4), (4, 1))"


def test_given_inputs_take_part():
    planned = factor(Mlp(), X, mesh="8", dataset_strategy="data_parallel")
    assert strategies(planned) == {"up": "((8, 1), (1, 1))", "gelu": "((8, 1))", "down": "((8, 1), (1, 1))"}
    assert str(planned.plan.input_causes[planned.graph.inputs[0]]) == "given"


def test_nothing_asked_is_whole():
    planned = factor(Mlp(), X)
    assert all(layout.is_replicated for layout in planned.plan.layouts.values())
    assert "nothing is asked" in planned.report()


class Scaled(nn.Cell):
    """A loss whose weights are split in both dims."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Mlp('[{"dp", ?}, {"tp", ?}]', '[{"tp", ?}, {?}]')

    def construct(self, x):
        return ops.reduce_sum(ops.square(self.net(x)))


def test_training_keeps_parameters_where_they_are():
    model = Scaled()
    step = train_step(model, nn.SGD(model.trainable_params(), 0.01), X)
    planned = factor(step, X)
    for out, into in planned.graph.updates.items():
        assert planned.plan.outputs[out] is planned.plan.layouts[planned.graph.inputs[into]]
    assert layouts(planned)["net.first"] == "dp, tp"
    assert sum(planned.plan.strategy(node).work_split > 1 for node in planned.graph.nodes) > 5


# -- what cannot be followed is told


def lost(planned, label: str) -> str:
    return str(planned.plan.decisions[planned.graph.node(label)].cause)


def test_what_does_not_divide_is_followed():
    x = array(6, 12)
    planned = factor(asked(ops.relu, x, in_shardings=('[{"tp"}, {}]',)), x)
    assert str(planned.plan.layouts[planned.graph.inputs[0]]) == "tp, -"
    assert strategies(planned) == {"relu": "((4, 1))"} and lost(planned, "relu").count("left out") == 0
    assert planned.program.inputs[0].local.shape == (2, 12)  # of 8 rows, the last two are padding


def test_what_has_too_few_elements_is_cut_and_told():
    x = array(3, 12)
    planned = factor(asked(ops.relu, x, in_shardings=('[{"tp"}, {}]',)), x)
    assert str(planned.plan.layouts[planned.graph.inputs[0]]) == "tp:(1)2, -"
    assert strategies(planned) == {"relu": "((2, 1))"}
    assert "left out: tp cannot split _0 of size 3: it has fewer elements than 4" in lost(planned, "relu")
    assert "left out: of <@mesh" in str(planned.plan.input_causes[planned.graph.inputs[0]])
    assert "1 operators follow in part (relu)" in planned.plan.started_from
    assert "fewer elements" in planned.report()


def test_what_must_be_whole_is_told():
    sort = ops.lookup("ArgSort")
    planned = factor(asked(lambda x: sort(x), X, in_shardings=('[{"dp"}, {"tp"}]',)), X)
    assert strategies(planned) == {"arg_sort": "((8, 1))"}  # the axis splits the batch further meanwhile
    assert re.search(r"left out: tp cannot split \w+ of size 12: every rank needs all of it", lost(planned, "arg_sort"))
    assert kinds(planned) == ["all_to_all", "all_to_all"]


def test_an_axis_for_two_factors_is_given_once():
    x, w = array(8, 12), array(12, 16)
    shardings = ('[{"tp"}, {}]', '[{}, {"tp"}]')
    planned = factor(asked(ops.matmul, x, w, in_shardings=shardings), x, w)
    (strategy,) = strategies(planned).values()
    assert strategy in ("((4, 1), (1, 1))", "((1, 1), (1, 4))")
    assert len(planned.program.collectives) == 1  # the other operand is gathered


def test_errors():
    problem = Problem(trace(Mlp(), X).graph, Mesh(dp=2), preset("cpu"))
    with pytest.raises(PlanError, match="factor needs the shardings that are asked for, but 'mlp' comes without"):
        find_mode("factor")(problem)
    with pytest.raises(ShardingError, match="first"):
        ash.plan(Mlp('[{"ep"}, {}]'), (X,), "dp=2 tp=4", search="factor")


def test_equal_layers_have_equal_plans():
    """Ten layers: each follows as the first, and numbers agree with the whole run."""

    class Stack(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([Mlp('[{?}, {"tp", ?}]', sizes=(12, 24, 12)) for _ in range(4)])

        def construct(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    planned = factor(asked(Stack(), X, in_shardings=('[{"dp", ?}, {?}]',)), X)
    per_layer = [
        [str(planned.plan.strategy(node)) for node in planned.graph.nodes if node.label.startswith(f"layers.{i}.")]
        for i in range(4)
    ]
    assert per_layer[0] and all(one == per_layer[0] for one in per_layer)
    assert np.asarray(planned.run(X)).shape == (8, 12)


# -- one operator by itself


MESH = Mesh(a=2, b=4, c=3)
RULES = (
    "m k, k n -> m n", "b m k, b k n -> b m n", "m n -> n m", "m [n] -> m [n]", "m n -> m <n>", "(m n) k -> m n k",
    "m n, () -> m n", "m k~ -> m", "m k -> m by max", "m n, n -> m n",
)  # fmt: skip
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
PIECES = (*MESH.all_axes, AxisRef("b", 1, 2), AxisRef("b", 2, 2))


@st.composite
def wished(draw):
    """A rule, and shardings of its tensors that do not know of each other."""
    text = draw(st.sampled_from(RULES))
    names = dict.fromkeys(re.findall(r"\b[a-z]\b", text.replace("by max", "")))
    sizes = ", ".join(f"{name}={draw(SIZES)}" for name in names)
    rule = Rule.parse(f"{text} {{{sizes}}}")

    def sharding(dims) -> Sharding | None:
        left, asked = list(draw(st.permutations(PIECES))), []
        for _ in dims:
            refs = []
            while left and draw(st.booleans()):
                ref = left.pop()
                left = [other for other in left if not other.overlaps(ref)]
                refs.append(ref)
            asked.append(DimSharding(merge_refs(refs)))
        return Sharding(MESH, asked) if draw(st.integers(0, 4)) else None

    tensors = (*rule.operands, *rule.results)
    elements = [math.prod(rule.factors[i].size for dim in dims for i in dim) for dims in tensors]
    return rule, tuple(map(sharding, tensors)), tuple(elements)


@given(wished())
def test_a_strategy_runs_and_what_is_lost_is_told(case):
    """Ranks can run it; no axis splits two factors; and where all tensors agree, either it is done or it is told."""
    rule, shardings, elements = case
    strategy, lost = strategy_from_shardings(rule, MESH, shardings, elements)
    assert is_runnable(rule, strategy.parts)
    used = [ref for refs in strategy.axes for ref in refs]
    assert all(not a.overlaps(b) and a.can_coexist(b) for i, a in enumerate(used) for b in used[:i])
    whole = (*strategy.operand_layouts, *strategy.result_layouts)
    asked = [
        sharding.layout() if sharding is not None else Layout.replicated(MESH, len(of.dims))
        for sharding, of in zip(shardings, whole, strict=True)
    ]
    if not lost and all(sharding is None or sharding.is_replicated for sharding in shardings):
        assert strategy.work_split == 1
    for other in range(len(rule.operands)):
        # What one operand alone asks, and all others can have in any way, is followed or told.
        alone = tuple(sharding if i == other else ANY for i, sharding in enumerate(shardings))
        strategy, lost = strategy_from_shardings(rule, MESH, alone, elements)
        assert lost or strategy.operand_layouts[other] is asked[other]
