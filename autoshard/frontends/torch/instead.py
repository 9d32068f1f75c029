"""Functions of torch said otherwise while a module is captured, because nothing knows the values they ask for.

One mode of torch looks up each function that is called; what is not in the tables runs as it is. It also keeps what is
known of the numbers that functions make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from autoshard.frontends.torch.autograd import autograd_functions
from autoshard.frontends.torch.counts import count_functions
from autoshard.frontends.torch.covariances import covariance_functions
from autoshard.frontends.torch.ctc import ctc_functions
from autoshard.frontends.torch.data import data_functions
from autoshard.frontends.torch.diagonals import diagonal_functions
from autoshard.frontends.torch.known import KnownNumbers
from autoshard.frontends.torch.packed import packed_functions
from autoshard.frontends.torch.places import place_functions
from autoshard.frontends.torch.value_checks import check_functions


@contextmanager
def functions_instead(known: KnownNumbers) -> Iterator[None]:
    """Say them so, in this thread."""
    with _mode()(known):
        yield


@cache
def _mode() -> Any:
    from torch.overrides import TorchFunctionMode

    tables = (
        data_functions(), check_functions(), ctc_functions(), count_functions(), diagonal_functions(),
        place_functions(), packed_functions(), covariance_functions(), autograd_functions(),
    )  # fmt: skip
    table: dict[Any, Callable] = {func: instead for one in tables for func, instead in one.items()}

    class FunctionsInstead(TorchFunctionMode):
        def __init__(self, known: KnownNumbers) -> None:
            super().__init__()
            self.known = known

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.known.call(func, table.get(func) or func, args, kwargs or {})

    return FunctionsInstead
