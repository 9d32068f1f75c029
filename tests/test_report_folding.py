"""Equal layers as one row: which rows fold, what a range says, and that nothing else is lost."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import autoshard
from autoshard import nn
from autoshard.report.folding import FEWEST, fold_rows
from autoshard.report.plan import report


def rows(*lines):
    return [tuple(line.split("|")) for line in lines]


def shown(found):
    return ["|".join(one.cells) for one in found]


def test_layers_that_are_alike_are_a_range():
    table = rows("embed|a", "layers.0.mul|b", "layers.0.add|c", "layers.1.mul|b", "layers.1.add|c", "layers.2.mul|b")
    table += rows("layers.2.add|c", "norm|d")
    found = fold_rows(table)
    assert shown(found) == ["embed|a", "layers.{0..2}.mul|b", "layers.{0..2}.add|c", "norm|d"]
    assert [one.stands_for for one in found] == [(0,), (1, 3, 5), (2, 4, 6), (7,)]


def test_what_is_said_of_neighbours_moves_along():
    table = rows(*(f"h.{i}.add|from h.{i}.mul and h.{i - 1}.add" for i in range(4, 8)))
    assert shown(fold_rows(table)) == ["h.{4..7}.add|from h.{4..7}.mul and h.{3..6}.add"]


def test_other_cells_must_be_alike():
    table = rows(*(f"h.{i}.add|from g.{i}.mul" for i in range(4)))
    assert [one.cells for one in fold_rows(table)] == table
    table = rows("h.0.a|1 us", "h.1.a|2 us", "h.2.a|2 us", "h.3.a|2 us", "h.5.a|2 us")
    assert shown(fold_rows(table)) == ["h.0.a|1 us", "h.{1..3}.a|2 us", "h.5.a|2 us"]


def test_numbers_that_are_an_operators_own_do_not_fold():
    table = rows(*(f"layer.mul_{i}|x" for i in range(5)), *(f"dense{i}|x" for i in range(5)))
    assert len(fold_rows(table)) == 10


def test_an_inner_number_folds_where_the_outer_does_not():
    table = rows(*(f"stages.{s}.layers.{i}.conv|{s}" for s in range(2) for i in range(3)))
    assert shown(fold_rows(table)) == ["stages.0.layers.{0..2}.conv|0", "stages.1.layers.{0..2}.conv|1"]


def test_a_running_number_is_not_compared():
    table = rows(*(f"{i + 7}|h.{i}.add|x" for i in range(3)))
    (one,) = fold_rows(table, name=1, apart=(0,))
    assert one.cells == ("7", "h.{0..2}.add", "x")


def test_layers_backwards_stand_where_the_last_is():
    table = rows(*(f"h.{i}.add|from h.{i + 1}.add" for i in reversed(range(4))))
    assert shown(fold_rows(table)) == ["h.{0..3}.add|from h.{1..4}.add"]


names = st.builds("{}{}.{}".format, st.sampled_from(["h.", "block", "a.b."]), st.integers(0, 6), st.sampled_from("xy"))


@given(st.lists(st.tuples(names, st.sampled_from(["p", "q", "from h.2.x", "from h.3.x"])), max_size=24, unique=True))
def test_unfolded_they_are_the_rows_again(table):
    found = fold_rows(table)
    assert sorted(i for one in found for i in one.stands_for) == list(range(len(table)))
    assert [one.stands_for[0] for one in found] == sorted(one.stands_for[0] for one in found)
    for one in found:
        if len(one.stands_for) == 1:
            assert one.cells == table[one.stands_for[0]]
            continue
        assert len(one.stands_for) >= FEWEST
        name, cell = one.cells
        first, last = map(int, re.search(r"\{(\d+)\.\.(\d+)\}", name).groups())
        assert last - first + 1 == len(one.stands_for)
        again = {tuple(_at(text, number - first) for text in (name, cell)) for number in range(first, last + 1)}
        assert again == {table[i] for i in one.stands_for}


def _at(text, by):
    return re.sub(r"\{(\d+)\.\.\d+\}", lambda match: str(int(match.group(1)) + by), text)


def stack(layers):
    return nn.SequentialCell(*(nn.Dense(12, 12, activation="relu") for _ in range(layers)))


def test_the_report_of_a_deep_model_is_hardly_longer():
    x = np.ones((8, 12), np.float32)
    short, deep = (autoshard.plan(stack(layers), (x,), mesh="dp=2 tp=2") for layers in (8, 40))
    assert len(report(deep).splitlines()) < len(report(short).splitlines()) + 12
    assert len(report(deep, full=True).splitlines()) > 4 * len(report(deep).splitlines())
