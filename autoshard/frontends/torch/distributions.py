"""torch.distributions with parameters and samples as they are given, whatever they hold.

Distributions look at the values of their parameters and samples, to raise an error for those outside of the support;
nothing knows them while a module is captured. The answer changes no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from autoshard.frontends.torch.patch import Patch


@contextmanager
def distributions_as_given() -> Iterator[None]:
    """Make distributions that check no values, in this thread."""
    with _patch().active():
        yield


@cache
def _patch() -> Patch:
    from torch.distributions import Distribution

    return Patch(Distribution, "__init__", _without_checks)


def _without_checks(own: Callable, inside: Callable[[], bool]) -> Callable:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        """Takes (batch_shape, event_shape, validate_args)."""
        if inside():
            args, kwargs = args[:2], {**kwargs, "validate_args": False}
        own(self, *args, **kwargs)

    return init
