"""The custom calls that JAX emits for linear algebra and searches compute what they compute in JAX."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.ir.graph import Graph
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ShapeError
from tests.frontends.agreement import assert_close, assert_same_numbers

pytestmark = pytest.mark.jax

SQUARE, TALL, WIDE, VECTORS = (3, 5, 5), (2, 6, 4), (2, 4, 6), (3, 5, 2)


def graph_of(function: Callable, array: np.ndarray) -> Graph:
    return read_module(parse_module(jax.jit(function).lower(array).as_text())).graph


def drawn(shape: tuple[int, ...], complex_: bool = False) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if complex_ else 0)
    return x.astype(np.complex64 if complex_ else np.float32)


def definite(complex_: bool = False) -> np.ndarray:
    a = drawn(SQUARE, complex_)
    return a @ np.conj(np.swapaxes(a, -1, -2)) + 2 * np.eye(5, dtype=a.dtype)


@pytest.mark.parametrize("complex_", [False, True])
def test_triangular_factors(complex_: bool) -> None:
    assert_same_numbers(jnp.linalg.cholesky, definite(complex_), rtol=1e-4)
    assert_same_numbers(lambda a: lax.linalg.lu(a), drawn(TALL, complex_), rtol=1e-4)
    assert_same_numbers(jnp.linalg.solve, definite(complex_), drawn(VECTORS, complex_), rtol=1e-3)
    assert_same_numbers(jnp.linalg.inv, definite(complex_), rtol=1e-3)
    assert_same_numbers(jnp.linalg.slogdet, definite(complex_), rtol=1e-3)


@pytest.mark.parametrize("complex_", [False, True])
def test_orthogonal_factors(complex_: bool) -> None:
    for shape in (TALL, WIDE):
        assert_same_numbers(lambda a: jnp.linalg.qr(a), drawn(shape, complex_), rtol=1e-4)
    assert_same_numbers(lambda a: jnp.linalg.qr(a, mode="complete"), drawn(TALL, complex_), rtol=1e-4)
    assert_same_numbers(lambda a: lax.linalg.hessenberg(a), drawn(SQUARE, complex_), rtol=1e-3)
    assert_same_numbers(lambda a: lax.linalg.tridiagonal(a, lower=True), definite(complex_), rtol=1e-3)


def rebuilt(vectors: np.ndarray, values: np.ndarray, others: np.ndarray) -> np.ndarray:
    return vectors * values[..., None, :] @ others


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_singular_values(complex_: bool, full: bool) -> None:
    """Vectors have signs of their own; the values, and what all of them make together, have not."""
    for shape in (TALL, WIDE):
        a = drawn(shape, complex_)
        graph = graph_of(lambda x: jnp.linalg.svd(x, full_matrices=full), a)
        u, s, vt = evaluate(graph, [a])
        assert_close([s], [np.asarray(jnp.linalg.svd(a, compute_uv=False))], 1e-4)
        assert u.shape == (2, shape[1], shape[1] if full else 4)
        np.testing.assert_allclose(rebuilt(u[..., :4], s, vt[..., :4, :]), a, rtol=1e-3, atol=1e-4)
    assert_same_numbers(lambda x: jnp.linalg.svd(x, compute_uv=False), drawn(TALL, complex_), rtol=1e-4)


@pytest.mark.parametrize("complex_", [False, True])
def test_eigenvalues(complex_: bool) -> None:
    a = definite(complex_)
    values, vectors = evaluate(graph_of(jnp.linalg.eigh, a), [a])
    assert_close([values], [np.asarray(jnp.linalg.eigvalsh(a))], 1e-3)
    np.testing.assert_allclose(rebuilt(vectors, values, np.conj(np.swapaxes(vectors, -1, -2))), a, rtol=1e-3, atol=1e-3)
    b = drawn(SQUARE, complex_)
    values, vectors = evaluate(graph_of(jnp.linalg.eig, b), [b])
    np.testing.assert_allclose(b @ vectors, vectors * values[..., None, :], rtol=1e-3, atol=1e-3)
    triangle, basis = evaluate(graph_of(lambda x: lax.linalg.schur(x), b), [b])
    np.testing.assert_allclose(basis @ triangle @ np.conj(np.swapaxes(basis, -1, -2)), b, rtol=1e-3, atol=1e-3)


def test_tridiagonal_systems() -> None:
    low, middle, high = drawn((5,)), drawn((5,)) + 4, drawn((5,))
    assert_same_numbers(lax.linalg.tridiagonal_solve, low, middle, high, drawn((5, 2)), rtol=1e-4)


@pytest.mark.parametrize("function", [lax.approx_max_k, lax.approx_min_k])
def test_approximate_searches_are_exact_here(function: Callable) -> None:
    assert_same_numbers(lambda x: function(x, 3), drawn((4, 9)))
    assert_same_numbers(lambda x: function(x, 4, reduction_dimension=0), drawn((9, 3)))


def test_random_numbers_by_philox() -> None:
    key = np.array([1, 2, 3, 4], np.uint32)
    assert_same_numbers(lambda k: lax.rng_bit_generator(k, (5, 7)), key)
    with jax.default_prng_impl("rbg"):
        assert_same_numbers(
            lambda seed: jax.random.normal(jax.random.key(seed), (4, 6)), np.array(7, np.int32), rtol=1e-5
        )


def test_a_composite_computes_what_its_function_does() -> None:
    @lambda f: lax.composite(f, name="my.tangent")
    def tangent(x):
        return jnp.sin(x) / jnp.cos(x)

    x = drawn((4, 6))
    graph = graph_of(tangent, x)
    (node,) = graph.nodes
    assert node.op.name == "Composite" and node.attrs["name"] == "my.tangent" and not node.op.has_rule
    function = graph.functions[node.attrs["callee"]]
    (got,) = node.op.run(x, **node.attrs, regions=(lambda *arrays: evaluate(function, list(arrays)),))
    np.testing.assert_allclose(got, np.tan(x), rtol=1e-5)


def test_callbacks_into_python_are_not_run() -> None:
    def called(x):
        return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(ShapeError, match=r"no operator for custom call xla_ffi_python_cpu_callback \(once"):
        evaluate(graph_of(called, drawn((4, 6))), [drawn((4, 6))])
