"""Rules of factorizations, transforms, random numbers and tokens are Shardy's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.hlo_text import SIZES, array, operation, shapes, tensor
from tests.frontends.rules import assert_equal_rules

pytestmark = pytest.mark.jax

TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")


@given(shapes(0, 2), SIZES, st.booleans())
def test_cholesky(batch: tuple[int, ...], size: int, lower: bool) -> None:
    matrix = tensor((*batch, size, size))
    assert assert_equal_rules(operation("cholesky", [matrix], [matrix], f"lower = {str(lower).lower()}")) == 1


def triangular(left: bool, lower: bool, unit: bool, transpose: str) -> str:
    words = [f"{name} = {str(value).lower()}" for name, value in (("left_side", left), ("lower", lower))]
    return f"{', '.join(words)}, unit_diagonal = {str(unit).lower()}, transpose_a = #stablehlo<transpose {transpose}>"


@given(shapes(0, 2), SIZES, SIZES, st.booleans(), st.booleans(), st.sampled_from(TRANSPOSES))
def test_triangular_solve(batch: tuple, size: int, free: int, left: bool, lower: bool, transpose: str) -> None:
    a, b = tensor((*batch, size, size)), tensor((*batch, *((size, free) if left else (free, size))))
    assert (
        assert_equal_rules(operation("triangular_solve", [a, b], [b], triangular(left, lower, False, transpose))) == 1
    )


def transform(kind: str, batch: tuple[int, ...], length: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The module of one transform, and the shape of its operand."""
    half = (*length[:-1], length[-1] // 2 + 1)
    taken, given_back = (half, length) if kind == "IRFFT" else (length, half if kind == "RFFT" else length)
    before, after = ("f32" if kind == "RFFT" else "complex<f32>"), ("f32" if kind == "IRFFT" else "complex<f32>")
    attributes = f"fft_type = #stablehlo<fft_type {kind}>, fft_length = {array(length)}"
    shape = (*batch, *taken)
    return operation("fft", [tensor(shape, before)], [tensor((*batch, *given_back), after)], attributes), shape


KINDS = st.sampled_from(["FFT", "IFFT", "RFFT", "IRFFT"])


@given(KINDS, shapes(0, 2), st.lists(SIZES, min_size=1, max_size=3).map(tuple))
def test_fft(kind: str, batch: tuple[int, ...], length: tuple[int, ...]) -> None:
    assert assert_equal_rules(transform(kind, batch, length)[0]) == 1


def bits(algorithm: str, state: int, shape: tuple[int, ...], element: str) -> str:
    of = tensor((state,), "ui64")
    attributes = f"rng_algorithm = #stablehlo<rng_algorithm {algorithm}>"
    return operation("rng_bit_generator", [of], [of, tensor(shape, element)], attributes)


ALGORITHMS = st.sampled_from(["THREE_FRY", "PHILOX", "DEFAULT"])


@given(ALGORITHMS, shapes(0), st.sampled_from(["ui32", "ui64", "i8"]))
def test_rng_bit_generator(algorithm: str, shape: tuple[int, ...], element: str) -> None:
    assert assert_equal_rules(bits(algorithm, 2, shape, element)) == 1


@pytest.mark.parametrize("kind", ["UNIFORM", "NORMAL"])
def test_rng_has_none(kind: str) -> None:
    attributes = f"rng_distribution = #stablehlo<rng_distribution {kind}>"
    text = operation("rng", [tensor(()), tensor(()), tensor((2,), "i64")], [tensor((4, 6))], attributes)
    assert assert_equal_rules(text) == 0


def test_tokens_have_none() -> None:
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.create_token : !stablehlo.token
      %1 = stablehlo.after_all %0, %0 : !stablehlo.token
      %2 = "stablehlo.outfeed"(%x, %1) : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
      return %x : tensor<4xf32>
    }"""
    assert assert_equal_rules(text) == 0
