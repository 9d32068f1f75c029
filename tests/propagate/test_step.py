"""One propagation step: the worked examples of Shardy's documents, meshes, options, causes and conflicts."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.core.rule import Rule
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.propagate.step import (
    BACKWARD,
    BOTH,
    FORWARD,
    NONE,
    AddedAxes,
    Direction,
    StepConflict,
    step,
    step_of,
)

MESH = Mesh(a=2, b=2, c=4, d=2, e=2, f=2, g=2)
MATMUL = Rule.parse("i k, k j -> i j {i=8, j=6, k=16}")
WIDE = Rule.parse("i k, k j -> i j {i=8, j=32, k=16}")
SAME = Rule.parse("i j, i j -> i j {i=8, j=6}")
STRATEGIES = pytest.mark.parametrize("aggressive", (False, True))


def asked(text: str, replicated: str = "", mesh: Mesh = MESH, name: str = "mesh") -> Sharding:
    """Read `a b ?, -`: the axes of each dim, `?` for an open one."""
    words = [dim.replace("-", "").split() for dim in text.split(",")]
    dims = [DimSharding(tuple(mesh.ref(word) for word in dim if word != "?"), "?" not in dim) for dim in words]
    return Sharding(mesh, dims, tuple(map(mesh.ref, replicated.split())), mesh_name=name)


def axes(text: str) -> tuple[AxisRef, ...]:
    return tuple(map(MESH.ref, text.split()))


@STRATEGIES
def test_table_of_three_factors(aggressive: bool) -> None:
    """The table with F0, F1 and F2 of Shardy's propagation document."""
    rule = Rule.parse("i j k, i j k -> i j k {i=16, j=12, k=10}")
    done = step(
        rule,
        (asked("a ?, ?, f ?"), asked("a b ?, c d ?, g ?"), asked("?, c e ?, ?")),
        aggressive=aggressive,
    )
    assert done.changes == ((0, asked("a b ?, c ?, f ?")), (2, asked("a b ?, c e ?, ?")))
    assert done.added == (
        AddedAxes(0, 0, axes("b"), 1),
        AddedAxes(0, 1, axes("c"), 1),
        AddedAxes(2, 0, axes("a b"), 1),
    )
    assert done.conflicts == (
        StepConflict(1, axes("d"), 1, 1, 2, axes("e"), False),
        StepConflict(2, axes("f"), 0, 2, 1, axes("g"), False),
    )


def test_matmul_spreads_along_each_factor() -> None:
    done = step(MATMUL, (asked("a ?, c ?"), asked("?, b ?"), None), aggressive=False)
    assert done.changes == ((1, asked("c ?, b ?")), (2, asked("a ?, b ?")))
    assert done.added == (
        AddedAxes(1, 2, axes("c"), 0),
        AddedAxes(2, 0, axes("a"), 0),
        AddedAxes(2, 1, axes("b"), 1),
    )
    assert not done.conflicts


def test_both_sides_of_a_matmul_want_one_axis() -> None:
    shardings = (asked("a ?, ?"), asked("?, a ?"), None)
    left = step(MATMUL, shardings, aggressive=False)
    assert not left.changes
    assert left.conflicts == (
        StepConflict(0, axes("a"), 0, 1, 1, axes("a"), False),
        StepConflict(1, axes("a"), 1, 0, 0, axes("a"), False),
    )
    # The larger source wins; of equal ones the left operand.
    lhs = step(Rule.parse("i k, k j -> i j {i=8, j=8, k=16}"), shardings)
    assert lhs.changes == ((2, asked("a ?, ?")),)
    assert lhs.conflicts == (StepConflict(1, axes("a"), 1, 0, 2, axes("a"), True),)
    rhs = step(WIDE, shardings)
    assert rhs.changes == ((2, asked("?, a ?")),)
    assert rhs.added == (AddedAxes(2, 1, axes("a"), 1),)
    assert rhs.conflicts == (StepConflict(0, axes("a"), 0, 1, 2, axes("a"), True),)


