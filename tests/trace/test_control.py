"""Loops, branches and manual computations in traced models: what they compute, what they refuse, how they are split."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard as ash
from autoshard import nn, ops
from autoshard.errors import AutoshardError, GraphError, MeshError, PlanError, ShapeError, ShardingError
from autoshard.ir.graph import walk
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.layout import Mesh
from autoshard.propagate.traced import work_of
from autoshard.tensortype import TensorType
from autoshard.trace import Cell, Parameter, Traced, evaluate, trace
from autoshard.transform import merge_equal, prune, train_step
from tests.trace.test_asked import settled

MESH = Mesh(dp=2, tp=4)
RNG = np.random.default_rng(1)
X = RNG.normal(size=(8, 12)).astype(np.float32)
W = (RNG.normal(size=(12, 12)) / 4).astype(np.float32)


def checked(fn, *args, **options) -> Traced:
    """The trace, after the laws of graphs and their text; it computes what `fn` computes at once."""
    traced = trace(fn, *args, **options)
    verify(traced.graph)
    again = parse(show(traced.graph))
    assert show(again) == show(traced.graph)
    arrays = traced.inputs(*args)
    wanted, _ = _leaves(fn(*args))
    for graph in (traced.graph, again, merge_equal(traced.graph), prune(traced.graph)):
        verify(graph)
        for one, other in zip(evaluate(graph, arrays), wanted, strict=False):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
            assert one.dtype == np.asarray(other).dtype
    return traced


def _leaves(tree) -> tuple[list, object]:
    from autoshard.trace.structure import flatten

    found, structure = flatten(tree, lambda part: isinstance(part, np.ndarray | np.generic))
    return [leaf for _, leaf in found], structure


def operators(traced: Traced) -> list[str]:
    return [node.op.name for node in walk(traced.graph.nodes)]


# -- loops


def count(x, w):
    def body(state):
        i, (first, rest) = state["i"], state["pair"]
        return {"i": i + 1, "pair": (first, ops.tanh(rest @ w))}

    return ops.while_loop(lambda state: state["i"] < 3, body, {"i": 0, "pair": (x[0], x)})


def test_a_loop_carries_nested_tensors() -> None:
    traced = checked(count, X, W)
    wanted = X
    for _ in range(3):
        wanted = np.tanh(wanted @ W)
    made = traced(X, W)
    assert made["i"] == 3 and made["i"].dtype == np.int32
    np.testing.assert_allclose(made["pair"][1], wanted, 1e-4)
    (loop,) = (node for node in traced.graph.nodes if node.op.name == "While")
    assert [value.name for value in loop.regions[1].args] == ["while.body.i", "while.body.pair.0", "while.body.pair.1"]
    assert loop.regions[1].captured == (traced.graph.inputs[1],)
    assert loop.source is not None and loop.source.text.startswith("return ops.while_loop(lambda state")


def test_a_loop_of_one_tensor_and_python_numbers() -> None:
    checked(lambda x: ops.while_loop(lambda y: y.sum() < 50.0, lambda y: y * 2 + 1, x), np.abs(X))
    checked(lambda x: ops.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 2, 1.5), (np.int32(0), x.sum())), X)
    assert ops.while_loop(lambda i: i < 4, lambda i: i + 3, 0) == 6


def test_a_loop_that_never_runs() -> None:
    np.testing.assert_array_equal(checked(lambda x: ops.while_loop(lambda y: y.sum() > 1e9, lambda y: -y, x), X)(X), X)


def test_loops_and_branches_nest() -> None:
    def f(x, w):
        def outer(state):
            i, y = state
            _, y = ops.while_loop(lambda s: s[0] < i + 1, lambda s: (s[0] + 1, s[1] @ w), (0, y))
            return i + 1, ops.cond(i % 2 == 0, lambda z: z + x, lambda z: ops.cond(i > 2, ops.tanh, ops.neg, z), y)

        return ops.while_loop(lambda s: s[0] < 4, outer, (0, x))

    traced = checked(f, X, W)
    assert operators(traced).count("While") == 2 and operators(traced).count("Case") == 2


@pytest.mark.parametrize(
    "init, cond, body, text",
    [
        (X, lambda y: y < 1, lambda y: y, r"the condition is bool\[8, 12\]; it has to be a bool scalar"),
        (X, lambda y: y.sum(), lambda y: y, r"the condition is f32\[\]; it has to be a bool scalar"),
        (
            X,
            lambda y: y.sum() < 1e9,
            lambda y: y[:2],
            r"the body gives f32\[2, 12\], but init gives f32\[8, 12\]; types",
        ),
        (
            (0, X),
            lambda s: s[0] < 1,
            lambda s: (s[0], s[1].sum()),
            r"gives f32\[\] for '1', but init gives f32\[8, 12\]",
        ),
        (
            (0, X),
            lambda s: s[0] < 1,
            lambda s: s[0],
            r"the body gives i32\[\], but init gives \(i32\[\], f32\[8, 12\]\)",
        ),
        (
            {"a": 0},
            lambda s: s["a"] < 1,
            lambda s: {"b": 0},
            r"gives \{'b': i32\[\]\}, but init gives \{'a': i32\[\]\}",
        ),
        ((), lambda s: True, lambda s: s, r"init is \(\), which holds no tensor"),
    ],
)
def test_loops_that_do_not_fit(init, cond, body, text: str) -> None:
    where = r"while_loop at \S*test_control.py:\d+: "
    with pytest.raises(AutoshardError, match=where + ".*" + text):
        ops.while_loop(cond, body, init)
    with pytest.raises(AutoshardError, match=where + ".*" + text):
        trace(lambda x: (x, ops.while_loop(cond, body, init)), X)


# -- branches


def test_a_branch_is_chosen_by_its_predicate() -> None:
    def f(x, w, p):
        return ops.cond(p, lambda a, b: {"y": a @ b, "n": 1}, lambda a, b: {"y": ops.tanh(a), "n": 2}, x, w)

    for p in (np.asarray(True), np.asarray(False)):
        assert checked(f, X, W, p)(X, W, p)["n"] == (1 if p else 2)
    checked(lambda x: ops.cond(True, lambda: x + 1, lambda: x), X)


def test_switch_takes_the_last_branch_out_of_range() -> None:
    branches = [lambda a: a, lambda a: a * 2.0, lambda a: ops.tanh(a)]
    for index in (-1, 0, 1, 2, 3):
        for kind in (np.int32, np.int64, np.uint8):
            number = np.asarray(index % 256 if kind is np.uint8 else index, kind)
            made = checked(lambda i, x: ops.switch(i, branches, x), number, X)(number, X)
            wanted = (X, X * 2, np.tanh(X))[index if 0 <= index < 3 else 2]
            np.testing.assert_allclose(made, wanted, 1e-6)


def test_only_the_chosen_branch_runs_at_once() -> None:
    ran = []
    ops.cond(np.asarray(False), lambda: ran.append("yes"), lambda: ran.append("no"))
    ops.switch(1, [lambda: ran.append(0), lambda: ran.append(1)])
    assert ran == ["no", 1]


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda x: ops.cond(x > 0, lambda: x, lambda: x), r"cond at .*: pred is bool\[8, 12\]; it has to be a bool scalar"),
        (lambda x: ops.cond(x.sum(), lambda: x, lambda: x), r"pred is f32\[\]"),
        (lambda x: ops.cond(x.sum() > 0, lambda: x, lambda: x[0]), r"true_fn gives f32\[8, 12\], but false_fn gives f32\[12\]"),
        (lambda x: ops.cond(x.sum() > 0, lambda: (x, x), lambda: x), r"gives \(f32\[8, 12\], f32\[8, 12\]\), but false_fn"),
        (lambda x: ops.cond(x.sum() > 0, lambda: None, lambda: None), "false_fn returns None, which holds no tensor"),
        (lambda x: ops.switch(x.sum(), [lambda: x]), r"switch at .*: index is f32\[\]; it has to be a whole number scalar"),
        (lambda x: ops.switch(0, []), "there are no branches"),
        (lambda x: ops.switch(x.argmax(0)[0], [lambda: x, lambda: x.sum()]), r"branch 1 gives f32\[\], but branch 0"),
    ],
)  # fmt: skip
def test_branches_that_do_not_fit(make, text: str) -> None:
    with pytest.raises(AutoshardError, match=text):
        trace(make, X)


# -- models around them


class Deep(Cell):
    """A layer applied several times, by a loop; parameters are met first inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(12, 12)
        self.dense.matmul.shard(((1, 1), (1, 1)))
        self.scale = Parameter(np.full((12,), 2.0, np.float32))

    def construct(self, x):
        (_, y) = ops.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, self.dense(s[1]) * self.scale), (0, x))
        return y + self.scale


