"""torch.export without what it says besides its result: its errors are told by ours, its warnings are about itself."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# They log the traceback of an error that they raise as well.
_LOGGERS = (
    "torch._subclasses.fake_tensor", "torch.export", "torch.export.pt2_archive._package",
    "torch.fx.experimental.symbolic_shapes",
)  # fmt: skip
# Of torch's own code about torch's own code, or about names that export gives up again.
_WARNINGS = (
    (FutureWarning, r"`isinstance\(treespec, LeafSpec\)` is deprecated"),
    (UserWarning, r"The tensor attributes? .* (was|were) assigned during export"),
    (UserWarning, r"Detected pickle protocol"),
)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep such messages from the log meanwhile; warnings of the module that is exported are shown as ever."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [one.disabled for one in loggers]
    try:
        with warnings.catch_warnings():
            for category, message in _WARNINGS:
                warnings.filterwarnings("ignore", message, category)
            for one in loggers:
                one.disabled = True
            yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was


@contextmanager
def without_partial_graphs() -> Iterator[None]:
    """Keep torch.export from printing what it has captured before an error; one thread at a time."""
    from torch.export import _trace

    def print_others(*values: Any, file: Any = None, **options: Any) -> None:
        if file is not sys.stderr:
            print(*values, file=file, **options)

    name = "print"  # the builtin, which the module has no name of its own for
    setattr(_trace, name, print_others)
    try:
        yield
    finally:
        delattr(_trace, name)
