"""Factorizations, transforms and random bits compute what XLA computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.ops.hlo_linalg import fft
from autoshard.ops.hlo_random import philox, rng, rng_bit_generator, threefry
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ShapeError
from tests.frontends.hlo_text import operation, shapes, tensor
from tests.frontends.test_rules_linalg import ALGORITHMS, KINDS, TRANSPOSES, bits, transform, triangular
from tests.frontends.xla import assert_same_numbers, random_array, run_on_xla, run_ours

pytestmark = pytest.mark.jax

NAMES = {"f32": "f32", "f64": "f64", "complex<f64>": "c128"}


def definite(shape: tuple[int, ...], name: str) -> np.ndarray:
    """Hermitian matrices with positive eigenvalues."""
    a = random_array(np.random.default_rng(9), shape, name)
    return a @ np.conj(np.swapaxes(a, -1, -2)) + 2 * np.eye(shape[-1]).astype(a.dtype)


@pytest.mark.parametrize("element", NAMES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 2, 4, 4)])
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(element: str, shape: tuple[int, ...], lower: bool) -> None:
    """The other triangle is nobody's to say: it is cut off on both sides."""
    of = tensor(shape, element)
    text = operation("cholesky", [of], [of], f"lower = {str(lower).lower()}")
    a = definite(shape, NAMES[element])
    cut = np.tril if lower else np.triu
    (want,), (got,) = run_on_xla(text, [a]), run_ours(text, [a])
    np.testing.assert_allclose(cut(got), cut(want), rtol=1e-4, atol=1e-4)


def test_what_has_no_factor_is_nan_alone() -> None:
    text = operation("cholesky", [tensor((2, 3, 3))], [tensor((2, 3, 3))], "lower = true")
    a = np.stack([definite((3, 3), "f32"), -np.eye(3, dtype=np.float32)])
    (got,) = run_ours(text, [a])
    assert np.isfinite(got[0]).all() and np.isnan(np.tril(got[1])[np.tril_indices(3)]).all()


@pytest.mark.parametrize("element", ["f32", "complex<f64>"])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", TRANSPOSES)
def test_triangular_solve(element: str, left: bool, lower: bool, transpose: str) -> None:
    """The other triangle of a is not read, nor the diagonal where it is one."""
    name = NAMES[element]
    shape, right = (2, 4, 4), (2, 4, 3) if left else (2, 3, 4)
    rng = np.random.default_rng(10)
    a = random_array(rng, shape, name) + 3 * np.eye(4).astype(random_array(rng, (), name).dtype)
    b = random_array(rng, right, name)
    unit = left == lower
    text = operation(
        "triangular_solve",
        [tensor(shape, element), tensor(right, element)],
        [tensor(right, element)],
        triangular(left, lower, unit, transpose),
    )
    assert_same_numbers(text, [a / 4 if unit else a, b], 1e-4)


@settings(max_examples=10)
@given(KINDS, shapes(0, 2), shapes(1, 3))
def test_fft(kind: str, batch: tuple[int, ...], length: tuple[int, ...]) -> None:
    text, shape = transform(kind, batch, length)
    rng = np.random.default_rng(11)
    if kind == "IRFFT":
        # A transform to reals takes one of reals, in which some elements have no imaginary part.
        real = random_array(rng, (*batch, *length), "f32")
        x = np.fft.rfftn(real, axes=tuple(range(-len(length), 0))).astype(np.complex64)
    else:
        x = random_array(rng, shape, "f32" if kind == "RFFT" else "c64")
    assert_same_numbers(text, [x], 1e-4)


# -- random bits


@settings(max_examples=5)
@given(ALGORITHMS, shapes(0, 3))
def test_random_bits(algorithm: str, shape: tuple[int, ...]) -> None:
    state = np.array([0x0123456789ABCDEF, 0xFFFFFFFFFFFFFFF0], np.uint64)
    for element in ("ui32", "ui64", "ui8", "ui16"):
        assert_same_numbers(bits(algorithm, 2, shape, element), [state])
    if algorithm != "THREE_FRY":
        assert_same_numbers(bits(algorithm, 3, shape, "ui32"), [np.append(state, np.uint64(7))])