def test_cells_and_parameters_inside_a_loop() -> None:
    traced = checked(Deep(), X)
    assert [value.name for value in traced.graph.inputs] == ["x", "dense.weight", "dense.bias", "scale"]
    assert [node.name for node in walk(traced.graph.nodes) if node.op.name == "MatMul"] == ["dense.matmul"]
    net = Deep()
    net.shard(parameter_plan={"scale": (4,)})
    shared = trace(net, X)
    verify(shared.graph)
    assert "scale.shard" in [node.name for node in shared.graph.nodes]


def test_a_parameter_is_not_assigned_inside() -> None:
    total = Parameter(np.zeros((12,), np.float32), name="total")

    def f(x):
        return ops.while_loop(lambda y: y.sum() < 9, lambda y: [total.assign(y[0]), y][1], x)

    with pytest.raises(GraphError, match="total is assigned inside a loop, branch or manual computation at"):
        trace(f, X)


def test_a_tensor_does_not_leave_its_region() -> None:
    kept = []

    def f(x):
        ops.cond(x.sum() > 0, lambda: [kept.append(x * 2), x][1], lambda: x)
        return kept[0] + 1

    with pytest.raises(GraphError, match=r"tensor scalar_mul .* was made inside a loop.*used outside of it at"):
        trace(f, X)


