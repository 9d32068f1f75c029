"""flex_attention as the formula that it is: scores changed by the user's functions, softmax, product.

torch writes it as one operator of two graphs, compiles it where it is called, and has no gradient of it on CPUs. While
a module is captured, or compared with torch, its own unfused implementation takes the operator's place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

from autoshard.frontends.torch.patch import Patch, all_active


def plain_flex_attention() -> AbstractContextManager[None]:
    """Compute flex_attention by plain functions of tensors, in this thread."""
    return all_active(_patches())


@cache
def _patches() -> tuple[Patch, ...]:
    from torch.nn.attention import flex_attention

    return (
        Patch(flex_attention, "_validate_device", _any_device),
        Patch(flex_attention, "flex_attention_hop", _plain),
        Patch(flex_attention, "setup_compilation_env", _as_it_is),
        # What is said of debugging is how the function is told to call the operator without compiling it.
        Patch(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", _Flag),
    )


def _any_device(own: Callable, inside: Callable[[], bool]) -> Callable:
    return lambda *tensors: None if inside() else own(*tensors)


def _plain(own: Callable, inside: Callable[[], bool]) -> Callable:
    from torch._higher_order_ops.flex_attention import math_attention

    return lambda *args, **kwargs: (math_attention if inside() else own)(*args, **kwargs)


def _as_it_is(own: Callable, inside: Callable[[], bool]) -> Callable:
    """Nothing is compiled, so that nothing of what captures the module has to be set aside."""
    return lambda: nullcontext("eager") if inside() else own()


class _Flag:
    """True for the threads inside."""

    def __init__(self, own: bool, inside: Callable[[], bool]) -> None:
        self.own, self.inside = own, inside

    def __bool__(self) -> bool:
        return self.inside() or self.own
