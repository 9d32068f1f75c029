"""Factor rules: text, binding to shapes, kinds, errors that point at the place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.core.rule import PASS, PERMUTATION, REDUCTION, REPLICATE, Factor, Rule, bind
from autoshard.util.errors import RuleError

SIZES = st.sampled_from([1, 2, 3, 4, 6, 10])


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Any rule that its own text can say."""
    count = draw(st.integers(1, 6))
    names = [draw(st.sampled_from("abc")) + str(i) for i in range(count)]
    reduction = draw(st.sampled_from(["sum", "max", "min", "prod"]))
    places = st.lists(st.lists(st.integers(0, count - 1), max_size=2, unique=True), max_size=3)

    def tensor() -> tuple[tuple[int, ...], ...]:
        seen: set[int] = set()
        dims = []
        for dim in draw(places):
            dims.append(tuple(i for i in dim if i not in seen))
            seen |= set(dim)
        return tuple(dims)

    operands = tuple(tensor() for _ in range(draw(st.integers(0, 3))))
    results = tuple(tensor() for _ in range(draw(st.integers(1, 2))))
    kept = {i for dims in results for dim in dims for i in dim}
    used = kept | {i for dims in operands for dim in dims for i in dim}
    factors = []
    for i, name in enumerate(names):
        natural = PASS if i in kept else REDUCTION
        kind = draw(st.sampled_from([natural, natural, REPLICATE, PERMUTATION])) if i in used else natural
        factors.append(Factor(name, draw(SIZES), kind, i in used and draw(st.booleans())))
    return Rule(tuple(factors), operands, results, reduction)


@given(rules())
def test_text_round_trip(rule):
    assert Rule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "shapes", "sizes", "shown"),
    [
        ("m k, k n -> m n", [(4, 6), (6, 10)], None, "m k, k n -> m n {m=4, k=6, n=10}"),
        ("m k -> m by max", [(4, 6)], None, "m k -> m by max {m=4, k=6}"),
        ("... -> ...", [(4, 6)], None, "_0 _1 -> _0 _1 {_0=4, _1=6}"),
        ("... -> ...", [()], None, "() -> () {}"),
        ("m n, () -> m n", [(4, 6), ()], None, "m n, () -> m n {m=4, n=6}"),
        ("m 1 -> m", [(4, 1)], None, "m 1 -> m {m=4}"),
        ("... m [n] -> ... m [n]", [(2, 4, 6)], None, "_0 m [n] -> _0 m [n] {_0=2, m=4, n=6}"),
        ("m <n>! -> m <n>", [(4, 6)], None, "m <n>! -> m <n>! {m=4, n=6}"),
        ("(h d) b -> b h d", [(12, 5)], {"h": 4}, "(h d) b -> b h d {h=4, d=3, b=5}"),
        ("m -> m n", [(4,)], {"n": 10}, "m -> m n {m=4, n=10}"),
        ("m k!, k -> m", [(4, 6), (6,)], None, "m k!, k! -> m {m=4, k=6}"),
        ("m n -> m, n", [(4, 6)], None, "m n -> m, n {m=4, n=6}"),
        ("m -> ()", [(4,)], None, "m -> () {m=4}"),
        ("-> m n", [], {"m": 4, "n": 6}, "-> m n {m=4, n=6}"),
    ],
)
def test_binding(text, shapes, sizes, shown):
    rule = bind(text, shapes, sizes)
    assert str(rule) == shown
    assert Rule.parse(shown) == rule


@pytest.mark.parametrize(
    ("shapes", "shown", "result"),
    [
        ([(4, 6), (4, 6)], "_0 _1, _0 _1 -> _0 _1 {_0=4, _1=6}", (4, 6)),
        ([(4, 6), (6,)], "_0 _1, _1 -> _0 _1 {_0=4, _1=6}", (4, 6)),
        ([(6,), (4, 6)], "_1, _0 _1 -> _0 _1 {_0=4, _1=6}", (4, 6)),
        ([(4, 1), (1, 6)], "_0 1, 1 _1 -> _0 _1 {_0=4, _1=6}", (4, 6)),
        ([(), (4, 6)], "(), _0 _1 -> _0 _1 {_0=4, _1=6}", (4, 6)),
        ([(1, 6), (4, 6)], "1 _1, _0 _1 -> _0 _1 {_0=4, _1=6}", (4, 6)),
        ([(1, 6), (1, 6)], "_0 _1, _0 _1 -> _0 _1 {_0=1, _1=6}", (1, 6)),
        ([(10, 1, 6), (4, 1)], "_0 1 _2, _1 1 -> _0 _1 _2 {_0=10, _1=4, _2=6}", (10, 4, 6)),
    ],
)
def test_broadcast(shapes, shown, result):
    """Dims under ... align at the right; the factors stand in the order of the largest operand."""
    rule = bind("..., ... -> ...", shapes)
    assert str(rule) == shown and rule.result_shape(0) == result


@given(st.lists(st.lists(st.sampled_from([1, 3, 4]), max_size=3), min_size=2, max_size=3))
def test_broadcast_is_numpys(shapes):
    text = ", ".join(["..."] * len(shapes)) + " -> ..."
    try:
        expected = np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        with pytest.raises(RuleError, match="is [34] in operand"):
            bind(text, shapes)
        return
    rule = bind(text, shapes)
    assert rule.result_shape(0) == expected
    for shape, dims in zip(shapes, rule.operands, strict=True):
        assert [math.prod(rule.factors[i].size for i in dim) for dim in dims] == shape
        # Right-aligned: what is narrower than the result is broadcast and has no factor.
        widths = expected[len(expected) - len(shape) :]
        assert [dim == () for dim in dims] == [size < width for size, width in zip(shape, widths, strict=True)]