def test_names_stay_unique_where_a_trace_goes_on() -> None:
    class Net(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(np.full((12, 4), 0.5, np.float32))

        def construct(self, x):
            scaled = ops.while_loop(lambda y: y.sum() < 500, lambda y: ops.mul(y, y) + 1, ops.abs(x))
            return (scaled @ self.w).sum()

    net = Net()
    step = train_step(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), X)
    verify(step.graph)
    before = net.w.data.copy()
    step(X)
    assert (net.w.data != before).all()


def test_no_gradient_and_no_plan_for_regions() -> None:
    net = Deep()
    with pytest.raises(GraphError, match=r"While has no gradient, but while at \S*test_control.py:\d+ lies between"):
        train_step(lambda x: net(x).sum(), nn.SGD(net.trainable_params(), 0.1), X)
    w = Parameter(W, name="w")

    def captured(x):
        return ops.cond(x.sum() > 0, lambda: (x @ w).sum(), lambda: x.sum())

    with pytest.raises(GraphError, match="Case has no gradient"):
        train_step(captured, nn.SGD([w], 0.1), X)
    with pytest.raises(
        PlanError, match=r"cannot plan While yet: while at \S*test_control.py:\d+ in 'deep' has no rule"
    ):
        ash.plan(net, (X,), mesh="dp=2 tp=2")


