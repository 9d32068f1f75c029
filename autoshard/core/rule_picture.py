"""A rule as a picture (SVG): the dims of each tensor, equal colours for the factors that lie along each other."""

from __future__ import annotations

from autoshard.core.rule import PASS, REDUCTION, Rule
from autoshard.util.svg import CHARACTER, SIZE, Svg, colour

_CELL, _ROW = 64, 28


def rule_svg(rule: Rule, title: str = "") -> str:
    """A row per operand and result, a box per factor of its dims; below, what a split of each factor means.

    >>> import numpy as np
    >>> from autoshard import ops, trace
    >>> graph = trace(ops.matmul, np.ones((12, 6)), np.ones((6, 24))).graph
    >>> rule_svg(graph.nodes[0].rule).count("<rect")
    9
    """
    picture, y = Svg(), SIZE + 2.0
    picture.words(0, y, title or str(rule))
    names = [f"operand {i}" for i in range(len(rule.operands))] + [f"result {i}" for i in range(len(rule.results))]
    left = (max(map(len, names)) + 1) * CHARACTER
    y += 12
    for name, dims in zip(names, (*rule.operands, *rule.results), strict=True):
        picture.words(0, y + _ROW / 2 + 4, name, kind="faint")
        for i, factor in enumerate(factor for dim in dims for factor in dim):
            _box(picture, rule, factor, left + i * _CELL, y)
        y += _ROW + 6
    y += 6
    for number, factor in enumerate(rule.factors):
        _box(picture, rule, number, left, y)
        picture.words(
            left + _CELL + 8, y + _ROW / 2 + 4, _meaning(rule, number) if factor.splittable else "is never split"
        )
        y += _ROW + 6
    return picture.text()


def _box(picture: Svg, rule: Rule, number: int, x: float, y: float) -> None:
    factor = rule.factors[number]
    picture.box(x, y, _CELL - 4, _ROW, fill=colour(number, len(rule.factors)))
    picture.words(x + (_CELL - 4) / 2, y + _ROW / 2 + 4, f"{factor.name}={factor.size}", anchor="middle", kind="ink")


def _meaning(rule: Rule, number: int) -> str:
    factor = rule.factors[number]
    if factor.exchange:
        return "split: ranks exchange what their blocks lack"
    if factor.kind == REDUCTION:
        return f"split: each rank has a term of a {rule.reduction}"
    if factor.kind == PASS:
        return "split: each rank has a block of the result"
    return "is never split"
