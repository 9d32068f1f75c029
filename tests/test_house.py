"""What benchmarks/house.py counts, counted by hand on a tree small enough to look at."""

from __future__ import annotations

import pytest

from benchmarks import house

FILES = {
    "autoshard/__init__.py": "",
    "autoshard/low/__init__.py": "",
    "autoshard/low/one.py": (
        '"""A module.\n\nOf three lines."""\n\nclass Twin:\n    """Text."""\n\n    # a remark\n    size = 3\n'
    ),
    "autoshard/low/two.py": "def late():\n    from autoshard.high import top\n\n    return top\n",
    "autoshard/high/__init__.py": "",
    "autoshard/high/top.py": (
        "from typing import TYPE_CHECKING\n\nfrom autoshard.low import two\n\n"
        "if TYPE_CHECKING:\n    from autoshard.high.side import Twin\n"
    ),
    "autoshard/high/side.py": "from autoshard.high import top\n\n\nclass Twin:\n    pass\n",
    "tests/test_a.py": "x = 1\n",
}


def test_figures(monkeypatch):
    monkeypatch.setattr(house, "_checked_out", lambda: FILES)
    tree = house.Tree(None)
    # In one.py the class and its size; of the others every line that is not blank.
    assert house.code_lines(tree) == 2 + 3 + 4 + 3
    assert house.classes_defined_twice(tree) == ["Twin"]
    assert house.cycles(tree.imports) == 3, "top, side (for type checkers) and two (inside a function)"
    assert house.mutual_pairs(tree) == ["autoshard.high - autoshard.low"]
    assert house.long_functions(tree) == 0
    assert house.FIGURES["files at the root of autoshard"](tree) == 1
    assert house.FIGURES["test lines"](tree) == 1
    assert house.public_names(tree, "autoshard") == -1


# What MindSpore calls as somebody else does, too: its optimizers beside those of `autoshard.optim`, its Layout beside
# ours, Dropout, which MindSpore has as a cell and as an operator, and cells that its nn and its mint.nn have each.
OF_MINDSPORE = ["Adam", "Dropout", "Embedding", "GELU", "LayerNorm", "Layout", "Momentum", "SGD"]


@pytest.fixture(scope="module")
def checkout() -> house.Tree:
    return house.Tree(None)


def test_a_class_name_is_one_class(checkout):
    assert house.classes_defined_twice(checkout) == OF_MINDSPORE


def test_files_are_small(checkout):
    assert {path for path, text in checkout.source.items() if len(text.splitlines()) > house.LARGE_FILE} == set()


def test_no_packages_import_each_other(checkout):
    assert house.mutual_pairs(checkout) == []
