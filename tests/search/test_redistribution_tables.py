"""Tables of redistribution costs say what planning each redistribution by itself says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.core.tensortype import TensorType
from autoshard.cost.prices import prices_for
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.search.domains import CARRIED, SPLITS, MeshUnits, encode, to_layout
from autoshard.search.redistribution_tables import ALL, NONE, PARTS, RedistributionTables
from costmodel import preset

PRICES = prices_for(preset("h100"))
MESHES = ("2x2x2", "2x4", "3x2x2", "4x6")


def atoms_of_axes(mesh: Mesh) -> MeshUnits:
    return MeshUnits(mesh, tuple((axis,) for axis in mesh.all_axes))


def some_digits(rank: int, units: MeshUnits, rng: np.random.Generator, count: int) -> np.ndarray:
    """Digits [count, atoms] of random layouts; the whole one among them."""
    digits = rng.integers(0, SPLITS + rank, (count, len(units)))
    digits[rng.random(digits.shape) < 0.2] = CARRIED
    digits[0] = 0
    return digits


def dividing(shape: tuple[int, ...], units: MeshUnits, rng: np.random.Generator, count: int) -> np.ndarray:
    """Digits [n, atoms] of such layouts that divide the shape, each once."""
    digits = some_digits(len(shape), units, rng, count)
    fits = [to_layout(row, len(shape), units).divides(shape) for row in digits.tolist()]
    return np.unique(digits[fits], axis=0)


@settings(max_examples=40)
@given(st.sampled_from(MESHES), st.lists(st.sampled_from([1, 2, 4, 6, 12, 48]), max_size=4), st.integers(0, 10**6))
def test_tables_are_prices_of_each_pair(mesh, sizes, seed):
    """Also where a shape does not allow what a larger one does."""
    units, rng = atoms_of_axes(Mesh.parse(mesh)), np.random.default_rng(seed)
    check_table(units, dividing(tuple(sizes), units, rng, 8), TensorType.of(sizes, "f32"))


@settings(max_examples=20)
@given(st.sampled_from(MESHES), st.lists(st.sampled_from([1, 3, 4, 5, 10]), max_size=3), st.integers(0, 10**6))
def test_tables_are_prices_of_pairs_that_do_not_divide(mesh, sizes, seed):
    """They are planned in classes, too: padded, not pair by pair."""
    units, rng = atoms_of_axes(Mesh.parse(mesh)), np.random.default_rng(seed)
    check_table(units, some_digits(len(sizes), units, rng, 7), TensorType.of(sizes, "f32"))


def check_table(units: MeshUnits, digits: np.ndarray, of: TensorType) -> None:
    codes = encode(digits, of.rank)
    table = RedistributionTables(PRICES, units).table(of, codes, codes)
    layouts = [to_layout(row, of.rank, units) for row in digits.tolist()]
    for row, before in zip(table, layouts, strict=True):
        for seconds, after in zip(row, layouts, strict=True):
            assert seconds == pytest.approx(PRICES.redistribution(before, after, of), rel=1e-9, abs=1e-15)


def test_one_transfers_serves_shapes_of_all_sizes():
    """What was planned for a wide shape is not used where a narrow one does not allow it."""
    units = atoms_of_axes(Mesh.parse("2x2x2"))
    transfers, rng, pairs = RedistributionTables(PRICES, units), np.random.default_rng(7), 0
    for shape in ((48, 12, 8), (2, 4, 16), (8, 1, 2), (4, 6), (16,), (2, 2, 2, 2, 8)):
        digits, of = dividing(shape, units, rng, 14), TensorType.of(shape, "bf16")
        codes = encode(digits, len(shape))
        alone = RedistributionTables(PRICES, units).table(of, codes, codes)
        np.testing.assert_allclose(transfers.table(of, codes, codes), alone, rtol=1e-12)
        pairs += alone.size
    assert sum(map(len, transfers._planned_for.values())) < pairs
    assert len(transfers._classes) < pairs  # what a wide shape's steps serve is not looked up one by one


def test_without_detours_only_unfit_parts_and_other_terms_are_impossible():
    """Without some alone other terms are."""
    mesh = Mesh.parse("4x6")
    units, shape = atoms_of_axes(mesh), (48, 24)
    of, rng = TensorType.of(shape, "f32"), np.random.default_rng(3)
    digits = dividing(shape, units, rng, 40)
    codes = encode(digits, 2)
    transfers = RedistributionTables(PRICES, units)
    every, some, fitting = (transfers.table(of, codes, codes, detours=which) for which in (ALL, PARTS, NONE))
    layouts = [to_layout(row, 2, units) for row in digits.tolist()]
    unfit = np.array([[bool(unfit_parts(one, other)) for other in layouts] for one in layouts])
    exchanged = np.array([[len({*one.partial} ^ {*other.partial}) == 2 for other in layouts] for one in layouts])
    exchanged &= np.array([[len(one.partial) == len(other.partial) for other in layouts] for one in layouts])
    assert unfit.any() and (exchanged & ~unfit).any() and np.isfinite(every).all()
    assert np.isinf(fitting[unfit | exchanged]).all()
    np.testing.assert_allclose(fitting[~(unfit | exchanged)], every[~(unfit | exchanged)], rtol=1e-12)
    np.testing.assert_allclose(some, np.where(exchanged, np.inf, every), rtol=1e-12)


def unfit_parts(one: Layout, other: Layout) -> list[int]:
    """Dims that are in numbers of parts of which neither divides the other."""
    pairs = enumerate(zip(one.parts, other.parts, strict=True))
    return [dim for dim, (old, new) in pairs if math.gcd(old, new) < min(old, new)]
