"""What is asked of tensors: the invariants against jaxlib's verifier, small changes against sdy's own passes."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.layout.sdy_show import show_mesh
from autoshard.layout.sdy_text import parse_sharding
from autoshard.layout.sharding import (
    DimSharding,
    Sharding,
    closed_all,
    common_mesh,
    divisible,
    is_equivalent,
    without_size_one_axes,
    without_sub_axes,
)
from autoshard.layout.verify_sharding import verify_manual, verify_mesh, verify_per_value, verify_sharding
from autoshard.util.errors import MeshError, ParseError, ShardingError
from tests.layout import asked

pytestmark = pytest.mark.jax
CONTEXT = mlir.make_ir_context()
MESH = Mesh(x=12, y=4, z=2)
MESHES = {"mesh": MESH, "one": Mesh.maximal(3), "none": Mesh.empty()}


def read(text: str) -> Sharding:
    return parse_sharding(text, MESHES)


def module(sharding: Sharding, shape: tuple[int, ...]) -> str:
    """A function with one argument that has the sharding."""
    type_ = "x".join([*map(str, shape), "f32"])
    return (
        f"sdy.mesh @mesh = {show_mesh(sharding.mesh)}\n"
        f"func.func @main(%a: tensor<{type_}> {{sdy.sharding = #sdy.sharding{sharding}}}) {{ return }}"
    )


def accepted(text: str) -> bool:
    with CONTEXT:
        try:
            ir.Module.parse(text)
        except ir.MLIRError:
            return False
    return True


def passed(sharding: Sharding, shape: tuple[int, ...], name: str) -> str:
    """The sharding that a pass of sdy leaves on the argument."""
    with CONTEXT:
        parsed = ir.Module.parse(module(sharding, shape))
        PassManager.parse(f"builtin.module({name})").run(parsed.operation)
        found = re.search(r"#sdy\.sharding(<@mesh.*?>)}", str(parsed))
    assert found is not None
    return found[1]


@settings(max_examples=300)
@given(st.data(), asked.meshes(), st.lists(st.sampled_from([3, 8, 24]), max_size=3).map(tuple))
def test_broken_shardings_are_refused_as_sdy_does(data, mesh, shape):
    sharding = data.draw(asked.broken(mesh, len(shape)))
    expected = accepted(module(sharding, shape))
    if expected:
        verify_sharding(sharding, shape)
    else:
        with pytest.raises(ShardingError, match=re.escape(f"value has sharding {sharding}: ")):
            verify_sharding(sharding, shape)


@settings(max_examples=100)
@given(st.data(), asked.meshes(), st.lists(st.sampled_from([3, 8, 24]), max_size=3).map(tuple))
def test_right_shardings_are_taken_as_sdy_does(data, mesh, shape):
    sharding = data.draw(asked.shardings(mesh, len(shape)))
    assert accepted(module(sharding, shape))
    verify_sharding(sharding, shape)


FAULTS = [
    ('<@mesh, [{"x"}]>', "it is for 1 dims, but the tensor (24, 6) has 2; write one {} per dim"),
    ('<@mesh, [{"x"}, {"x"}]>', "x is used twice; an axis splits one dim, or is replicated or unreduced"),
    ('<@mesh, [{"x"}, {"x":(1)2}]>', "x and x:(1)2 overlap; the pieces of an axis must be disjoint"),
    ('<@mesh, [{"x":(1)4}, {"x":(2)3}]>', "x:(1)4 and x:(2)3 overlap"),
    ('<@mesh, [{"x":(1)2, "x":(2)3}, {}]>', "x:(1)2 and x:(2)3 follow each other; write x:(1)6"),
    ('<@mesh, [{"x":(1)2, "x":(2)6}, {}]>', "x:(1)2 and x:(2)6 follow each other; write x"),
    ('<@mesh, [{"x":(1)5}, {}]>', "sub-axis x:(1)5 does not exist: 1 x 5 must divide x=12"),
    ('<@mesh, [{"x":(6)4}, {}]>', "sub-axis x:(6)4 does not exist: 6 x 4 must divide x=12"),
    ('<@mesh, [{"x":(0)2}, {}]>', "sub-axis x:(0)2 has pre-size 0; it is at least 1"),
    ('<@mesh, [{"x":(2)1}, {}]>', "sub-axis x:(2)1 has size 1; it is at least 2"),
    ('<@mesh, [{}, {}], replicated={"y", "x"}>', "replicated axes must be in the order of mesh 'x=12 y=4 z=2': x, y"),
    ('<@mesh, [{}, {}], unreduced={"x":(4)3, "x":(1)2}>', "unreduced axes must be in the order"),
    ('<@mesh, [{"z"}, {}], unreduced={"z"}>', "z is used twice"),
    ('<@mesh, [{}p1, {}]>', "dim 0 has priority 1, but is closed and has no axes; leave the priority out or add ?"),
    ('<@one, [{}, {}]>', "a mesh of one device takes no dims, replicated or unreduced axes; write []"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "why"), FAULTS)
def test_each_fault_says_what_would_be_right(text, why):
    sharding = read(text)
    meshes = "\n".join(f"sdy.mesh @{name} = {show_mesh(mesh)}" for name, mesh in MESHES.items())
    argument = f"%a: tensor<24x6xf32> {{sdy.sharding = #sdy.sharding{text}}}"
    assert not accepted(f"{meshes}\nfunc.func @main({argument}) {{ return }}")
    with pytest.raises(ShardingError) as caught:
        verify_sharding(sharding, (24, 6), "argument 0 of @main")
    assert str(caught.value).startswith(f"argument 0 of @main has sharding {text}: {why}")


def test_faults_that_text_cannot_have():
    two = Mesh(x=2)
    with pytest.raises(ShardingError, match="dim 0 has priority -1; the most urgent is 0"):
        verify_sharding(Sharding(two, [DimSharding((), False, -1)]), (4,))
    with pytest.raises(ShardingError, match="axis 'q' is not in mesh 'x=2'"):
        verify_sharding(Sharding(two, [DimSharding((AxisRef("q", 1, 2),))]), (4,))
    with pytest.raises(ShardingError, match="terms are reduced by sum, max, min, not by 'prod'"):
        verify_sharding(Sharding(two, [DimSharding()], (), two.all_axes, "prod"), (4,))
    with pytest.raises(ParseError, match="unknown axis"):
        read('<@none, [{"x"}]>')


def test_values_that_are_no_tensors():
    verify_sharding(read("<@mesh, []>"), None)
    verify_sharding(read("<@one, []>"), None)
    verify_sharding(read("<@one, []>"), (2, 3))
    verify_sharding(read("<@none, [{}, {?}p1]>"), (2, 3))
    for text in ("<@mesh, [{}]>", '<@mesh, [], replicated={"x"}>', '<@mesh, [], unreduced={"x"}>'):
        with pytest.raises(ShardingError, match="the value is no tensor"):
            verify_sharding(read(text), None, "token")


@pytest.mark.parametrize(
    "text", ['[{"y"}, {}]', '[{}, {"y":(2)2}]', '[{}, {}], replicated={"y"}', '[{}, {}], unreduced={"y"}']
)
def test_manual_axes_are_taken(text):
    sharding = read(f"<@mesh, {text}>")
    verify_sharding(sharding, (24, 8), manual=("x",))
    with pytest.raises(ShardingError, match="axis 'y' is manual here"):
        verify_sharding(sharding, (24, 8), manual=("y", "x"))


def test_sizes_are_checked_on_request():
    sharding = read('<@mesh, [{"z"}, {"y"}]>')
    verify_sharding(sharding, (2, 6))
    verify_sharding(sharding, (2, 8), even=True)
    verify_sharding(sharding, (0, 0), even=True)
    with pytest.raises(ShardingError, match="dim 1 of size 6 is not divisible by its 4 parts"):
        verify_sharding(sharding, (2, 6), even=True)


def test_pieces_of_no_common_splitting_are_refused_on_request():
    sharding = read('<@mesh, [{"x":(1)2}, {"x":(3)2}]>')
    assert accepted(module(sharding, (24, 24)))
    verify_sharding(sharding, (24, 24))
    with pytest.raises(ShardingError, match=r"x:\(1\)2 and x:\(3\)2 are pieces of no common splitting of x"):
        verify_sharding(sharding, (24, 24), strict=True)


def test_one_sharding_per_value():
    split, whole, lone = read('<@mesh, [{"z"}]>'), read("<@mesh, []>"), read("<@one, []>")
    verify_per_value([split, whole], [(6,), ()])
    verify_per_value([], [])
    verify_per_value([lone], [])
    verify_per_value([whole], [])
    with pytest.raises(ShardingError, match="call has 1 shardings for 2 values; write one for each"):
        verify_per_value([split], [(6,), (4,)], "call")
    with pytest.raises(ShardingError, match="operation has 1 shardings for 0 values"):
        verify_per_value([split], [])
    with pytest.raises(ShardingError, match=r"call, value 1 has sharding <@mesh, \[\]>: it is for 0 dims"):
        verify_per_value([split, whole], [(6,), (4,)], "call")


MANUAL = [
    ('[{"z", "y"}, {}]', ("z",), (3, 5), None),
    ('[{"z", "y"}, {}]', ("z", "y"), (1, 5), "dim 0 of size 6 is split 8 ways by manual axes"),
    ('[{"y", "z"}, {}]', ("z",), (3, 5), r"dim 0 has a manual axis behind a free one; manual axes \(z\) come first"),
    ('[{"z"}, {}]', ("z",), (6, 5), r"the value of shape \(6, 5\) is \(6, 5\) inside, but \(3, 5\) is the part"),
    ('[{"z"}, {}]', ("z", "q"), (3, 5), "manual axis 'q' is not in mesh"),
]


@pytest.mark.parametrize(("text", "manual", "local", "why"), MANUAL)
def test_manual_computations(text, manual, local, why):
    sharding = read(f"<@mesh, {text}>")
    side, axes = f"[<@mesh, {text}>]", ", ".join(f'"{name}"' for name in manual)
    outside, inside = "tensor<6x5xf32>", f"tensor<{local[0]}x{local[1]}xf32>"
    asked_text = (
        f"sdy.mesh @mesh = {show_mesh(MESH)}\nfunc.func @main(%a: {outside}) -> {outside} {{\n"
        f"%0 = sdy.manual_computation(%a) in_shardings={side} out_shardings={side} manual_axes={{{axes}}} "
        f"(%b: {inside}) {{ sdy.return %b : {inside} }} : ({outside}) -> {outside}\nreturn %0 : {outside} }}"
    )
    assert accepted(asked_text) == (why is None)
    if why is None:
        verify_manual([sharding], [(6, 5)], [local], manual)
    else:
        with pytest.raises(ShardingError, match=why):
            verify_manual([sharding], [(6, 5)], [local], manual)
    with pytest.raises(ShardingError, match="takes axis 'z', which an enclosing manual computation has taken"):
        verify_manual([sharding], [(6, 5)], [local], manual, outer=("z",))


def test_meshes():
    verify_mesh([("x", 2)], [1, 0])
    verify_mesh([], [3])
    verify_mesh([])
    for axes, devices, why in [
        ([("x", 2), ("x", 3)], None, "axis 'x' occurs twice"),
        ([("x", 0)], None, "axis 'x' has size 0; sizes are at least 1"),
        ([("x", 2)], [0, -1], "device ids are 0, -1; none may be negative"),
        ([("x", 2)], [0], "1 device ids are listed (0), but the axes make 2"),
        ([], [0, 1], "2 device ids are listed (0, 1), but a mesh without axes has one"),
        ([("x", 3)], [0, 2, 2], "device ids 0, 2, 2 must be each of 0 to 2 once"),
    ]:
        with pytest.raises(MeshError, match=re.escape(f"mesh @a: {why}")):
            verify_mesh(axes, devices, "mesh @a")


@settings(max_examples=80)
@given(st.data(), asked.meshes(), st.lists(st.sampled_from([3, 4, 18, 20, 24, 0]), max_size=3).map(tuple))
def test_boundaries_are_made_divisible_as_sdy_does(data, mesh, shape):
    sharding = data.draw(asked.shardings(mesh, len(shape)))
    even = divisible(sharding, shape)
    assert str(even) == passed(sharding, shape, "sdy-update-non-divisible-input-output-shardings")
    verify_sharding(even, shape, even=True)


@settings(max_examples=80)
@given(st.data(), asked.meshes(), st.integers(0, 3))
def test_passes_on_single_shardings(data, mesh, rank):
    sharding = data.draw(asked.shardings(mesh, rank))
    shape = (24, 12, 6)[:rank]
    whole = without_sub_axes(sharding)
    assert str(whole) == passed(sharding, shape, "sdy-remove-sub-axes-in-input-output-shardings")
    shut = closed_all(sharding)
    verify_sharding(shut, shape)
    # The pass leaves a priority on an open dim without axes, closes it, and fails on what it made.
    if not any(dim.priority is not None and not dim.axes for dim in sharding.dims):
        assert str(shut) == passed(sharding, shape, "sdy-close-shardings")


@settings(max_examples=80)
@given(st.data(), st.integers(0, 3))
def test_axes_of_size_one_are_removed(data, rank):
    mesh, shape = Mesh(o=1, x=12, p=1, y=4), (24, 12, 6)[:rank]
    plain = data.draw(asked.shardings(Mesh(x=12, y=4), rank))
    lists = [*(dim.axes for dim in plain.dims), plain.replicated, plain.unreduced]
    for name in data.draw(st.permutations(["o", "p"])):
        place = data.draw(st.integers(0, rank + 1))
        at = data.draw(st.integers(0, len(lists[place])))
        lists[place] = (*lists[place][:at], mesh.axis(name), *lists[place][at:])
    lists[rank:] = [tuple(sorted(refs, key=mesh.sort_key)) for refs in lists[rank:]]
    dims = [dim._replace(axes=axes) for dim, axes in zip(plain.dims, lists, strict=False)]
    sharding = Sharding(mesh, dims, *lists[rank:])
    without = without_size_one_axes(sharding)
    assert without is plain.replace(mesh=mesh)
    assert without_size_one_axes(without) is without
    assert str(without) == passed(sharding, shape, "sdy-remove-size-one-axes")


def test_removing_an_axis_of_size_one_joins_its_neighbours_and_takes_its_priority():
    meshes = {"mesh": Mesh(x=4, o=1)}
    apart = parse_sharding('<@mesh, [{"x":(1)2, "o", "x":(2)2}p2, {}], unreduced=max{"o"}>', meshes)
    assert str(without_size_one_axes(apart)) == '<@mesh, [{"x"}p2, {}]>'
    alone = parse_sharding('<@mesh, [{"o"}p2, {"x", ?}p1]>', meshes)
    assert str(without_size_one_axes(alone)) == '<@mesh, [{}, {"x", ?}p1]>'
    assert (
        str(closed_all(parse_sharding('<@mesh, [{?}p2], unreduced={"x"}>', meshes))) == '<@mesh, [{}], unreduced={"x"}>'
    )


EQUIVALENT = [
    ('<@mesh, [{"x"}, {}]>', '<@mesh, [{"x", ?}p3, {?}], replicated={"y"}>', True),
    ('<@mesh, [{"x"}, {}]>', '<@mesh, [{}, {"x"}]>', False),
    ('<@mesh, [{"x"}, {}]>', '<@mesh, [{"x":(1)6}, {}]>', False),
    ('<@mesh, [{"x"}, {}]>', '<@mesh, [{"x"}, {}], unreduced={"y"}>', False),
    ('<@mesh, [{"x"}, {}]>', '<@twin, [{"x"}, {}]>', False),
    ('<@mesh, [{"x"}, {}]>', None, False),
    ("<@mesh, [{}, {?}]>", "<@other, [{}p0, {}]>", True),
    ('<@mesh, [{}, {}], replicated={"x"}>', None, True),
    ('<@mesh, [{}], unreduced={"y"}>', None, False),
    ('<@mesh, [{}], unreduced={"y"}>', '<@mesh, [{}], unreduced=max{"y"}>', False),
    ('<mesh<["x"=2]>, [{"x"}]>', '<mesh<["x"=2]>, [{"x"}]>', True),
    ('<mesh<["x"=2]>, [{"x"}]>', '<mesh<["x"=2], device_ids=[1, 0]>, [{"x"}]>', False),
    (None, None, True),
]


@pytest.mark.parametrize(("a", "b", "same"), EQUIVALENT)
def test_equivalence(a, b, same):
    meshes = {**MESHES, "twin": MESH, "other": Mesh(y=3)}
    first, second = (None if text is None else parse_sharding(text.replace("p0", ""), meshes) for text in (a, b))
    assert is_equivalent(first, second) == is_equivalent(second, first) == same
    terms = any(s is not None and s.unreduced for s in (first, second))
    assert is_equivalent(first, second, ignore_unreduced=True) == (same or terms)


def test_common_meshes():
    swapped = Mesh([("x", 2), ("y", 3)], [0, 2, 1, 4, 3, 5])
    meshes = {"a": Mesh(x=2, y=3), "b": Mesh(x=2, y=3), "swapped": swapped, "c": Mesh(x=3, y=2), **MESHES}
    meshes["two"] = Mesh.maximal(5)

    def common(*names: str | None, ignore_order: bool = False) -> str | None:
        found = common_mesh([None if n is None else Sharding(meshes[n], (), mesh_name=n) for n in names], ignore_order)
        assert found is None or found[0] is meshes[found[1]]
        return None if found is None else found[1]

    assert common() is None and common(None) is None
    assert common("none") == "none" and common("none", "a") == "a" and common("a", None, "none", "b") == "a"
    assert common("a", "c") is None and common("a", "swapped") is None and common("one", "two") is None
    assert common("one", "none", "one") == "one" and common("one", "a") is None
    assert common("swapped", "a", ignore_order=True) == "a" == common("a", "swapped", ignore_order=True)
    assert common("a", "c", ignore_order=True) is None and common("a", "one", ignore_order=True) is None


@given(st.data(), asked.meshes(), st.integers(0, 3))
def test_shardings_are_interned_and_make_layouts(data, mesh, rank):
    sharding = data.draw(asked.shardings(mesh, rank))
    assert pickle.loads(pickle.dumps(sharding)) is sharding and copy.deepcopy(sharding) is sharding
    assert sharding.replace() is sharding and sharding.with_dims(sharding.dims) is sharding
    assert repr(sharding) == f"Sharding({sharding})"
    shape = (24, 17, 6)[:rank]
    local = sharding.local_shape(shape)
    for part, dim, size in zip(local, sharding.dims, shape, strict=True):
        assert part * dim.size >= size > (part - 1) * dim.size
    assume(not any(not a.can_coexist(b) for a in sharding.used for b in sharding.used))
    layout = without_size_one_axes(sharding).layout()
    assert isinstance(layout, Layout) and layout.rank == rank
    assert is_equivalent(sharding, sharding.replace(replicated=()))
    assert sharding.is_replicated == is_equivalent(sharding, None)
    assert closed_all(sharding).is_closed and sharding.is_closed == all(dim.closed for dim in sharding.dims)
