"""The arguments of `operator`: values by what they speak of, and the keywords that they were."""

from __future__ import annotations

import pytest

from autoshard.ops.options import Filling, Spreading, Storage, UnequalFlops
from autoshard.ops.registry import operator, remove


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