@pytest.mark.parametrize("shape", [(3, 5), (1, 7), (3, 3, 5), (3, 4), ()])
def test_odd_sizes(shape: tuple[int, ...]) -> None:
    state = np.array([5, 7], np.uint64)
    for algorithm in ("THREE_FRY", "PHILOX"):
        assert_same_numbers(bits(algorithm, 2, shape, "ui32"), [state])


def test_known_answers() -> None:
    """The vectors that the authors of Random123 publish for counters and keys of all zeros and all ones."""
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    zero = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        assert [int(word[0]) for word in threefry(0, zero)] == [0x6B200159, 0x99BA4EFE]
        assert [int(word[0]) for word in threefry(int(ones), zero + ones)] == [0x1CB996FC, 0xBB002BE7]
        assert [int(word[0]) for word in philox(0, zero, zero)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
        words = philox(int(ones), zero + ones, zero + ones)
        assert [int(word[0]) for word in words] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX"])
@pytest.mark.parametrize("dtype", ["u32", "u64", "u8"])
def test_a_block_is_drawn_alone(algorithm: str, dtype: str) -> None:
    state = np.array([5, 7], np.uint64)
    whole = (6, 9, 4)
    _, numbers = rng_bit_generator(state, algorithm=algorithm, shape=whole, dtype=dtype)
    for start, shape in (((2, 0, 1), (3, 9, 2)), ((1, 4, 0), (1, 3, 4)), ((5, 8, 3), (1, 1, 1))):
        attrs = {"algorithm": algorithm, "shape": shape, "dtype": dtype, "start": start, "whole": whole}
        _, block = rng_bit_generator(state, **attrs)
        place = tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))
        np.testing.assert_array_equal(block, numbers[place])


def test_a_state_that_is_none() -> None:
    with pytest.raises(ShapeError, match="THREE_FRY takes a state of 2 numbers u64, not uint32"):
        rng_bit_generator(np.zeros(4, np.uint32), algorithm="THREE_FRY", shape=(2,))


def test_rng_is_spread_as_it_says() -> None:
    a, b, sizes = np.float32(-2), np.float32(3), np.array([100, 80])
    uniform = rng(a, b, sizes, distribution="UNIFORM", shape=(100, 80), seed=1)
    assert uniform.dtype == np.float32 and -2 <= uniform.min() < -1.9 and 2.9 < uniform.max() < 3
    assert abs(float(uniform.mean()) - 0.5) < 0.05
    normal = rng(a, b, sizes, distribution="NORMAL", shape=(100, 80), seed=2)
    assert abs(float(normal.mean()) + 2) < 0.1 and abs(float(normal.std()) - 3) < 0.1
    whole = rng(np.int32(2), np.int32(6), sizes, distribution="UNIFORM", shape=(100, 80), seed=3)
    assert set(np.unique(whole).tolist()) == {2, 3, 4, 5}


def test_two_rngs_of_a_module_draw_other_numbers() -> None:
    draw = (
        "stablehlo.rng %a, %b, %n, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<5xf32>"
    )
    text = f"""func.func @main(%a: tensor<f32>, %b: tensor<f32>, %n: tensor<1xi64>) -> (tensor<5xf32>, tensor<5xf32>) {{
      %0 = {draw}
      %1 = {draw}
      return %0, %1 : tensor<5xf32>, tensor<5xf32>
    }}"""
    graph, bounds = read_module(parse_module(text)).graph, [np.array(0, "f4"), np.array(1, "f4"), np.array([5])]
    first, second = evaluate(graph, bounds)
    assert (first != second).all()
    again = evaluate(read_module(parse_module(text)).graph, bounds)
    np.testing.assert_array_equal(first, again[0])


def test_fft_length_is_checked() -> None:
    with pytest.raises(ShapeError, match=r"Fft of \(4, 5\): RFFT of length \(6,\) takes last dims \(6,\)"):
        fft(np.zeros((4, 5), np.float32), kind="RFFT", length=(6,))
