"""Bad input: what is wrong is said with the operator, the dim, the sizes and the user's line.

All in one place, but for what `autoshard run` refuses: test_bad_runs.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import autoshard as ash
from autoshard import Layout, Parameter, nn, ops
from autoshard.mindspore.dataset import NumpySlicesDataset
from autoshard.pipeline import plan_pipeline
from autoshard.search import search_modes
from autoshard.util.errors import (
    AutoshardError,
    ContextError,
    LayoutError,
    MeshError,
    PlanError,
    ShapeError,
    StrategyError,
    UnknownNameError,
)

NAMED = Layout((2, 4), ("dp", "tp"))


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = array(12, 10)


class Dense(nn.Cell):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = Parameter(array(rows, columns), name="weight")
        self.bias = Parameter(array(columns), name="bias")
        self.matmul, self.add = ops.MatMul(), ops.Add()

    def construct(self, x):
        return self.add(self.matmul(x, self.weight), self.bias)  # line: apply


class Net(nn.Cell):
    """10 -> 24 -> 6."""

    def __init__(self, in_strategy=None, out_strategy=None) -> None:
        super().__init__()
        self.dense1, self.relu, self.dense2 = Dense(10, 24), ops.ReLU(), Dense(24, 6)
        if in_strategy is not None or out_strategy is not None:
            self.dense1.matmul.shard(in_strategy, out_strategy)  # line: shard

    def construct(self, x):
        return self.dense2(self.relu(self.dense1(x)))


def line(mark: str) -> str:
    """`test_bad_input.py:31`: where this file has the comment `# line: mark`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# line: {mark}")]
    return f"{Path(__file__).name}:{number}"


def message(call, kind: type[AutoshardError] = StrategyError) -> str:
    """The text of the error that the call ends in; folders in front of file names are cut away."""
    with pytest.raises(AutoshardError) as caught:
        call()
    assert type(caught.value) is kind, repr(caught.value)
    return re.sub(r"[^\s']*/(?=test_bad_input\.py)", "", str(caught.value))


def plan(in_strategy=None, out_strategy=None, **options):
    mesh = options.pop("mesh", None)
    where = {} if mesh else {"devices": options.pop("devices", 8)}
    return ash.plan(Net(in_strategy, out_strategy), (X,), mesh, **where, **options)


# -- strategies that the operator or the mesh cannot follow --------------------------------------------------


@pytest.mark.parametrize(
    "given, shown, words",
    [
        (((8, 1), (1, 1)), None, "dim 0 of operand 0 has size 12, which 8 parts do not divide; 1, 2, 4 do"),
        (((1, 4), (4, 1)), None, "dim 1 of operand 0 has size 10, which 4 parts do not divide; 1, 2 do"),
        (((1, 1), (1, 5)), None, "dim 1 of operand 1 has size 24, which 5 parts do not divide; 1, 2, 4, 8 do"),
        (((2,), (1, 4)), None, "tuple 0 has 1 entries, but operand 0 has 2 dims (12, 10)"),
        (((2, 1), (1, 4, 1)), None, "tuple 1 has 3 entries, but operand 1 has 2 dims (10, 24)"),
        (((2, 1),), None, "it has 1 tuples, but the operator has 2 operands, (12, 10), (10, 24)"),
        (((2, 1), (1, 4), (1,)), None, "it has 3 tuples, but the operator has 2 operands, (12, 10), (10, 24)"),
        (((4, 1), (1, 4)), None, "it makes 16 parts, but there are 8 devices"),
        (((3, 1), (1, 1)), None, "it makes 3 parts, which do not divide the 8 devices"),
        (((3, 1), (1, 2)), None, "it makes 6 parts, which do not divide the 8 devices"),
        (
            ((1, 2), (1, 1)),
            None,
            "dim 0 of operand 1 has 1 parts, but dim 1 of operand 0 has 2; "
            "both are the factor k of m k, k n -> m n {m=12, k=10, n=24}",
        ),
        (
            (NAMED("dp", None), NAMED(None, "dp")),
            "([dp, -], [-, dp])",
            "axis dp splits factor m and dp factor n of m k, k n -> m n {m=12, k=10, n=24}; it can split one",
        ),
        (
            (NAMED("dp", None), (1, 4)),
            "([dp, -], (1, 4))",
            "give either tuples or Layouts for all operands",
        ),
        (
            (Layout((2, 3), ("a", "b"))("a", None), Layout((2, 3), ("a", "b"))(None, "b")),
            "([a, -], [-, b])",
            "layout [a, -] is on mesh 'a=2 b=3' (6 devices), the plan is for mesh 'd=8' (8 devices)",
        ),
    ],
)
def test_strategies_that_do_not_fit(given, shown, words):
    shown = shown or f"({', '.join('(' + ', '.join(map(str, one)) + ')' for one in given)})"
    mesh = NAMED.mesh if given[0] in (NAMED("dp", None), NAMED(None, "tp")) else None
    assert message(lambda: plan(given, mesh=mesh)) == (
        f"strategy {shown} of dense1.matmul (MatMul) at {line('shard')}: {words}"
    )


