"""Look-ups, dynamic slices, scatters and extremes with the dim split in which they look: equal to the unsplit run, by
fewer bytes than a gather of that dim takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard.ops  # noqa: F401  (registers the operators)
from autoshard.core.rule import Rule
from autoshard.core.rule_sdy import show_sdy
from autoshard.core.strategy import Strategy, is_runnable
from autoshard.layout import Mesh
from autoshard.layout.sharding import Sharding
from autoshard.ops.body import Body
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.search.rules.strategy_from_shardings import strategy_from_shardings
from tests.oracle.check import assert_same, plan_with, single
from tests.partition.exchanging import drawn, exchanging

MESHES = ("2", "8", "2x4", "6", "3x2")
MESH = st.sampled_from(MESHES)
ROWS = {"start_index_map": (0,), "index_vector_dim": 1}


def split(op: str, arrays: list[np.ndarray], attrs: dict, mesh: str, factor: int) -> float:
    """Run with one factor split over the whole mesh, even or not; compare; the bytes that a rank receives."""
    operator, chosen = lookup(op), Mesh.parse(mesh)
    graph, node = single(operator, arrays, attrs)
    parts = [chosen.devices if i == factor else 1 for i in range(len(node.rule.factors))]
    assert is_runnable(node.rule, parts), f"{node.rule} in {parts}"
    strategy = Strategy(node.rule, chosen, tuple(chosen.all_axes if one > 1 else () for one in parts))
    program = lower(plan_with(graph, node, strategy))
    verify_program(program)
    outputs = Executor(program, LocalComm(chosen.devices))(*arrays)
    for got, want in zip(outputs, operator.evaluate(arrays, node.attrs), strict=True):
        assert_same(got, want, 1e-5, f"{op} {attrs} of {[one.shape for one in arrays]} by {strategy} on {mesh}")
    return sum(one.nbytes_moved for one in program.collectives)


def factor_of(op: str, arrays: list[np.ndarray], attrs: dict, operand: int, dim: int) -> int:
    (factor,) = single(lookup(op), arrays, attrs)[1].rule.operands[operand][dim]
    return factor


def number(value: int) -> np.ndarray:
    return np.array(value, np.int32)


@settings(max_examples=40)
@given(st.integers(9, 30), st.integers(1, 8), st.integers(-5, 35), st.sampled_from(["f32", "i32", "bool"]), MESH)
def test_slices_at_computed_places(size, taken, start, dtype, mesh):
    """Wherever a slice begins, in blocks even or not; what ranks sum are slices, not the tensor."""
    x = (drawn(0, size, 3) * 3).astype({"f32": np.float32, "i32": np.int32, "bool": np.bool_}[dtype])
    attrs = {"sizes": (taken, 3), "reduction": "max" if dtype == "bool" else "sum"}
    nbytes = split("DynamicSlice", [x, number(start), number(0)], attrs, mesh, 0)
    devices = Mesh.parse(mesh).devices
    assert nbytes == pytest.approx(2 * (devices - 1) / devices * taken * 3 * x.itemsize)


@settings(max_examples=30)
@given(st.integers(8, 20), st.integers(1, 6), st.integers(-3, 20), st.booleans(), MESH)
def test_updates_at_computed_places(size, written, start, fixed, mesh):
    arrays = [drawn(0, 2, size), drawn(1, 2, written), number(0), number(start)]
    assert split("DynamicUpdateSlice", arrays, {"fixed": fixed}, mesh, 1) == 0


@settings(max_examples=20)
@given(st.integers(8, 20), st.integers(1, 6), st.lists(st.integers(-4, 24), min_size=1, max_size=5), MESH)
def test_windows_at_computed_places(size, width, starts, mesh):
    """Gathers and scatters of slices narrower than the dim in which they lie, some across the border of blocks."""
    indices = np.array(starts, np.int32)[:, None]
    numbers = {"offset_dims": (1, 2), "collapsed_slice_dims": (), **ROWS}
    gather = {**numbers, "slice_sizes": (width, 3)}
    nbytes = split("GatherSlices", [drawn(0, size, 3), indices], gather, mesh, 1)
    devices = Mesh.parse(mesh).devices
    assert nbytes == pytest.approx(2 * (devices - 1) / devices * len(starts) * width * 3 * 4)
    written = {"update_window_dims": (1, 2), "inserted_window_dims": (), "index_vector_dim": 1}
    written["scatter_dims_to_operand_dims"] = (0,)
    updates = drawn(1, len(starts), width, 3)
    inputs = [drawn(0, size, 3), indices, updates]
    assert split("ScatterAddSlices", inputs, written, mesh, factor_of("ScatterAddSlices", inputs, written, 0, 0)) == 0
    for body in (Body("max"), Body("replace")):
        attrs = {**written, "body": body}
        assert split("ScatterSlices", inputs, attrs, mesh, factor_of("ScatterSlices", inputs, attrs, 0, 0)) == 0


def awkward(seed: int, *shape: int) -> np.ndarray:
    """Few values, many equal, infinities and NaN among them."""
    values = np.array([-np.inf, -1, 0, 0, 2, 2, np.inf, np.nan], np.float32)
    return values[np.random.default_rng(seed).integers(0, len(values), shape)]


@settings(max_examples=40)
@given(st.integers(0, 99), st.integers(8, 21), st.sampled_from(["ArgMax", "ArgMin"]), st.booleans(), MESH)
def test_positions_of_extremes(seed, size, op, keep, mesh):
    """The first of equal elements, NaN before all, in blocks of which some are padding alone."""
    x = awkward(seed, 3, size, 2)
    nbytes = split(op, [x], {"axis": 1, "keep_dims": keep}, mesh, 1)
    assert nbytes == (Mesh.parse(mesh).devices - 1) * 3 * 2 * (4 + 4)
    assert split(op, [np.arange(size, dtype=np.int32) % 5], {"axis": 0}, mesh, 0)


@settings(max_examples=40)
@given(st.integers(0, 99), st.integers(8, 40), st.integers(1, 5), st.sampled_from(["TopK", "ChloTopK"]), MESH)
def test_the_largest(seed, size, k, op, mesh):
    k = min(k, size // 2)
    devices = Mesh.parse(mesh).devices
    nbytes = split(op, [awkward(seed, 3, size)], {"k": k}, mesh, 1)
    assert nbytes == (devices - 1) * 3 * min(k, -(-size // devices)) * (4 + 4)


def first_largest(a, i, b, j):
    """The body by which JAX writes argmax."""
    better = (a > b) | (a == b) & (i < j)
    return np.where(better, a, b), np.where(better, i, j)


@settings(max_examples=30)
@given(st.integers(0, 99), st.integers(8, 21), MESH)
def test_reductions_of_pairs(seed, size, mesh):
    x = np.random.default_rng(seed).integers(0, 5, (4, size)).astype(np.float32)
    places = np.broadcast_to(np.arange(size, dtype=np.int32), x.shape).copy()
    body = Body("", "pairs", first_largest)
    arrays = [x, places, np.array(-np.inf, np.float32), number(np.iinfo(np.int32).max)]
    nbytes = split("Reduce", arrays, {"dimensions": (1,), "body": body}, mesh, 1)
    assert nbytes == (Mesh.parse(mesh).devices - 1) * 4 * (4 + 4)
    assert exchanging("Reduce", [x[:, :8].repeat(3, 1), *(places[:, :8].repeat(3, 1),), *arrays[2:]],
                      {"dimensions": (1, 0), "body": body}, mesh)  # fmt: skip


def test_any_function_combines_what_blocks_come_to():
    x = np.random.default_rng(0).integers(0, 64, (3, 24)).astype(np.int32)
    for body in ("and", "or", "xor"):
        assert exchanging("Reduce", [x, number(63 * (body == "and"))], {"dimensions": (1,), "body": Body(body)}, "2x4")


# -- what follows from shardings


MESH_8 = Mesh(x=8)
X = MESH_8.axis("x")


def asked(shape: tuple[int, ...], dim: int | None) -> Sharding:
    whole = Sharding.closed(MESH_8, len(shape))
    return whole.with_dims(one._replace(axes=(X,)) if i == dim else one for i, one in enumerate(whole.dims))


def followed(size: int, taken: int, result: int | None) -> Strategy:
    rule = single(lookup("DynamicSlice"), [drawn(0, size, 4), number(0), number(0)], {"sizes": (taken, 4)})[1].rule
    shardings = (asked((size, 4), 0), None, None, asked((taken, 4), result))
    strategy, _ = strategy_from_shardings(rule, MESH_8, shardings, (size * 4, 1, 1, taken * 4))
    return strategy


@pytest.mark.parametrize(
    ("size", "taken", "result", "splits"), [(64, 8, None, True), (64, 40, None, False), (64, 40, 0, True)]
)
def test_slices_follow_by_bytes(size, taken, result, splits):
    """Terms of a small slice are fewer bytes than the tensor; of a large one only if it is left in parts again."""
    strategy = followed(size, taken, result)
    assert bool(strategy.reduced) is splits
    assert bool(strategy.operand_layouts[0].dims[0]) is splits


def test_propagation_sees_one_factor():
    rule = Rule.parse("a! b, () -> [c]&a b {a=12, b=4, c=5}")
    assert str(rule) == "a! b, () -> [c]&a b {a=12, b=4, c=5}" and Rule.parse(str(rule)) == rule
    assert show_sdy(rule) == "([i, j], [])->([i, j]) {i=12, j=4} need_replication={i} blocked_propagation={i}"
    assert [rule.factors[i].name for i in rule.summed] == ["a"]
    pairs = Rule.parse("a b~^6 -> a {a=4, b=6}")
    assert str(pairs) == "a b~^6 -> a {a=4, b=6}"
    assert pairs.contracted == (1,) and pairs.summed == () and pairs.factors[1].splittable


def test_a_look_up_leaves_its_operand_alone():
    """Of a single slice, too, of which a rank holds nothing."""
    x, held = drawn(0, 4, 3), drawn(0, 4, 3)
    attrs = {"offset_dims": (0,), "collapsed_slice_dims": (1,), "start_index_map": (1,), "index_vector_dim": 0}
    attrs |= {"slice_sizes": (4, 1), "operand_batching_dims": (), "start_indices_batching_dims": ()}
    found = lookup("GatherSlices").run(x, np.array([0]), **attrs, block=((0, 4), (3, 6)))
    assert not found.any() and (x == held).all()
