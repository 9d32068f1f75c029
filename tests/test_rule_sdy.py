"""Rules in sdy's text, against jaxlib's parser, printer and verifier."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from autoshard.core.rule import PASS, PERMUTATION, REDUCTION, REPLICATE, Dim, Factor, Rule, bind
from autoshard.core.rule_sdy import completed, parse_sdy_rule, show_sdy, verify_rule
from autoshard.util.errors import RuleError

pytestmark = pytest.mark.jax
CONTEXT = mlir.make_ir_context()
KINDS = (PASS, REDUCTION, REPLICATE, PERMUTATION)


def printed(text: str) -> str | None:
    """What jaxlib makes of a rule, None if it refuses it."""
    with CONTEXT:
        try:
            return str(ir.Attribute.parse(f"#sdy.op_sharding_rule<{text}>"))
        except ir.MLIRError:
            return None


def accepted(text: str, ranks: tuple[list[int], list[int]]) -> bool:
    """Whether jaxlib takes the rule for an operation with operands and results of such ranks."""
    sides = [[f"tensor<{'7x' * rank}f32>" for rank in side] for side in ranks]
    names = ", ".join(f"%{i}" for i in range(len(sides[0])))
    arguments = ", ".join(f"%{i}: {type_}" for i, type_ in enumerate(sides[0]))
    call = f"stablehlo.custom_call @f({names}) {{sdy.sharding_rule = #sdy.op_sharding_rule<{text}>}}"
    types = f"({', '.join(sides[0])}) -> ({', '.join(sides[1])})"
    with CONTEXT:
        try:
            ir.Module.parse(f"func.func @main({arguments}) {{ %r:{len(sides[1])} = {call} : {types}\nreturn }}")
        except ir.MLIRError:
            return False
    return True


def ranks_of(rule: Rule) -> tuple[list[int], list[int]]:
    return [len(dims) for dims in rule.operands], [len(dims) for dims in rule.results]


@st.composite
def tensors(draw: st.DrawFn, names: list[int]) -> tuple[Dim, ...]:
    """Some of the factors in some order, cut into dims."""
    chosen = draw(st.permutations(names))[: draw(st.integers(0, 4))]
    dims: list[Dim] = []
    for index in chosen:
        if dims and draw(st.booleans()):
            dims[-1] = (*dims[-1], index)
        else:
            dims.append((index,))
    return tuple(dims)


@st.composite
def loose(draw: st.DrawFn) -> Rule:
    """Any rule that text can have: sizes, kinds and factors drawn without care."""
    count = draw(st.sampled_from([1, 3, 4, 4, 22]))
    factors = tuple(
        Factor(f"f{i}", draw(st.sampled_from([2, 3, 5, 6, 1])), draw(st.sampled_from(KINDS)), draw(st.booleans()))
        for i in range(count)
    )
    sides = [[draw(tensors(list(range(count)))) for _ in range(draw(st.integers(1, 3)))] for _ in range(2)]
    return Rule(factors, tuple(sides[0]), tuple(sides[1]))


def repaired(rule: Rule) -> Rule:
    """The rule without what is wrong with it, and some dims without a factor."""
    used = {index for dims in (*rule.operands, *rule.results) for dim in dims for index in dim}
    produced = {index for dims in rule.results for dim in dims for index in dim}
    order = sorted(used)
    place = {index: i for i, index in enumerate(order)}

    def fixed(index: int) -> Factor:
        factor = rule.factors[index]
        return replace(factor, kind=PASS) if factor.kind == REDUCTION and index in produced else factor

    def dims(tensor: tuple[Dim, ...]) -> tuple[Dim, ...]:
        big = (tuple(i for i in dim if len(dim) == 1 or rule.factors[i].size > 1) for dim in tensor)
        return tuple(tuple(place[i] for i in dim) for dim in big)

    trimmed = Rule(tuple(map(fixed, order)), tuple(map(dims, rule.operands)), tuple(map(dims, rule.results)))
    now = {index for tensor in (*trimmed.operands, *trimmed.results) for dim in tensor for index in dim}
    return trimmed if now == set(range(len(order))) else repaired(trimmed)


def renamed(rule: Rule) -> Rule:
    """The completed rule with sdy's names of factors."""
    whole = completed(rule)
    names = [chr(ord("i") + i) if i < 18 else f"z_{i - 17}" for i in range(len(whole.factors))]
    factors = tuple(replace(factor, name=name) for factor, name in zip(whole.factors, names, strict=True))
    return Rule(factors, whole.operands, whole.results)


@settings(max_examples=150)
@given(loose(), st.booleans())
def test_text_is_sdys_and_comes_back(rule, custom):
    right = repaired(rule)
    text = show_sdy(right, custom)
    assert printed(text) == f"#sdy.op_sharding_rule<{text}>"
    assert accepted(text, ranks_of(right))
    for written in (text, f"<{text}>", f"#sdy.op_sharding_rule<{text}>", text.replace(",", " ,\n")):
        assert parse_sdy_rule(written) == (renamed(right), custom)
    assert completed(renamed(right)) == renamed(right)


@settings(max_examples=150)
@given(loose())
def test_broken_rules_are_refused_as_sdy_does(rule):
    text = show_sdy(rule)
    expected = accepted(text, ranks_of(rule))
    faults = []
    for check in (lambda: verify_rule(rule), lambda: parse_sdy_rule(text)):
        try:
            check()
        except RuleError as error:
            faults.append(str(error))
    assert len(faults) == (0 if expected else 2)