def test_parts_may_be_fewer_than_devices_but_must_divide_them():
    planned = plan(((3, 1), (1, 2)), devices=12)
    assert planned.plan.strategy(planned.graph.node("dense1.matmul")).work_split == 6
    assert "makes 6 parts, which do not divide the 9 devices" in message(lambda: plan(((3, 1), (1, 2)), devices=9))
    assert "makes 24 parts, but there are 9 devices" in message(lambda: plan(((3, 1), (1, 8)), devices=9))


def test_dims_that_must_stay_whole_or_are_broadcast():
    sort = ops.ArgSort(axis=-1).shard(((1, 2),))  # line: sort
    assert message(lambda: ash.plan(lambda x: sort(x), (X,), devices=2)) == (
        f"strategy ((1, 2)) of arg_sort (ArgSort) at {line('sort')}: dim 1 of operand 0 (factor b) "
        "must be whole on every rank: rule a [b] -> a [b] {a=12, b=10}"
    )
    add = ops.Add().shard(((2, 1), (2, 1)))
    assert "dim 0 of operand 1 is broadcast and cannot be split" in message(
        lambda: ash.plan(lambda x, y: add(x, y), (X, array(1, 10)), devices=2)
    )


@pytest.mark.parametrize(
    "given, words",
    [
        (((0, 1), (1, 4)), "entry 0 of in_strategy is (0, 1); dim 0 has 0 parts, but that must be a whole number"),
        (((2, 1), (1, -4)), "entry 1 of in_strategy is (1, -4); dim 1 has -4 parts, but that must be a whole"),
        (((2.0, 1), (1, 4)), "dim 0 has 2.0 parts, but that must be a whole number of at least 1"),
        ((("2", 1), (1, 4)), "dim 0 has '2' parts, but that must be a whole number of at least 1"),
        (((True, 1), (1, 4)), "dim 0 has True parts, but that must be a whole number of at least 1"),
        ("((2, 1), (1, 4))", "in_strategy is '((2, 1), (1, 4))', but must be a tuple with a tuple or a Layout"),
        ((2, 1), "entry 0 is a number; write a tuple per tensor, for one tensor ((2, 1),)"),
        (((2, 1), "dp"), "entry 1 of in_strategy is 'dp', but must be a tuple or a Layout"),
        (8, "in_strategy is 8, but must be a tuple with a tuple or a Layout per tensor"),
    ],
)
def test_what_shard_does_not_take(given, words):
    """Said at once, by the call itself; the operator has no name yet."""
    text = message(lambda: Net(given))
    assert text.startswith(f"matmul.shard at {line('shard')}: ") and words in text


def test_numpy_numbers_are_numbers():
    given = (tuple(np.array([2, 1])), (np.int32(1), np.int64(4)))
    planned = plan(given, devices=np.int64(8), dataset_strategy=((np.int16(2), 1),))
    node = planned.graph.node("dense1.matmul")
    assert planned.traced.annotations[node].in_strategy == ((2, 1), (1, 4))
    assert str(planned.plan.strategy(node)) == "((2, 1), (1, 4))"
    np.testing.assert_allclose(planned.run(X), Net()(X), rtol=1e-4, atol=1e-5)
    ash.set_auto_parallel_context(device_num=np.int64(4))
    assert type(ash.get_auto_parallel_context("device_num")) is int
    cell = Net().shard(parameter_plan={"dense1.weight": (np.int64(2), 1)})
    assert cell.dense1.weight.in_strategy == (2, 1)