def test_loops_of_equal_operands_are_not_merged() -> None:
    def f(x):
        one = ops.while_loop(lambda y: y.sum() < 9, lambda y: y * 2 + 1, x)
        other = ops.while_loop(lambda y: y.sum() < 9, lambda y: y * 3 + 1, x)
        same, again = ops.tanh(x), ops.tanh(x)
        return one + other, ops.cond(x.sum() > 0, lambda: same, lambda: again + same)

    merged = merge_equal(checked(f, X).graph)
    assert [node.op.name for node in merged.nodes].count("While") == 2
    assert [node.op.name for node in merged.nodes].count("Tanh") == 1


# -- manual computations


def local_matmul(x, w):
    def body(a, b):
        return ops.all_reduce(a @ b, "tp")

    return ops.tanh(
        ops.manual_computation(
            body, x, w, mesh=MESH, in_shardings=("[{?}, {tp}]", "[{tp}, {?}]"), out_shardings="[{?}, {?}]",
            manual_axes=["tp"],
        )
    )  # fmt: skip


def test_blocks_and_collectives() -> None:
    traced = checked(local_matmul, X, W)
    np.testing.assert_allclose(traced(X, W), np.tanh(X @ W), 1e-4, 1e-5)
    (node,) = (node for node in traced.graph.nodes if node.op.name == "ManualComputation")
    assert [str(value.type) for value in node.regions[0].args] == ["f32[8, 3]", "f32[3, 12]"]


def rows(fn, out, **options):
    """`fn` of the blocks of rows of X over dp and columns over tp."""
    options = {"mesh": MESH, "in_shardings": (("dp", "tp"),), "out_shardings": out, **options}
    return lambda x: ops.manual_computation(fn, x, **options)


@pytest.mark.parametrize(
    "fn, out, wanted",
    [
        (lambda a: ops.all_reduce(a, "tp"), ("dp", None), X.reshape(8, 4, 3).sum(1)),
        (lambda a: ops.all_reduce(a, ("dp", "tp"), "max"), None, X.reshape(2, 4, 4, 3).max((0, 2))),
        (lambda a: ops.all_reduce(a, "tp:(1)2", "min"), ("dp", "tp:(2)2"), X.reshape(8, 2, 6).min(1)),
        (lambda a: ops.all_reduce(a, "dp", "prod"), (None, "tp"), X.reshape(2, 4, 12).prod(0)),
        (lambda a: ops.all_gather(a, "tp", 1), ("dp", None), X),
        (lambda a: ops.all_gather(a, "dp"), (None, "tp"), X),
        (lambda a: ops.all_gather(ops.all_gather(a, "dp"), "tp", -1), None, X),
        (lambda a: ops.reduce_scatter(a, "tp", 0), (("dp", "tp"), None), X.reshape(8, 4, 3).sum(1)),
        (lambda a: ops.reduce_scatter(a, "dp", 0, "max"), ("dp", "tp"), X.reshape(2, 4, 12).max(0)),
        (lambda a: ops.all_to_all(a, "tp", 0, 1), (("dp", "tp"), None), X),
        (lambda a: ops.all_to_all(a, ("dp",), split=0, concat=1), None, None),
        (lambda a: a * 2, ("dp", "tp"), X * 2),
        (lambda a: a, "[{}, {}], unreduced={dp, tp}", X.reshape(2, 4, 4, 3).sum((0, 2))),
    ],
)  # fmt: skip
def test_collectives(fn, out, wanted) -> None:
    made = checked(rows(fn, out), X)(X)
    if wanted is None:
        first = X[:, :3].reshape(2, 2, 2, 3)  # position (0, 0): its rows 0:2, then those of dp=1
        wanted = np.concatenate([first[0, 0], first[1, 0]], 1)
    np.testing.assert_allclose(made, wanted, 1e-4, 1e-5)


def test_devices_in_another_order() -> None:
    mesh = Mesh([("dp", 2), ("tp", 4)], [3, 1, 0, 2, 7, 6, 4, 5])
    f = rows(lambda a: ops.all_reduce(ops.all_gather(a, "dp"), "tp"), None, mesh=mesh)
    np.testing.assert_allclose(checked(f, X)(X), X.reshape(8, 4, 3).sum(1), 1e-4, 1e-5)


