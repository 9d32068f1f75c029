"""Loops and branches in traced models: what they compute, what they refuse, how they are split."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.ir.graph import walk
from autoshard.ir.verify import verify
from autoshard.layout import Mesh
from autoshard.trace import Cell, Parameter, Traced, trace
from autoshard.transform import merge_equal, train_step
from autoshard.util.errors import AutoshardError, GraphError
from tests.trace.checks import checked, settled

MESH = Mesh(dp=2, tp=4)
RNG = np.random.default_rng(1)
X = RNG.normal(size=(8, 12)).astype(np.float32)
W = (RNG.normal(size=(12, 12)) / 4).astype(np.float32)


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
        (
            lambda x: ops.cond(x > 0, lambda: x, lambda: x),
            r"cond at .*: pred is bool\[8, 12\]; it has to be a bool scalar",
        ),
        (lambda x: ops.cond(x.sum(), lambda: x, lambda: x), r"pred is f32\[\]"),
        (
            lambda x: ops.cond(x.sum() > 0, lambda: x, lambda: x[0]),
            r"true_fn gives f32\[8, 12\], but false_fn gives f32\[12\]",
        ),
        (
            lambda x: ops.cond(x.sum() > 0, lambda: (x, x), lambda: x),
            r"gives \(f32\[8, 12\], f32\[8, 12\]\), but false_fn",
        ),
        (lambda x: ops.cond(x.sum() > 0, lambda: None, lambda: None), "false_fn returns None, which holds no tensor"),
        (
            lambda x: ops.switch(x.sum(), [lambda: x]),
            r"switch at .*: index is f32\[\]; it has to be a whole number scalar",
        ),
        (lambda x: ops.switch(0, []), "there are no branches"),
        (lambda x: ops.switch(x.argmax(0)[0], [lambda: x, lambda: x.sum()]), r"branch 1 gives f32\[\], but branch 0"),
    ],
)
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


def test_no_gradient_for_regions() -> None:
    net = Deep()
    with pytest.raises(GraphError, match=r"While has no gradient, but while at \S*test_control.py:\d+ lies between"):
        train_step(lambda x: net(x).sum(), nn.SGD(net.trainable_params(), 0.1), X)
    w = Parameter(W, name="w")

    def captured(x):
        return ops.cond(x.sum() > 0, lambda: (x @ w).sum(), lambda: x.sum())

    train_step(captured, nn.SGD([w], 0.1), X)  # a branch has one


def test_loops_of_equal_operands_are_not_merged() -> None:
    def f(x):
        one = ops.while_loop(lambda y: y.sum() < 9, lambda y: y * 2 + 1, x)
        other = ops.while_loop(lambda y: y.sum() < 9, lambda y: y * 3 + 1, x)
        same, again = ops.tanh(x), ops.tanh(x)
        return one + other, ops.cond(x.sum() > 0, lambda: same, lambda: again + same)

    merged = merge_equal(checked(f, X).graph)
    assert [node.op.name for node in merged.nodes].count("While") == 2
    assert [node.op.name for node in merged.nodes].count("Tanh") == 1


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