@pytest.mark.parametrize(
    "given, words",
    [
        (((3, 4),), "dim 0 is left in 2 parts, and no partial axis of the result (it is [d:(1)2, d:(2)4]) makes 3"),
        (((2, 4), (1,)), "has 2 tuples, the operator has 1 results"),
        (((2,),), "tuple 0 has 1 entries, but result 0 has 2 dims (12, 24)"),
        ((Layout((2, 4), ("dp", "tp"))("dp"),), "tuple 0 has 1 entries, but result 0 has 2 dims (12, 24)"),
        ((Layout((2, 3), ("a", "b"))("a", None),), "is on mesh 'a=2 b=3' (6 devices), the plan is for mesh 'd=8'"),
    ],
)
def test_bad_out_strategies(given, words):
    text = message(lambda: plan(((2, 1), (1, 4)), given))
    assert text.startswith("out_strategy (") and words in text
    assert f"dense1.matmul (MatMul) at {line('shard')}" in text


def test_out_strategy_alone():
    assert message(lambda: plan(None, ((2, 4),))) == (
        f"dense1.matmul (MatMul) at {line('shard')}: shard() needs an in_strategy; "
        "out_strategy alone does not say how to split"
    )


# -- meshes, axes and devices --------------------------------------------------------------------------------


def test_unknown_axis_and_axis_used_twice():
    mesh = ash.Mesh(dp=2, tp=4)
    assert message(lambda: NAMED("dp", "mp"), LayoutError) == (
        "cannot make a layout: unknown axis 'mp'; the mesh has dp=2 tp=4"
    )
    assert message(lambda: Layout.parse("dp, mp", mesh), LayoutError) == (
        "cannot read layout 'dp, mp': unknown axis 'mp'; the mesh has dp=2 tp=4"
    )
    for call in (lambda: NAMED("dp", "dp"), lambda: Layout.parse("dp, dp", mesh)):
        assert message(call, LayoutError) == (
            "layout uses mesh axis 'dp' for dim 1, but 'dp' already serves dim 0; an axis can be used once. "
            "Free axes of the mesh: tp"
        )


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "mesh '' has no axis"),
        ("dp", "cannot read 'dp' in mesh 'dp'; write e.g. 'dp=2,tp=4', '2x4' or '8'"),
        ("dp=2 tp=x", "cannot read 'tp=x' in mesh 'dp=2 tp=x'"),
        ("2xx4", "cannot read '2xx4' in mesh '2xx4'"),
        ("dp=-2", "cannot read 'dp=-2'"),
        ("dp=0", "axis 'dp' has size 0; sizes are at least 1"),
        ("dp=2 dp=4", "axis 'dp' occurs twice in mesh axes dp, dp"),
    ],
)
def test_mesh_texts(text, words):
    assert words in message(lambda: ash.plan(Net(), (X,), text), MeshError)
    assert words in message(lambda: ash.set_auto_parallel_context(mesh=text), ContextError)


@pytest.mark.parametrize("devices", [0, -8, 2.0, "8", True])
def test_devices(devices):
    assert message(lambda: plan(devices=devices), PlanError) == (
        f"plan: devices is {devices!r}; it must be a whole number of at least 1"
    )
    assert f"device_num is {devices!r}; it must be a whole number of at least 1" in message(
        lambda: ash.set_auto_parallel_context(device_num=devices), ContextError
    )


@pytest.mark.parametrize("search", ["", 3])
def test_searches_without_a_name(search):
    for call in (
        lambda: plan(search=search),
        lambda: plan_pipeline(Net(), (X,), "pp=2", search=search, micro_batches=2),
    ):
        assert f"search is {search!r}; it is the name of a mode" in message(call, PlanError)


