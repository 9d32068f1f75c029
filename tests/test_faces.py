"""The names that `autoshard` and `autoshard.ops` export: each has an example that runs, and former ones still work."""

from __future__ import annotations

import ast
import doctest
import importlib
from types import ModuleType

import pytest

import autoshard
from autoshard import ops
from autoshard.ops.registry import Operator
from autoshard.search import registry as modes
from autoshard.util import moved
from tests.test_layers import ROOT

MARKS = {"from_jax": pytest.mark.jax, "from_stablehlo": pytest.mark.jax, "from_torch": pytest.mark.torch}
EXPORTED = [name for name in autoshard.__all__ if name != "__version__"]
FORMER = [(package, name) for package, names in moved.FORMER.items() for name in names]


def test_the_page_is_short():
    assert len(autoshard.__all__) <= 25
    assert sorted(autoshard.__all__) == autoshard.__all__ == dir(autoshard)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in EXPORTED])
def test_each_name_has_an_example_that_runs(name, monkeypatch):
    # What examples register is gone afterwards.
    monkeypatch.setattr(modes, "_MODES", dict(modes._MODES))
    monkeypatch.setattr(modes, "_OPTIONS", dict(modes._OPTIONS))
    value = getattr(autoshard, name)
    told = value.__doc__ or ""
    example = doctest.DocTestParser().get_doctest(told, {}, f"autoshard.{name}", None, 0)
    assert example.examples, f"autoshard.{name} has no example in its docstring"
    failed = []
    doctest.DocTestRunner(verbose=False).run(example, out=failed.append)
    assert failed == []


def test_type_checkers_see_the_same_names():
    """What is loaded when first used, and what the page imports for type checkers."""
    page = ast.parse((ROOT / "autoshard/__init__.py").read_text(encoding="utf-8"))
    shown = {
        alias.name: found.module
        for block in page.body
        if isinstance(block, ast.If)
        for found in block.body
        if isinstance(found, ast.ImportFrom)
        for alias in found.names
    }
    assert shown.keys() == set(EXPORTED)
    for name, module in shown.items():
        value = getattr(autoshard, name)
        assert getattr(importlib.import_module(str(module)), name) is value
        # The kind that a type checker sees is the kind that a program gets.
        assert isinstance(value, ModuleType) == (name in autoshard._MODULES)


@pytest.mark.parametrize(("package", "name"), FORMER)
def test_a_former_name_warns_and_is_the_new_one(package, name, monkeypatch):
    home, _, new = moved.FORMER[package][name].partition(":")
    # Importing a module by its former name sets it, too.
    monkeypatch.delitem(vars(importlib.import_module(package)), name, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"{package}\.{name} is {home}\.{new or name} now"):
        value = getattr(importlib.import_module(package), name)
    assert value is getattr(importlib.import_module(home), new or name)


def test_the_operators_are_all_of_ops():
    exported = {name: getattr(ops, name) for name in ops.__all__}
    others = {name for name, value in exported.items() if not isinstance(value, Operator)}
    assert others == set(ops._HIGHER), "functions that take Python functions, or ask for shardings"
    assert {value for value in exported.values() if isinstance(value, Operator)} <= set(ops.operators())
    assert set(ops.__all__) < set(dir(ops)) >= {"operator", "lookup", "MatMul"}
    assert not {"Any", "annotations", "difflib"} & set(dir(ops))


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="module 'autoshard' has no attribute 'plam'"):
        getattr(autoshard, "plam")  # noqa: B009
