"""`autoshard partition --passes`: what each pass over the program saved."""

from __future__ import annotations

import json
from pathlib import Path

from autoshard.optimize import DEFAULT, PASSES

FORWARD = f"{Path(__file__).with_name('models.py')}:forward"


def _shown(out: str) -> list[str]:
    """The first cells of the table that ends the output."""
    rows = out.rstrip().splitlines()
    start = next(i for i, row in enumerate(rows) if row.strip().startswith("pass "))
    return [row.split("  ")[0].strip() for row in rows[start + 1 :]]


def test_savings_of_each_pass(cli):
    code, out, err = cli("partition", FORWARD, "-n", "8", "--passes")
    assert code == 0, err
    assert _shown(out) == list(DEFAULT)
    code, out, err = cli("partition", FORWARD, "-n", "8", "--passes", "--overlap")
    assert code == 0, err
    assert _shown(out) == list(PASSES)


def test_without_passes(cli):
    code, out, err = cli("partition", FORWARD, "-n", "8", "--passes", "--no-passes")
    assert code == 0, err
    assert "no passes have run" in out
    totals = [
        json.loads(cli("partition", FORWARD, "-n", "8", "--json", *more)[1])["total_bytes_moved"]
        for more in ((), ("--no-passes",))
    ]
    assert totals[0] <= totals[1]
