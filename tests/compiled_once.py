"""Compiles what tests import, in one process, where nothing is compiled yet: several that begin at a time would each
compile all of it for itself. Does nothing in an environment that has been used.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from pathlib import Path

LATER = ("torch.export", "torch._dynamo", "torch._inductor.compile_fx", "transformers.modeling_utils", "flax", "optax")
"""What tests import when they run, beside what their files do."""


def main() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or Path(importlib.util.cache_from_source(spec.origin)).exists():
        return
    import pytest

    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-q", "--collect-only", "--ignore=tests/mpi", "tests"])
    for name in LATER:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    main()
