"""flex_attention as the formula that it is: scores changed by the user's functions, softmax, product.

torch writes it as one operator of two graphs, compiles it where it is called, and has no gradient of it on CPUs. While
a module is captured, or compared with torch, its own unfused implementation takes the operator's place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from autoshard.frontends.torch.patch import Patches

PLAIN_FLEX_ATTENTION = Patches()
"""Computes flex_attention by plain functions of tensors."""
_HOME = "torch.nn.attention.flex_attention"


@PLAIN_FLEX_ATTENTION.replaces(_HOME, "_validate_device")
def _any_device(own: Callable, inside: Callable[[], bool]) -> Callable:
    return lambda *tensors: None if inside() else own(*tensors)


@PLAIN_FLEX_ATTENTION.replaces(_HOME, "flex_attention_hop")
def _plain(own: Callable, inside: Callable[[], bool]) -> Callable:
    from torch._higher_order_ops.flex_attention import math_attention

    return lambda *args, **kwargs: (math_attention if inside() else own)(*args, **kwargs)


@PLAIN_FLEX_ATTENTION.replaces(_HOME, "setup_compilation_env")
def _as_it_is(own: Callable, inside: Callable[[], bool]) -> Callable:
    """Nothing is compiled, so that nothing of what captures the module has to be set aside."""
    return lambda: nullcontext("eager") if inside() else own()


@PLAIN_FLEX_ATTENTION.replaces(_HOME, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
class _Flag:
    """True for the threads inside: what is said of debugging is how the function is told to call the operator without
    compiling it."""

    def __init__(self, own: bool, inside: Callable[[], bool]) -> None:
        self.own, self.inside = own, inside

    def __bool__(self) -> bool:
        return self.inside() or self.own
