"""A module's text run by XLA on the CPU and by us, for the same operands."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jaxlib import xla_client

from autoshard.core.tensortype import dtype
from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.trace.evaluate import evaluate


def returning(op: str, operands: str, results: str) -> str:
    """A module that returns the results of one operation in generic form, as `rules.one_op` takes it."""
    arguments = ", ".join(f"%{i}: {one}" for i, one in enumerate(operands.split(", ")))
    count = results.count(", ") + 1
    values = ", ".join(f"%r#{i}" for i in range(count))
    return (
        f"module {{\nfunc.func public @main({arguments}) -> ({results}) {{\n"
        f"  %r:{count} = {op} : ({operands}) -> ({results})\n  return {values} : {results}\n}}\n}}\n"
    )


def run_on_xla(text: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What XLA computes for @main of the module."""
    device = jax.devices("cpu")[0]
    program = device.client.compile_and_load(
        text.encode(), xla_client.DeviceList((device,)), xla_client.CompileOptions()
    )
    with jax.enable_x64(True):
        results = program.execute_sharded([jax.device_put(array, device) for array in arrays])
    return [np.asarray(shards[0]) for shards in results.disassemble_into_single_device_arrays()]


def run_ours(text: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the imported graph computes."""
    return evaluate(read_module(parse_module(text)).graph, list(arrays))


def assert_same_numbers(text: str, arrays: Sequence[np.ndarray], rtol: float = 1e-5) -> None:
    """Both give the same results: whole numbers and bools exactly, floats within rtol of the largest."""
    wanted, found = run_on_xla(text, arrays), run_ours(text, arrays)
    assert len(wanted) == len(found)
    for want, got in zip(wanted, found, strict=True):
        assert (want.dtype, want.shape) == (got.dtype, got.shape), text
        if not dtype(want.dtype).is_float and want.dtype.kind != "c":
            np.testing.assert_array_equal(got, want, err_msg=text)
            continue
        want, got = (one if one.dtype.kind == "c" else one.astype(np.float64) for one in (want, got))
        scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(scale, 1e-30), err_msg=text)


def random_array(rng: np.random.Generator, shape: Sequence[int], element: str) -> np.ndarray:
    """Normal floats, whole numbers from -4 to 4 (0 to 8 where unsigned), fair bools."""
    of = dtype(element)
    if of.name == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if of.is_float:
        return np.asarray(rng.standard_normal(shape)).astype(of.numpy)
    if of.numpy.kind == "c":
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(of.numpy)
    low, high = (0, 9) if of.name.startswith("u") else (-4, 5)
    return np.asarray(rng.integers(low, high, shape)).astype(of.numpy)
