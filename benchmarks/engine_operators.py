"""Every operator on every engine: which run equal to numpy, which by another meaning, which an engine lacks, and why.

    python -m benchmarks.engine_operators [--engine torch]

All samples of `tests/oracle/samples` are run. JAX's run op by op; the tests compile them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from autoshard.core.tensortype import type_of
from autoshard.engines.kernels import Kernels, kernels_of
from autoshard.engines.overrides import OPERATORS
from tests.oracle.samples import SAMPLES
from tests.oracle.samples.sample import Sample
from tests.oracle.undetermined import SIGNED

TOLERANCE = 3e-5
"""Of the largest element: some roundings of f32."""


def outcome(kernels: Kernels, sample: Sample) -> str:
    """'' if the sample gives what numpy gives; else how it does not, or why it is not run."""
    lacking = kernels.lacking(sample.op, sample.attributes)
    if lacking is not None:
        return f"lacking: {lacking}"
    arrays = sample.arrays(np.random.default_rng(1))
    kinds = [of.dtype for of in sample.op.result_types(tuple(map(type_of, arrays)), sample.attributes)]
    try:
        made = kernels.run(sample.op, [kernels.library.array(one) for one in arrays], sample.attributes, kinds)
    except Exception as error:  # whatever a library raises is what the table is for
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    convert = getattr(kernels.library, "to_numpy", np.asarray)
    pairs = zip(map(convert, made), sample.op.evaluate(arrays, sample.attributes), strict=True)
    return next((f"differs by {far:.1e}" for far in _distances(sample, pairs) if far > TOLERANCE), "")


def _distances(sample: Sample, pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[float]:
    """How far results are apart, by their largest element; infinite if shape, type or what is finite differs."""
    for found, want in pairs:
        if found.shape != want.shape or found.dtype != want.dtype:
            yield np.inf
            continue
        kind = np.complex128 if want.dtype.kind == "c" else np.float64
        one, other = found.astype(kind), want.astype(kind)
        if sample.op.name in SIGNED:
            one, other = np.abs(one), np.abs(other)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        scale = max(float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0)), 1e-30)
        with np.errstate(invalid="ignore"):
            apart = np.where(same, 0.0, np.abs(one - other) / scale)
        yield float(np.max(np.nan_to_num(apart, nan=np.inf), initial=0.0))


def table(engine: str) -> None:
    """Print what an engine does with each operator."""
    kernels, found = kernels_of(engine), {}
    for sample in SAMPLES:
        found.setdefault(sample.op.name, []).append(outcome(kernels, sample))
    equal = [name for name, told in found.items() if not any(told)]
    print(f"{engine}: {len(equal)} of {len(found)} operators equal in all of {sum(map(len, found.values()))} samples")
    print(f"  by another meaning than numpy's: {', '.join(sorted(OPERATORS))}")
    for name in sorted(set(found) - set(equal)):
        wrong = [one for one in found[name] if one]
        print(f"  {name}: {len(wrong)} of {len(found[name])} samples: {wrong[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("torch", "xla"), help="default: both")
    given = parser.parse_args().engine
    for engine in (given,) if given else ("torch", "xla"):
        if engine == "xla":
            import jax

            jax.config.update("jax_enable_x64", True)
        table(engine)


if __name__ == "__main__":
    main()
