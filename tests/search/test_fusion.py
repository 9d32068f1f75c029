"""Kernels of several operators: what they move, beside what XLA fuses; prices of fused graphs agree in all sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.cost.evaluate import plan_seconds
from autoshard.cost.prices import prices_for
from autoshard.ir.fusion import fused
from autoshard.ir.graph import Graph
from autoshard.layout.mesh import Mesh
from autoshard.nn import SGD
from autoshard.plan.plan import Plan
from autoshard.search import Problem
from autoshard.search.assignment import Assignment, Pricing
from autoshard.search.exact.over_mesh_cuts import small_optimum
from autoshard.search.modes.batch import batch_parallel
from autoshard.search.registry import plan_flat
from autoshard.trace.function import trace
from autoshard.trace.parameter import Parameter
from autoshard.transform import train_step
from autoshard.transform.inline import inline
from autoshard.transform.micro import accumulate
from autoshard.transform.planned_graph import planned_graph
from autoshard.util.errors import PlanError
from costmodel import Device, Hardware, load, preset, save
from tests.oracle.grown import grown

ROWS, COLUMNS = 96, 160
SIZE = 4 * ROWS * COLUMNS


def made_by(fusion: str) -> Hardware:
    known = preset("h100").for_ranks(4)
    return replace(known, device=replace(known.device, fusion=fusion))


def compiled() -> Hardware:
    return made_by("xla")


def moved(graph: Graph, how: str = "xla") -> tuple[int, int]:
    """Bytes that a graph's kernels move, and how many kernels there are."""
    nbytes = launches = 0
    for node in fused(graph, how)[0].nodes:
        traffic, types = node.traffic, (*node.operand_types, *node.result_types)
        assert traffic is not None
        nbytes += sum(
            of.nbytes for of, is_moved in zip(types, (*traffic.operands, *traffic.results), strict=True) if is_moved
        )
        launches += traffic.launches
    return nbytes, launches


def of(function: Callable, *shapes: tuple[int, ...], how: str = "xla") -> tuple[int, int]:
    return moved(trace(function, *(np.ones(shape, np.float32) for shape in shapes)).graph, how)


