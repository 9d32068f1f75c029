"""Samples of all operators: `SAMPLES` joins those of every module in this folder, ordered by name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .sample import Sample


def _collect() -> tuple[Sample, ...]:
    names = sorted(module.name for module in iter_modules(__path__) if module.name != "sample")
    return tuple(sample for name in names for sample in import_module(f"{__name__}.{name}").SAMPLES)


SAMPLES = _collect()
