"""The tables of Shardy's propagation document: what the factors agree on, and what a step makes of the tensors."""

from __future__ import annotations

import pytest
from golden_seeds import check, mesh_text, read_asked, sections, table

from autoshard.core.rule import Rule
from autoshard.core.rule_sdy import parse_sdy_rule, show_sdy
from autoshard.propagate.step import step
from autoshard.util.errors import RuleError

FILE = "factor_tables.txt"
TITLES = [title for title in sections(FILE) if title.endswith(": in")]
# The document's reshapes and products in its own einsum notation, and as sdy writes them.
RULES = {
    "i k, k j -> i j {i=8, j=6, k=16}": "([i, k], [k, j])->([i, j]) {i=8, j=6, k=16}",
    "i j k -> (i j) k {i=2, j=4, k=32}": "([i, j, k])->([ij, k]) {i=2, j=4, k=32}",
    "(i j) k -> i j k {i=2, j=4, k=32}": "([ij, k])->([i, j, k]) {i=2, j=4, k=32}",
    "(i j) k -> i (j k) {i=2, j=4, k=4}": "([ij, k])->([i, jk]) {i=2, j=4, k=4}",
}


@pytest.mark.parametrize("title", TITLES)
def test_a_table(title: str) -> None:
    rule, asked = sections(FILE)[title].split("\n", 1)
    mesh, tensors = read_asked(asked)
    check(FILE, title.removesuffix("in") + "out", table(Rule.parse(rule), mesh, list(tensors.values())))


@pytest.mark.parametrize("text", RULES)
def test_rules_as_text(text: str) -> None:
    rule, custom = parse_sdy_rule(RULES[text])
    assert not custom and show_sdy(rule) == RULES[text]
    written = Rule.parse(text)
    assert (written.operands, written.results) == (rule.operands, rule.results)
    assert [factor.size for factor in written.factors] == [factor.size for factor in rule.factors]


def test_a_rule_has_to_give_the_sizes_of_its_factors() -> None:
    """The dims do not tell: 8x4 to 2x16 and to 4x8 have one text but for the sizes, and share "z" out differently."""
    asked = 'mesh z=8\nin [{"z", ?}, {?}]\nout [{?}, {?}]'
    mesh, tensors = read_asked(asked)
    pieces = []
    for sizes in ("{i=2, j=4, k=4}", "{i=4, j=2, k=4}"):
        done = step(Rule.parse(f"(i j) k -> i (j k) {sizes}"), tuple(tensors.values()))
        pieces.append([mesh_text(mesh, dim.axes) for _, sharding in done.changes for dim in sharding.dims])
    assert pieces == [["z:(1)2", "z:(2)4"], ["z:(1)4", "z:(4)2"]]
    with pytest.raises(RuleError, match="factor number 2; the rule has factors 0 to 1"):
        parse_sdy_rule("([ij, k])->([i, jk]) {i=2, j=4}")
