"""The roofline: bound by work, by memory, or by the start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import Device, operator_seconds, preset

DEVICE = Device(
    "d",
    (("f32", 10e12), ("bf16", 40e12)),
    memory_bandwidth=1e12,
    memory_bytes=2**30,
    launch_seconds=4e-6,
    compute_efficiency=0.6,
    memory_efficiency=0.8,
)
amounts = st.just(0.0) | st.floats(1e-9, 1e18)


def test_known_times():
    assert operator_seconds(6e12, 4, DEVICE) == pytest.approx(1 + 4e-6)
    assert operator_seconds(24e12, 4, DEVICE, "bf16") == pytest.approx(1 + 4e-6)
    assert operator_seconds(4, 0.8e12, DEVICE) == pytest.approx(1 + 4e-6)
    assert operator_seconds(6e12, 0, DEVICE, "i32") == operator_seconds(6e12, 0, DEVICE, "f32")


def test_a_view_is_free_and_any_work_pays_the_start():
    assert operator_seconds(0, 0, DEVICE) == 0
    assert operator_seconds(0, 4, DEVICE) > DEVICE.launch_seconds
    assert operator_seconds(4, 0, DEVICE) > DEVICE.launch_seconds


@given(amounts, amounts, amounts, amounts)
def test_more_work_never_costs_less(flops, more_flops, nbytes, more_bytes):
    small = operator_seconds(min(flops, more_flops), min(nbytes, more_bytes), DEVICE)
    assert small <= operator_seconds(max(flops, more_flops), max(nbytes, more_bytes), DEVICE)


@given(st.integers(1, 10**12), st.sampled_from([2, 4, 6, 10, 12, 24]))
def test_splitting_pays_however_small_but_not_in_full(nbytes, parts):
    whole, part = operator_seconds(0, nbytes, DEVICE), operator_seconds(0, nbytes / parts, DEVICE)
    assert part < whole <= parts * part


def test_arrays_equal_their_elements():
    flops, nbytes = np.array([0, 4e3, 6e12, 0]), np.array([0, 10, 12, 24e12])
    wanted = [operator_seconds(f, n, DEVICE) for f, n in zip(flops.tolist(), nbytes.tolist(), strict=True)]
    assert operator_seconds(flops, nbytes, DEVICE).tolist() == wanted
    assert operator_seconds(6e12, nbytes, DEVICE).tolist() == [operator_seconds(6e12, n, DEVICE) for n in nbytes]
    assert operator_seconds(flops, 0, DEVICE).tolist() == [operator_seconds(f, 0, DEVICE) for f in flops]


@pytest.mark.parametrize(
    "flops, nbytes", [(-4, 6), (4, -6), (float("nan"), 6), (np.array([4, -6]), 6), (4, np.array([-6.0]))]
)
def test_negative_amounts_are_refused(flops, nbytes):
    with pytest.raises(ValueError, match="both are numbers from 0 up"):
        operator_seconds(flops, nbytes, DEVICE)


def test_what_does_not_hide_is_added():
    known = replace(preset("h100").device, launch_seconds=0.0)
    apart, half, hidden = (replace(known, memory_overlap=share) for share in (0.0, 0.5, 1.0))
    flops, nbytes = 2.0**40, 2.0**30
    times = [operator_seconds(flops, nbytes, one, "bf16") for one in (apart, half, hidden)]
    alone = operator_seconds(flops, 0.0, known, "bf16"), operator_seconds(0.0, nbytes, known, "bf16")
    assert times == pytest.approx([sum(alone), max(alone) + min(alone) / 2, max(alone)])
    many = operator_seconds(np.array([flops, 0.0]), np.array([nbytes, 0.0]), half, "bf16")
    assert list(many) == pytest.approx([times[1], 0.0])
    with pytest.raises(ValueError, match=r"memory_overlap is 1.5; it lies in \[0, 1\]"):
        replace(known, memory_overlap=1.5)