def test_unknown_search_mode_and_hardware():
    assert message(lambda: plan(search="annealing"), UnknownNameError) == (
        f"unknown search mode 'annealing'; known are {', '.join(search_modes())}"
    )
    text = message(lambda: ash.set_auto_parallel_context(search_mode="annealing"), ContextError)
    assert f"search_mode is 'annealing'; it can be {', '.join(map(repr, search_modes()))}" in text
    text = message(lambda: plan(hardware="abacus"), PlanError)
    assert text.startswith("hardware 'abacus': no hardware preset 'abacus'; there are cpu, ")
    text = message(lambda: ash.set_auto_parallel_context(hardware="abacus"), ContextError)
    assert "hardware is 'abacus'; it can be" in text and "'cpu'" in text


# -- data and parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy, kind, words",
    [
        ("half_batch", ContextError, "is 'half_batch'; it can be 'full_batch', 'data_parallel', or a tuple with"),
        (((2, 1), (2, 1)), PlanError, "dataset_strategy has 2 entries, but there are 1 data inputs (x)"),
        (((2,),), PlanError, "dataset_strategy gives 1 entries to data input x, which has 2 dims"),
        (((8, 1),), PlanError, "splits x: f32[12, 10] as [d, -] into (8, 1) parts, which do not divide it"),
        (((3, 1),), PlanError, "of data input x: device matrix [3, 1] needs 3 devices, which does not divide 8"),
        (((0, 1),), ContextError, "dataset_strategy has 0 parts in (0, 1); parts are whole numbers of at least 1"),
        (((2.0, 1),), ContextError, "dataset_strategy has 2.0 parts in (2.0, 1)"),
        ((Layout((3, 2), ("a", "b"))("a", None),), PlanError, "of data input x: layout [a, -] is on mesh 'a=3 b=2'"),
    ],
)
def test_dataset_strategies(strategy, kind, words):
    assert words in message(lambda: plan(dataset_strategy=strategy), kind)


@pytest.mark.parametrize(
    "entries, words",
    [
        ({"dense1.weight": (4, 1)}, "dim 0 of operand 0 has size 10, which 4 parts do not divide"),
        ({"dense1.weight": (2,)}, "tuple 0 has 1 entries, but operand 0 has 2 dims (10, 24)"),
        ({"dense1.weight": (1, 3)}, "it makes 3 parts, which do not divide the 8 devices"),
        ({"dense1.weight": (0, 1)}, "parameter_plan['dense1.weight']: entry (0, 1) must be a tuple of positive whole"),
        ({"dense1.weight": "tp"}, "entry 'tp' must be a tuple of positive whole numbers, one per dim, or a Layout"),
        ({"dense1.wieght": (2, 1)}, "parameter_plan names 'dense1.wieght', but the parameters are like dense1.weight"),
        ([("dense1.weight", (2, 1))], "but must be a dict such as {'weight': (2, 1)}"),
    ],
)
def test_parameter_plans(entries, words):
    def call():
        ash.plan(Net().shard(parameter_plan=entries), (X,), devices=8)  # line: parameter_plan

    text = message(call)
    assert words in text and f" at {line('parameter_plan')}" in text


class Tied(nn.Cell):
    """One weight in two products, as an embedding that is also the output's matrix."""

    def __init__(self, first, second) -> None:
        super().__init__()
        self.weight = Parameter(array(10, 4), name="table")
        self.encode, self.decode = ops.MatMul(), ops.MatMul(transpose_b=True)
        self.encode.shard(first)  # line: encode
        self.decode.shard(second)  # line: decode

    def construct(self, x):
        return self.decode(ops.relu(self.encode(x, self.weight)), self.weight)


