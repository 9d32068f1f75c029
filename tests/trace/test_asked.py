"""What model code asks: Specs, and the places where they are said, up to what propagation makes of them."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autoshard as ash
from autoshard import nn, ops
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.layout import Layout, Mesh
from autoshard.layout.sharding import OPEN, DimSharding, Sharding
from autoshard.layout.spec import Axis, DimSpec, Spec
from autoshard.propagate.traced import annotations_on, mutable_module
from autoshard.trace import Cell, Parameter, trace
from autoshard.transform import merge_equal, prune, train_step
from autoshard.util.errors import GraphError, ParseError, ShapeError, ShardingError
from tests.trace.checks import settled

MESH = Mesh(dp=2, tp=4, pp=3)
X = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)


def line(text: str) -> str:
    """`file:line` of the first line of this file that begins with `text`."""
    lines = Path(__file__).read_text().splitlines()
    number = next(i for i, one in enumerate(lines, 1) if one.strip().startswith(text))
    return f"test_asked.py:{number}"


# -- Spec


AXES = st.sampled_from(["dp", "tp", "_a1", "odd name"]).map(Axis) | st.builds(
    Axis, st.sampled_from(["dp", "pp"]), st.integers(1, 9), st.integers(2, 9)
)
LISTS = st.lists(AXES, max_size=3).map(tuple)
DIMS = st.tuples(LISTS, st.booleans(), st.none() | st.integers(0, 12)).map(lambda parts: DimSpec(*parts))
KINDS = st.sampled_from(["sum", "max", "min"])


@st.composite
def specs(draw) -> Spec:
    unreduced = draw(LISTS)
    dims, replicated, kind = draw(st.lists(DIMS, max_size=4)), draw(LISTS), draw(KINDS)
    return Spec(tuple(dims), replicated, unreduced, kind if unreduced else "sum")


@given(specs())
def test_a_spec_is_read_as_it_is_printed(spec: Spec) -> None:
    assert Spec.of(str(spec)) == spec
    assert hash(Spec.of(str(spec))) == hash(spec)


@pytest.mark.parametrize(
    "given, text",
    [
        ("[{x, ?}p1, {}]", '[{"x", ?}p1, {}]'),
        ("[{x:(2)3}], replicated={y, z}", '[{"x":(2)3}], replicated={"y", "z"}'),
        ("[], unreduced=max{w}", '[], unreduced=max{"w"}'),
        (("dp", None, ("dp", "tp:(1)2")), '[{"dp"}, {}, {"dp", "tp":(1)2}]'),
        (["?", ..., ("tp", "?"), ("tp", ...), ()], '[{?}, {?}, {"tp", ?}, {"tp", ?}, {}]'),
        ((), "[]"),
    ],
)
def test_forms_of_a_spec(given: object, text: str) -> None:
    assert str(Spec.of(given)) == text
    assert Spec.of(Spec.of(given)) is Spec.of(given) if isinstance(given, str) else Spec.of(given) == Spec.of(text)


def test_a_jax_partition_spec_is_a_spec() -> None:
    import jax

    assert str(Spec.of(jax.sharding.PartitionSpec("dp", None, ("tp", "pp")))) == '[{"dp"}, {}, {"tp", "pp"}]'


def test_layouts_and_shardings_stay_on_their_mesh() -> None:
    tp = MESH.axis("tp")
    layout = Layout(MESH, [(tp.split(2)[0],), ()], [MESH.axis("dp")])
    assert str(Spec.of(layout).on(MESH, 2)) == '<@mesh, [{"tp":(1)2}, {}], unreduced={"dp"}>'
    sharding = Sharding(MESH, [DimSharding((tp,), False, 2), OPEN], [MESH.axis("pp")])
    spec = Spec.of(sharding)
    assert spec.on(MESH, 2) is sharding and Spec.of(str(spec)) == spec
    assert spec.on(MESH, 2, "other").mesh_name == "other"
    with pytest.raises(ShardingError, match=r"the mesh is 'tp=4'; ask by axes alone, or on that mesh"):
        spec.on(Mesh(tp=4), 2)


def test_lists_are_brought_into_mesh_order() -> None:
    assert str(Spec.of("[{?}], replicated={pp, dp}").on(MESH, 1)) == '<@mesh, [{?}], replicated={"dp", "pp"}>'


@pytest.mark.parametrize(
    "given, error, text",
    [
        ("[{dp}", ParseError, "w: cannot read this sharding"),
        ("[{dp}p]", ParseError, "expected a priority"),
        (3, ShardingError, r"w is asked to lie as 3, but it is of type int; write a tuple"),
        (("dp", 5), ShardingError, r"its entry 5 is of type int"),
        (("dp", ("?", "tp")), ShardingError, r"in its entry \('\?', 'tp'\) '\?' is not the last"),
        (("dp", ("tp:(x)2",)), ShardingError, r"'tp:\(x\)2' is no axis"),
        ("[{dp}]", ShardingError, r"w is asked to lie as \[\{\"dp\"\}\], which is for 1 dims, but it has 2"),
        ("[{ep}, {}]", ShardingError, r"axis 'ep' is not in the mesh, which is 'dp=2 tp=4 pp=3'"),
        ("[{dp}, {dp}]", ShardingError, "dp is used twice"),
        ("[{dp}, {}p1]", ShardingError, "dim 1 has priority 1, but is closed and has no axes"),
        ("[{tp:(2)4}, {}]", ShardingError, "does not exist"),
    ],
)
def test_bad_specs(given: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Spec.of(given, "w").on(MESH, 2, what="w")


def test_axes_of_a_manual_computation_around_are_taken() -> None:
    with pytest.raises(ShardingError, match="'tp' is manual here"):
        Spec.of("[{tp}]").on(MESH, 1, manual=["tp"])


# -- places


class MLP(Cell):
    """Megatron's two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = Parameter(np.full((12, 16), 0.1, np.float32), sharding="[{}, {tp}]")
        self.w2 = Parameter(np.full((16, 12), 0.1, np.float32), sharding=("tp", None))

    def construct(self, x):
        y = ops.tanh(x @ self.w1) @ self.w2
        return ops.sharding_constraint(y, "[{dp}, {?}]") * 2