def test_what_is_used_from_outside_comes_in_whole() -> None:
    scale = Parameter(np.full((3,), 2.0, np.float32), name="scale", sharding="[{tp, ?}]")

    def f(x, w):
        mean = ops.mul(w, w)

        def body(a):
            loop = ops.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] * scale + mean.sum()), (0, a))
            return ops.cond(mean.sum() > 0, lambda: loop[1], lambda: loop[1] + scale), mean

        return ops.manual_computation(
            body, x, mesh=MESH, in_shardings=(("dp", "tp"),), out_shardings=(("dp", "tp"), None)
        )

    traced = checked(f, X, W)
    (node,) = (node for node in traced.graph.nodes if node.op.name == "ManualComputation")
    assert node.regions[0].captured == ()
    assert [value.name for value in node.operands] == ["x", "scale", "mul"]
    assert [str(one) for one in node.attrs["in_shardings"][1:]] == [
        '<@mesh, [{?}], replicated={"dp", "tp"}>',
        '<@mesh, [{?}, {?}], replicated={"dp", "tp"}>',
    ]
    work_of(traced, MESH)


def test_manual_computations_nest() -> None:
    def f(x, w):
        def outer(a):
            def inner(b):
                return ops.all_reduce(b, "tp") + ops.all_reduce(w.sum(), "dp")

            return ops.manual_computation(inner, a * 2, in_shardings=((None, "tp"),), out_shardings=(None, None))

        options = {"in_shardings": (("dp", None),), "out_shardings": ("dp", None)}
        return ops.manual_computation(outer, x, mesh=MESH, manual_axes="dp", **options)

    np.testing.assert_allclose(checked(f, X, W)(X, W), 2 * X.reshape(8, 4, 3).sum(1) + 2 * W.sum(), 1e-4, 1e-4)


def test_one_in_a_loop() -> None:
    def f(x):
        halve = rows(lambda a: ops.all_reduce(a, "dp") / 4, ("dp", "tp"))
        return ops.while_loop(lambda y: ops.abs(y).max() > 0.5, halve, x)

    checked(f, X)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda x: ops.all_reduce(x, "tp"), r"all_reduce at \S*test_control.py:\d+ is used outside of a manual"),
        (rows(lambda a: a, (None, None), mesh=None), "mesh is None; give the Mesh"),
        (rows(lambda a: a, None, manual_axes=["ep"]), "manual axis 'ep' is not in the mesh 'dp=2 tp=4'"),
        (rows(lambda a: ops.all_gather(a, "tp"), None, manual_axes="dp"), "axis 'tp', which is not manual here; manual are dp"),
        (rows(lambda a: ops.all_gather(a, "ep"), None), "unknown axis 'ep'"),
        (rows(lambda a: ops.all_gather(a, "tp", 2), None), r"dim is 2, but the tensor \(4, 3\) has 2 dims"),
        (rows(lambda a: ops.reduce_scatter(a, "tp", 1), None), r"dim 1 of \(4, 3\) does not divide into 4 blocks"),
        (rows(lambda a: ops.all_reduce(a, "tp", "mean"), None), "op is 'mean'; it is one of sum, prod, max, min"),
        (rows(lambda a: a, None, in_shardings=("[{tp}]",)), r"in_shardings, tensor 0 \(f32\[8, 12\]\) is asked .* it has 2"),
        (rows(lambda a: a, None, in_shardings=("[{}, {dp, tp}]",)), r"dim 1 of size 12 is split 8 ways"),
        (rows(lambda a: a, None, in_shardings=("[{dp, tp}, {}]",), manual_axes="tp"), "a manual axis behind a free one"),
        (rows(lambda a: a[0], ("dp", None)), r"out_shardings, tensor 0 \(f32\[3\]\) is asked to lie as"),
        (rows(lambda a: a, (("dp", None), None)), r"out_shardings.*'dp', None"),
        (rows(rows(lambda a: a, None, mesh=Mesh(q=8)), None), "inside a manual computation on 'dp=2 tp=4'; use that one"),
        (rows(rows(lambda a: a, None, manual_axes="tp"), None), "takes axis 'tp', which the manual computation around it has"),
    ],
)  # fmt: skip
def test_manual_computations_that_do_not_fit(make, text: str) -> None:
    for attempt in (lambda: trace(make, X), lambda: make(X)):
        with pytest.raises((GraphError, ShapeError, ShardingError, MeshError), match=text):
            attempt()


