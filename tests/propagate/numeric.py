"""What the numeric tests of modules share: inputs, the split run on virtual ranks, and when outputs are equal."""

from __future__ import annotations

import numpy as np

from autoshard.api import Planned
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import walk
from autoshard.ir.verify import verify
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm


def feed(of: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Numbers that most functions take; whole numbers are small, since they may be indices."""
    kind = of.dtype.numpy.kind
    if kind == "b":
        return rng.random(of.shape) < 0.5
    if kind in "iu":
        return rng.integers(0, 4, of.shape).astype(of.dtype.numpy)
    return np.asarray(rng.uniform(0.5, 1.5, of.shape)).astype(of.dtype.numpy)


def assert_equal(found: np.ndarray, wanted: np.ndarray, rtol: float, what: str) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, what
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted, err_msg=what)
        return
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    one, other = found.astype(wide), wanted.astype(wide)
    scale = np.max(np.abs(other[np.isfinite(other)]), initial=0.0)
    np.testing.assert_allclose(one, other, rtol, rtol * max(scale, 1e-30), err_msg=what)


def split(planned: Planned) -> int:
    """How many operators run split."""
    return sum(planned.plan.strategy(node).work_split > 1 for node in walk(planned.graph.nodes))


def assert_runs(planned: Planned, feeds: list[np.ndarray], whole: list[np.ndarray], rtol: float, what: str) -> None:
    verify(planned.graph)
    verify_program(planned.program)
    with np.errstate(all="ignore"):
        found = Executor(planned.program, LocalComm(planned.plan.mesh.devices))(*feeds)
    for i, (one, other) in enumerate(zip(found, whole, strict=True)):
        assert_equal(one, other, rtol, f"output {i} of {what}")
