"""What rounding or a free sign decides has several answers; what is determined has one, and nothing else passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.core.tensortype import type_of
from autoshard.ir.graph import Builder
from autoshard.ops.registry import lookup
from tests.oracle.undetermined import answers, is_one_of


def _answers(name: str, arrays: list[np.ndarray], **attrs: Any) -> list[list[np.ndarray]]:
    builder, op = Builder("one"), lookup(name)
    inputs = [builder.input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    node = builder.add(op, inputs, op.check_attributes(attrs), "it")
    return answers(builder.build(node.results), arrays)


def test_either_of_equal_numbers_may_be_the_largest():
    ties = np.array([[3.0, 7.0, 7.0, 1.0], [5.0, 2.0, 1.0, 0.5]])
    (found,) = _answers("ArgMax", [ties], axis=1)
    assert is_one_of(np.array([2, 0]), found, 1e-4)
    assert is_one_of(np.array([1, 0]), found, 1e-4)
    assert not is_one_of(np.array([0, 0]), found, 1e-4)
    assert not is_one_of(np.array([1, 1]), found, 1e-4)


def test_singular_vectors_have_a_free_sign_and_values_none():
    matrix = np.random.default_rng(4).normal(size=(3, 5, 2))
    u, values, vt = _answers("Svd", [matrix])
    assert is_one_of(-u[0], u, 1e-4) and is_one_of(-vt[0], vt, 1e-4)
    assert not is_one_of(-values[0], values, 1e-4)
    assert not is_one_of(u[0][..., ::-1], u, 1e-4)


def test_a_sum_is_determined():
    x, y = np.random.default_rng(5).normal(size=(2, 7, 3))
    (found,) = _answers("Add", [x, y])
    assert is_one_of(x + y, found, 1e-4)
    wrong = x + y
    wrong[2, 1] += 1e-2
    assert not is_one_of(wrong, found, 1e-4)
