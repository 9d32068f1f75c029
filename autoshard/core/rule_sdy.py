"""A rule in sdy's own text, `([i, k], [k, j])->([i, j]) {i=4, j=6, k=8} reduction={k}`, and completed as Shardy has it.

Our rules leave out what carries no information: a dim of size 1 that nothing else shares has no factor. Shardy gives
each such dim a factor of size 1 of its own, so that every dim has one (OpShardingRuleBuilder::build).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from autoshard.core.rule import PASS, PERMUTATION, REDUCTION, REPLICATE, Dim, Factor, Rule
from autoshard.layout.mlir_text import Cursor
from autoshard.util.errors import RuleError

_KINDS = ((REDUCTION, "reduction"), (REPLICATE, "need_replication"), (PERMUTATION, "permutation"))
_BLOCKED = "blocked_propagation"
_SYMBOL = re.compile(r"z_([1-9][0-9]{0,17})|[i-z]")
Side = tuple[tuple[Dim, ...], ...]


@lru_cache(maxsize=1 << 12)
def spread(rule: Rule) -> Rule:
    """The rule as shardings spread by it: factors that join another are one with it, and of their own kind."""
    joins = {i: rule.names[factor.joins] for i, factor in enumerate(rule.factors) if factor.joins}
    if not joins:
        return rule
    kinds = {leader: rule.factors[i].kind for i, leader in joins.items()}
    kept = [i for i in range(len(rule.factors)) if i not in joins]
    index = {i: kept.index(joins.get(i, i)) for i in range(len(rule.factors))}
    factors = tuple(replace(rule.factors[i], kind=kinds.get(i, rule.factors[i].kind)) for i in kept)

    def moved(side: Side) -> Side:
        return tuple(tuple(tuple(index[i] for i in dim) for dim in dims) for dims in side)

    return Rule(factors, moved(rule.operands), moved(rule.results), rule.reduction)


@lru_cache(maxsize=1 << 12)
def completed(rule: Rule) -> Rule:
    """The rule with a factor of size 1 for each dim that has none: operands first, then results."""
    factors = list(rule.factors)

    def fill(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(dim or fresh() for dim in dims)

    def fresh() -> Dim:
        factors.append(Factor(f"_one{len(factors)}", 1))
        return (len(factors) - 1,)

    operands = tuple(map(fill, rule.operands))
    results = tuple(map(fill, rule.results))
    return Rule(tuple(factors), operands, results, rule.reduction)


def show_sdy(rule: Rule, custom: bool = False) -> str:
    """The attribute `#sdy.op_sharding_rule<...>` of a rule, without its wrapper."""
    whole = completed(spread(rule))
    names = [_letter(i) for i in range(len(whole.factors))]

    def side(tensors: Side) -> str:
        return ", ".join(f"[{', '.join(''.join(names[i] for i in dim) for dim in dims)}]" for dims in tensors)

    sizes = ", ".join(f"{name}={factor.size}" for name, factor in zip(names, whole.factors, strict=True))
    text = f"({side(whole.operands)})->({side(whole.results)})" + (f" {{{sizes}}}" if sizes else "")
    for kind, word in _KINDS:
        text += _listed(word, [name for name, factor in zip(names, whole.factors, strict=True) if factor.kind == kind])
    blocked = [name for name, factor in zip(names, whole.factors, strict=True) if factor.blocked]
    return text + _listed(_BLOCKED, blocked) + (", custom" if custom else "")


@lru_cache(maxsize=1 << 12)
def parse_sdy_rule(text: str) -> tuple[Rule, bool]:
    """Read what `show_sdy` prints, with or without the wrapper `#sdy.op_sharding_rule<...>`.

    The rule is completed, and its factors are named i, j, k, ... as in the text, which keeps neither the names of ours
    nor what operation reduces, nor which factors only spread shardings (`Factor.whole`).

    Returns:
        The rule, and whether it is marked custom: given by a user, to be kept.

    Raises:
        RuleError: text that is no rule, or a rule that breaks an invariant of `verify_rule`.
    """
    cursor = Cursor(text, "sharding rule", RuleError)
    wrapped = cursor.take("#sdy.op_sharding_rule") or cursor.peek("<")
    if wrapped:
        cursor.expect("<")
    operands = _side(cursor)
    cursor.expect("->")
    results = _side(cursor)
    sizes = _sizes(cursor)
    kinds: dict[int, str] = {}
    for kind, word in _KINDS:
        _add_kind(cursor, kind, _indices(cursor, word, len(sizes)), kinds)
    blocked = _indices(cursor, _BLOCKED, len(sizes))
    custom = cursor.take(",")
    if custom:
        cursor.expect_word("custom")
    if wrapped:
        cursor.expect(">")
    cursor.end()
    factors = tuple(Factor(_letter(i), size, kinds.get(i, PASS), blocked=i in blocked) for i, size in enumerate(sizes))
    rule = Rule(factors, operands, results)
    verify_rule(rule, f"sharding rule {text.strip()}")
    return rule, custom


def verify_rule(
    rule: Rule,
    what: str = "rule",
    operands: Sequence[Sequence[int]] | None = None,
    results: Sequence[Sequence[int]] | None = None,
) -> None:
    """Check a rule, and with shapes that it is one for such operands and results (verifyOpShardingRuleAttr).

    A dim without factors is one that nothing splits. The factors of a dim need not multiply to its size: a pad or a
    slice shares one factor between dims of different sizes.

    Raises:
        RuleError: the first invariant that is broken.
    """
    fault = _fault(rule)
    for side, tensors, shapes in (("operand", rule.operands, operands), ("result", rule.results, results)):
        if fault is None and shapes is not None:
            fault = _shape_fault(side, tensors, shapes)
    if fault is not None:
        raise RuleError(f"{what}: {fault}")


@lru_cache(maxsize=1 << 12)
def _fault(rule: Rule) -> str | None:
    used: set[int] = set()
    for side, tensors in (("operand", rule.operands), ("result", rule.results)):
        if not tensors:
            return f"it has no {side}; a rule relates at least one operand and one result"
        for i, dims in enumerate(tensors):
            fault = _tensor_fault(rule.factors, dims)
            if fault is not None:
                return f"{side} {i} {fault}"
            used.update(index for dim in dims for index in dim)
    produced = {index for dims in rule.results for dim in dims for index in dim}
    for i, factor in enumerate(rule.factors):
        if i not in used:
            return f"factor {factor.name}={factor.size} occurs in no operand and no result; leave it out"
        if factor.size < 0:
            return f"factor {factor.name} has size {factor.size}; sizes are not negative"
        if factor.kind not in (PASS, REDUCTION, REPLICATE, PERMUTATION):
            return f"factor {factor.name} is of kind {factor.kind!r}; it is pass, reduction, replicate or permutation"
        if factor.kind == REDUCTION and i in produced:
            return f"factor {factor.name} is reduced, but a result has it; a reduced factor is in operands only"
    return None


def _tensor_fault(factors: tuple[Factor, ...], dims: tuple[Dim, ...]) -> str | None:
    seen: set[int] = set()
    for d, dim in enumerate(dims):
        for index in dim:
            if not 0 <= index < len(factors):
                return f"dim {d} has factor number {index}; the rule has factors 0 to {len(factors) - 1}"
            if index in seen:
                return f"has factor {factors[index].name} twice; a factor is in one dim of a tensor"
            if len(dim) > 1 and factors[index].size == 1:
                return f"dim {d} has factor {factors[index].name} of size 1 beside others; leave it out"
            seen.add(index)
    return None


def _shape_fault(side: str, tensors: Side, shapes: Sequence[Sequence[int]]) -> str | None:
    if len(tensors) != len(shapes):
        return f"it is for {len(tensors)} {side}s, the operation has {len(shapes)}"
    for i, (dims, shape) in enumerate(zip(tensors, shapes, strict=True)):
        if len(dims) != len(shape):
            return f"{side} {i} has {len(dims)} dims in the rule, but the shape {tuple(shape)}"
    return None


def _side(cursor: Cursor) -> Side:
    cursor.expect("(")
    return tuple(cursor.items(")", lambda: _tensor(cursor)))


def _tensor(cursor: Cursor) -> tuple[Dim, ...]:
    cursor.expect("[")
    return tuple(cursor.items("]", lambda: _factors(cursor)))


def _factors(cursor: Cursor) -> Dim:
    """The factors of one dim, written together: `ij`, `z_1z_2`."""
    at, word = cursor.at, cursor.word()
    if word is None:
        raise cursor.fail("expected the factors of a dim: one or more of i, j, ..., z, z_1, z_2, ...")
    found, done = [], 0
    while done < len(word):
        match = _SYMBOL.match(word, done)
        if match is None:
            raise cursor.fail("factors are i, j, ..., z, z_1, z_2, ...", at + done)
        found.append(17 + int(match[1]) if match[1] else ord(match[0]) - ord("i"))
        done = match.end()
    return tuple(found)


def _factor(cursor: Cursor) -> int:
    at, found = cursor.at, _factors(cursor)
    if len(found) != 1:
        raise cursor.fail("expected one factor here", at)
    return found[0]


def _sizes(cursor: Cursor) -> list[int]:
    """The sizes `{i=2, j=4}` of all factors, in order."""
    sizes: list[int] = []

    def item() -> None:
        at, index = cursor.at, _factor(cursor)
        if index != len(sizes):
            raise cursor.fail(f"factors are listed in order; expected {_letter(len(sizes))} here", at)
        cursor.expect("=")
        sizes.append(cursor.integer())

    if cursor.take("{"):
        cursor.items("}", item)
    return sizes


def _indices(cursor: Cursor, word: str, count: int) -> list[int]:
    """The factors in `word={...}`, if that stands here."""
    at = cursor.at
    if not cursor.take_word(word):
        return []
    cursor.expect("=")
    cursor.expect("{")
    found = cursor.items("}", lambda: _factor(cursor))
    if found != sorted(set(found)):
        raise cursor.fail(f"the factors of {word} must be in order, each once", at)
    if found and found[-1] >= count:
        raise cursor.fail(f"{word} lists {_letter(found[-1])}, which has no size; there are {count} factors", at)
    return found


def _add_kind(cursor: Cursor, kind: str, indices: list[int], kinds: dict[int, str]) -> None:
    for index in indices:
        if kinds.setdefault(index, kind) != kind:
            raise cursor.fail(f"{_letter(index)} is of kind {kinds[index]} already; a factor is of one kind")


def _letter(index: int) -> str:
    """sdy's names of factors: i .. z, then z_1, z_2, ..."""
    return chr(ord("i") + index) if index < 18 else f"z_{index - 17}"


def _listed(word: str, names: list[str]) -> str:
    return f" {word}={{{', '.join(names)}}}" if names else ""
