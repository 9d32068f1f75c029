"""Masks of torch.nn.Transformer as they are given, whatever they hold.

Where nobody says that a mask is causal, torch looks: it branches on the mask's values, which nothing knows while a
module is captured. The answer chooses a kernel, not numbers, as the mask itself is applied either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from autoshard.frontends.torch.patch import Patch


@contextmanager
def masks_as_given() -> Iterator[None]:
    """Take masks for causal where the caller says so alone, in this thread."""
    with _patch().active():
        yield


@cache
def _patch() -> Patch:
    from torch.nn.modules import transformer

    return Patch(transformer, "_detect_is_causal_mask", _as_said)


def _as_said(own: Callable, inside: Callable[[], bool]) -> Callable:
    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True if inside() else own(mask, is_causal, size)

    return detect