def test_conflicting_strategies_of_a_shared_parameter():
    conflict = Tied(((1, 1), (1, 2)), ((1, 1), (2, 1)))
    assert message(lambda: ash.plan(conflict, (X,), devices=2)) == (
        f"conflicting strategies for the shared parameter table f32[10, 4]: encode (MatMul) at {line('encode')} "
        f"wants [-, d], decode (MatMul) at {line('decode')} wants [d, -]; give both operators the same split of it"
    )
    agreed = Tied(((1, 1), (1, 2)), ((1, 2), (1, 2)))
    planned = ash.plan(agreed, (X,), devices=2)
    np.testing.assert_allclose(planned.run(X), agreed(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fn, inputs, words",
    [
        (
            lambda x, y: ops.matmul(x, y),
            (array(4, 6), array(10, 12)),
            "matmul at {}: MatMul (... m k, k n -> ... m n): k is 10 in operand 1 (10, 12) but k is 6 in operand 0 "
            "(4, 6); operands f32[4, 6], f32[10, 12]",
        ),
        (lambda x, y: x + y, (array(4, 6), array(4, 10)), "add at {}: Add (..., ... -> ...): "),
        (
            lambda x, y: ops.MatMul()(x),
            (array(4, 6), array(6, 4)),
            "MatMul at {} is called with MatMul(input, mat2): missing a required argument: 'mat2'",
        ),
        (
            lambda x, y: ops.MatMul()(x, y, y),
            (array(4, 6), array(6, 4)),
            "MatMul at {} is called with MatMul(input, mat2): too many positional arguments",
        ),
        (
            lambda x, y: ops.Concat(axis=0)((x, y)),
            (array(4, 6), array(4, 10)),
            "concat at {}: Concat along axis 0: operand 1 is (4, 10) but operand 0 (4, 6); only that axis may differ",
        ),
        (
            lambda x, y: ops.reshape(x, shape=(5, 5)),
            (array(4, 6), array(4)),
            "reshape at {}: Reshape of (4, 6) to (5, 5): the operand has 24 elements",
        ),
    ],
)
def test_shapes_that_do_not_match(fn, inputs, words):
    place = f"{Path(__file__).name}:{fn.__code__.co_firstlineno}"
    assert message(lambda: ash.plan(fn, inputs, devices=2), ShapeError).startswith(words.format(place))


def test_shapes_that_do_not_match_in_a_layer():
    text = message(lambda: ash.plan(Net(), (array(12, 6),), devices=2), ShapeError)
    assert text.startswith(f"dense1.matmul at {line('apply')}: MatMul ")
    assert "k is 10 in operand 1 (10, 24) but k is 6 in operand 0 (12, 6)" in text


# -- what is not an error ------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["sharding_propagation", "batch"])
def test_no_annotation_at_all(search):
    net = Net()
    planned = ash.plan(net, (X,), devices=4, search=search)
    np.testing.assert_allclose(planned.run(X), net(X), rtol=1e-4, atol=1e-5)
    if search == "sharding_propagation":
        started = "no operator is configured; started from x [-, -]"
        assert planned.plan.started_from.startswith(f"{started}; 0 follow by rule, ")
        assert started in planned.report()


def test_no_annotation_and_no_data():
    weight = Parameter(array(12, 6), name="weight")
    planned = ash.plan(lambda: ops.relu(weight), (), devices=4)
    assert planned.plan.started_from.startswith("no operator is configured; started from its first operator; ")
    np.testing.assert_array_equal(planned.run(), np.maximum(weight.asnumpy(), 0))


def rows(count: int = 24) -> NumpySlicesDataset:
    return NumpySlicesDataset((array(count, 10), array(count, 6, seed=1)), ["x", "label"])


def model(strategy=((2, 1), (1, 4)), rate: float = 0.1, **parallel) -> ash.Model:
    ash.set_auto_parallel_context(**{"parallel_mode": "auto_parallel", "device_num": 8, "full_batch": True, **parallel})
    net = Net(strategy)
    return ash.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), rate))


def test_a_loss_that_is_no_number_is_shown_not_refused():
    history = ash.History()
    with np.errstate(all="ignore"):
        model(rate=1e30).train(3, rows().batch(12), callbacks=[history])
    assert len(history.losses) == 6
    assert np.isfinite(history.losses[0]) and not np.isfinite(history.losses[-1])


def test_model_says_what_plan_says():
    words = "dense1.matmul (MatMul) at {}: dim 0 of operand 0 has size 12, which 8 parts do not divide; 1, 2, 4 do"
    text = message(lambda: model(((8, 1), (1, 1))).train(1, rows().batch(12)))
    assert text.endswith(words.format(line("shard")))
    text = message(lambda: model(full_batch=False).train(1, rows().batch(12)), PlanError)
    assert "splits x: f32[12, 10] as [d, -] into (8, 1) parts, which do not divide it" in text


def test_an_input_without_numbers_is_named():
    told = message(lambda: ash.plan(Net(), (np.array([["a"]]),), devices=2), ShapeError)
    assert told.startswith("the input 'x' is no array of numbers: unknown element type")
