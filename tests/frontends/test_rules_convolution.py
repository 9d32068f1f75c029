"""The rule of convolution is Shardy's, for all dimension numbers, groups, dilations and paddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.hlo_text import array, operation, pairs, tensor
from tests.frontends.rules import assert_equal_rules
from tests.frontends.test_rules_reduce import counted

pytestmark = pytest.mark.jax

SMALL = st.integers(1, 3)


def ordered(letters: Sequence[str], values: dict[str, int]) -> tuple[tuple[int, ...], str]:
    """The shape of dims in this order, and how the dimension numbers write it."""
    return tuple(values[letter] for letter in letters), f"[{', '.join(letters)}]"


@st.composite
def convolutions(draw: Callable) -> str:
    rank = draw(st.integers(0, 3))
    groups, batches = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (1, 3)]))
    batch, inputs, outputs = draw(SMALL), draw(SMALL), draw(SMALL)
    lhs = {"b": batch * batches, "f": inputs * groups}
    rhs = {"i": inputs, "o": outputs * groups * batches}
    out = {"b": batch, "f": outputs * groups * batches}
    columns = []
    for dim in map(str, range(rank)):
        size, window, stride = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(SMALL)
        base, dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
        reach = (window - 1) * dilation + 1
        pad = (reach - 1 - draw(st.integers(0, reach - 1)), reach)
        count = counted(size, window, stride, base, dilation, pad)
        lhs[dim], rhs[dim], out[dim] = size, window, count
        columns.append((stride, pad, base, dilation, draw(st.booleans())))
    strides, pads, bases, dilations, turned = zip(*columns, strict=True) if columns else ((),) * 5
    tensors = [ordered(draw(st.permutations(sorted(sizes))), sizes) for sizes in (lhs, rhs, out)]
    (lhs_shape, lhs_text), (rhs_shape, rhs_text), (out_shape, out_text) = tensors
    attributes = (
        f"batch_group_count = {batches} : i64, feature_group_count = {groups} : i64, "
        f"dimension_numbers = #stablehlo.conv<{lhs_text}x{rhs_text}->{out_text}>, "
        f"window_strides = {array(strides)}, padding = {pairs(pads)}, lhs_dilation = {array(bases)}, "
        f"rhs_dilation = {array(dilations)}, window_reversal = {array([str(one).lower() for one in turned], 'i1')}"
    )
    return operation("convolution", [tensor(lhs_shape), tensor(rhs_shape)], [tensor(out_shape)], attributes)


@given(convolutions(), st.booleans())
def test_convolution(text: str, conservative: bool) -> None:
    assert assert_equal_rules(text, conservative) == 1