def test_reshape_shares_an_axis_out() -> None:
    rule = Rule.parse("(i j) -> i j {i=2, j=3}")
    done = step(rule, (asked("c"), None))
    assert done.changes == ((1, asked("c:(1)2 ?, c:(2)2 ?")),)
    assert done.added == (AddedAxes(1, 0, axes("c:(1)2"), 0), AddedAxes(1, 1, axes("c:(2)2"), 0))
    assert not step(rule, (asked("c"), None), conservative=True).changes


def test_a_placed_axis_is_what_came_in_addition() -> None:
    done = step(SAME, (asked("c:(1)2 ?, ?"), asked("c b ?, ?"), asked("-, -")))
    assert done.changes == ((0, asked("c b ?, ?")),)
    assert done.added == (AddedAxes(0, 0, axes("c:(2)2 b"), 1),)


def test_a_strided_view_is_no_change() -> None:
    """Only the minor factor could be split, which needs every so-manieth element."""
    done = step(Rule.parse("(i j) -> i j {i=2, j=3}"), (None, asked("?, a ?")))
    assert not done.changes and not done.added


def test_elementwise_operands_take_no_more_than_the_result() -> None:
    shardings = (asked("a ?, ?"), asked("?, ?"), asked("-, -"))
    assert step(SAME, shardings).changes == ((1, asked("a ?, ?")),)
    assert not step(SAME, shardings, pointwise=True).changes


def test_the_more_split_factor_goes_first_in_elementwise_operators() -> None:
    shardings = (asked("a ?, ?"), asked("?, a b ?"), asked("?, ?"))
    assert step(SAME, shardings).changes == ((2, asked("a ?, ?")),)
    assert step(SAME, shardings, pointwise=True).changes == ((2, asked("?, a b ?")),)


def test_what_stands_against_an_axis() -> None:
    kept = step(SAME, (asked("a ?, ?"), asked("?, ?", "a"), None))
    assert kept.changes == ((2, asked("a ?, ?")),)
    assert kept.conflicts == (StepConflict(0, axes("a"), 0, None, 1, axes("a"), False),)
    closed = step(SAME, (asked("a ?, ?"), asked("-, ?"), asked("a, ?")))
    assert not closed.changes
    assert closed.conflicts == (StepConflict(0, axes("a"), 0, 0, 1, (), False),)
    part = step(SAME, (asked("c ?, ?"), asked("?, c:(2)2 ?"), asked("?, -")))
    assert part.changes == ((1, asked("c:(1)2 ?, c:(2)2 ?")), (2, asked("c ?, -")))
    assert StepConflict(0, axes("c:(2)2"), 0, 1, 1, axes("c:(2)2"), False) in part.conflicts


def test_directions() -> None:
    shardings = (asked("a ?, ?"), asked("?, ?"), asked("?, b ?"))
    assert step(SAME, shardings, FORWARD).changes == ((1, asked("a ?, ?")), (2, asked("a ?, b ?")))
    assert step(SAME, shardings, BACKWARD).changes == ((0, asked("a ?, b ?")), (1, asked("?, b ?")))
    assert [tensor for tensor, _ in step(SAME, shardings, BOTH).changes] == [0, 1, 2]
    assert not step(SAME, shardings, NONE).changes
    assert not step(SAME, shardings, NONE).added


def test_only_factors_that_pass_through() -> None:
    shardings = (asked("?, c ?"), asked("?, b ?"), None)
    done = step(MATMUL, shardings, pass_only=True)
    assert done.changes == ((2, asked("?, b ?")),)
    assert step(MATMUL, shardings).changes == ((1, asked("c ?, b ?")), (2, asked("?, b ?")))


def test_blocked_factors_stay() -> None:
    rule = Rule.parse("i j! -> i j! {i=8, j=6}")
    assert step(rule, (asked("a ?, b ?"), None)).changes == ((1, asked("a ?, ?")),)


