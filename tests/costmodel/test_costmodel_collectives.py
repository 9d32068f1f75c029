"""Laws that any cost of a collective has to keep, and algorithms replayed message by message."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel import KINDS, Link, algorithms, bytes_moved, seconds

LINK = Link("test", 3e-6, 4e9)

kinds = st.sampled_from(KINDS)
rank_counts = st.integers(1, 200)
# Not so small that seconds would be subnormal numbers, which have fewer digits.
sizes = st.one_of(st.integers(0, 2**40), st.floats(1e-9, 1e12))
links = st.builds(Link, st.just("any"), st.just(0.0) | st.floats(1e-9, 1e-3), st.floats(1e6, 1e12))


@given(kinds, sizes, sizes, rank_counts, links)
def test_more_bytes_never_cost_less(kind, one, other, ranks, link):
    less, more = sorted((one, other))
    assert seconds(kind, less, ranks, link) <= seconds(kind, more, ranks, link)
    assert bytes_moved(kind, less, ranks) <= bytes_moved(kind, more, ranks)


@given(st.sampled_from(["all_gather", "reduce_scatter", "permute"]), sizes, rank_counts, rank_counts, links)
def test_more_ranks_never_cost_less(kind, nbytes, one, other, link):
    fewer, more = sorted((one, other))
    # Blocks of 1/ranks are rounded, hence the last digits.
    assert seconds(kind, nbytes, fewer, link) <= seconds(kind, nbytes, more, link) * (1 + 1e-12)


@given(st.sampled_from(["all_reduce", "all_to_all"]), sizes, st.integers(0, 9), st.integers(0, 9), links)
def test_more_ranks_never_cost_less_among_powers_of_two(kind, nbytes, one, other, link):
    fewer, more = sorted((2**one, 2**other))
    assert seconds(kind, nbytes, fewer, link) <= seconds(kind, nbytes, more, link) * (1 + 1e-12)


@given(kinds, sizes, rank_counts, links)
def test_best_is_one_of_the_algorithms_and_no_slower_than_any(kind, nbytes, ranks, link):
    each = [algorithm.seconds(nbytes, link) for algorithm in algorithms(kind, ranks)]
    assert seconds(kind, nbytes, ranks, link) == min(each)


@given(sizes, rank_counts, links)
def test_gather_and_scatter_cost_the_same_float(nbytes, ranks, link):
    assert costmodel.all_gather(nbytes, ranks, link) == costmodel.reduce_scatter(nbytes, ranks, link)


@given(sizes, rank_counts, links)
def test_all_reduce_lies_between_scatter_and_scatter_then_gather(nbytes, ranks, link):
    half = seconds("reduce_scatter", nbytes, ranks, link)
    assert half <= seconds("all_reduce", nbytes, ranks, link) * (1 + 1e-12)
    assert seconds("all_reduce", nbytes, ranks, link) <= half + seconds("all_gather", nbytes, ranks, link)


@given(sizes, st.integers(2, 200), links)
def test_direct_exchange_is_never_dearer_than_gathering_all(local, ranks, link):
    """What S(0) -> S(1) needs on blocks of `local` bytes, against gathering all blocks and slicing."""
    gathered = local * ranks
    assert bytes_moved("all_to_all", local, ranks) <= bytes_moved("all_gather", gathered, ranks) * (1 + 1e-12)
    assert seconds("all_to_all", local, ranks, link) <= seconds("all_gather", gathered, ranks, link) * (1 + 1e-12)


@given(kinds, sizes, rank_counts, links)
def test_no_time_beats_the_port(kind, nbytes, ranks, link):
    assert seconds(kind, nbytes, ranks, link) >= bytes_moved(kind, nbytes, ranks) / link.bandwidth * (1 - 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_costs_nothing(kind):
    assert seconds(kind, 10**9, 1, LINK) == 0
    assert bytes_moved(kind, 10**9, 1) == 0
    assert np.array_equal(seconds(kind, np.array([4.0, 6.0]), 1, LINK), [0.0, 0.0])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "slice"])
def test_two_ranks_or_more_cost_something_even_without_bytes(kind):
    assert seconds(kind, 0, 6, LINK) >= LINK.latency


@pytest.mark.parametrize(
    "kind, nbytes, ranks, moved",
    [
        ("all_gather", 600, 6, 500),
        ("reduce_scatter", 600, 6, 500),
        ("all_reduce", 600, 6, 1000),
        ("all_to_all", 600, 6, 500),
        ("permute", 600, 6, 600),
        ("slice", 600, 6, 0),
        ("all_reduce", 4, 2, 4),
    ],
)
def test_bytes_moved(kind, nbytes, ranks, moved):
    assert bytes_moved(kind, nbytes, ranks) == moved


def test_known_times():
    a, b = LINK.latency, 1 / LINK.bandwidth
    assert seconds("all_gather", 10**6, 10, LINK) == pytest.approx(4 * a + 0.9e6 * b)
    assert seconds("all_reduce", 10**9, 12, LINK) == pytest.approx(8 * a + 2 * 11 / 12 * 1e9 * b)
    assert seconds("all_reduce", 4, 8, LINK) == pytest.approx(3 * (a + 4 * b))
    assert seconds("all_reduce", 4, 6, LINK) == pytest.approx(3 * a + 5 * 4 * b)
    assert seconds("all_to_all", 10**9, 10, LINK) == pytest.approx(9 * a + 0.9e9 * b)
    assert seconds("all_to_all", 80, 8, LINK) == pytest.approx(3 * a + 12 * 10 * b)
    assert seconds("permute", 10**6, 24, LINK) == pytest.approx(a + 1e6 * b)


def test_each_undominated_algorithm_has_its_size():
    def winner(kind, nbytes, ranks):
        return min(algorithms(kind, ranks), key=lambda algorithm: algorithm.seconds(nbytes, LINK)).name

    assert winner("all_reduce", 4, 8) == "whole exchange"
    assert winner("all_reduce", 4, 6) == "gather all"
    assert winner("all_reduce", 2**30, 8) == "halving, doubling"
    assert winner("all_to_all", 4, 8) == "bruck"
    assert winner("all_to_all", 2**30, 8) == "pairwise"


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_equal_their_elements(kind):
    sizes = np.array([[0, 4, 600], [10**5, 10**7, 10**9]])
    for ranks in (1, 2, 6, 24):
        costs = seconds(kind, sizes, ranks, LINK)
        assert costs.shape == (2, 3)
        assert costs.tolist() == [[seconds(kind, n, ranks, LINK) for n in row] for row in sizes.tolist()]
        assert bytes_moved(kind, sizes, ranks).tolist() == [
            [bytes_moved(kind, n, ranks) for n in row] for row in sizes.tolist()
        ]
        assert seconds(kind, np.float64(600), ranks, LINK) == seconds(kind, 600, ranks, LINK)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "slice"])
def test_named_function_equals_dispatch(kind):
    assert getattr(costmodel, kind)(12345, 6, LINK) == seconds(kind, 12345, 6, LINK)


@pytest.mark.parametrize("price", [lambda kind, nbytes, ranks: seconds(kind, nbytes, ranks, LINK), bytes_moved])
@pytest.mark.parametrize(
    "arguments, part",
    [
        (("allreduce", 4, 6), "unknown kind of collective 'allreduce'; there are all_reduce, "),
        (("all_reduce", 4, 0), "all_reduce among 0 ranks"),
        (("permute", -4, 6), "permute of -4 bytes"),
        (("all_gather", float("nan"), 6), "all_gather of nan bytes"),
        (("slice", -4, 1), "slice of -4 bytes"),
        (("all_reduce", np.array([4, -6]), 6), "all_reduce of"),
    ],
)
def test_bad_arguments(price, arguments, part):
    with pytest.raises(ValueError, match=part):
        price(*arguments)


def of(kind, name, ranks):
    return next(algorithm for algorithm in algorithms(kind, ranks) if algorithm.name == name)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 10, 12, 24])
def test_doubling_gather_replayed(ranks):
    """Rank r takes what it lacks from r + 2^k; every rank ends with every block, in the counted sends."""
    held = [[r] for r in range(ranks)]
    rounds, sent = 0, 0
    while len(held[0]) < ranks:
        count = min(len(held[0]), ranks - len(held[0]))
        distance = len(held[0])
        held = [held[r] + held[(r + distance) % ranks][:count] for r in range(ranks)]
        rounds, sent = rounds + 1, sent + count
    assert all(sorted(blocks) == list(range(ranks)) for blocks in held)
    assert (rounds, sent) == of("all_gather", "doubling", ranks)[2:]


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 10, 12, 24])
def test_bruck_exchange_replayed(ranks):
    """Blocks (source, target) hop by the bits of their distance; all arrive, in the counted sends."""
    held = [{(r, t) for t in range(ranks)} for r in range(ranks)]
    rounds, sent = 0, 0
    for k in range(math.ceil(math.log2(ranks))):
        moving = [{(s, t) for s, t in held[r] if (t - s) % ranks >> k & 1} for r in range(ranks)]
        held = [(held[r] - moving[r]) | moving[(r - (1 << k)) % ranks] for r in range(ranks)]
        rounds, sent = rounds + 1, sent + len(moving[0])
    assert all(blocks == {(s, r) for s in range(ranks)} for r, blocks in enumerate(held))
    assert (rounds, sent) == of("all_to_all", "bruck", ranks)[2:]


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 10, 12, 24])
def test_whole_exchange_replayed(ranks):
    """Sums by swapping whole tensors: every rank ends with every term once, in the counted rounds."""
    power = 1 << (ranks.bit_length() - 1)
    terms = [[r] for r in range(ranks)]
    rounds = 0
    if ranks > power:
        terms = [terms[r] + (terms[r + power] if r + power < ranks else []) for r in range(power)]
        rounds += 1
    distance = 1
    while distance < power:
        terms = [terms[r] + terms[r ^ distance] for r in range(power)]
        distance, rounds = distance * 2, rounds + 1
    if ranks > power:
        terms += [terms[r] for r in range(ranks - power)]
        rounds += 1
    assert all(sorted(sum_of) == list(range(ranks)) for sum_of in terms)
    assert of("all_reduce", "whole exchange", ranks)[2:] == (rounds, rounds * ranks)
