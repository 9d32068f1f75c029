"""Causes: every axis of every value leads back, over links that hold, to something that was asked; and conflicts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoshard.api.propagate import PASSES, Propagated, propagate
from autoshard.layout.sharding import Sharding
from autoshard.propagate import conflicts as reasons
from autoshard.propagate.causes import (
    ASKED,
    CALL,
    FLOW,
    GROUP,
    PIECES,
    RETURNED,
    STEP,
    UNEVEN,
    AxisCause,
    AxisHistory,
    rule_of,
)
from autoshard.propagate.conflicts import AxisConflict, conflicts
from autoshard.propagate.descriptions import dim_text, level_description
from autoshard.propagate.levels import ORDER, Level
from autoshard.propagate.mutable_ir import MutableValue
from autoshard.propagate.record import CONSTRAINT, MANUAL_IN, MANUAL_OUT, OUTPUT, Output
from autoshard.propagate.step import FORWARD
from autoshard.propagate.values import get_sharding
from autoshard.util.errors import AutoshardError
from tests.propagate.generate.module import random_module

pytestmark = pytest.mark.jax

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'


def module(body: str, args: list[str], result: str, more: str = "") -> str:
    listed = ", ".join(f"%arg{i}: {of}" for i, of in enumerate(args))
    return f"{MESH}func.func @main({listed}) -> ({result}) {{\n{body}\n}}\n{more}"


def tensor(shape: str, sharding: str = "") -> str:
    return f"tensor<{shape}xf32>" + (f" {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}" if sharding else "")


def value(spread: Propagated, name: str) -> MutableValue:
    return next(one for one in spread.vals() if one.origin is not None and one.origin.name == name)


def chain(spread: Propagated, name: str, dim: int, axis: str) -> list[AxisCause]:
    """The only chain of a whole axis."""
    at = value(spread, name)
    sharding = get_sharding(at)
    assert sharding is not None
    [cause] = spread.history.trace(at, dim, sharding.mesh.axis(axis))
    return cause.chain


def hows(links: list[AxisCause]) -> list[str]:
    return [link.how for link in links]


# -- any module


def split_dims(spread: Propagated) -> Iterator[tuple[MutableValue | Output, int, Sharding]]:
    found = [(one, get_sharding(one)) for one in spread.vals() if one.origin is not None]
    for function in spread.module.functions:
        found += [(Output(function, i), one) for i, one in enumerate(function.attrs["outputs"])]
    for at, sharding in found:
        if sharding is not None:
            yield from ((at, dim, sharding) for dim in range(sharding.rank))


def check_traced(spread: Propagated) -> int:
    """Every axis has causes that make up all of it; returns how many axes there are."""
    count = 0
    for at, dim, sharding in split_dims(spread):
        for axis in sharding.dims[dim].axes:
            causes = spread.history.trace(at, dim, axis)
            assert causes, f"no cause for {axis} of dim {dim} of {at}"
            assert math.prod(cause.axis.size for cause in causes) == axis.size
            for cause in causes:
                if not isinstance(at, Output):
                    assert cause.holder in (at, spread.history.record.holder_of(at))
                for link in cause.chain:
                    check_link(spread.history, link)
            count += 1
    return count


def check_link(history: AxisHistory, link: AxisCause) -> None:
    if link.how == ASKED:
        assert link.before is None and link.asked_by is not None
        assert any(axis.overlaps(link.axis) or axis == link.axis for axis in link.asked_by.sharding.dims[link.dim].axes)
        return
    assert link.before is not None and link.asked_by is None
    # The origin's own cause is of the same place and dim. Outputs of functions are named afresh.
    assert link.before.dim == link.origin_dim
    assert link.before.holder is link.origin or isinstance(link.origin, Output)
    if link.how in (STEP, RETURNED):
        check_step(history, link)


def check_step(history: AxisHistory, link: AxisCause) -> None:
    """The source had the axis before the step, the target got it from the step."""
    event = link.event
    assert event is not None and link.tensors is not None and link.number is not None
    assert link.origin_dim is not None
    source, target = link.tensors
    assert [history.holders_of(event)[t] for t in link.tensors] == [link.origin, link.holder]
    assert has(event.before[source], link.origin_dim, link)
    assert not has(event.before[target], link.dim, link)
    assert has(dict(event.step.changes)[target], link.dim, link)
    if link.before is not None and link.before.number is not None:
        assert link.before.number < link.number
    rule = rule_of(event.step)
    for tensor_, dim in ((source, link.origin_dim), (target, link.dim)):
        assert link.factor in (*rule.operands, *rule.results)[tensor_][dim]


def has(sharding: Sharding | None, dim: int | None, link: AxisCause) -> bool:
    if sharding is None or dim is None:
        return False
    return any(axis.overlaps(link.axis) or axis == link.axis for axis in sharding.dims[dim].axes)


@pytest.mark.parametrize("which", PASSES)
@settings(max_examples=14)
@example(156)  # a window's place comes before the batch, and cannot be split alone
@example(460)  # a call's results are moved, as a group asks
@example(1356)  # an axis of size 1 is of the second factor of a dim
@example(1436)  # a manual axis is asked again inside
@example(2295)  # the axes of a dim that has to be whole go to another one, where a piece of them was
@example(1464)  # a value stands in its group twice
@given(seed=st.integers(0, 100_000))
def test_every_axis_has_a_cause(which, seed):
    try:
        spread = propagate(random_module(Random(seed)), which=which)
    except AutoshardError:
        return
    check_traced(spread)
    for conflict in conflicts(spread.history):
        check_conflict(spread.history, conflict)


def check_conflict(history: AxisHistory, conflict: AxisConflict) -> None:
    """Both sides have the axes that they are told to have, and these have causes."""
    assert conflict.wanted.axes and conflict.wanted.dim is not None
    number = None if conflict.number is None else conflict.number + conflict.decided
    for side in (conflict.wanted, conflict.against):
        if side.dim is not None:
            for axis in side.axes:
                assert history.at(side.holder, side.dim, axis, number), f"{axis} of {side} came from nowhere"
    into = conflict.into
    if conflict.why == reasons.CLOSED and into.holder in history.record.end:  # the place may be dead, and gone
        ended = history.record.end[into.holder]
        assert ended is not None and into.dim is not None and ended.dims[into.dim].closed


def test_the_random_modules_are_not_empty():
    spreads = [propagate(random_module(Random(seed)), which="basic") for seed in (1, 4, 5)]
    assert sum(map(check_traced, spreads)) > 30


# -- chains by hand


def product(first: str, second: str = "", result: str = "") -> str:
    return module(
        """  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
    : (tensor<8x6xf32>, tensor<6x12xf32>) -> tensor<8x12xf32>
  %1 = stablehlo.tanh %0 : tensor<8x12xf32>
  return %1 : tensor<8x12xf32>""",
        [tensor("8x6", first), tensor("6x12", second)],
        tensor("8x12", result),
    )


PRODUCT = product('[{"x"}, {?}]', result='[{?}, {"y"}]')


def test_forward_and_backward_from_two_requests():
    spread = propagate(PRODUCT, which="user-priority")
    rows = chain(spread, "%1", 0, "x")
    assert hows(rows) == [STEP, STEP, ASKED]
    assert [link.event.op.name for link in rows[:2] if link.event] == ["Tanh", "DotGeneral"]
    assert rows[-1].asked_by is not None and rows[-1].holder is value(spread, "%arg0")
    # Products wait for a later level than elementwise operators.
    assert [link.event.level for link in rows[:2] if link.event] == [2, 2]
    columns = chain(spread, "%arg1", 1, "y")
    assert hows(columns) == [STEP, STEP, RETURNED, ASKED]
    assert columns[0].tensors == (2, 1) and columns[0].dim == 1
    assert columns[-1].asked_by is not None and columns[-1].asked_by.what == OUTPUT


def test_sideways_along_what_is_summed():
    [link, asked] = chain(propagate(product('[{"x"}, {"y", ?}]'), which="aggressive"), "%arg1", 0, "y")
    assert link.tensors == (0, 1) and link.origin_dim == 1 and asked.how == ASKED
    assert link.factor is not None and link.event is not None
    assert rule_of(link.event.step).factors[link.factor].kind == "reduction"


def test_pieces_of_an_axis_may_come_by_two_ways():
    """The argument's dim of 8 is made of dims of 2 and 4: each gives its piece of y."""
    text = module(
        """  %0 = stablehlo.reshape %arg0 : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
  return %0 : tensor<2x4x6xf32>""",
        [tensor("8x6")],
        tensor("2x4x6", '[{"y":(1)2}, {"y":(2)2, ?}, {?}]'),
    )
    spread = propagate(text, which="basic")
    at = value(spread, "%arg0")
    causes = spread.history.trace(at, 0, spread.module.meshes["mesh"].axis("y"))
    assert [(cause.axis.pre, cause.axis.size, cause.origin_dim) for cause in causes] == [(1, 2, 0), (2, 2, 1)]


