"""Explicit reshards against Shardy's pass: random concatenations and products, calls, and what is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.propagate.mutable_ir import MutableModule
from autoshard.propagate.passes.cleanup import drop_dead
from autoshard.propagate.passes.reshards import insert_reshards
from autoshard.propagate.passes.unreduced import cancel_sums
from autoshard.util.errors import ShardingError
from tests.propagate.compare import check, load, module_text, run_shardy

pytestmark = pytest.mark.jax
PASS = "func.func(sdy-insert-explicit-reshards{enable-full-version=false})"
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4, "z"=3]>\n'
OTHER = f'sdy.mesh @other = <["x"=2, "y"=4, "z"=3], device_ids={[1, 0, *range(2, 24)]}>\n'
PIECES = [["x"], ["y"], ["y:(1)2", "z"], ["z", "y:(2)2"], ["x", "y"], ["y", "x"], ["z", "x", "y"]]


@st.composite
def shardings(draw: st.DrawFn, rank: int, meshes: tuple[str, ...] = ("mesh",)) -> str | None:
    """None, or a closed sharding whose axes occur once."""
    if draw(st.integers(0, 5)) == 0:
        return None
    left = list(draw(st.permutations(draw(st.sampled_from(PIECES)))))
    dims = []
    for _ in range(rank):
        count = draw(st.integers(0, min(2, len(left))))
        axes = [left.pop() for _ in range(count)]
        dims.append("{" + ", ".join(f'"{a[0]}"{a[1:]}' for a in axes) + "}")
    return f"<@{draw(st.sampled_from(meshes))}, [{', '.join(dims)}]>"


def argument(name: str, type_: str, sharding: str | None) -> str:
    return f"%{name}: {type_}" + (f" {{sdy.sharding = #sdy.sharding{sharding}}}" if sharding else "")


def result(sharding: str | None) -> str:
    return f" {{sdy.sharding = #sdy.sharding_per_value<[{sharding}]>}}" if sharding else ""


def tensor(*sizes: int) -> str:
    return f"tensor<{'x'.join(map(str, sizes))}xf32>"


@st.composite
def concatenations(draw: st.DrawFn, number: int) -> str:
    """A function that joins one to three tensors, maybe one of them twice."""
    sizes = draw(st.lists(st.sampled_from([4, 6, 8, 12]), min_size=2, max_size=3))
    dim = draw(st.integers(0, len(sizes) - 1))
    lengths = draw(st.lists(st.sampled_from([2, 8, 12]), min_size=1, max_size=3))
    types = [tensor(*sizes[:dim], length, *sizes[dim + 1 :]) for length in lengths]
    joined = tensor(*sizes[:dim], sum(lengths), *sizes[dim + 1 :])
    meshes = ("mesh", "other")
    args = [argument(f"a{i}", of, draw(shardings(len(sizes), meshes))) for i, of in enumerate(types)]
    names = ", ".join(f"%a{i}" for i in range(len(types)))
    asked = result(draw(shardings(len(sizes), meshes)))
    return f"""func.func @f{number}({", ".join(args)}) -> ({joined}, {joined}) {{
  %0 = "stablehlo.concatenate"({names}) <{{dimension = {dim} : i64}}>{asked} : ({", ".join(types)}) -> {joined}
  %1 = stablehlo.add %0, %0 : {joined}
  return %0, %1 : {joined}, {joined}
}}
"""


@st.composite
def products(draw: st.DrawFn, number: int) -> str:
    """A function that multiplies matrices, in a batch or not; often split so that the result conflicts."""
    batch = draw(st.sampled_from([(), (6,)]))
    m, k, n = (draw(st.sampled_from([4, 8, 12])) for _ in range(3))
    types = tensor(*batch, m, k), tensor(*batch, k, n), tensor(*batch, m, n)
    rank = 2 + len(batch)
    if draw(st.booleans()):
        inner, row, column = draw(st.permutations(['"x"', '"y"', '"z"']))
        empty = "{}, " * len(batch)
        left, right = f"<@mesh, [{empty}{{}}, {{{inner}}}]>", f"<@mesh, [{empty}{{{inner}}}, {{{column}}}]>"
        out = f"<@mesh, [{empty}{{{draw(st.sampled_from(['', row]))}}}, {{{inner}}}]>"
    else:
        left, right, out = (draw(shardings(rank)) for _ in range(3))
    along = "batching_dims = [0] x [0], contracting_dims = [2] x [1]" if batch else "contracting_dims = [1] x [0]"
    return f"""func.func @f{number}({argument("a", types[0], left)}, {argument("b", types[1], right)}) -> {types[2]} {{
  %0 = stablehlo.dot_general %a, %b, {along}{result(out)} : ({types[0]}, {types[1]}) -> {types[2]}
  %1 = stablehlo.add %0, %0 : {types[2]}
  return %1 : {types[2]}
}}
"""


@settings(max_examples=40)
@given(st.data())
def test_random_concatenations_and_products(data: st.DataObject) -> None:
    made = [data.draw((concatenations if i % 2 else products)(i)) for i in range(8)]
    check(MESH + OTHER + "".join(made), insert_reshards, [PASS])


def test_operands_of_calls_are_moved_to_what_the_function_asks() -> None:
    check(module_text("call_operands"), insert_reshards, [PASS])


def test_a_tensor_counts_for_a_part_of_the_axis_that_splits_it() -> None:
    """Half of "y" splits both operands, of as many elements together as the result, which "x" splits."""
    args = (
        argument("a", tensor(2, 4, 4), '<@mesh, [{"y"}, {}, {}]>'),
        argument("b", tensor(2, 4, 4), '<@mesh, [{"y":(1)2}, {}, {}]>'),
    )
    asked = result('<@mesh, [{"x"}, {}, {}]>')
    types = f"({tensor(2, 4, 4)}, {tensor(2, 4, 4)}) -> {tensor(4, 4, 4)}"
    text = f"""{MESH}func.func @main({", ".join(args)}) -> {tensor(4, 4, 4)} {{
  %0 = stablehlo.concatenate %a, %b, dim = 0{asked} : {types}
  return %0 : {tensor(4, 4, 4)}
}}"""
    check(text, insert_reshards, [PASS])


def test_what_another_factor_gets_makes_a_longer_list_count_whole_again() -> None:
    """After "y", "x" adds as much to either dim; with "z" given to a third dim in between, "y" counts once more."""
    args = (
        argument("a", tensor(4, 2, 4), '<@mesh, [{"y"}, {}, {"x"}]>'),
        argument("b", tensor(4, 2, 4), '<@mesh, [{"y", "x"}, {}, {}]>'),
    )
    types = f"({tensor(4, 2, 4)}, {tensor(4, 2, 4)}) -> {tensor(4, 4, 4)}"
    for asked in ('<@mesh, [{}, {"z"}, {}]>', "<@mesh, [{}, {}, {}]>"):
        text = f"""{MESH}func.func @main({", ".join(args)}) -> {tensor(4, 4, 4)} {{
  %0 = stablehlo.concatenate %a, %b, dim = 1{result(asked)} : {types}
  return %0 : {tensor(4, 4, 4)}
}}"""
        check(text, insert_reshards, [PASS])


@pytest.mark.parametrize("custom", ["", ", custom"])
def test_an_operator_is_moved_by_a_rule_of_its_own_unless_a_user_gave_it(custom: str) -> None:
    args = (
        argument("a", tensor(4, 4), '<@mesh, [{"y"}, {}]>'),
        argument("b", tensor(4, 4), '<@mesh, [{}, {"x"}]>'),
    )
    attributes = (
        '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>, sdy.sharding_rule = '
        f"#sdy.op_sharding_rule<([i, j], [i, k])->([i, l]) {{i=4, j=4, k=4, l=8}}{custom}>}}"
    )
    types = f"({tensor(4, 4)}, {tensor(4, 4)}) -> {tensor(4, 8)}"
    text = f"""{MESH}func.func @main({", ".join(args)}) -> {tensor(4, 8)} {{
  %0 = stablehlo.concatenate %a, %b, dim = 1 {attributes} : {types}
  return %0 : {tensor(4, 8)}
}}"""
    check(text, insert_reshards, [PASS])
    assert ("reshard" in run_shardy(text, [PASS])) == (not custom)


def test_a_concatenation_whose_tensors_agree_is_left_alone() -> None:
    same = '<@mesh, [{"x"}, {}]>'
    args = argument("a", tensor(8, 4), same), argument("b", tensor(4, 4), same)
    text = f"""{MESH}func.func @main({", ".join(args)}) -> {tensor(12, 4)} {{
  %0 = stablehlo.concatenate %a, %b, dim = 0{result(same)} : ({tensor(8, 4)}, {tensor(4, 4)}) -> {tensor(12, 4)}
  return %0 : {tensor(12, 4)}
}}"""
    module = load(text)
    insert_reshards(module)
    assert [op.name for op in module.op.walk()] == ["Module", "Function", "Concatenate", "Return"]
    check(text, insert_reshards, [PASS])


def test_sums_begin_and_end_where_unreduced_axes_differ() -> None:
    check(module_text("unreduced"), insert_reshards, [PASS])


def test_dims_are_given_up_or_moved_first_where_sums_begin() -> None:
    check(module_text("beginning_sums"), insert_reshards, [PASS])


def test_a_sum_that_begins_and_ends_cancels() -> None:
    def ours(module: MutableModule) -> None:
        for one in (insert_reshards, cancel_sums, drop_dead):
            one(module)

    patterns = "canonicalize{enable-patterns={sdy-collective} region-simplify=aggressive}"
    for name in ("beginning_sums", "unreduced"):
        check(module_text(name), ours, [PASS, patterns])


def test_a_sum_cannot_end_where_another_begins() -> None:
    module = load(module_text("unreduced").replace('}], unreduced={"y", "z"}>', '}], unreduced={"z"}>'))
    with pytest.raises(ShardingError, match="cannot sum up a tensor along y and make it unreduced along z in one step"):
        insert_reshards(module)
