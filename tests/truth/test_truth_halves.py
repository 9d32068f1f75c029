"""Constants fitted to rows are those that the rows were made with."""

from __future__ import annotations

import pytest

from autoshard.truth.predict import Predictor
from autoshard.truth.rows import DecoderModel, Measurement, ParallelDegrees, Row
from benchmarks.truth_halves import fit, fit_hosts, half_of, tried, with_hosts, with_shares

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
    measured = [predictor.on(with_shares({"a100": true}))(row).seconds for row in rows]
    rows = [replace_measured(row, seconds) for row, seconds in zip(rows, measured, strict=True)]
    found = fit(predictor, rows)
    assert found["a100"] == pytest.approx(true, rel=1e-3)
    assert [one.ratio for one in tried(predictor, rows, found)] == pytest.approx([1.0] * 3, rel=1e-3)


def test_hosts_are_found_again():
    """Rows as hosts of these constants would take them are predicted again by what is fitted."""
    made = [(1, 16, 2), (2, 16, 2), (2, 64, 8), (1, 1024, 8)]
    rows = [
        Row(f"{tp} {length}", "t", WIDE, length, "a100", ParallelDegrees(tp=tp), "megatron" if tp > 1 else "zero3",
            batch, 1, Measurement(1.0), fusion="kernels", attention="apart")
        for tp, length, batch in made
    ]  # fmt: skip
    predictor = Predictor()
    true = predictor.at(with_hosts((1.3, 0.7, 1.2, 1.1, 1.2)))
    rows = [replace_measured(row, true(row).seconds) for row in rows]
    found = predictor.at(with_hosts(fit_hosts(predictor, rows)))
    assert max(abs(predictor(row).ratio - 1) for row in rows) > 0.05
    assert [found(row).ratio for row in rows] == pytest.approx([1.0] * len(rows), rel=0.01)


def replace_measured(row: Row, seconds: float) -> Row:
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return Row(**{**fields, "measured": Measurement(seconds)})


def test_rows_of_one_model_are_in_one_half():
    rows = [_row(f"row {i}", 64 * (1 + i), 1) for i in range(16)]
    assert len({half_of("s", row) for row in rows}) == 1
    assert {half_of("s", row, by="row") for row in rows} == {0, 1}
    sizes = (DecoderModel("gpt", 64 * i, 4, 4, 960) for i in range(1, 20))
    rows = [Row("r", "t", one, 64, "a100", ParallelDegrees(), "zero3", 1, 1, Measurement(1.0)) for one in sizes]
    assert {half_of("s", row) for row in rows} == {0, 1}