def test_members_of_a_group():
    text = module(
        """  sdy.sharding_group %arg0 group_id=5 : tensor<8x6xf32>
  sdy.sharding_group %arg1 group_id=5 : tensor<8x6xf32>
  %0 = stablehlo.add %arg1, %arg2 : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>""",
        [tensor("8x6"), tensor("8x6"), tensor("8x6", '[{"x"}, {?}]')],
        tensor("8x6"),
    )
    links = chain(propagate(text, which="basic"), "%arg0", 0, "x")
    assert hows(links) == [GROUP, STEP, ASKED]


def test_a_group_starts_with_what_one_member_has():
    text = module(
        """  sdy.sharding_group %arg0 group_id=5 : tensor<8x6xf32>
  sdy.sharding_group %arg1 group_id=5 : tensor<8x6xf32>
  return %arg0 : tensor<8x6xf32>""",
        [tensor("8x6"), tensor("8x6", '[{"x"}, {?}]')],
        tensor("8x6"),
    )
    links = chain(propagate(text, which="basic"), "%arg0", 0, "x")
    assert hows(links) == [GROUP, ASKED] and links[0].number is None


LOOP = module(
    """  %0:2 = stablehlo.while(%i = %arg0, %s = %arg1) : tensor<i32>, tensor<8x6xf32>
  cond {
    %c = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = stablehlo.add %s, %arg2 : tensor<8x6xf32>
    stablehlo.return %i, %1 : tensor<i32>, tensor<8x6xf32>
  }
  return %0#1 : tensor<8x6xf32>""",
    ["tensor<i32>", tensor("8x6"), tensor("8x6", '[{?}, {"x"}]')],
    tensor("8x6"),
)


