"""40 of the random programs of `tests/oracle/test_many.py` on MPI ranks: those whose mesh has as many as there are."""

from __future__ import annotations

import pytest

from autoshard.mindspore.communication import get_group_size
from autoshard.runtime.mpi import default_comm
from tests.oracle.many import case, check, mesh_of

PROGRAMS = 40
WORLD = get_group_size()


@pytest.fixture(scope="module")
def comm():
    return default_comm(WORLD)


@pytest.mark.parametrize("seed", [seed for seed in range(PROGRAMS) if mesh_of(seed).devices == WORLD])
def test_planned_equals_whole(seed: int, comm) -> None:
    check(case(seed), comm)


def test_programs_for_eight_ranks_and_for_six() -> None:
    sizes = [mesh_of(seed).devices for seed in range(PROGRAMS)]
    assert sizes.count(8) + sizes.count(6) == PROGRAMS and min(sizes.count(8), sizes.count(6)) >= 16
