"""Strategies: enumeration against independent counts, placement, reading what users give, projection, legality."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoshard.core.enumerate import divisors, enumerate_strategies, some_strategies
from autoshard.core.place import parse_strategy, place_parts, show_given
from autoshard.core.rule import Rule, bind
from autoshard.core.strategy import (
    Strategy,
    is_legal,
    is_runnable,
    legal_rows,
    project,
    replicated_strategy,
    show_parts,
)
from autoshard.layout import Layout, Mesh
from autoshard.util.errors import LayoutError, StrategyError

MATMUL = bind("m k, k n -> m n", [(24, 12), (12, 40)])
SHAPES = [(24, 12), (12, 40)]
RULES = [
    MATMUL,
    bind("..., ... -> ...", [(6,), (4, 6)]),
    bind("... m [n] -> ... m [n]", [(4, 12, 6)]),
    bind("(h d) b -> b h d", [(24, 4)], {"h": 4}),
    bind("b h d -> b (h d)", [(2, 4, 6)]),
    bind("m k -> m by max", [(12, 24)]),
    bind("-> m n", [], {"m": 4, "n": 6}),
    bind("a (b c d) -> (a b) c d", [(2, 24)], {"b": 2, "c": 3}),
    bind("m 1, () -> m", [(12, 1), ()]),
]
MESHES = [
    Mesh.flat(8),
    Mesh.flat(6),
    Mesh.flat(12),
    Mesh(dp=2, tp=4),
    Mesh(a=2, b=3),
    Mesh(a=3, b=2, c=2),
    Mesh(x=1),
]


def by_hand(extents: list[int], devices: int) -> list[tuple[int, ...]]:
    """All parts of the extents whose product divides the device count."""
    choices = [[d for d in range(1, size + 1) if size % d == 0] for size in extents]
    return [parts for parts in itertools.product(*choices) if devices % math.prod(parts) == 0]


@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12, 24])
@pytest.mark.parametrize("extents", [(24, 12, 40), (10, 6, 4), (8, 8, 8), (5, 7, 9)])
def test_a_flat_mesh_has_mindspores_strategies(devices, extents):
    m, k, n = extents
    rule = bind("m k, k n -> m n", [(m, k), (k, n)])
    found = [strategy.parts for strategy in enumerate_strategies(rule, Mesh.flat(devices))]
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(by_hand([m, k, n], devices))


@pytest.mark.parametrize(("power", "factors"), [(3, 2), (3, 3), (4, 2), (2, 4)])
def test_the_number_of_power_of_two_strategies(power, factors):
    """Exponents of the factors sum to at most the mesh's: stars and bars."""
    text = " ".join("abcd"[:factors])
    rule = bind(f"{text} -> {text}", [(64,) * factors])
    found = enumerate_strategies(rule, Mesh.flat(2**power))
    assert len(found) == math.comb(power + factors, factors)
    full = [one for one in found if one.work_split == 2**power]
    assert len(full) == math.comb(power + factors - 1, factors - 1)


def test_named_axes_multiply():
    """Each axis of prime size goes to a factor that it divides, or to none."""
    rule = bind("m n -> m n", [(12, 10)])
    found = enumerate_strategies(rule, Mesh(a=2, b=3, c=5))
    assert len(found) == 3 * 2 * 2
    shown = [str(one.operand_layouts[0]) for one in found]
    assert len(set(shown)) == 12 and {"a.b, c", "b, a.c", "-, -"} <= set(shown)


