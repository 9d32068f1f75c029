"""Constants fitted to rows are those that the rows were made with."""

from __future__ import annotations

import pytest

from autoshard.truth.predict import Predictor
from autoshard.truth.rows import DecoderModel, Measurement, ParallelDegrees, Row
from benchmarks.truth_halves import fit, half_of, tried, with_shares

WIDE = DecoderModel("gpt", 512, 4, 4, 960)


def _row(name: str, sequence: int, batch: int) -> Row:
    return Row(
        name,
        "t",
        WIDE,
        sequence,
        "a100",
        ParallelDegrees(dp=2),
        "zero3",
        2 * batch,
        batch,
        Measurement(1.0),
        fusion="eager",
    )


def test_constants_are_found_again():
    rows = [_row("short", 256, 64), _row("long", 16384, 1), _row("between", 2048, 4)]
    predictor, true = Predictor(), (0.8, 1.3)
    measured = [predictor.on(with_shares(true))(row).seconds for row in rows]
    rows = [replace_measured(row, seconds) for row, seconds in zip(rows, measured, strict=True)]
    found = fit(predictor, rows)
    assert found["a100"] == pytest.approx(true, rel=1e-3)
    assert [one.ratio for one in tried(predictor, rows, found)] == pytest.approx([1.0] * 3, rel=1e-3)


def replace_measured(row: Row, seconds: float) -> Row:
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return Row(**{**fields, "measured": Measurement(seconds)})


def test_rows_of_one_model_are_in_one_half():
    halves = {half_of("s", _row(f"row {i}", 64 * (1 + i), 1)) for i in range(8)}
    assert len(halves) == 1
    sizes = (DecoderModel("gpt", 64 * i, 4, 4, 960) for i in range(1, 20))
    rows = [Row("r", "t", one, 64, "a100", ParallelDegrees(), "zero3", 1, 1, Measurement(1.0)) for one in sizes]
    assert {half_of("s", row) for row in rows} == {0, 1}