@STRATEGIES
def test_meshes(aggressive: bool) -> None:
    """Nothing without a common mesh; the new shardings name it as the first one does."""
    other = Mesh(a=2, b=2)
    empty = Sharding(Mesh.empty(), asked("?, ?").dims, mesh_name="none")
    device = Sharding(Mesh.maximal(0), (), mesh_name="device")
    apart = Mesh(a=2, b=2, order=(3, 2, 1, 0))

    def changes(*shardings: Sharding | None) -> tuple[tuple[int, Sharding], ...]:
        return step(SAME, shardings, aggressive=aggressive).changes

    assert not changes(None, None, None)
    assert not changes(asked("a ?, ?"), asked("?, b ?", mesh=other), None)
    assert not changes(asked("a ?, ?", mesh=apart), asked("?, b ?", mesh=other), None)
    assert not changes(device, asked("?, b ?"), None)
    assert not changes(device, None, None)
    assert not changes(empty, empty, None)
    assert changes(empty, asked("?, b ?", name="m"), None) == (
        (0, asked("?, b ?", name="m")),
        (2, asked("?, b ?", name="m")),
    )
    named = changes(asked("a ?, ?", name="m"), asked("?, b ?", name="n"), None)
    assert named == tuple((tensor, asked("a ?, b ?", name="m")) for tensor in range(3))


def test_a_changed_tensor_loses_its_priorities() -> None:
    urgent = Sharding(MESH, [DimSharding(axes("a"), False, 1), DimSharding((), False)])
    assert step(SAME, (urgent, asked("?, b ?"), urgent)).changes[0] == (0, asked("a ?, b ?"))


def test_equal_steps_are_one() -> None:
    shardings = (asked("a ?, ?"), None, None)
    again = pickle.loads(pickle.dumps(SAME))
    assert again is not SAME and hash(again) == hash(SAME)
    hits = step_of.cache_info().hits
    assert step(SAME, shardings) is step(again, shardings)
    assert step_of.cache_info().hits > hits


@st.composite
def tables(draw: st.DrawFn) -> tuple[Rule, tuple[Sharding | None, ...]]:
    rule = draw(st.sampled_from((MATMUL, WIDE, SAME)))
    shardings = []
    for _ in range(3):
        names = draw(st.permutations("abcd"))[: draw(st.integers(0, 4))]
        cut = draw(st.integers(0, len(names)))
        marks = [draw(st.sampled_from((" ?", ""))) for _ in range(2)]
        text = f"{' '.join(names[:cut])}{marks[0]}, {' '.join(names[cut:])}{marks[1]}"
        shardings.append(draw(st.sampled_from((None, asked(text), asked(text)))))
    return rule, tuple(shardings)


@given(tables(), st.sampled_from(Direction), st.booleans(), st.booleans())
def test_what_a_step_may_do(
    table: tuple[Rule, tuple[Sharding | None, ...]], direction: Direction, aggressive: bool, pointwise: bool
) -> None:
    """Axes are only added, to open dims, each to one place, and each comes from a tensor that has it."""
    rule, shardings = table
    done = step(rule, shardings, direction, aggressive=aggressive, pointwise=pointwise)
    added: dict[int, int] = {}
    for tensor, new in done.changes:
        old = shardings[tensor] or Sharding.open(MESH, 2)
        for before, after in zip(old.dims, new.dims, strict=True):
            assert after.axes[: len(before.axes)] == before.axes and after.closed == before.closed
            assert after.axes == before.axes or not before.closed
            added[tensor] = added.get(tensor, 0) + len(after.axes) - len(before.axes)
        assert len(set(new.used)) == len(new.used) and added[tensor] > 0
    assert {placed.tensor for placed in done.added} == set(added)
    assert sum(len(placed.axes) for placed in done.added) == sum(added.values())
    for placed in done.added:
        source = shardings[placed.source]
        assert placed.source != placed.tensor and source is not None and set(placed.axes) <= set(source.used)
    for clash in done.conflicts:
        asking = shardings[clash.tensor]
        assert clash.axes and asking is not None and set(clash.axes) <= set(asking.used)