def test_one_on_another_mesh_than_the_model() -> None:
    with pytest.raises(ShardingError, match="is on the mesh 'dp=2 tp=4', but the model is on 'dp=8'"):
        work_of(trace(local_matmul, X, W), Mesh(dp=8))


# -- propagation: what Shardy gives on the same program in StableHLO


def test_shardings_of_a_loop() -> None:
    def loop(x, w):
        return ops.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, ops.tanh(s[1] @ w)), (0, x))

    found = settled(trace(loop, X, W, in_shardings={"x": "[{dp, ?}, {?}]", "w": "[{?}, {tp, ?}]"}), MESH)
    assert found.pop("w") == '[{}, {"tp"}]' and found.pop("while") == "[]"
    assert found == dict.fromkeys(("x", "while_1", "matmul", "tanh", "output 1"), '[{"dp"}, {"tp"}]')


def test_shardings_of_a_branch() -> None:
    def branch(x, w, p):
        return ops.cond(p, lambda a: a @ w, lambda a: ops.tanh(a), x)

    asked = {"x": "[{dp, ?}, {?}]", "w": "[{}, {tp}]"}
    found = settled(trace(branch, X, W, np.asarray(True), in_shardings=asked), MESH)
    assert found.pop("w") == '[{}, {"tp"}]'
    assert found == dict.fromkeys(("x", "case", "tanh", "matmul", "output 0"), '[{"dp"}, {"tp"}]')


def test_shardings_of_a_manual_computation() -> None:
    asked = {"in_shardings": {"x": "[{dp}, {tp}]"}, "out_shardings": "[{?}, {tp, ?}]"}
    found = settled(trace(local_matmul, X, W, **asked), MESH)
    assert found.pop("w") == '[{"tp"}, {}]' and found.pop("manual.1") == "[{}, {}]"
    split = {found.pop(name) for name in ("x", "tanh", "output 0")}
    assert split == {'[{"dp"}, {"tp"}]'}
    assert set(found) == {"manual.0", "matmul", "all_reduce", "manual_computation"}
    assert {one.removesuffix(', replicated={"tp"}') for one in found.values()} == {'[{"dp"}, {}]'}


def test_a_constraint_inside_is_along_free_axes() -> None:
    def f(spec):
        def body(a):
            return ops.sharding_constraint(a, spec) * 2

        options = {"in_shardings": ("[{tp, ?}, {?}]",), "out_shardings": "[{tp, ?}, {?}]", "manual_axes": "tp"}
        return trace(lambda x: ops.manual_computation(body, x, mesh=MESH, **options), X)

    found = settled(f("[{}, {dp}]"), MESH)
    assert found["x"] == found["output 0"] == '[{"tp"}, {"dp"}]' and found["scalar_mul"] == '[{}, {"dp"}]'
    with pytest.raises(ShardingError, match=r"sharding_constraint .*axis 'tp' is manual here"):
        work_of(f("[{}, {tp}]"), MESH)


def test_types_alone_can_be_traced() -> None:
    traced = trace(local_matmul, TensorType.of((8, 12)), TensorType.of((12, 12)))
    verify(traced.graph)
    np.testing.assert_allclose(traced(X, W), np.tanh(X @ W), 1e-4, 1e-5)
