"""Schedules beside those of torch.distributed.pipelining 2.13, which reads and runs their text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard.pipeline.schedules import SCHEDULES, csv_text, make_schedule, read_schedule, save_schedule

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CLASSES = {
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "zb_h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


def torch_rows(name: str, p: int, m: int, v: int) -> list[list[str]]:
    """The rows that torch's class makes, without processes: it reads these attributes alone."""
    from torch.distributed.pipelining.schedules import get_schedule_class

    kind = get_schedule_class(CLASSES[name])
    rounds = max(1, m // p)
    made = kind.__new__(kind)
    numbers = {
        "_n_microbatches": m,
        "pp_group_size": p,
        "n_local_stages": v,
        "_num_stages": p * v,
        "num_stages": p * v,
        "number_of_rounds": rounds,
        "microbatches_per_round": m // rounds,
        "_stages": [None] * v,
    }
    for attribute, value in numbers.items():
        setattr(made, attribute, value)
    rows = []
    for rank in range(p):
        made.rank = rank
        rows.append([str(action) for action in made._calculate_single_rank_operations(rank) if action is not None])
    return rows


@pytest.mark.parametrize("name", CLASSES)
def test_orders_are_torchs(name):
    compared = 0
    for p in (2, 3, 4, 8):
        for m in (1, 2, 4, 6, 8, 12, 16, 24):
            chunks = (2,) if SCHEDULES[name].fixed else (1, 2, 3) if name != "interleaved_1f1b" else (2, 3)
            if m % max(1, m // p) or m < SCHEDULES[name].fewest_per_rank * p:
                continue
            for v in chunks:
                made = make_schedule(name, p, m, v)
                assert [made.cells(rank) for rank in range(p)] == torch_rows(name, p, m, v), (p, m, v)
                compared += 1
    assert compared >= 12


@pytest.mark.parametrize("name", SCHEDULES)
def test_torch_reads_checks_and_lowers_the_text(name):
    from torch.distributed.pipelining.schedules import _Action, _add_send_recv, _validate_schedule

    for p, m in ((2, 4), (4, 8), (3, 7)):
        made = make_schedule(name, p, m)
        rows = [[_Action.from_str(cell) for cell in row.split(",")] for row in csv_text(made).splitlines()]
        actions = dict(enumerate(rows))
        places = _validate_schedule(actions, p, made.stages, m)
        assert [places[stage] for stage in range(made.stages)] == list(made.ranks_of_stages)
        lowered = _add_send_recv(actions, lambda stage, places=places: places[stage], made.stages)
        # What torch sends and receives in its order is a schedule that can be run here, too.
        text = "\n".join(",".join(map(str, lowered[rank])) for rank in range(p))
        found = read_schedule(text)
        assert found.has_transfers and found.stages == made.stages


@pytest.mark.slow
def test_torchs_runtime_gives_the_gradients_of_the_whole_model_with_each_schedule(tmp_path):
    for name in SCHEDULES:
        save_schedule(make_schedule(name, 4, 8), tmp_path / f"{name}.csv")
    script = Path(__file__).with_name("torch_runtime.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert set(answers) == set(SCHEDULES)
    assert all(error < 1e-5 for error in answers.values()), answers
