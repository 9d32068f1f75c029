"""Convolution computes what XLA computes, for all dimension numbers, groups, dilations, paddings and types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from autoshard.ops.hlo_convolution import convolution
from tests.frontends.hlo_text import array, operation, pairs, tensor
from tests.frontends.test_rules_convolution import convolutions
from tests.frontends.xla import assert_same_numbers, random_array

pytestmark = pytest.mark.jax


@settings(max_examples=15)
@given(convolutions())
def test_convolution(text: str) -> None:
    types = text[text.index("@main(") : text.index(") ->")].split("tensor<")[1:]
    shapes = [tuple(int(size) for size in one.partition("f32")[0].split("x")[:-1]) for one in types]
    rng = np.random.default_rng(6)
    assert_same_numbers(text, [random_array(rng, shape, "f32") for shape in shapes])


@pytest.mark.parametrize(
    ("element", "result", "name"),
    [("i32", "i32", "i32"), ("bf16", "f32", "bf16"), ("f16", "f16", "f16"), ("complex<f32>", "complex<f32>", "c64")],
)
def test_element_types(element: str, result: str, name: str) -> None:
    attributes = (
        "batch_group_count = 1 : i64, feature_group_count = 2 : i64, "
        "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, "
        f"window_strides = {array((1, 2))}, padding = {pairs([(1, 1), (0, 1)])}"
    )
    shapes = (2, 5, 6, 4), (3, 2, 2, 6)
    types = [tensor(shape, element) for shape in shapes]
    text = operation("convolution", types, [tensor((2, 5, 3, 6), result)], attributes)
    rng = np.random.default_rng(7)
    assert_same_numbers(text, [random_array(rng, shape, name) for shape in shapes], 1e-5 if name != "f16" else 5e-3)


def test_a_large_window_gives_what_small_ones_give() -> None:
    """A weight's gradient has a window as large as the image, and is summed window by window, not place by place."""
    rng = np.random.default_rng(8)
    x, window = rng.standard_normal((3, 2, 11, 10)), rng.standard_normal((2, 5, 10, 8))
    dims = {"lhs_dims": (0, 1, 2, 3), "rhs_dims": (0, 1, 2, 3), "out_dims": (0, 1, 2, 3)}
    found = convolution.run(x, window, **dims)
    wanted = np.zeros((3, 5, 2, 3))
    for i, j in np.ndindex(2, 3):
        wanted[:, :, i, j] = np.einsum("bfyx,foyx->bo", x[:, :, i : i + 10, j : j + 8], window)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