def test_large_meshes_list_a_part_of_the_strategies():
    """Where few ways can be combined they are all; else axes go whole to a factor, and neighbours together."""
    rule = bind("b m k, k n -> b m n", [(2**14, 2**14, 2**14), (2**14, 2**14)])
    assert some_strategies(rule, Mesh(a=8, b=8)) == enumerate_strategies(rule, Mesh(a=8, b=8))
    large = some_strategies(rule, Mesh(a=128, b=16, c=8))
    assert len(large) == 5**3
    assert {len({ref.name for ref in one.used}) for one in large} == {0, 1, 2, 3}
    larger = some_strategies(rule, Mesh([(name, 4) for name in "abcdef"]))
    assert len(larger) == 5**4
    assert all(is_legal(rule, one.parts) for one in larger)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_all_strategies_are_legal_and_different(rule, mesh):
    found = enumerate_strategies(rule, mesh)
    assert len({strategy.axes for strategy in found}) == len(found) >= 1
    assert replicated_strategy(rule, mesh) in found
    for strategy in found:
        assert is_legal(rule, strategy.parts) and mesh.devices % strategy.work_split == 0
        assert math.prod(strategy.device_matrix) == mesh.devices
        assert math.prod(ref.size for ref in (*strategy.used, *strategy.free())) == mesh.devices
        for layout, dims in zip(strategy.operand_layouts, rule.operands, strict=True):
            shape = tuple(math.prod(rule.factors[i].size for i in dim) for dim in dims)
            assert layout.divides(shape)
        for layout in strategy.result_layouts:
            assert layout.reduction == (rule.reduction if layout.partial else "sum")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_rank_has_one_block_of_every_tensor(data):
    """Legality by brute force: a rank's share of the factor indices is one block in every dim, or not legal."""
    sizes = [data.draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in range(3)]
    text = data.draw(st.sampled_from(["(a b) c -> a (b c)", "(a b c) -> a b c", "a b c -> (a b c)", "a b -> a b c"]))
    factors = dict(zip("abc", sizes, strict=True))
    shapes = {"(": (sizes[0] * sizes[1], sizes[2])}
    if text.startswith("(a b c)"):
        shape = (math.prod(sizes),)
    elif text.startswith("(a b)"):
        shape = shapes["("]
    else:
        shape = tuple(sizes[: text.index("->") // 2])
    rule = bind(text, [shape], factors)
    parts = [data.draw(st.sampled_from([d for d in range(1, 13) if d <= 2 * f.size])) for f in rule.factors]
    legal = all(f.size % p == 0 for f, p in zip(rule.factors, parts, strict=True)) and all(
        _one_block(rule, dim, parts) for dims in (*rule.operands, *rule.results) for dim in dims
    )
    assert is_legal(rule, parts) == legal
    assert legal_rows(rule, np.array([parts, [1] * len(parts)])).tolist() == [legal, True]


def _one_block(rule: Rule, dim: tuple[int, ...], parts: list[int]) -> bool:
    """Whether the elements of a dim that each rank has are consecutive, and ranks in order have blocks in order."""
    sizes = [rule.factors[i].size for i in dim]
    counts = [parts[i] for i in dim]
    positions = np.arange(math.prod(sizes)).reshape(sizes)
    end = 0
    for place in itertools.product(*map(range, counts)):
        index = tuple(
            slice(at * (size // count), (at + 1) * (size // count))
            for at, size, count in zip(place, sizes, counts, strict=True)
        )
        mine = positions[index].reshape(-1)
        if list(mine) != list(range(end, end + len(mine))):
            return False
        end += len(mine)
    return True


def test_what_must_be_whole_is_never_split():
    rule = bind("a [r] <p> -> a [r] <p>", [(4, 6, 12)])
    for strategy in enumerate_strategies(rule, Mesh.flat(12)):
        assert strategy.parts[1:] == (1, 1)
    assert is_legal(rule, (4, 1, 1)) and not is_legal(rule, (1, 2, 1)) and not is_legal(rule, (1, 1, 2))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_projection_is_the_inverse_of_layouts(rule, mesh):
    for strategy in enumerate_strategies(rule, mesh):
        tensors = [*zip(rule.operands, strategy.operand_layouts, strict=True)]
        tensors += [*zip(rule.results, strategy.result_layouts, strict=True)]
        for dims, layout in tensors:
            inside = {i for dim in dims for i in dim}
            wanted = tuple(refs if i in inside else () for i, refs in enumerate(strategy.axes))
            assert project(rule, dims, layout) == wanted


def test_projection_leaves_out_what_does_not_fit():
    mesh = Mesh(a=4, b=3)
    rule = bind("(h d) [r] -> h d [r]", [(24, 12)], {"h": 2})
    assert project(rule, rule.operands[0], Layout.parse("a.b, -", mesh)) == (
        (mesh.ref("a:(1)2"),),
        (mesh.ref("a:(2)2"), mesh.axis("b")),
        (),
    )
    assert project(rule, rule.operands[0], Layout.parse("b, a", mesh)) == ((), (), ())


def test_placement_on_a_flat_mesh_is_a_device_matrix():
    strategy = place_parts(MATMUL, (2, 1, 4), Mesh.flat(8))
    assert [str(layout) for layout in strategy.operand_layouts] == ["d:(1)2, -", "-, d:(2)4"]
    assert strategy.device_matrix == (2, 1, 4)
    repeated = place_parts(MATMUL, (1, 2, 1), Mesh.flat(8))
    assert repeated.device_matrix == (1, 2, 1, 4) and str(repeated.result_layouts[0]) == "-, - +d:(1)2"


@pytest.mark.parametrize(
    ("parts", "operands"),
    [
        ((2, 1, 4), ["dp, -", "-, tp"]),
        ((4, 1, 2), ["tp, -", "-, dp"]),
        ((8, 1, 1), ["dp.tp, -", "-, -"]),
        ((1, 4, 1), ["-, tp", "tp, -"]),
        ((2, 2, 1), ["dp, tp:(1)2", "tp:(1)2, -"]),
        ((2, 2, 2), ["dp, tp:(1)2", "tp:(1)2, tp:(2)2"]),
    ],
)
def test_placement_prefers_whole_axes(parts, operands):
    strategy = place_parts(MATMUL, parts, Mesh(dp=2, tp=4))
    assert [str(layout) for layout in strategy.operand_layouts] == operands
    assert strategy.parts == parts


def test_placement_on_pieces_of_axes():
    """3 parts on a mesh 2 x 6 are neither a whole axis nor a device matrix over the flattened mesh."""
    strategy = place_parts(MATMUL, (3, 1, 1), Mesh(a=2, b=6))
    assert str(strategy.operand_layouts[0]) == "b:(1)3, -"
    with pytest.raises(LayoutError, match=r"needs 5 devices, which does not divide 12"):
        place_parts(MATMUL, (1, 1, 5), Mesh(a=2, b=6))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_a_strategy_shows_can_be_given(mesh):
    for strategy in enumerate_strategies(MATMUL, mesh):
        again = parse_strategy(MATMUL, strategy.in_strategy, mesh, SHAPES, "op")
        assert again.parts == strategy.parts
        assert parse_strategy(MATMUL, strategy.operand_layouts, mesh, SHAPES, "op") == strategy


def test_views_of_a_strategy():
    strategy = parse_strategy(MATMUL, ((2, 4), (4, 1)), Mesh(dp=2, tp=4), SHAPES, "op")
    assert strategy.in_strategy == ((2, 4), (4, 1)) and strategy.out_strategy == ((2, 1),)
    assert str(strategy) == "((2, 4), (4, 1))" and strategy.reduced == (strategy.mesh.axis("tp"),)
    assert str(strategy.result_layouts[0]) == "dp, - +tp"
    assert strategy.work_split == 8 and strategy.free() == ()


def test_carried_terms():
    rule = bind("..., ... -> ...", [(4, 6), (4, 6)])
    mesh = Mesh(dp=2, tp=4)
    strategy = Strategy(rule, mesh, ((mesh.axis("dp"),), ()), (mesh.axis("tp"),), (0, 1))
    assert [str(one) for one in strategy.operand_layouts] == ["dp, - +tp"] * 2
    assert str(strategy.result_layouts[0]) == "dp, - +tp" and strategy.free() == ()
    assert str(strategy) == "((2, 1), (2, 1)) carrying +tp"
    only = Strategy(rule, mesh, ((), ()), (mesh.axis("tp"),), (1,))
    assert [str(one) for one in only.operand_layouts] == ["-, -", "-, - +tp"]


def test_text_of_strategies():
    assert show_parts(((2, 4), (4,), ())) == "((2, 4), (4), ())"
    assert show_given(((2, 4), Layout.parse("dp, -", Mesh(dp=2)))) == "((2, 4), [dp, -])"
    assert show_given([[2, 4]]) == "((2, 4))"
    assert divisors(12) == (12, 6, 4, 3, 2, 1)


@pytest.mark.parametrize(
    ("text", "shapes", "given_strategy", "message"),
    [
        ("m k, k n -> m n", SHAPES, ((2, 1),), "it has 1 tuples, but the operator has 2 operands, (24, 12), (12, 40)"),
        (
            "m k, k n -> m n",
            SHAPES,
            ((2, 1), (1,)),
            "tuple 1 has 1 entries, but operand 1 has 2 dims (12, 40)",
        ),
        (
            "m k, k n -> m n",
            SHAPES,
            ((0, 1), (1, 1)),
            "dim 0 of operand 0 has 0 parts; it needs a whole number of at least 1",
        ),
        (
            "m k, k n -> m n",
            SHAPES,
            ((2.0, 1), (1, 1)),
            "dim 0 of operand 0 has 2.0 parts; it needs a whole number of at least 1",
        ),
        (
            "m k, k n -> m n",
            SHAPES,
            ((1, 8), (8, 1)),
            "dim 1 of operand 0 has size 12, which 8 parts do not divide; 1, 2, 4 do",
        ),
        (
            "m k, k n -> m n",
            SHAPES,
            ((1, 2), (4, 1)),
            "dim 0 of operand 1 has 4 parts, but dim 1 of operand 0 has 2; both are the factor k of "
            "m k, k n -> m n {m=24, k=12, n=40}",
        ),
        ("m k, k n -> m n", SHAPES, ((8, 1), (1, 2)), "it makes 16 parts, but there are 8 devices"),
        ("m k, k n -> m n", SHAPES, ((3, 1), (1, 1)), "it makes 3 parts, which do not divide the 8 devices"),
        (
            "..., ... -> ...",
            [(4, 6), (1, 6)],
            ((4, 2), (4, 2)),
            "dim 0 of operand 1 is broadcast and cannot be split",
        ),
        (
            "m [n] -> m [n]",
            [(4, 8)],
            ((2, 4),),
            "dim 1 of operand 0 (factor n) must be whole on every rank: rule m [n] -> m [n] {m=4, n=8}",
        ),
        (
            "(h d) -> h d",
            [(16,)],
            ((8,),),
            None,
        ),
        (
            "b (h d) -> (b h) d",
            [(2, 16)],
            ((1, 2),),
            "the operator cannot be split this way under its rule b (h d) -> (b h) d {b=2, h=4, d=4}",
        ),
        (
            "(h d) -> h d",
            [(24,)],
            ((8,),),
            None,
        ),
    ],
)
def test_strategies_that_cannot_be(text, shapes, given_strategy, message):
    sizes = {"h": 4} if "h" in text else None
    rule = bind(text, shapes, sizes)
    if message is None:
        assert parse_strategy(rule, given_strategy, Mesh.flat(8), shapes, "op").in_strategy == given_strategy
        return
    what = "dense1.matmul (MatMul) at train.py:31"
    with pytest.raises(StrategyError) as error:
        parse_strategy(rule, given_strategy, Mesh.flat(8), shapes, what)
    assert str(error.value) == f"strategy {show_given(given_strategy)} of {what}: {message}"


def test_parts_that_no_factor_can_take():
    rule = bind("(h d) -> h d", [(12,)], {"h": 4})
    with pytest.raises(StrategyError, match="the operator cannot be split this way under its rule"):
        parse_strategy(rule, ((6,),), Mesh.flat(12), [(12,)], "op")
    rule = bind("(h d) -> h d", [(20,)], {"h": 10})
    with pytest.raises(StrategyError, match=r"dim 0 of operand 0 cannot have 4 parts|cannot be split this way"):
        parse_strategy(rule, ((4,),), Mesh.flat(8), [(20,)], "op")


@pytest.mark.parametrize("wrong", [(2, 1), "ab", 3, ((2, 1), 4), None])
def test_not_a_strategy_at_all(wrong):
    with pytest.raises(
        StrategyError, match=r"it needs a tuple or a Layout for each of the 2 operands, e\.g\. \(\(1, 1\)"
    ):
        parse_strategy(MATMUL, wrong, Mesh.flat(8), SHAPES, "op")


def test_lists_and_numpy_numbers_are_taken():
    given_strategy = [[np.int64(2), 1], [1, np.int64(4)]]
    assert parse_strategy(MATMUL, given_strategy, Mesh.flat(8), SHAPES, "op").parts == (2, 1, 4)


def layouts(mesh: Mesh, *texts: str) -> tuple[Layout, ...]:
    return tuple(Layout.parse(text, mesh) for text in texts)


def test_layouts_as_a_strategy():
    named = Layout((2, 2, 2), ("dp", "sp", "mp"))
    strategy = parse_strategy(MATMUL, (named("mp", "sp"), named("sp", "dp")), named.mesh, SHAPES, "op")
    assert str(strategy.result_layouts[0]) == "mp, dp +sp" and strategy.parts == (2, 2, 2)
    flat = parse_strategy(MATMUL, (named("mp", "sp"), named("sp", "dp")), Mesh.flat(8), SHAPES, "op")
    assert str(flat.result_layouts[0]) == "d:(4)2, d:(1)2 +d:(2)2"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("dp, -", "dp, -"), "axis dp splits factor m and dp factor k of"),
        (
            ("dp, -", "-, dp"),
            "axis dp splits factor m and dp factor n of m k, k n -> m n {m=24, k=12, n=40}; it can split one",
        ),
        (
            ("-, dp", "tp, -"),
            "factor k of m k, k n -> m n {m=24, k=12, n=40} is split by different axes: dp and, in operand 1, tp",
        ),
        (("-, dp", "-, -"), "operand 1 has layout [-, -], but with the other operands' layouts"),
        (("dp, - +tp", "-, -"), "layout [dp, - +tp] of operand 0 is partial; give a final one"),
    ],
)
def test_layouts_that_cannot_be(texts, message):
    mesh = Mesh(dp=2, tp=4)
    with pytest.raises(StrategyError) as error:
        parse_strategy(MATMUL, layouts(mesh, *texts), mesh, SHAPES, "op")
    assert message in str(error.value)
    assert str(error.value).startswith(f"strategy ([{texts[0]}], [{texts[1]}]) of op: ")


def test_layouts_may_be_uneven_up_to_one_element_each():
    mesh = Mesh(dp=2, tp=4)
    strategy = parse_strategy(MATMUL, layouts(mesh, "-, dp.tp", "dp.tp, -"), mesh, SHAPES, "op")
    assert strategy.parts == (1, 8, 1) and str(strategy.result_layouts[0]) == "-, - +dp.tp"
    assert strategy.work_split == 8 and strategy.work_ratio == 6
    assert not is_legal(MATMUL, strategy.parts) and is_runnable(MATMUL, strategy.parts)
    small = bind("m n -> m n", [(6, 4)])
    with pytest.raises(StrategyError, match=r"operand 0 has layout \[dp.tp, -\], but .* it needs \[dp, -\]"):
        parse_strategy(small, layouts(mesh, "dp.tp, -"), mesh, [(6, 4)], "op")


def test_only_major_factors_are_split_unevenly():
    rule = bind("(h d) n -> h d n", [(24, 5)], {"h": 6})
    assert is_runnable(rule, (4, 1, 2)) and is_runnable(rule, (6, 2, 3))
    assert not is_runnable(rule, (6, 3, 1)) and not is_runnable(rule, (4, 2, 1)) and not is_runnable(rule, (8, 1, 1))
    mesh = Mesh(a=4, b=5)
    assert project(rule, rule.operands[0], Layout.parse("b, a", mesh)) == ((mesh.axis("b"),), (), (mesh.axis("a"),))
    assert project(rule, rule.operands[0], Layout.parse("a, -", mesh))[0] == (mesh.ref("a:(1)2"),)


def test_layouts_of_other_meshes():
    wrong = layouts(Mesh(a=3, b=2), "a, -", "-, b")
    with pytest.raises(StrategyError, match=r"\(6 devices\), the plan is for mesh 'd=8' \(8 devices\)"):
        parse_strategy(MATMUL, wrong, Mesh.flat(8), SHAPES, "op")
    with pytest.raises(StrategyError, match=r"does not fit mesh 'x=2 y=3'"):
        parse_strategy(MATMUL, wrong, Mesh(x=2, y=3), SHAPES, "op")
    with pytest.raises(StrategyError, match="give either tuples or Layouts for all operands"):
        parse_strategy(MATMUL, (wrong[0], (1, 2)), Mesh(a=3, b=2), SHAPES, "op")


def test_a_softmax_dim_given_as_layout():
    rule = bind("m [n] -> m [n]", [(4, 8)])
    with pytest.raises(StrategyError, match=r"operand 0 has layout \[-, tp\], but .* it needs \[-, -\]"):
        parse_strategy(rule, layouts(Mesh(dp=2, tp=4), "-, tp"), Mesh(dp=2, tp=4), [(4, 8)], "op")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_parts_are_placed_or_refused(data):
    """A given strategy is taken just when its parts divide everything; then it is the strategy that was given."""
    mesh = data.draw(st.sampled_from([Mesh.flat(8), Mesh.flat(12), Mesh(a=2, b=6), Mesh(a=3, b=2, c=2)]))
    m, k, n = (data.draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in range(3))
    assume(24 % m == 0 and 12 % k == 0 and 40 % n == 0)
    possible = any(one.parts == (m, k, n) for one in enumerate_strategies(MATMUL, mesh))
    if not possible:
        with pytest.raises(StrategyError):
            parse_strategy(MATMUL, ((m, k), (k, n)), mesh, SHAPES, "op")
        assert mesh.devices % (m * k * n) or mesh.names != ("d",)
        return
    strategy = parse_strategy(MATMUL, ((m, k), (k, n)), mesh, SHAPES, "op")
    assert strategy.in_strategy == ((m, k), (k, n))
