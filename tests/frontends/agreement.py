"""What an imported graph computes against what JAX computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.trace.evaluate import evaluate

# Compiling is what takes the time; nothing runs for long.
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
_LOOSE = {8: 0.2, 16: 1e-2, 32: 2e-5, 64: 1e-11}


def assert_same_numbers(function: Callable, *arrays: np.ndarray, rtol: float | None = None) -> Any:
    """The imported graph gives what JAX gives on these arrays; returns the graph.

    Whole numbers are equal; floats within a tolerance of their type.
    """
    lowered = jax.jit(function, keep_unused=True).lower(*arrays)
    graph = read_module(parse_module(lowered.as_text())).graph
    theirs = jax.tree.leaves(lowered.compile(_QUICK)(*arrays))
    assert_close(evaluate(graph, list(arrays)), [np.asarray(one) for one in theirs], rtol)
    return graph


def assert_close(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], rtol: float | None = None) -> None:
    """Equal types and shapes, and values as close as the types allow."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        of = dtype(mine.dtype)
        if of.is_float or of.name.startswith("c"):
            near = rtol or _LOOSE[of.bits if of.is_float else of.bits // 2]
            wide = np.complex128 if of.name.startswith("c") else np.float64
            np.testing.assert_allclose(mine.astype(wide), other.astype(wide), rtol=near, atol=near)
        else:
            np.testing.assert_array_equal(mine, other)
