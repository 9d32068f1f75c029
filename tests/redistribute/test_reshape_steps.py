"""From a layout of one shape to a layout of another: run on virtual ranks, and what it receives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoshard.layout import Layout, Mesh
from autoshard.redistribute.reshape import Reshaping, finer, on_finer, reshape_steps
from autoshard.util.errors import RedistributeError
from tests.redistribute import virtual_ranks as ranks

SHAPES = [(24,), (4, 6), (2, 12), (12, 2), (2, 2, 6), (3, 8), (4, 1, 6), (2, 3, 4)]


def run(before: Layout, shape: tuple[int, ...], after: Layout, new: tuple[int, ...], seed: int) -> Reshaping:
    way, random = reshape_steps(before, shape, after, new), np.random.default_rng(seed)
    array = random.integers(1, 1 << 20, shape)
    held = ranks.scatter(before, array, random)
    for leg in way.legs:
        held = [part.reshape(leg.before.local_shape(leg.shape)) for part in held]
        for step in leg.steps:
            held = ranks.run(step, held)
    ranks.check(after, [part.reshape(after.local_shape(new)) for part in held], array.reshape(new))
    return way


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.integers(0, 1 << 16))
def test_blocks_arrive_across_a_reshape(data, old, new, seed):
    mesh = data.draw(ranks.meshes())
    scale = (mesh.devices,)  # so that many layouts divide
    old, new = (*old, *scale), (*new, *scale)
    before, after = data.draw(ranks.layouts(mesh, len(old))), data.draw(ranks.layouts(mesh, len(new)))
    assume(before.divides(old) and after.divides(new))
    way = run(before, old, after, new, seed)
    fine, size = finer(old, new), math.prod(old)
    start, end = on_finer(before, old, fine), on_finer(after, new, fine)
    if start is not None and end is not None:  # one redistribution of the finer shape, with the blocks of both ends
        assert [leg.shape for leg in way.legs] == [fine] * (start is not end)
        assert size // start.split == math.prod(before.local_shape(old))
        assert size // end.split == math.prod(after.local_shape(new))
    assert way.elements_moved <= size * (1 + 2 * bool(before.partial) + bool(after.partial))


@pytest.mark.parametrize(
    ("old", "new", "fine"),
    [
        ((24, 5), (4, 30), (4, 6, 5)),
        ((4, 6), (24,), (4, 6)),
        ((4, 6), (3, 8), (24,)),
        ((4, 6, 7), (3, 8, 7), (24, 7)),
        ((2, 12), (4, 6), (2, 2, 6)),
        ((1, 6), (6,), (6,)),
    ],
)
def test_finer_dims(old, new, fine):
    assert finer(old, new) == finer(new, old) == fine


@pytest.mark.parametrize(
    ("before", "old", "after", "new", "elements"),
    [
        ("a.b", (24,), "a, b", (2, 12), 0),
        ("a, b", (2, 12), "a.b", (24,), 0),
        ("a.b", (24,), "b, a", (4, 6), 3),
        ("a, -", (4, 6), "a", (24,), 0),
        ("-, a", (4, 6), "a", (24,), 6),
        ("a, - +b", (4, 6), "a.b", (24,), 9),
        ("a", (24,), "a, -", (2, 12), 0),
        ("b, -", (4, 6), "b:(1)2, b:(2)2", (2, 12), 0),
    ],
)
def test_what_lies_the_same_stays(before, old, after, new, elements):
    """Nothing goes through whole tensors: what moves is what a rank lacks."""
    mesh = Mesh(a=2, b=4)
    way = run(Layout.parse(before, mesh), old, Layout.parse(after, mesh), new, 3)
    assert way.elements_moved == elements


def test_a_piece_across_a_boundary_goes_to_another_dim():
    mesh = Mesh(a=3, b=2)
    before, after = Layout.parse("a, -", mesh), Layout.parse("b, -", mesh)
    assert on_finer(Layout.parse("a, -", mesh), (6, 6), (2, 3, 6)) is None
    way = run(before, (6, 6), after, (2, 18), 1)
    assert [leg.shape for leg in way.legs] == [(6, 6), (2, 3, 6)]
    assert [step.kind for step in way.legs[0].steps] == ["all_to_all"]


def test_errors():
    mesh = Mesh(a=2, b=4)
    with pytest.raises(RedistributeError, match="the same number of elements"):
        reshape_steps(Layout.parse("a", mesh), (8,), Layout.parse("a, -", mesh), (2, 5))
    with pytest.raises(RedistributeError, match="a layout that divides them"):
        reshape_steps(Layout.parse("b", mesh), (6,), Layout.parse("a, -", mesh), (2, 3))