def test_batch_product_with_one_batch():
    rule = bind("... m k, ... k n -> ... m n", [(4, 6), (2, 6, 10)])
    assert str(rule) == "m k, _0 k n -> _0 m n {_0=2, m=4, k=6, n=10}"
    assert rule.contracted == (rule.names["k"],) and rule.work == 480


def test_kinds():
    rule = bind("a k [r] <p>! -> a [r] <p>, a", [(4, 6, 10, 12)])
    assert [factor.kind for factor in rule.factors] == [PASS, REDUCTION, REPLICATE, PERMUTATION]
    assert [factor.splittable for factor in rule.factors] == [True, True, False, False]
    assert [factor.blocked for factor in rule.factors] == [False, False, False, True]
    assert rule.contracted == (1,)
    assert not Factor("m", 1).splittable
    assert bind("n [c] -> n", [(4, 6)]).contracted == ()


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "prod"])
def test_reductions(reduction):
    rule = bind(f"m k -> m by {reduction}", [(4, 6)])
    assert rule.reduction == reduction and Rule.parse(str(rule)) == rule
    assert (" by " in str(rule)) == (reduction != "sum")


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("m k, k n", 8, "a rule has exactly one '->'"),
        ("m -> n -> m", 7, "a rule has exactly one '->'"),
        ("m k) -> m", 3, "')' cannot stand here"),
        ("m, m) -> m", 4, "')' cannot stand here"),
        ("(a (b c)) -> a", 3, "'(' cannot stand here"),
        ("a (b c -> a", 2, "bracket is never closed"),
        ("a -> (b a", 5, "bracket is never closed"),
        ("a () -> a", 3, "')' cannot stand here"),
        ("a 2 -> a", 2, "'2' cannot stand here"),
        ("a [2] -> a", 2, "'[2]' cannot stand here"),
        ("a $ -> a", 2, "'$' cannot stand here"),
        ("a, a [ -> a", 5, "'[' cannot stand here"),
        ("a b, b a b -> a", 9, "b occurs twice in one tensor"),
        ("(a a) -> a", 3, "a occurs twice in one tensor"),
        ("... ... -> ...", 4, "'...' cannot stand here"),
        ("(... a) -> a", 1, "'...' cannot stand here"),
        ("a, -> a", 2, "a tensor is missing; a scalar is ()"),
        ("[a] b -> <a> b", 9, "a is marked both [a] and <a>"),
        ("m k -> m by mean", 12, "a reduction is one of sum, max, min, prod"),
    ],
)
def test_unreadable_texts_are_pointed_at(text, column, why):
    with pytest.raises(RuleError) as error:
        bind(text, [(4, 6)])
    assert str(error.value) == f"cannot read this rule\n    {text}\n    {' ' * column}^ {why}"


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("m k, k n -> m n", [(4, 6)], "MatMul (m k, k n -> m n) takes 2 operands, not 1"),
        (
            "m k, k n -> m n",
            [(4, 6), (10, 12)],
            "MatMul (m k, k n -> m n): k is 10 in operand 1 (10, 12) but k is 6 in operand 0 (4, 6)",
        ),
        ("m k -> m", [(4,)], "MatMul (m k -> m): operand 0 has 1 dims (4,), the rule has 2"),
        (
            "... m k -> ... m",
            [(4,)],
            "MatMul (... m k -> ... m): operand 0 has 1 dims (4,), the rule has at least 2",
        ),
        ("m 1 -> m", [(4, 3)], "MatMul (m 1 -> m): 1 is 3 in operand 0 (4, 3)"),
        (
            "(h d) -> h d",
            [(12,)],
            "MatMul ((h d) -> h d): h d is 12 in operand 0 (12,) but h is not known, d is not known",
        ),
        ("m -> m n", [(4,)], "MatMul (m -> m n): the size of n follows from no operand ((4,),)"),
        (
            "..., ... -> ...",
            [(4, 6), (3,)],
            "MatMul (..., ... -> ...): _1 is 3 in operand 1 (3,) but _1 is 6 in operand 0 (4, 6)",
        ),
        ("_0 m -> m", [(4, 6)], "MatMul (_0 m -> m): the name _0 is kept for a dim under '...'"),
    ],
)
def test_shapes_that_do_not_fit(text, shapes, message):
    with pytest.raises(RuleError) as error:
        bind(text, shapes, what="MatMul")
    assert str(error.value) == message


def test_given_sizes_must_agree():
    with pytest.raises(RuleError, match="h d is 10 in operand 0 .10,. but h is 4 in given, d is not known"):
        bind("(h d) -> h d", [(10,)], {"h": 4})
    with pytest.raises(RuleError, match="m is 6 in operand 0 .6,. but m is 4 in given"):
        bind("m -> m", [(6,)], {"m": 4})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m k -> m", "it should end with the factor sizes, e.g. {m=4, k=6}"),
        ("m k -> m {m=4, k}", "it should end with the factor sizes"),
        ("m k -> m {m=4}", "rule 'm k -> m' gives no size for k"),
    ],
)
def test_bound_texts_that_cannot_be_read(text, message):
    with pytest.raises(RuleError) as error:
        Rule.parse(text)
    assert message in str(error.value)


def test_sizes_of_zero():
    assert bind("..., ... -> ...", [(0, 6), (1, 6)]).result_shape(0) == (0, 6)
    assert bind("(h d) -> h d", [(0,)], {"h": 4}).result_shape(0) == (4, 0)
    with pytest.raises(RuleError, match="d is not known"):
        bind("(h d) -> h d", [(0,)], {"h": 0})


def test_binding_is_remembered():
    assert bind("m k -> m", [[4, 6]]) is bind("m k -> m", [(4, 6)])
