"""Old names of modules still import, warn, and are the very modules of the new names."""

from __future__ import annotations

import importlib
import sys

import pytest

from autoshard.util.moved import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_old_name_is_the_module_of_the_new_one(old, monkeypatch):
    # As a first import: what another test left in sys.modules would be silent.
    monkeypatch.delitem(sys.modules, f"autoshard.{old}", raising=False)
    with pytest.warns(DeprecationWarning, match=MOVED[old].replace(".", r"\.")):
        module = importlib.import_module(f"autoshard.{old}")
    assert module is importlib.import_module(f"autoshard.{MOVED[old]}")


def test_a_renamed_class_is_the_same_under_its_old_module_and_name():
    module = importlib.import_module("autoshard.search.draft")
    with pytest.warns(DeprecationWarning, match=r"autoshard\.search\.assignment\.Assignment"):
        draft = module.Draft
    assert draft is importlib.import_module("autoshard.search.assignment").Assignment
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing
