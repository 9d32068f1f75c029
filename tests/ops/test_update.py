"""Optimizer updates against the published formulas, several steps long, and against each other."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops
from autoshard.util.errors import ShapeError

RNG = np.random.default_rng(16)
PARAM = RNG.normal(size=(4, 6))
GRADS = RNG.normal(size=(5, 4, 6))


def test_sgd() -> None:
    np.testing.assert_allclose(ops.sgd(PARAM, GRADS[0], learning_rate=0.1), PARAM - 0.1 * GRADS[0])
    decayed = ops.sgd(PARAM, GRADS[0], learning_rate=0.1, weight_decay=0.5)
    np.testing.assert_allclose(decayed, PARAM - 0.1 * (GRADS[0] + 0.5 * PARAM))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_over_steps(nesterov: bool) -> None:
    param, accum = PARAM, np.zeros_like(PARAM)
    for count in range(1, 6):
        param, accum = ops.apply_momentum(
            param, accum, GRADS[count - 1], learning_rate=0.1, momentum=0.9, nesterov=nesterov
        )
    sums = [sum(0.9 ** (n - k) * GRADS[k] for k in range(n + 1)) for n in range(5)]
    steps = [GRADS[n] + 0.9 * sums[n] if nesterov else sums[n] for n in range(5)]
    np.testing.assert_allclose(accum, sums[-1])
    np.testing.assert_allclose(param, PARAM - 0.1 * sum(steps))


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_over_steps(decoupled: bool) -> None:
    rate, b1, b2, eps, decay = 0.01, 0.9, 0.99, 1e-8, 0.1
    param, m, v = PARAM, np.zeros_like(PARAM), np.zeros_like(PARAM)
    want, wm, wv = PARAM.copy(), np.zeros_like(PARAM), np.zeros_like(PARAM)
    for count in range(1, 6):
        param, m, v = ops.adam(
            param, m, v, GRADS[count - 1], np.int32(count), learning_rate=rate, beta1=b1, beta2=b2,
            eps=eps, weight_decay=decay, decoupled=decoupled,
        )  # fmt: skip
        g = GRADS[count - 1] + (0 if decoupled else decay * want)
        wm, wv = b1 * wm + (1 - b1) * g, b2 * wv + (1 - b2) * g**2
        change = wm / (1 - b1**count) / (np.sqrt(wv / (1 - b2**count)) + eps)
        want = want - rate * (change + (decay * want if decoupled else 0))
    np.testing.assert_allclose(param, want)
    np.testing.assert_allclose(m, wm)
    np.testing.assert_allclose(v, wv)


def test_the_first_step_of_adam_is_the_learning_rate() -> None:
    zero = np.zeros_like(PARAM)
    param, _, _ = ops.adam(PARAM, zero, zero, GRADS[0], np.int32(1), learning_rate=0.01)
    np.testing.assert_allclose(param, PARAM - 0.01 * np.sign(GRADS[0]), rtol=1e-6)


def test_a_rate_as_operand_does_the_same() -> None:
    rate, step, state = np.array(0.03), np.int32(2), np.abs(GRADS[1])
    np.testing.assert_allclose(ops.sgd_rate(PARAM, GRADS[0], rate), ops.sgd(PARAM, GRADS[0], learning_rate=0.03))
    pairs = [
        (
            ops.apply_momentum_rate(PARAM, state, GRADS[0], rate, nesterov=True),
            ops.apply_momentum(PARAM, state, GRADS[0], learning_rate=0.03, nesterov=True),
        ),
        (
            ops.adam_rate(PARAM, GRADS[2], state, GRADS[0], step, rate, weight_decay=0.1, decoupled=True),
            ops.adam(PARAM, GRADS[2], state, GRADS[0], step, learning_rate=0.03, weight_decay=0.1, decoupled=True),
        ),
    ]
    for got, want in pairs:
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other)


def test_updates_do_not_change_their_operands() -> None:
    param, state, grad = PARAM.copy(), np.abs(GRADS[1]), GRADS[0].copy()
    ops.adam(param, state, state, grad, np.int32(1), weight_decay=0.1)
    ops.apply_momentum(param, state, grad, learning_rate=0.1, weight_decay=0.1)
    np.testing.assert_array_equal(param, PARAM)
    np.testing.assert_array_equal(state, np.abs(GRADS[1]))
    np.testing.assert_array_equal(grad, GRADS[0])


def test_next_values_keep_their_types() -> None:
    half, single = PARAM.astype(np.float16), np.abs(GRADS[1]).astype(np.float32)
    param, m, v = ops.adam(half, single, single, half, np.int32(1))
    assert (param.dtype, m.dtype, v.dtype) == (np.float16, np.float32, np.float32)


def test_parameters_without_dims_are_updated() -> None:
    one = np.float32(2.0)
    param, m, v = ops.adam(one, np.float32(0), np.float32(0), np.float32(1), np.int32(1), learning_rate=0.5)
    assert param.shape == () and param.dtype == np.float32
    np.testing.assert_allclose([param, m, v], [1.5, 0.1, 0.001], rtol=1e-5)
    assert ops.apply_momentum(one, one, one, learning_rate=0.5)[0].shape == ()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.sgd(PARAM, GRADS[0]), "SGD needs the attribute 'learning_rate'"),
        (
            lambda: ops.sgd(PARAM, GRADS[0].T, learning_rate=1.0),
            r"parameter, state and gradient must have one shape, not \(4, 6\), \(6, 4\)",
        ),
        (
            lambda: ops.adam(PARAM, PARAM, PARAM**2, PARAM, np.int32(0)),
            "step is 0; steps count from 1",
        ),
        (lambda: ops.adam(PARAM, PARAM, PARAM**2, PARAM, np.ones(4)), "Adam .* operand 4 has 1 dims"),
    ],
)
def test_bad_operands_are_named(call, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()
