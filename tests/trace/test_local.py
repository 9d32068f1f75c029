"""Manual computations in traced models: blocks, collectives along axes, nesting, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops
from autoshard.core.tensortype import TensorType
from autoshard.ir.verify import verify
from autoshard.layout import Mesh
from autoshard.propagate.traced import mutable_module
from autoshard.trace import Parameter, trace
from autoshard.util.errors import GraphError, MeshError, ShapeError, ShardingError
from tests.trace.checks import checked, settled

MESH = Mesh(dp=2, tp=4)
RNG = np.random.default_rng(1)
X = RNG.normal(size=(8, 12)).astype(np.float32)
W = (RNG.normal(size=(12, 12)) / 4).astype(np.float32)


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
    mutable_module(traced, MESH)


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
        (lambda x: ops.all_reduce(x, "tp"), r"all_reduce at \S*test_local.py:\d+ is used outside of a manual"),
        (rows(lambda a: a, (None, None), mesh=None), "mesh is None; give the Mesh"),
        (rows(lambda a: a, None, manual_axes=["ep"]), "manual axis 'ep' is not in the mesh 'dp=2 tp=4'"),
        (
            rows(lambda a: ops.all_gather(a, "tp"), None, manual_axes="dp"),
            "axis 'tp', which is not manual here; manual are dp",
        ),
        (rows(lambda a: ops.all_gather(a, "ep"), None), "unknown axis 'ep'"),
        (rows(lambda a: ops.all_gather(a, "tp", 2), None), r"dim is 2, but the tensor \(4, 3\) has 2 dims"),
        (rows(lambda a: ops.reduce_scatter(a, "tp", 1), None), r"dim 1 of \(4, 3\) does not divide into 4 blocks"),
        (rows(lambda a: ops.all_reduce(a, "tp", "mean"), None), "op is 'mean'; it is one of sum, prod, max, min"),
        (
            rows(lambda a: a, None, in_shardings=("[{tp}]",)),
            r"in_shardings, tensor 0 \(f32\[8, 12\]\) is asked .* it has 2",
        ),
        (rows(lambda a: a, None, in_shardings=("[{}, {dp, tp}]",)), r"dim 1 of size 12 is split 8 ways"),
        (
            rows(lambda a: a, None, in_shardings=("[{dp, tp}, {}]",), manual_axes="tp"),
            "a manual axis behind a free one",
        ),
        (rows(lambda a: a[0], ("dp", None)), r"out_shardings, tensor 0 \(f32\[3\]\) is asked to lie as"),
        (rows(lambda a: a, (("dp", None), None)), r"out_shardings.*'dp', None"),
        (
            rows(rows(lambda a: a, None, mesh=Mesh(q=8)), None),
            "inside a manual computation on 'dp=2 tp=4'; use that one",
        ),
        (
            rows(rows(lambda a: a, None, manual_axes="tp"), None),
            "takes axis 'tp', which the manual computation around it has",
        ),
    ],
)
def test_manual_computations_that_do_not_fit(make, text: str) -> None:
    for attempt in (lambda: trace(make, X), lambda: make(X)):
        with pytest.raises((GraphError, ShapeError, ShardingError, MeshError), match=text):
            attempt()


def test_one_on_another_mesh_than_the_model() -> None:
    with pytest.raises(ShardingError, match="is on the mesh 'dp=2 tp=4', but the model is on 'dp=8'"):
        mutable_module(trace(local_matmul, X, W), Mesh(dp=8))


# -- propagation: what Shardy gives on the same program in StableHLO


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
        mutable_module(f("[{}, {tp}]"), MESH)


def test_types_alone_can_be_traced() -> None:
    traced = trace(local_matmul, TensorType.of((8, 12)), TensorType.of((12, 12)))
    verify(traced.graph)
    np.testing.assert_allclose(traced(X, W), np.tanh(X @ W), 1e-4, 1e-5)