X = ROWS, COLUMNS
KERNELS = {
    "a chain reads and writes once": (lambda x: ops.exp(ops.tanh(ops.neg(x))), [X], 2 * SIZE, 1),
    "two operands": (lambda x, y: ops.relu(x * y + x), [X, X], 3 * SIZE, 1),
    "two results": (lambda x: (ops.exp(x), ops.neg(x)), [X], None, 2),
    "softmax": (lambda x: ops.softmax(ops.scalar_mul(x, factor=2.0), axis=-1), [X], 2 * SIZE, 1),
    "sum of rows": (lambda x: ops.reduce_sum(ops.square(x), axis=1), [X], SIZE + 4 * ROWS, 1),
    "views": (lambda x: ops.exp(ops.transpose(x, perm=(1, 0))), [X], 2 * SIZE, 1),
    "what is spread is read small": (lambda x, y: x + y, [X, (COLUMNS,)], 2 * SIZE + 4 * COLUMNS, 1),
    "a product ends a kernel": (
        lambda x, w: ops.relu(ops.matmul(ops.exp(x), w)), [X, (COLUMNS, COLUMNS)], 6 * SIZE + 4 * COLUMNS**2, 3
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    function, shapes, nbytes, launches = KERNELS[name]
    found = of(function, *shapes)
    assert found[1] == launches and nbytes in (None, found[0])


WRITTEN = {
    "each by itself": (lambda x: ops.exp(ops.tanh(x)), [X], (4 * SIZE, 2), (2 * SIZE, 1)),
    "views are free": (lambda x: ops.exp(ops.transpose(x, perm=(1, 0))), [X], (2 * SIZE, 1), (2 * SIZE, 1)),
    "a softmax and what leads to it, not what follows": (
        lambda x: ops.exp(ops.softmax(ops.scalar_mul(x, factor=2.0), axis=-1)), [X], (6 * SIZE, 3), (4 * SIZE, 2)
    ),
    "a norm is a kernel": (
        lambda x: ops.reduce_sum(ops.exp(x), axis=1), [X], (3 * SIZE + 4 * ROWS, 2), (3 * SIZE + 4 * ROWS, 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_kernels_that_people_write(name):
    """Bytes and kernels of an eager framework, and of one with kernels written by hand."""
    function, shapes, *wanted = WRITTEN[name]
    assert [of(function, *shapes, how=how) for how in ("eager", "kernels")] == wanted


def _sums_beside(x):
    wide = ops.exp(x)
    return wide, ops.reduce_sum(wide, axis=0)


BESIDE = {
    "updates that read the same": (
        lambda p, m, g: (p - (m * 0.9 + g) * 0.1, m * 0.9 + g), [X] * 3, (5 * SIZE, 1)
    ),
    "one group leads to the other": (lambda x, w: ops.matmul(ops.exp(x), w) * x, [X, (COLUMNS,) * 2], None),
    "a column's sum of what others read": (_sums_beside, [X], (3 * SIZE + 4 * COLUMNS, 2)),
    "a column's sum of what nobody reads": (
        lambda x: ops.reduce_sum(ops.exp(x), axis=0), [X], (SIZE + 4 * COLUMNS, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_kernels_of_inductor(name):
    """Groups that read the same are one kernel unless one leads to the other; columns are summed apart."""
    function, shapes, wanted = BESIDE[name]
    assert of(function, *shapes, how="inductor") == (wanted or of(function, *shapes, how="xla"))


@pytest.mark.torch
def test_bytes_beside_those_of_inductor():
    """What torch's inductor says of its own kernels (`benchmarks/against_inductor.py` has 30 programs)."""
    pytest.importorskip("torch")
    from benchmarks.against_inductor import measure

    rows = measure(["momentum", "softmax", "gradient of bias"])
    assert [row["ratio"] for row in rows] == [1.0] * 3
    assert [row["kernels"] for row in rows] == [row["inductor_kernels"] for row in rows]


def test_kernels_of_scores_take_two_bytes():
    """As those of Megatron-LM; dropout is in a kernel with what is added; nobody starts counters of random numbers."""

    def weights(scores):
        return ops.softmax(ops.scalar_mul(scores, factor=0.5), axis=-1)

    narrow, wide = (trace(weights, np.ones((2, 4, 8, 8), of)).graph for of in (np.float16, np.float32))
    assert moved(narrow, "kernels") == (2 * 2 * 512, 1) and moved(wide, "kernels") == (4 * 4 * 512, 2)
    dropped = trace(lambda x, n: ops.dropout(ops.neg(x), n, rate=0.5) + x, np.ones(64, np.float32), np.int32(1)).graph
    assert moved(dropped, "kernels") == (2 * 4 * 64 + 4, 1)
    count = trace(lambda n: n + n, np.int32(1)).graph
    assert [moved(count, how) for how in ("eager", "kernels", "xla")] == [(0, 0)] * 3


def test_one_operator_more_moves_no_less():
    """And all together never more than each operator by itself."""
    steps: list[Callable] = [
        ops.exp,
        lambda x: ops.softmax(x, axis=-1),
        lambda x: ops.reduce_sum(x, axis=0) + x,
        ops.neg,
    ]
    for count in range(1, len(steps)):
        few, more = (of(lambda x, n=n: _chain(x, steps[:n]), X)[0] for n in (count, count + 1))
        assert few <= more


def _chain(x, steps):
    for step in steps:
        x = step(x)
    return x


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_all_sums_agree(seed):
    """Of tables, of a draft and of the plan, where nodes know their traffic."""
    rng, mesh = np.random.default_rng([seed, 77]), Mesh.parse(("4", "2x2")[seed % 2])
    graph, _ = planned_graph(grown(rng, uneven=False, gradient=seed % 4 == 2).graph, {})
    one = Problem(fused(graph)[0], mesh, compiled())
    assignments = []

    def flat(problem: Problem) -> Plan:
        plan = batch_parallel(problem)
        pricing = Pricing(problem, prices_for(problem.hardware))
        assignments.append(Assignment(pricing, {node: plan.strategy(node) for node in problem.graph.nodes}).seconds)
        return plan

    plan = plan_flat(flat, one)
    assert plan_seconds(plan, prices_for(one.hardware)) == pytest.approx(assignments[0], rel=1e-9)
    try:
        least = plan_flat(small_optimum, one)
    except PlanError:
        return
    assert plan_seconds(least, prices_for(one.hardware)) == pytest.approx(least.search_stats["seconds"], rel=1e-9)
    apart = plan_seconds(replace(plan), prices_for(compiled()))
    assert apart <= plan_seconds(plan_flat(batch_parallel, replace(one, graph=graph)), prices_for(compiled()))


@pytest.mark.parametrize("mode", ["sharding_propagation", "optimal", "data_parallel"])
def test_plans_on_hardware_that_fuses(mode):
    """They take less time by what their programs say, run as before, and `optimal` proves no more than they take."""
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(24, 40)).astype(np.float32), rng.normal(size=(40, 12)).astype(np.float32)

    def model(x, w):
        return ops.softmax(ops.relu(ops.matmul(ops.exp(ops.neg(x)), w)) + 1.0, axis=-1)

    apart, found = (ash.plan(model, (x, w), "2x2", search=mode, hardware=made_by(how)) for how in ("none", "xla"))
    assert found.cost.seconds < apart.cost.seconds
    assert found.plan.search_stats.get("bound", 0) <= found.cost.seconds * (1 + 1e-9)
    np.testing.assert_allclose(found.run(x, w), apart.run(x, w), rtol=1e-5)


def test_kernels_inside_loops():
    """What a loop does in each turn is in kernels, too, and views cost nothing there."""
    x = np.ones((ROWS, COLUMNS), np.float32)
    graph = trace(lambda x: ops.reduce_sum(ops.exp(ops.tanh(x) * 2.0)), x).graph
    (loop,) = [node for node in fused(accumulate(graph, 4))[0].nodes if node.regions]
    inside = loop.regions[1].nodes
    assert all(node.traffic is not None for node in inside)
    assert all(not node.traffic.launches for node in inside if node.op.view)
    assert sum(node.traffic.launches for node in inside) < sum(not node.op.view for node in inside) / 2
    step = ash.plan(graph_step(), mesh="dp=4", micro_batches=4, hardware=compiled(), search="data_parallel").cost
    alone = ash.plan(graph_step(), mesh="dp=4", micro_batches=4, hardware=made_by("none"), search="data_parallel").cost
    assert step.compute_seconds < 0.8 * alone.compute_seconds


def graph_step():
    table = Parameter(np.ones((COLUMNS, COLUMNS), np.float32))
    x = np.ones((ROWS, COLUMNS), np.float32)

    def loss(x):
        return ops.reduce_mean(ops.square(ops.exp(ops.tanh(ops.matmul(x, table)) * 2.0)))

    return train_step(loss, SGD([table], 0.1), x)


def test_a_name_says_how_programs_are_made(tmp_path):
    assert preset("h100:inductor").device.fusion == "inductor" and preset("h100:inductor").name == "h100:inductor"
    assert preset("h100:eager").device.host_seconds == 1e-5 and preset("h100").device.host_seconds == 0
    save(preset("a100"), tmp_path / "mine.json")
    assert preset(f"{tmp_path / 'mine.json'}:xla").device.fusion == "xla"
    with pytest.raises(ValueError, match="kernels are made by 'fast'; it is one of none, eager"):
        preset("h100:fast")
    with pytest.raises(ValueError, match="no hardware preset 'h1000'; did you mean"):
        preset("h1000:xla")


def test_hardware_that_fuses_is_saved(tmp_path):
    known = replace(compiled(), device=replace(compiled().device, attention_efficiency=0.4))
    assert load(save(known, tmp_path / "fusing.json")) == known


def test_hardware_says_how_programs_are_made():
    known = preset("h100").device
    with pytest.raises(ValueError, match="fusion is 'magic'; it is one of none, eager, kernels, xla, inductor"):
        replace(known, fusion="magic")
    with pytest.raises(ValueError, match="attention_efficiency is 1.5"):
        replace(known, attention_efficiency=1.5)
    device: Device = replace(known, attention_efficiency=0.3)
    assert (device.efficiency("Attention"), device.efficiency("MatMul")) == (0.3, known.compute_efficiency)


@pytest.mark.jax
def test_bytes_beside_those_of_xla():
    """XLA's own count of what its fusions access, on the processor, for like programs in f32."""
    jax = pytest.importorskip("jax")
    ratios = {}
    for name, (function, shapes) in _programs(jax).items():
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        theirs = jax.jit(function).lower(*arrays).compile().cost_analysis()["bytes accessed"]
        ratios[name] = moved(inline(ash.from_jax(jax.jit(function), *arrays).graph))[0] / theirs
    assert len(ratios) == 30 and 0.8 <= median(ratios.values()) <= 1.25, ratios


def _programs(jax) -> dict[str, tuple[Callable, list[tuple[int, ...]]]]:
    jnp, nn = jax.numpy, jax.nn
    square = COLUMNS, COLUMNS

    def norm(x, scale):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def block(x, a, b):
        return x + nn.gelu(x @ a) @ b

    def centred(x, scale, shift):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def loss(x, y):
        return -(nn.log_softmax(x) * y).sum(-1)

    forward = {
        "chain": (lambda x: jnp.tanh(jnp.exp(-x) + 1), [X]),
        "two": (lambda x, y: x * y + jnp.sin(x), [X, X]),
        "bias": (lambda x, b: nn.relu(x + b), [X, (COLUMNS,)]),
        "softmax": (lambda x: nn.softmax(x), [X]),
        "norm": (norm, [X, (COLUMNS,)]),
        "sum": (lambda x: (x * x).sum(1), [X]),
        "column": (lambda x: (x * x).sum(0), [X]),
        "product": (lambda x, a: nn.relu(x @ a), [X, square]),
        "block": (block, [X, square, square]),
        "gated": (lambda x, a, b: nn.silu(x @ a) * (x @ b), [X, square, square]),
        "adam": (lambda p, m, v, g: (p - 0.1 * m / (jnp.sqrt(v) + 1e-8), 0.9 * m + g, 0.9 * v + g * g), [X] * 4),
    }
    forward |= {
        "centred": (centred, [X, (COLUMNS,), (COLUMNS,)]),
        "loss": (loss, [X, X]),
        "sigmoid": (lambda x, y: nn.sigmoid(x) * y + (1 - nn.sigmoid(x)) * x, [X, X]),
        "choice": (lambda x, y: jnp.where(x > y, x - y, 0.5 * y), [X, X]),
        "momentum": (lambda p, m, g: (p - 0.1 * (0.9 * m + g), 0.9 * m + g), [X] * 3),
        "two products": (lambda x, a, b: jnp.tanh(x @ a) @ b, [X, square, square]),
        "residual": (lambda x, a, b: x + nn.relu(x @ a + b), [X, square, (COLUMNS,)]),
        "turned": (lambda x: jnp.exp(x.T) + 1, [X]),
        "largest": (lambda x: x - x.max(-1, keepdims=True), [X]),
    }
    again = ("chain", "softmax", "norm", "block", "gated", "two", "bias", "product", "sigmoid", "residual")
    steps = {f"gradient of {name}": forward[name] for name in again}
    made = {name: (jax.grad(lambda *x, f=f: f(*x).sum()), shapes) for name, (f, shapes) in steps.items()}
    return {**forward, **made}
