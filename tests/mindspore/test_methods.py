"""Methods of tensors that are functions of ops: alike of arrays, of parameters and of what a trace has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autoshard import trace
from autoshard.mindspore import Parameter, Tensor
from autoshard.util.errors import ShapeError

X = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
CASES: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda x: x.masked_fill(x > 0, 0.0), np.minimum(X, 0)),
    (lambda x: x.split(3, axis=1)[1], X[:, 3:]),
    (lambda x: x.chunk(2, 1)[0], X[:, :3]),
    (lambda x: x.topk(2)[0], -np.sort(-X, -1)[:, :2]),
    (lambda x: x.tile((2, 3)), np.tile(X, (2, 3))),
    (lambda x: x.repeat(2, axis=1), np.repeat(X, 2, 1)),
    (lambda x: x.repeat(2, 3), np.tile(X, (2, 3))),
    (lambda x: x.matmul(x.T).tril(), np.tril(X @ X.T)),
    (lambda x: x.add(x).mul(x).sub(1.0).div(2.0), X * X - 0.5),
    (lambda x: x.sigmoid().log1p(), np.log1p(1 / (1 + np.exp(-X)))),
    (lambda x: x.int().float() * x.dim() * x.numel(), np.trunc(X) * 48),
    (lambda x: x[:1].expand_as(x).neg(), -np.tile(X[:1], (4, 1))),
    (lambda x: x.index_select(0, Tensor([2, 0])).contiguous(), X[[2, 0]]),
    (lambda x: x.half().type_as(x), X.astype(np.float16).astype(np.float32)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_methods_are_the_functions_of_ops(case: int) -> None:
    method, want = CASES[case]
    for got in (method(Tensor(X)), trace(method, X)(X), trace(lambda: method(Parameter(X, name="x")))()):
        assert np.shape(got) == want.shape
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)
    assert np.repeat(Tensor(X), 2, 0).shape == (8, 6)


def test_repeat_tells_what_repeats_elements() -> None:
    with pytest.raises(ShapeError, match=r"Tensor.repeat\(2,\) of \(4, 6\) takes a number for each dim"):
        Tensor(X).repeat(2)