def test_a_bound_rule():
    rule = bind("... m k, k n -> ... m n", [(5, 4, 8), (8, 6)])
    text = "([i, j, k], [k, l])->([i, j, l]) {i=5, j=4, k=8, l=6} reduction={k}"
    assert show_sdy(rule) == text
    parsed, custom = parse_sdy_rule(text)
    assert not custom and [factor.name for factor in parsed.factors] == ["i", "j", "k", "l"]
    assert (parsed.operands, parsed.results, parsed.contracted) == (rule.operands, rule.results, rule.contracted)
    verify_rule(rule, operands=[(5, 4, 8), (8, 6)], results=[(5, 4, 6)])


def test_scalars_have_no_sizes_to_list():
    rule = Rule((), ((), ()), ((),))
    assert show_sdy(rule, custom=True) == "([], [])->([]), custom"
    assert parse_sdy_rule("([], [])->([]), custom") == (rule, True)


LOOSE = [
    "([ij,k])->([i,jk]){i=2,j=4,k=4},custom",
    "( [ i ] ) -> ( [ j ] ) { i = 2 , j = 0x3 } need_replication = { i , j } permutation = { }",
    "([z_1y], [i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x])->([z, z_1]) {"
    + ", ".join(f"{name}=2" for name in [*"ijklmnopqrstuvwxyz", "z_1"])
    + "}",
]


@pytest.mark.parametrize("text", LOOSE)
def test_what_mlir_reads_is_read(text):
    assert f"#sdy.op_sharding_rule<{show_sdy(*parse_sdy_rule(text))}>" == printed(text)


WRONG = [
    ("([i])->([i] {i=2}", 12, "expected ',' or ')'"),
    ("([i])([i]) {i=2}", 5, "expected '->'"),
    ("([i])->([k]) {i=2, k=3}", 19, "factors are listed in order; expected j here"),
    ("([i])->([i]) {ij=2}", 14, "expected one factor here"),
    ("([h])->([i]) {i=2}", 2, "factors are i, j, ..., z, z_1"),
    ("([iz_0])->([i]) {i=2}", 4, "factors are i, j, ..., z, z_1"),
    ("([*])->([i]) {i=2}", 2, "expected the factors of a dim"),
    ("([i])->([i]) {i=2} reduction=i", 29, "expected '{'"),
    ("([i])->([i]) {i=2} permutation={i} need_replication={i}", 35, "expected nothing more here"),
    ("([i])->([i]) {i=2}, own", 20, "expected 'custom'"),
    ("([i])->([i]) {i=2}>", 18, "expected nothing more here"),
    ("([i])->([i]) {i=two}", 16, "expected an integer"),
]


@pytest.mark.parametrize(("text", "column", "why"), WRONG)
def test_errors_point_at_the_column(text, column, why):
    assert printed(text) is None
    with pytest.raises(RuleError) as caught:
        parse_sdy_rule(text)
    head, line, mark = str(caught.value).split("\n")
    assert head == "cannot read this sharding rule" and line == f"    {text}"
    assert mark.index("^") == 4 + column and why in mark


UNFIT = [
    ("([i, k], [k, j])->([i, j]) {i=4, j=9, k=6, l=1}", "factor l=1 occurs in no operand and no result"),
    ("([i, ik], [k, j])->([i, j]) {i=4, j=9, k=6}", "operand 0 has factor i twice; a factor is in one dim of a tensor"),
    ("([il, k], [k, j])->([i, j]) {i=4, j=9, k=6, l=1}", "operand 0 dim 0 has factor l of size 1 beside others"),
    ("([i, k], [k, j])->([i, m]) {i=4, j=9, k=6}", "result 0 dim 1 has factor number 4; the rule has factors 0 to 2"),
    ("([i, k], [k, j])->([i, j]) {i=4, j=9, k=6} reduction={i}", "factor i is reduced, but a result has it"),
    ("([i, k], [k, j])->([i, j]) {i=4, j=9, k=6} permutation={j, i}", "permutation must be in order, each once"),
    ("([i, k], [k, j])->([i, j]) {i=4, j=9, k=6} permutation={i, i}", "permutation must be in order, each once"),
    ("([i, k], [k, j])->([i, j]) {i=4, j=9, k=6} blocked_propagation={m}", "lists m, which has no size"),
    ("([i, k], [k, j])->([i, j]) {i=4, j=9, k=6} reduction={k} permutation={k}", "k is of kind reduction already"),
    ("([, k], [k, j])->([i, j]) {i=4, j=9, k=6}", "expected the factors of a dim"),
]


@pytest.mark.parametrize(("text", "why"), UNFIT)
def test_rules_that_cannot_be(text, why):
    assert not accepted(text, ([2, 2], [2]))
    with pytest.raises(RuleError, match=re.escape(why)):
        parse_sdy_rule(text)


def test_rules_and_shapes():
    rule = bind("m k, k n -> m n", [(4, 6), (6, 9)])
    with pytest.raises(RuleError, match="dot: it is for 2 operands, the operation has 1"):
        verify_rule(rule, "dot", operands=[(4, 6)])
    with pytest.raises(RuleError, match=r"dot: result 0 has 2 dims in the rule, but the shape \(4, 9, 1\)"):
        verify_rule(rule, "dot", results=[(4, 9, 1)])
    with pytest.raises(RuleError, match="rule: it has no operand; a rule relates at least one"):
        verify_rule(Rule((Factor("i", 2),), (), (((0,),),)))
    with pytest.raises(RuleError, match="rule: factor i has size -2"):
        verify_rule(Rule((Factor("i", -2),), (((0,),),), (((0,),),)))
    with pytest.raises(RuleError, match="rule: factor i is of kind 'odd'"):
        verify_rule(Rule((Factor("i", 2, "odd"),), (((0,),),), (((0,),),)))