def test_a_two_layer_model_gets_what_shardy_gives_it() -> None:
    traced = trace(MLP(), X, in_shardings=(("dp", None),))
    verify(traced.graph)
    assert show(parse(show(traced.graph))) == show(traced.graph)
    assert settled(traced, MESH) == {
        "x": '[{"dp"}, {}]',
        "w1": '[{}, {"tp"}]',
        "w2": '[{"tp"}, {}]',
        "matmul": '[{"dp"}, {"tp"}]',
        "tanh": '[{"dp"}, {"tp"}]',
        "matmul_1": '[{"dp"}, {}]',
        "sharding_constraint": '[{"dp"}, {}]',
        "scalar_mul": '[{"dp"}, {}]',
        "output 0": '[{"dp"}, {}]',
    }
    np.testing.assert_allclose(traced(X), np.tanh(X @ np.full((12, 16), 0.1)) @ np.full((16, 12), 0.2), 1e-5)
    np.testing.assert_allclose(MLP()(X), traced(X), 1e-6)


def test_inputs_are_asked_by_position_or_by_name_and_nested() -> None:
    def f(x, batch, scale):
        return {"y": x * scale, "z": (batch["a"], batch["b"] + 1)}

    args = X, {"a": X[:2], "b": X[:3]}, 3.0
    nested = trace(f, *args, in_shardings=(None, {"b": "[{dp}, {}]"}, None), out_shardings={"z": ("[{}, {tp}]", None)})
    named = trace(f, *args, in_shardings={"batch": {"b": ("dp", None)}}, out_shardings={"z": ((None, "tp"), None)})
    for traced in (nested, named):
        assert {value.name: str(spec) for value, spec in traced.asked.values.items()} == {"batch.b": '[{"dp"}, {}]'}
        assert [spec and str(spec) for spec in traced.asked.outputs] == [None, '[{}, {"tp"}]', None]
        asked = annotations_on(traced, MESH)
        assert asked.meshes == {"mesh": MESH}
        assert [str(one) for one in asked.outputs["f"]] == ["None", '<@mesh, [{}, {"tp"}]>', "None"]
    assert trace(f, *args).asked.values == {}