@pytest.mark.parametrize("which", PASSES)
def test_around_a_loop(which):
    spread = propagate(LOOP, which=which)
    links = chain(spread, "%0#1", 1, "x")
    assert hows(links)[0] == FLOW or hows(links) == [STEP, ASKED]
    assert links[-1].asked_by is not None and links[-1].holder is value(spread, "%arg2")
    # The argument of the body has what the loop has.
    inside = next(one for one in spread.vals() if one.origin and one.origin.name.startswith("%0#0.b."))
    assert spread.history.record.holder_of(inside) is not None
    assert FLOW in hows(chain(spread, "%arg1", 1, "x"))


def test_manual_axes_are_asked_by_the_computation():
    text = module(
        """  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", ?}, {?}]>]
    out_shardings=[<@mesh, [{"x", ?}, {?}]>] manual_axes={"x"} (%a: tensor<4x6xf32>) {
    %1 = stablehlo.tanh %a : tensor<4x6xf32>
    sdy.return %1 : tensor<4x6xf32>
  } : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>""",
        [tensor("8x6")],
        tensor("8x6", '[{?}, {"y":(1)2}]'),
    )
    spread = propagate(text, which="basic")
    into = chain(spread, "%arg0", 0, "x")
    assert hows(into) == [FLOW, ASKED] and into[-1].asked_by is not None and into[-1].asked_by.what == MANUAL_IN
    out = chain(spread, "%0", 0, "x")
    assert hows(out) == [ASKED] and out[-1].asked_by is not None and out[-1].asked_by.what == MANUAL_OUT
    assert check_traced(spread) > 4


def test_a_closed_constraint_gives_its_sharding_to_its_input():
    text = module(
        """  %0 = stablehlo.tanh %arg0 : tensor<8x6xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x6xf32>
  return %1 : tensor<8x6xf32>""",
        [tensor("8x6")],
        tensor("8x6"),
    )
    [copied] = chain(propagate(text, which="full"), "%0", 0, "x")
    assert copied.asked_by is not None and copied.asked_by.what == CONSTRAINT
    assert copied.asked_by.at is not copied.holder
    # Without the pipeline it comes by a step.
    assert hows(chain(propagate(text, which="basic"), "%0", 0, "x")) == [STEP, ASKED]


CALLED = module(
    """  %0 = call @f(%arg0) : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>""",
    [tensor("8x6")],
    tensor("8x6", '[{?}, {"x"}]'),
    """func.func private @f(%arg0: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}""",
)


def test_into_and_out_of_a_called_function():
    spread = propagate(CALLED, which="full")
    links = chain(spread, "%arg0", 1, "x")
    assert hows(links) == [FLOW, STEP, FLOW, RETURNED, ASKED]
    function = spread.module.functions[-1]
    [cause] = spread.history.trace(Output(function, 0), 1, spread.module.meshes["mesh"].axis("x"))
    assert cause.how == CALL and cause.request.what == OUTPUT


