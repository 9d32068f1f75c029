"""What ranks write of themselves and the launcher reads: every state of a rank in its words."""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path

import numpy as np
import pytest

from autoshard.layout.mesh import Mesh
from autoshard.runtime import progress
from autoshard.runtime.comm import show_ranks
from autoshard.runtime.local import LocalComm
from autoshard.runtime.progress import COLLECTIVE, ENDED, STARTED, RankProgress, Standing, read
from autoshard.runtime.watch import Watch


def found(folder: Path, rank: int = 3) -> Standing:
    standing = read(folder, rank)
    assert standing is not None
    return standing


def test_a_rank_is_read_step_by_step(tmp_path: Path) -> None:
    assert read(tmp_path, 3) is None
    rank = RankProgress(tmp_path, 3)
    one = found(tmp_path)
    assert (one.pid, one.state, one.doing) == (
        os.getpid(),
        STARTED,
        "outside of collectives, before its first collective",
    )
    reduce, gather = rank.place("r", "all_reduce of x"), rank.place("g", "all_gather\nof y")
    assert rank.place("r", "told already") == reduce == rank.find("r")
    assert rank.find("unknown") is None
    rank.at(rank.place("m", "h (MatMul) at train.py:12"))
    assert found(tmp_path).doing == "in h (MatMul) at train.py:12, before its first collective"
    rank.enter(reduce)
    assert found(tmp_path).doing == "in all_reduce of x (collective 1), for h (MatMul) at train.py:12"
    assert abs(found(tmp_path).since - time.time()) < 60
    rank.leave()
    rank.enter(gather)
    assert found(tmp_path).doing == "in all_gather of y (collective 2), for h (MatMul) at train.py:12"
    rank.leave()
    assert found(tmp_path).doing == "in h (MatMul) at train.py:12, after all_gather of y (collective 2)"
    rank.end(ENDED)
    assert found(tmp_path).state == ENDED


def test_outside_of_a_program_the_users_line_is_told(tmp_path: Path) -> None:
    rank = RankProgress(tmp_path, 3)
    rank.enter(rank.place("r", "all_reduce of x"))
    here = found(tmp_path).line
    assert here.rpartition(":")[0].endswith("test_progress.py")
    assert found(tmp_path).doing == f"in all_reduce of x (collective 1), at {here}"
    rank.leave()
    assert found(tmp_path).doing == f"outside of collectives, after all_reduce of x (collective 1), at {here}"


def test_a_stack_tells_the_users_innermost_line(tmp_path: Path) -> None:
    rank = RankProgress(tmp_path, 3)
    faulthandler.dump_traceback(rank.stack, all_threads=False)
    one = found(tmp_path)
    assert one.innermost.endswith("in test_a_stack_tells_the_users_innermost_line")
    assert one.doing == f"at {one.innermost}, before its first collective"


def test_half_written_files_are_no_rank_yet(tmp_path: Path) -> None:
    RankProgress(tmp_path, 3)
    (tmp_path / "rank-3.places").write_text("17")
    assert read(tmp_path, 3) is None
    (tmp_path / "rank-3.places").write_text("17 1 vm\n")
    (tmp_path / "rank-3.now").write_bytes(b"1234")
    assert read(tmp_path, 3) is None


def test_nobody_writes_unasked(tmp_path: Path, monkeypatch) -> None:
    ask = progress.of_this_rank.__wrapped__
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "6")
    monkeypatch.delenv(progress.FOLDER, raising=False)
    assert ask() is None
    monkeypatch.setenv(progress.FOLDER, str(tmp_path / "gone"))
    assert ask() is None
    monkeypatch.setenv(progress.FOLDER, str(tmp_path))
    assert ask() is not None
    assert found(tmp_path, 5).pid == os.getpid()


def test_collectives_are_told(tmp_path: Path) -> None:
    """Of a Comm that has a RankProgress, each is one place, whatever line calls it."""
    comm, mesh = LocalComm(6), Mesh(dp=2, tp=3)
    assert comm.place("h") is None
    comm.at(None)
    comm._progress = RankProgress(tmp_path, 3)
    comm.at(comm.place("h (MatMul)"))
    for _ in range(2):
        comm.all_gather([np.ones((4, 5), np.float32)] * 6, mesh.groups([mesh.axis("dp")]), 1)
    one = found(tmp_path)
    assert one.collective == "all_gather of float32[4, 5] over ranks 0, 3"
    assert (one.count, one.state, one.operator) == (2, STARTED, "h (MatMul)")
    comm.broadcast(np.ones(7), (7,), "float64", root=2)
    assert found(tmp_path).collective == "broadcast of float64[7] over ranks 0-5"


def test_ranks_that_do_the_same_are_told_in_one_line(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        written = RankProgress(tmp_path, rank)
        written.at(written.place("h", "h (MatMul)"))
        if rank != 1:
            written.enter(written.place("r", "all_reduce of x"))
    for rank in (0, 1, 3):
        # As if they were processes of long ago, so that none is sent a signal.
        places = tmp_path / f"rank-{rank}.places"
        places.write_text(places.read_text().replace(f"{os.getpid()} ", "999999999 ", 1))
    assert found(tmp_path, 0).state == COLLECTIVE
    waiting, working, silent = Watch(tmp_path, 5).stall()
    assert waiting.startswith("ranks 0, 3: waiting in all_reduce of x (collective 1), for h (MatMul), for ")
    assert (working, silent) == ("rank 1: in h (MatMul), before its first collective", "ranks 2, 4: not begun")


@pytest.mark.parametrize(
    "ranks, text",
    [([3], "rank 3"), (range(4), "ranks 0-3"), ([0, 1], "ranks 0, 1"), ([0, 2, 5, 6, 7], "ranks 0, 2, 5-7")],
)
def test_ranks_in_words(ranks, text: str) -> None:
    assert show_ranks(ranks) == text