def test_a_cell_asks_of_its_inputs_and_outputs() -> None:
    class Outer(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MLP()
            self.inner.in_shardings = {"x": ("dp", None)}
            self.inner.out_shardings = "[{?}, {pp, ?}]"
            self.in_shardings = ("[{?}, {?}]",)
            self.out_shardings = ("dp", None)

        def construct(self, x):
            return self.inner(x=x) + self.inner(x)

    traced = trace(Outer(), X)
    assert [str(spec) for spec in traced.asked.values.values()][0] == "[{?}, {?}]"
    assert [str(spec) for spec in traced.asked.outputs] == ['[{"dp"}, {}]']
    made = [node for node in traced.graph.nodes if node.op.name == "ShardingConstraint"]
    assert [node.attrs["sharding"] for node in made] == [
        '[{"dp"}, {}]', '[{"dp"}, {?}]', '[{?}, {"pp", ?}]',
    ] * 2  # fmt: skip
    assert made[0].name == "inner.sharding_constraint"
    assert settled(traced, MESH)["output 0"] == '[{"dp"}, {}]'
    inner = trace(Outer().inner, X)
    assert [str(spec) for spec in inner.asked.outputs] == ['[{?}, {"pp", ?}]']
    assert sum(node.op.name == "ShardingConstraint" for node in inner.graph.nodes) == 1


def test_groups_lie_alike() -> None:
    def f(x, y, z, w):
        ops.shard_group(x, y)
        ops.shard_group(z, name="last")
        ops.shard_group(w, name="last")
        return x + 0, y + 1, z * 2, w * 3

    traced = trace(f, X, X, X, X, in_shardings={"x": "[{dp, ?}, {?}]", "w": "[{?}, {tp, ?}]"})
    verify(traced.graph)
    assert [node.attrs["group"] for node in traced.graph.nodes if node.op.name == "ShardingGroup"] == [0, 0, 1, 1]
    found = settled(traced, MESH)
    assert {found[name] for name in ("x", "y", "output 0", "output 1")} == {'[{"dp"}, {}]'}
    assert {found[name] for name in ("z", "w", "output 2", "output 3")} == {'[{}, {"tp"}]'}
    assert f(X, X, X, X)[1] is not None


def test_propagation_barriers_hold_back() -> None:
    def f(x, y):
        return ops.propagation_barrier(x * 2, "backward"), ops.propagation_barrier(y * 2, "forward") * 3

    traced = trace(f, X, X, in_shardings=("[{dp, ?}, {?}]",) * 2, out_shardings=("[{?}, {tp, ?}]", "[{?}, {tp, ?}]"))
    found = settled(traced, MESH)
    assert found["output 0"] == '[{}, {"tp"}]' and found["x"] == '[{"dp"}, {"tp"}]'
    assert found["output 1"] == '[{"dp"}, {"tp"}]' and found["y"] == '[{"dp"}, {}]'
    for one, other in zip(traced(X, X), f(X, X), strict=True):
        np.testing.assert_array_equal(one, other)


def test_optimization_barrier() -> None:
    def f(x):
        whole = ops.optimization_barrier(x)
        pair = ops.optimization_barrier({"a": x, "b": (x + 1,)})
        first, second = ops.optimization_barrier(whole, pair["b"][0])
        return first + second + pair["a"]

    traced = trace(f, X, in_shardings=(("dp", None),))
    assert [len(node.results) for node in traced.graph.nodes if node.op.name == "OptimizationBarrier"] == [1, 2, 2]
    np.testing.assert_allclose(traced(X), f(X), 1e-6)
    assert settled(traced, MESH)["output 0"] == '[{"dp"}, {}]'


# -- training and planning


class Asking(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(np.full((12, 4), 0.5, np.float32), sharding="[{}, {tp}]")

    def construct(self, x):
        y = ops.sharding_constraint(x @ self.w, "[{dp}, {tp}]")
        ops.shard_group(y, y * 2)
        barred, more = ops.optimization_barrier(y, y + 1)
        return (barred * ops.propagation_barrier(more, "forward")).sum()


def test_gradients_pass_what_is_asked() -> None:
    net = Asking()
    step = train_step(net, nn.SGD(net.trainable_params(), 0.25), X)
    verify(step.graph)
    assert [spec and str(spec) for spec in step.traced.asked.outputs] == [None, '[{}, {"tp"}]']
    backward = step.graph.node("grad.sharding_constraint.sharding_constraint")
    assert backward.attrs["sharding"] == '[{"dp"}, {"tp"}]'
    found = settled(step.traced, MESH)
    assert found["grad.matmul.matmul_1"] == '[{}, {"tp"}]' and found["output 1"] == '[{}, {"tp"}]'
    before = net.w.data.copy()
    step(X)
    y = X @ before
    np.testing.assert_allclose(net.w.data, before - 0.25 * X.T @ (2 * y + 1), 1e-4)


def test_the_search_takes_them_for_identities() -> None:
    net = Asking()
    planned = ash.plan(net, (X,), mesh="dp=2 tp=2")
    assert not {"ShardingGroup", "OptimizationBarrier"} & {node.op.name for node in planned.graph.nodes}
    verify(planned.graph)
    np.testing.assert_allclose(planned.run(X), net(X), 1e-5)


def test_passes_keep_groups_and_constraints() -> None:
    graph = trace(Asking(), X).graph
    for changed in (prune(graph), merge_equal(graph)):
        verify(changed)
        assert [node.op.name for node in changed.nodes] == [node.op.name for node in graph.nodes]


# -- parameters and errors


def test_a_parameters_sharding_may_be_set_later_and_is_copied() -> None:
    dense = nn.Dense(12, 5)
    dense.weight.sharding = ("tp", None)
    assert str(copy.deepcopy(dense).weight.sharding) == '[{"tp"}, {}]'
    assert settled(trace(dense, X), Mesh(tp=5))["output 0"] == '[{}, {"tp"}]'
    dense.weight.sharding = None
    assert dense.weight.sharding is None and trace(dense, X).asked.values == {}


def test_errors_name_the_value_and_the_line() -> None:
    with pytest.raises(ShardingError, match=rf"parameter at \S*{line('Parameter(X, sharding')} .*f32\[8, 12\].*2"):
        Parameter(X, sharding="[{dp}]")
    wrong = Parameter(X, name="weight", sharding="[{ep}, {}]")
    with pytest.raises(
        ShardingError, match=rf"weight at \S*{line('wrong = Parameter')} .*axis 'ep' is not in the mesh"
    ):
        mutable_module(trace(lambda x: x + wrong, X), MESH)
    traced = trace(lambda x: ops.sharding_constraint(x, "[{dp}, {dp}]"), X)
    with pytest.raises(
        ShardingError, match=rf"sharding_constraint .*{line('traced = trace(lambda x: ops.sharding_co')}"
    ):
        mutable_module(traced, MESH)
    traced = trace(lambda x: x, X, out_shardings="[{ep}, {}]")
    with pytest.raises(ShardingError, match=rf"output 0 \(x\) at \S*{line('traced = trace(lambda x: x, X, out')}"):
        annotations_on(traced, MESH)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"in_shardings": "[{dp}, {}]"}, r"there is '\[\{dp\}, \{\}\]' for a tuple of 2 \(0, 1\); give a tuple with"),
        ({"in_shardings": (None,)}, "for a tuple of 2"),
        ({"in_shardings": (("dp",), None)}, r"x at .* is for 1 dims, but it has 2"),
        ({"in_shardings": {"q": None}}, "names 'q'; the arguments are x, tree"),
        ({"in_shardings": {"tree": {"c": "[{}, {}]"}}}, r"for a dict of 2 \(a, b\); give a dict"),
        ({"in_shardings": {"tree": {"b": "[{}]"}}}, r"for 7, which is no tensor"),
        ({"out_shardings": ("dp", "tp", None)}, r"out_shardings of f.*for a tuple of 2"),
    ],
)
def test_shardings_of_another_structure(options: dict, text: str) -> None:
    def f(x, tree):
        return x, tree["a"]

    with pytest.raises(ShardingError, match=text):
        trace(f, X, {"a": X, "b": 7}, **options)


def test_misuse() -> None:
    with pytest.raises(ShardingError, match=r"sharding_constraint at \S*test_asked.py:\d+ is asked .* it has 2"):
        ops.sharding_constraint(X, "[{dp}]")
    with pytest.raises(ShapeError, match=r"shapes \(8, 12\) and \(2, 12\) differ"):
        ops.shard_group(X, X[:2])
    with pytest.raises(GraphError, match="give the tensors"):
        ops.shard_group()
    with pytest.raises(ShardingError, match="direction is 'both'; it is one of forward, backward, none"):
        ops.propagation_barrier(X, "both")
    assert ops.sharding_constraint(X, ("dp", None)) is not None and ops.optimization_barrier(X) is X