def test_what_the_boundaries_cut_is_told():
    """6 does not divide by 4, and 8 is split by half of an axis: neither is so at main's input."""
    text = module(
        """  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y":(1)2, ?}, {"x", "y":(2)2, ?}]> : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>""",
        [tensor("8x6")],
        tensor("8x6", "[{}, {}]"),
    )
    spread = propagate(text, which="full")
    at = value(spread, "%arg0")
    lost = {(one.dim, one.why) for one in spread.history.lost(at, get_sharding(at))}
    assert lost == {(0, PIECES), (1, UNEVEN)}


# -- conflicts by hand


def found(text: str, which: str = "aggressive") -> list[tuple]:
    spread = propagate(text, which=which)
    return [(one.why, one.decided, one.left) for one in conflicts(spread.history)]


def sum_of(first: str, second: str, result: str = "") -> str:
    return module(
        "  %0 = stablehlo.add %arg0, %arg1 : tensor<8x12xf32>\n  return %0 : tensor<8x12xf32>",
        [tensor("8x12", first), tensor("8x12", second)],
        tensor("8x12", result),
    )


@pytest.mark.parametrize(
    "text, which, why, decided",
    [
        (sum_of('[{"x"}, {}]', '[{"y"}, {}]'), "aggressive", reasons.DISAGREE, False),
        (sum_of('[{"x"}, {}]', '[{}, {"x"}]'), "basic", reasons.TAKEN, False),
        (sum_of('[{"x", ?}, {?}]', '[{?}, {"x", ?}]'), "aggressive", reasons.ORDER, True),
        (sum_of('[{"x", ?}, {?}]', '[{?}, {"y", "x", ?}]'), "aggressive", reasons.PARTS, True),
        (sum_of('[{"x", ?}, {?}]', "[{?}, {}]", "[{}, {?}]"), "basic", reasons.CLOSED, False),
        (sum_of('[{"x", ?}, {?}]', '[{?}, {?}], replicated={"x"}'), "aggressive", reasons.REPLICATED, False),
        (sum_of('[{"x", ?}, {?}]', '[{?}, {?}], unreduced={"x"}'), "aggressive", reasons.UNREDUCED, False),
        (
            product('[{"x", ?}, {?}]', '[{?}, {"x", ?}]'),
            "aggressive",
            reasons.LARGER,
            True,
        ),
    ],
)
def test_reasons(text, which, why, decided):
    assert (why, decided) in {(one[0], one[1]) for one in found(text, which)}


def test_a_later_priority_waits():
    text = sum_of('[{"x", ?}, {?}]', '[{?}, {"x", ?}p1]')
    rounds = found(text, "user-priority")
    assert (reasons.WAITING, False, True) in rounds


def test_a_dim_of_a_later_priority_is_closed_until_then():
    text = sum_of('[{"x", ?}, {?}]', "[{?}p1, {?}]")
    assert (reasons.LATER, False, False) in found(text, "user-priority")
    assert found(text, "op-priority") == []


def test_both_sides_are_told():
    spread = propagate(sum_of('[{"x"}, {}]', '[{"y"}, {}]'))
    [conflict] = [one for one in conflicts(spread.history) if one.why == reasons.DISAGREE]
    places = {conflict.wanted.holder, conflict.against.holder}
    assert {value(spread, "%arg0"), value(spread, "%arg1")} == places
    assert {axis.name for axis in conflict.wanted.axes + conflict.against.axes} == {"x", "y"}


def test_no_conflict_where_all_agree():
    assert found(sum_of('[{"x"}, {}]', '[{"x"}, {}]')) == []
    assert found(PRODUCT) == []


# -- words


def test_levels_in_words():
    told = [level_description(level) for level in ORDER]
    assert (
        told[0]
        == "elementwise operators, operators that only move data and slices forward, where each operand has one use"
    )
    assert told[2].startswith("all operators, broadcasts only backward, along dims")
    assert told[4] == "all operators"
    assert level_description(Level(operators={"MatMul": FORWARD})) == "MatMul forward"
    assert level_description(Level()) == "nothing"


def test_dims_in_words():
    sharding = get_sharding(value(propagate(PRODUCT, which="basic"), "%0"))
    assert sharding is not None
    assert dim_text(sharding.dims[1], sharding) == '{"y", ?}'
    assert dim_text(sharding.dims[1]._replace(closed=True, priority=2), sharding) == '{"y"}p2'
