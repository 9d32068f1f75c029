"""The arguments of `operator`: values by what they speak of, and the keywords that they were."""

from __future__ import annotations

import ast

import pytest

from autoshard.ops.options import FORMER, Filling, Spreading, Storage, UnequalFlops
from autoshard.ops.registry import operator, remove
from tests.test_layers import ROOT


def unequal(*_, **__):
    return 2.0


def edges(node):
    return []


def options_of(**given):
    made = operator("OptionsOfATest", rule="... -> ...", **given)(lambda x: x)
    remove("OptionsOfATest")
    return made.options


def test_former_keywords_warn_and_mean_the_same():
    now = options_of(
        flops=UnequalFlops(3, unequal),
        spread=Spreading("move", edges, True),
        storage=Storage("same", 2.0),
        filling=Filling("own", {0: 1}, ((0,),)),
    )
    with pytest.warns(DeprecationWarning, match=r"operator\(view=\) is a field of storage= now"):
        former = options_of(
            flops=3, imbalance=unequal, spread="move", edges=edges, foreign=True, view="same", scratch=2.0,
            neutral="own", fills={0: 1}, over=[[0]],
        )  # fmt: skip
    assert former == now


def test_a_keyword_that_there_never_was():
    with pytest.raises(TypeError, match="unexpected keyword argument 'views'"):
        options_of(views="same")


def test_no_operator_of_ours_goes_by_a_former_keyword():
    former = set()
    for path in (ROOT / "autoshard/ops").glob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        named = (node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "operator")
        former |= {(path.name, keyword.arg) for node in named for keyword in node.keywords if keyword.arg in FORMER}
    assert former == set()
