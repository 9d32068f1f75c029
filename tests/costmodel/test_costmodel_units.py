"""Sizes and times: what prints, what reads back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0 s"),
        (9.8e-6, "9.8 us"),
        (4.2e-11, "0.042 ns"),
        (1.25e-3, "1.25 ms"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1 ms"),
        (-3e-3, "-3 ms"),
        (86400, "86400 s"),
        (float("inf"), "inf s"),
    ],
)
def test_format_seconds(value, text):
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (48 * 1024, "48 KiB"),
        (1024**2 - 1, "1 MiB"),
        (1.5 * 1024**3, "1.5 GiB"),
        (80 * 1024**3, "80 GiB"),
        (3000 * 1024**5, "3000 PiB"),
    ],
)
def test_format_bytes(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    "text, value",
    [
        ("80 GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        (" 1.5 kB ", 1500),
        ("0.1 KiB", 102),
        (".5 mib", 2**19),
        ("640", 640),
        (640, 640),
        (np.int64(640), 640),
    ],
)
def test_parse_bytes(text, value):
    assert parse_bytes(text) == value
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    "bad, part",
    [
        ("80 Gb", "unknown unit 'Gb'"),
        ("80 XB", "powers of 1024"),
        ("much", "write a number and a unit"),
        ("-3 GiB", "write a number and a unit"),
        ("", "write a number and a unit"),
        ("1e3", "write a number and a unit"),
        (-1, "from 0 up"),
        (True, "from 0 up"),
        (80e9, "whole bytes"),
        (None, "whole bytes"),
    ],
)
def test_parse_bytes_refuses(bad, part):
    with pytest.raises(ValueError, match=part):
        parse_bytes(bad)


@given(st.integers(0, 2**60))
def test_printed_size_reads_back_to_three_digits(nbytes):
    read = parse_bytes(format_bytes(nbytes))
    assert abs(read - nbytes) <= 0.005 * nbytes + 1, "reading drops a fraction of a byte"
    assert format_bytes(read) == format_bytes(nbytes)


@given(st.floats(1e-9, 1e6))
def test_printed_time_is_right_to_three_digits(seconds):
    number, unit = format_seconds(seconds).split()
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=0.0051)
    assert unit == "s" or float(number) < 1000
