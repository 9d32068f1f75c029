"""The lower bound, held against an exhaustive search: no schedule sends an element less often, and some as often."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import pytest

from autoshard.layout import Layout, Mesh
from autoshard.redistribute.bound import Geometry
from tests.redistribute import virtual_ranks as ranks

Problem = tuple[tuple[frozenset[int], ...], tuple[tuple[int, ...], ...], int]
"""Per rank the sums that it holds, as sets of terms in bits; the groups that want the whole; the bits of all terms."""


def layouts(mesh: Mesh, rank: int, partial: bool = True) -> Iterator[Layout]:
    """All layouts of whole axes."""
    axes = [mesh.axis(name) for name in mesh.names]
    for places in itertools.product(range(rank + 1 + partial), repeat=len(axes)):
        found = [[ref for ref, place in zip(axes, places, strict=True) if place == one] for one in range(rank + 2)]
        for dims in itertools.product(*(itertools.permutations(refs) for refs in found[:rank])):
            yield Layout(mesh, dims, found[rank + 1])


def problems(mesh: Mesh, rank: int) -> dict[Problem, int]:
    """The different problems of single elements that come up between any two layouts, and their bounds."""
    known: dict[Problem, int] = {}
    for before, after in itertools.product(layouts(mesh, rank), repeat=2):
        shape = ranks.shape_for(before, after)
        found = Geometry.of(before, after, shape, shape)
        assert found is not None
        members = [tuple(one for one, of in enumerate(found.group) if of == group) for group in range(len(found.wants))]
        for cell, bound in enumerate(found.transfers().tolist()):
            held = tuple(
                frozenset({1 << int(term)} if holds else ())
                for term, holds in zip(found.term, found.holds[:, cell], strict=True)
            )
            wanting = tuple(sorted(one for group, one in enumerate(members) if found.wants[group, cell]))
            known[held, wanting, (1 << found.terms) - 1] = bound
    return known


@functools.lru_cache(maxsize=1 << 16)
def sums(held: frozenset[int]) -> frozenset[int]:
    """What a rank can add up of the sums that it holds: those of disjoint sets of terms."""
    made = {0}
    for one in held:
        made |= {one | other for other in made if not one & other}
    return frozenset(made)


def complete(state: tuple[frozenset[int], ...], members: tuple[int, ...], whole: int) -> bool:
    """Whether the ranks of a group can choose sums that make the whole together."""
    reached = {0}
    for rank in members:
        reached |= {one | other for one in reached for other in sums(state[rank]) if not one & other}
    return whole in reached


def fewest(problem: Problem, most: int) -> int:
    """How many transfers a schedule needs at least, by trying all of them; `most` + 1 if more."""
    held, wanting, whole = problem
    seen = {held}
    level = [held]
    for count in range(most + 1):
        following = []
        for state in level:
            left = sum(not complete(state, members, whole) for members in wanting)
            if not left:
                return count
            if left > most - count:
                continue  # each group that is not complete receives something
            for new in sends(state):
                if new not in seen:
                    seen.add(new)
                    following.append(new)
        level = following
    return most + 1


def sends(state: tuple[frozenset[int], ...]) -> Iterator[tuple[frozenset[int], ...]]:
    for source, target in itertools.permutations(range(len(state)), 2):
        for value in sums(state[source]) - sums(state[target]):
            yield (*state[:target], state[target] | {value}, *state[target + 1 :])


@pytest.mark.parametrize(
    ("mesh", "rank", "longest"),
    [(Mesh(a=3), 1, 4), (Mesh(a=2, b=2), 1, 4), (Mesh(a=2, b=2), 2, 4), (Mesh(a=2, b=3), 1, 3)],
)
def test_no_schedule_needs_fewer_transfers_and_some_needs_as_many(mesh, rank, longest):
    found = {problem: bound for problem, bound in problems(mesh, rank).items() if bound <= longest}
    assert len(found) > 3 and max(found.values()) == longest
    for problem, bound in found.items():
        assert fewest(problem, bound) == bound, problem
