"""What a rank records of a step is read back, of a step that fails as far as it came."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn, plan
from autoshard.runtime.recording import record_files, recorded, recording
from autoshard.trace.initializer import set_seed
from autoshard.util.errors import RuntimeSetupError

X = np.ones((6, 8), np.float32)


@pytest.fixture
def planned():
    set_seed(2)
    return plan(nn.SequentialCell(nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, 4)), (X,), devices=1)


def test_every_instruction_has_its_times(planned, tmp_path):
    plain = planned.run(X)
    with recording(planned.session.executor, planned.session.comm, tmp_path / "made"):
        for _ in range(2):
            np.testing.assert_array_equal(planned.run(X), plain)
    assert planned.session.executor.times is None
    count = len(planned.program.instructions)
    [(rank, spans)] = recorded(tmp_path / "made", lambda rank: count).items()
    assert rank == 0 and [moment for moment, _, _ in spans] == list(range(count))
    ends = [0.0, *(end for _, _, end in spans)]
    assert spans[0][1] == 0 and all(begin <= end for _, begin, end in spans)
    assert all(before <= begin for before, (_, begin, _) in zip(ends, spans, strict=False))


def test_a_step_that_fails_leaves_what_it_has_run(planned, tmp_path):
    def fail(slots):
        raise OSError("gone")

    actions = planned.session.executor._actions
    actions[2] = (actions[2][0], fail)
    with pytest.raises(OSError, match="gone"), recording(planned.session.executor, planned.session.comm, tmp_path):
        planned.run(X)
    spans = recorded(tmp_path, lambda rank: len(actions))[0]
    assert [moment for moment, _, _ in spans] == [0, 1]


def test_what_is_no_record_is_refused(planned, tmp_path):
    with pytest.raises(RuntimeSetupError, match="no rank has recorded"):
        recorded(tmp_path, lambda rank: 3)
    (tmp_path / "rank_table.json").write_text("{}")  # of somebody else
    with recording(planned.session.executor, planned.session.comm, tmp_path):
        planned.run(X)
    assert [path.name for path in record_files(tmp_path)] == ["rank_0.json", "rank_0.times"]
    count = len(planned.program.instructions)
    with pytest.raises(RuntimeSetupError, match="the program has 99"):
        recorded(tmp_path, lambda rank: 99)
    whole = (tmp_path / "rank_0.times").read_bytes()
    (tmp_path / "rank_0.times").write_bytes(whole[:-1])
    with pytest.raises(RuntimeSetupError, match="cut off"):
        recorded(tmp_path, lambda rank: count)
    (tmp_path / "rank_0.json").write_text('{"rank": -1}')
    with pytest.raises(RuntimeSetupError, match="rank_0.json"):
        recorded(tmp_path, lambda rank: count)


def test_ranks_in_one_process_are_refused(tmp_path):
    planned = plan(nn.Dense(8, 12), (X,), devices=2)
    with (
        pytest.raises(RuntimeSetupError, match="2 share this one"),
        recording(planned.session.executor, planned.session.comm, tmp_path),
    ):
        pass
