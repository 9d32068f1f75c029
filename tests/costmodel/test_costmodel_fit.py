"""Fits find what made the samples, noise or not, and say how well they do."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import Hardware, Topology, bytes_moved, operator_seconds, seconds
from costmodel.curves import CollectiveCurve, OperatorCurve
from costmodel.fit import (
    Slowdown,
    compare_device,
    compare_link,
    compare_programs,
    fit_collectives,
    fit_device,
    fit_link,
    fit_operators,
    fit_programs,
)
from costmodel.measure import CollectiveSample, OperatorSample, ProgramSample

SIZES = [2**k for k in range(6, 25, 2)]


def collectives(curve: CollectiveCurve, noise: float = 0.0, seed: int = 0) -> list[CollectiveSample]:
    random = np.random.default_rng(seed)
    times = [curve.seconds(float(n)) * (1 + noise * random.uniform(-1, 1)) for n in SIZES]
    return [CollectiveSample(curve.kind, curve.ranks, n, t) for n, t in zip(SIZES, times, strict=True)]


def operators(curve: OperatorCurve, sizes: list[tuple[float, int]]) -> list[OperatorSample]:
    return [OperatorSample(curve.operator, curve.dtype, f, n, curve.seconds(f, float(n))) for f, n in sizes]


@given(
    latency=st.floats(1e-7, 1e-3),
    per_byte=st.floats(1e-11, 1e-8),
    bend=st.floats(0.1, 10),
    knee=st.sampled_from(SIZES[3:-3]),
)
def test_fit_finds_a_bent_curve(latency, per_byte, bend, knee):
    true = CollectiveCurve("all_to_all", 6, latency, per_byte, float(knee), bend * per_byte)
    (found,) = fit_collectives(collectives(true))
    assert (found.kind, found.ranks) == ("all_to_all", 6)
    for n in SIZES:
        assert found.seconds(float(n)) == pytest.approx(true.seconds(float(n)), rel=0.1)


@given(seed=st.integers(0, 1000), kind=st.sampled_from(["all_reduce", "permute"]))
def test_one_sample_far_off_does_not_spoil_the_fit(seed, kind):
    true = CollectiveCurve(kind, 3, 2e-5, 3e-10, 0.0, 3e-10)
    samples = collectives(true, noise=0.03, seed=seed)
    late = seed % len(samples)
    one = samples[late]
    samples[late] = CollectiveSample(one.kind, one.ranks, one.nbytes, 8 * one.seconds)
    (found,) = fit_collectives(samples)
    errors = [abs(found.seconds(float(n)) / true.seconds(float(n)) - 1) for n in SIZES]
    assert np.median(errors) < 0.1


@given(times=st.lists(st.floats(1e-7, 1.0), min_size=len(SIZES), max_size=len(SIZES)), ranks=st.integers(2, 9))
def test_more_bytes_never_cost_less_whatever_was_measured(times, ranks):
    samples = [CollectiveSample("all_gather", ranks, n, t) for n, t in zip(SIZES, times, strict=True)]
    link = fit_link("l", samples, "a test")
    priced = seconds("all_gather", np.array([0.0, *SIZES, 2.0**30]), ranks, link)
    assert np.all(np.diff(priced) >= 0)
    # What a search takes for the least that bytes cost is that.
    assert np.all(priced >= bytes_moved("all_gather", np.array([0.0, *SIZES, 2.0**30]), ranks) / link.bandwidth - 1e-12)


def test_contractions_are_told_from_what_moves_bytes():
    product = OperatorCurve("MatMul", "f32", 4e-6, 2e-11, 1e-10, 0.0, 1e-10)
    sizes = [(2.0 * m * k * n, 4 * (m * k + k * n + m * n)) for m in (6, 48, 512) for k in (10, 96) for n in (24, 320)]
    (found,) = fit_operators(operators(product, sizes))
    assert (found.launch, found.per_flop) == pytest.approx((4e-6, 2e-11), rel=1e-3)
    add = OperatorCurve("Add", "f32", 2e-6, 0.0, 5e-11, 2.0**14, 2e-10)
    (found,) = fit_operators(operators(add, [(n / 12, n) for n in SIZES]))
    assert found.per_flop == 0
    assert [found.seconds(n / 12, n) for n in SIZES] == pytest.approx([add.seconds(0, n) for n in SIZES], rel=0.1)


@pytest.fixture
def measured() -> tuple[list[CollectiveSample], list[OperatorSample]]:
    product = OperatorCurve("MatMul", "f32", 4e-6, 2e-11, 1e-10, 0.0, 1e-10)
    add = OperatorCurve("Add", "f32", 2e-6, 0.0, 2e-10, 0.0, 2e-10)
    works = operators(product, [(2.0 * n**3, 12 * n * n) for n in (12, 60, 300)])
    works += operators(add, [(n / 12, n) for n in SIZES])
    talks = collectives(CollectiveCurve("all_reduce", 2, 1e-5, 1e-9, 0.0, 1e-9))
    talks += collectives(CollectiveCurve("all_reduce", 6, 3e-5, 2e-9, 0.0, 2e-9))
    return talks, works


def test_hardware_prices_as_it_was_measured(measured):
    talks, works = measured
    link, device = fit_link("MPI", talks, "a test"), fit_device("host", works, 2**34, "a test")
    for one in talks:
        assert seconds(one.kind, float(one.nbytes), one.ranks, link) == pytest.approx(one.seconds, rel=0.01)
    for one in works:
        priced = operator_seconds(one.flops, one.nbytes, device, one.dtype, one.operator)
        assert priced == pytest.approx(one.seconds, rel=0.01)
    for row in (*compare_link(link, talks), *compare_device(device, works)):
        assert row.median_error <= row.worst_error < 0.01
        assert row.fitted == pytest.approx(row.measured, rel=0.01)
    rows = {row.what: row.samples for row in compare_link(link, talks)}
    assert rows == {"all_reduce of 2": len(SIZES), "all_reduce of 6": len(SIZES)}


def test_comparison_tells_a_wrong_curve(measured):
    talks, works = measured
    device = fit_device("host", works, 2**34, "a test").slowed(2.0)
    assert all(row.median_error == pytest.approx(1.0, rel=0.01) for row in compare_device(device, works))
    late = [CollectiveSample(one.kind, one.ranks, one.nbytes, 4 * one.seconds) for one in talks]
    rows = compare_link(fit_link("MPI", talks, "a test"), late)
    assert all(row.median_error == pytest.approx(0.75, rel=0.01) for row in rows)


def test_group_sizes_between_and_beyond_the_measured(measured):
    link = fit_link("MPI", measured[0], "a test")
    six = seconds("all_reduce", 4096.0, 6, link)
    assert seconds("all_reduce", 4096.0, 4, link) == six
    assert seconds("all_reduce", 4096.0, 12, link) == pytest.approx(2 * six)
    assert seconds("all_reduce", 4096.0, 1, link) == 0 == seconds("slice", 4096.0, 6, link)
    # A kind that was not measured is priced by latency and bandwidth.
    assert seconds("all_gather", 0.0, 6, link) == pytest.approx(3 * link.latency)


def test_unmeasured_operators_and_dtypes_take_the_roofline(measured):
    device = fit_device("host", measured[1], 2**34, "a test")
    roof = operator_seconds(1e6, 1e3, device)
    assert operator_seconds(1e6, 1e3, device, "f32", "Softmax") == roof
    # Bytes cost alike in any dtype, operations do not.
    assert operator_seconds(10, 1e6, device, "f64", "Add") == operator_seconds(10, 1e6, device, "f32", "Add")
    assert operator_seconds(1e6, 1e3, device, "i32", "MatMul") == operator_seconds(1e6, 1e3, device, "i32")
    many = operator_seconds(np.array([1e6, 2e6]), 1e3, device, "f32", "MatMul")
    assert many.tolist() == [operator_seconds(f, 1e3, device, "f32", "MatMul") for f in (1e6, 2e6)]
    with pytest.raises(ValueError, match="-1.0 flops"):
        operator_seconds(-1.0, 1e3, device, "f32", "MatMul")


def test_slowed_device_takes_as_many_times_as_long(measured):
    device = fit_device("host", measured[1], 2**34, "a test")
    for operator in ("MatMul", "Add", "Softmax", ""):
        once = operator_seconds(1e6, 1e5, device, "f32", operator)
        assert operator_seconds(1e6, 1e5, device.slowed(3.5), "f32", operator) == pytest.approx(3.5 * once)


@pytest.mark.parametrize(
    "computing, talking, each, packing",
    [(1.0, 1.0, 0.0, 0.0), (0.9, 1.0, 0.0, 0.0), (2.1, 1.3, 0.0, 4e-6), (4.2, 1.0, 6e-5, 0.0), (1.1, 2.0, 7e-6, 3e-6)],
)
def test_programs_slow_their_operators_and_collectives_down(computing, talking, each, packing):
    true = Slowdown(computing, talking, each, packing)
    samples = []
    for work, sent, count, packed in ((1e-3, 0, 0, 0), (2e-3, 4e-4, 5, 0), (9e-4, 3e-4, 9, 24), (3e-2, 9e-3, 17, 5)):
        bare = ProgramSample(f"{count}", work, sent, count, packed, 1.0)
        samples.append(replace(bare, seconds=true.seconds(bare)))
    found = fit_programs(samples)
    assert astuple(found) == pytest.approx(astuple(true), rel=1e-3, abs=1e-9)
    for one, row in zip(samples, compare_programs(found, samples), strict=True):
        assert (row.what, row.samples) == (one.name, 1) and row.worst_error < 1e-3
    assert fit_programs([]) == Slowdown()


def test_programs_make_no_link_faster():
    samples = [ProgramSample(f"{n}", 1e-3, n * 1e-3, n, 0, 1.1e-3) for n in (0, 2, 3)]
    assert fit_programs(samples).talking == 1.0


def test_a_slowed_link_takes_as_many_times_as_long_and_some_more_for_each(measured):
    link = fit_link("MPI", measured[0], "a test")
    slow = link.slowed(2.0, 1e-5)
    for kind, ranks in (("all_reduce", 2), ("all_reduce", 6), ("all_gather", 6)):
        more = 1e-5 * (1 if link.curve(kind, ranks) else 3)
        for nbytes in (64.0, 2.0**20):
            assert seconds(kind, nbytes, ranks, slow) == pytest.approx(2 * seconds(kind, nbytes, ranks, link) + more)


def test_views_take_nothing_and_what_copies_now_and_then_its_mean():
    random = np.random.default_rng(0)
    views = [OperatorSample("Transpose", "f32", 0, n, 1e-9) for n in SIZES]
    (found,) = fit_operators(views)
    assert found.seconds(0.0, 2.0**20) < 1e-7
    copied = [OperatorSample("Reshape", "f32", 0, n, n * 1e-10 * random.choice([0.01, 2])) for n in SIZES * 20]
    (found,) = fit_operators(copied)
    assert found.seconds(0.0, 2.0**20) == pytest.approx(2**20 * 1e-10, rel=0.3)


def test_hardware_by_ranks(measured):
    link, device = fit_link("MPI", measured[0], "a test"), fit_device("host", measured[1], 2**34, "a test")
    each = tuple((n, Hardware(f"{n}", device.slowed(n), Topology(((None, link),)))) for n in (2, 4, 12))
    whole = Hardware("all", device, Topology(((None, link),)), each)
    assert [whole.for_ranks(n).name for n in (1, 2, 3, 4, 5, 12, 4096)] == ["2", "2", "4", "4", "12", "12", "12"]
    assert each[0][1].for_ranks(7) is each[0][1]
    with pytest.raises(ValueError, match="the numbers grow from 1"):
        Hardware("all", device, whole.topology, each[::-1])
    with pytest.raises(ValueError, match="no by_ranks of its own"):
        Hardware("all", device, whole.topology, ((2, whole),))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: fit_collectives([CollectiveSample("permute", 2, 64, 1e-6)]), "permute among 2 ranks to one size"),
        (lambda: fit_collectives(collectives(CollectiveCurve("permute", 2, 0, 0, 0, 0))), "above 0"),
        (lambda: fit_link("MPI", [], "a test"), "no collective was measured"),
        (lambda: fit_device("h", [OperatorSample("Neg", "f64", 1, 8, 1e-6)], 1, ""), "does operations in f32"),
        (lambda: fit_device("h", [OperatorSample("Pow", "f32", 99, 8, 1e-6)], 1, ""), "moves more than it computes"),
        (lambda: CollectiveCurve("permute", 1, 0, 0, 0, 0), "at least 2"),
        (lambda: OperatorCurve("Add", "f32", -1e-6, 0, 0, 0, 0), "launch is -1e-06"),
    ],
)
def test_bad_samples_and_curves(call, words):
    with pytest.raises(ValueError, match=words):
        call()
