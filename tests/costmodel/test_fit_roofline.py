"""A device out of measured products, moves and attention: what made the samples comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel import operator_seconds
from costmodel.fit import compare_device
from costmodel.fit_roofline import RooflineSamples, fit_roofline
from costmodel.hardware import Device
from costmodel.measure import OperatorSample

MADE_BY = Device(
    "made up",
    (("f32", 40e12), ("bf16", 600e12)),
    memory_bandwidth=3e12,
    memory_bytes=2**36,
    launch_seconds=2e-6,
    compute_efficiency=0.8,
    memory_efficiency=0.9,
    memory_overlap=0.3,
    attention_efficiency=0.45,
)

HOST = 8e-6


def _sample(operator: str, dtype: str, flops: float, nbytes: int, caches: int = 0) -> OperatorSample:
    device = replace(MADE_BY, memory_bandwidth=4 * MADE_BY.memory_bandwidth) if nbytes < caches else MADE_BY
    seconds = operator_seconds(flops, nbytes, device, dtype, operator)
    return OperatorSample(operator, dtype, flops, nbytes, max(seconds, HOST))


def _samples() -> RooflineSamples:
    sides = [(256, 256, 256), (1024, 512, 4096), (8192, 128, 8192), (4096, 4096, 4096), (8192, 8192, 8192)]
    sides += [(8192, 1024, 4096), (8192, 256, 8192), (16384, 64, 16384)]
    products = [
        _sample("MatMul", kind, 2.0 * m * k * n, size * (m * k + k * n + m * n))
        for kind, size in (("f32", 4), ("bf16", 2))
        for m, k, n in sides
    ]
    moves = [_sample("Add", "f32", 2.0**power, 12 * 2**power, caches=2**24) for power in range(16, 29, 2)]
    attention = [_sample("Attention", "bf16", 3e11, 2**24), _sample("Attention", "bf16", 1.3e12, 2**26)]
    return RooflineSamples(tuple(products), tuple(moves), tuple(attention), MADE_BY.launch_seconds, HOST, 9e-6)


def test_what_made_the_samples_comes_back() -> None:
    found = fit_roofline("fitted", _samples(), 2**35, "eager", "a test")
    assert (found.host_seconds, found.host_collective_seconds) == (8e-6, 9e-6)
    assert found.launch_seconds == pytest.approx(2e-6, rel=0.1)
    assert (found.name, found.fusion, found.memory_bytes, found.source) == ("fitted", "eager", 2**35, "a test")
    for kind in ("f32", "bf16"):
        reached = found.compute_efficiency * found.peak(kind)
        assert reached == pytest.approx(MADE_BY.compute_efficiency * MADE_BY.peak(kind), rel=0.05)
    rates = [one.memory_efficiency * one.memory_bandwidth for one in (found, MADE_BY)]
    assert rates[0] == pytest.approx(rates[1], rel=0.03)
    errors = {one.what: one for one in compare_device(found, _samples().operators)}
    assert errors["MatMul"].worst_error < 0.1 and errors["MatMul bf16"].worst_error < 0.1
    assert errors["Attention bf16"].worst_error < 0.15


def test_what_waits_for_its_host_says_nothing_of_a_device() -> None:
    made = _samples()
    slow = tuple(replace(one, seconds=max(one.seconds, 14e-6)) for one in made.products)
    short = OperatorSample("Attention", "bf16", 4e10, 2**22, 2e-4)
    plain, waiting = (
        fit_roofline("fitted", one, 2**35, "eager", "")
        for one in (made, replace(made, products=slow, attention=(*made.attention, short)))
    )
    assert plain == waiting
    errors = {one.what: one for one in compare_device(waiting, [OperatorSample("Add", "f32", 1e3, 2**13, 8e-6)])}
    assert errors["Add"].worst_error == 0


def test_caches_are_no_memory() -> None:
    assert fit_roofline("fitted", _samples(), 2**35, "eager", "").memory_bandwidth < 1.01 * 0.9 * 3e12


@pytest.mark.parametrize(
    "change, words",
    [
        ({"moves": ()}, "moves more than it computes"),
        ({"products": ()}, "no product was measured in f32"),
        ({"products": (OperatorSample("MatMul", "f32", 1.0, 1, 0.0),)}, "finite and above 0, not 0 .MatMul"),
    ],
)
def test_samples_that_say_nothing(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit_roofline("fitted", replace(_samples(), **change), 2**35, "eager", "")


def test_a_device_without_attention() -> None:
    found = fit_roofline("fitted", replace(_samples(), attention=()), 2**35, "eager", "")
    assert found.attention_efficiency is None
