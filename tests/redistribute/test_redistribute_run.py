"""Plans run over the runtime's own Comm, all ranks in this process: every rank ends with its block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.layout import Layout, Mesh
from autoshard.redistribute.planner import plan_steps
from autoshard.redistribute.replicate_to_partial import replicate_to_partial
from autoshard.redistribute.routing import route
from autoshard.runtime.local import LocalComm
from autoshard.runtime.steps import run_step
from tests.redistribute import virtual_ranks as ranks


def run(before: Layout, after: Layout, shape: tuple[int, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    array = random.integers(1, 1 << 20, shape)
    held, comm = ranks.scatter(before, array, random), LocalComm(before.mesh.devices)
    for step in plan_steps(before, after, shape):
        given = [part.copy() for part in held]
        new = run_step(step, held, comm)
        assert all(np.array_equal(old, part) for old, part in zip(given, held, strict=True)), "inputs stay as they are"
        assert all(part.flags.c_contiguous for part in new)
        held = new
    ranks.check(after, held, array)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 1 << 16))
def test_every_block_arrives(data, seed):
    mesh = data.draw(ranks.meshes())
    rank = data.draw(st.integers(1, 3))
    before, after = data.draw(ranks.layouts(mesh, rank)), data.draw(ranks.layouts(mesh, rank))
    run(before, after, ranks.shape_for(before, after, extra=2), seed)


@pytest.mark.parametrize("reduction", ["max", "min", "prod"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_other_reductions_end(reduction, data):
    mesh = data.draw(ranks.meshes())
    before = data.draw(ranks.layouts(mesh, 2, reduction))
    after = data.draw(ranks.layouts(mesh, 2, partial=False))
    run(before, after, ranks.shape_for(before, after), 0)


def test_an_exchange_in_rounds_follows_a_device_order():
    mesh = Mesh([("a", 2), ("b", 4)], order=[5, 3, 1, 0, 4, 2, 7, 6])
    for before, after in ranks.pairs_of(["a, b", "b, a", "a.b, -", "-, b.a", "b:(2)2.a, b:(1)2"]):
        run(Layout.parse(before, mesh), Layout.parse(after, mesh), (24, 40), 1)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_each_round_is_a_bijection_and_no_rank_gets_a_piece_twice(data):
    mesh = data.draw(ranks.meshes())
    before, after = (data.draw(ranks.layouts(mesh, 2, partial=False)) for _ in range(2))
    found = route(before, after)
    if found is None:
        return
    turns = [found.round(number) for number in range(found.rounds)]
    for rank in range(mesh.devices):
        assert len({turn.pieces[rank] for turn in turns}) == found.rounds
    for turn in turns:
        assert sorted(turn.sources) == list(range(mesh.devices))
        assert [turn.sources[target] for target in turn.targets] == list(range(mesh.devices))


def test_keeps_are_refused_where_something_would_have_to_move():
    mesh = Mesh(a=2, b=4)
    whole, terms = Layout.parse("-, -", mesh), Layout.parse("-, - +a", mesh)
    assert replicate_to_partial(whole, terms) is not None
    assert replicate_to_partial(terms, whole) is None and replicate_to_partial(whole, whole) is None
    assert replicate_to_partial(Layout.parse("b, -", mesh), terms) is None
    assert replicate_to_partial(whole, Layout.parse("-, - max a", mesh)) is None
