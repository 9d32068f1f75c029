"""Measurements on MPI ranks, for any number of them: all ranks come to the same figures."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from autoshard import communication
from autoshard.calibrate import KINDS, Effort, measure, planned_steps, priced
from autoshard.runtime.mpi import MpiComm
from costmodel import Hardware, Topology
from costmodel.fit import fit_device, fit_link, fit_programs

communication.init()
RANKS = communication.get_group_size()
pytestmark = pytest.mark.skipif(RANKS in (4, 6), reason="it takes long, and is tried on 1 and 2 ranks")
EFFORT = Effort((2**8, 2**12), (8, 16), 2e-4, 5e-4, 2)
PROGRAMS = planned_steps(RANKS, EFFORT.widths)


@pytest.fixture(scope="module")
def found():
    return measure(MpiComm(), EFFORT, PROGRAMS, operators=True)


def test_all_ranks_measure_alike(found):
    comm = MpiComm()
    sizes = [one for one in range(2, RANKS + 1) if RANKS % one == 0]
    assert [(one.kind, one.ranks) for one in found.collectives] == [
        (kind, size) for size in sizes for _ in EFFORT.nbytes for kind in KINDS
    ]
    text = json.dumps(asdict(found)).encode()
    first = comm.broadcast(np.frombuffer(text, np.uint8), (len(text),), np.dtype(np.uint8))[0]
    assert first.tobytes() == text


@pytest.mark.skipif(RANKS < 2, reason="one rank sends nothing")
def test_what_ranks_measure_can_be_fitted(found):
    link = fit_link("MPI", found.collectives, "a test")
    device = fit_device("host", found.operators, 2**34, "a test")
    here = Hardware("here", device, Topology(((None, link),)))
    slowdown = fit_programs(list(priced(PROGRAMS, found.programs, here)))
    assert slowdown.computing > 0 and slowdown.talking >= 1 and slowdown.each >= 0
    for kind in KINDS:
        curve = link.curve(kind, RANKS)
        assert curve is not None and curve.seconds(2.0**20) > 0
    assert device.curve("MatMul", "f32") is not None
