"""torch.no_grad() inside of torch.autocast, and torch.inference_mode().

torch.export makes a graph of its own of what runs under torch.no_grad(). It looks whether a piece of its trace begins
by turning gradients off; in a region of torch.autocast each piece begins by entering that again, and torch.export then
forgets that gradients are off. Of torch.inference_mode() its trace says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from autoshard.frontends.torch.patch import Patch


@contextmanager
def no_grad_in_autocast() -> Iterator[None]:
    """Look past the entering of torch.autocast, in this thread."""
    with _patch().active():
        yield


@contextmanager
def inference_as_no_grad() -> Iterator[None]:
    """Enter torch.no_grad() in the place of torch.inference_mode(), in this thread."""
    with _inference().active():
        yield


@cache
def _inference() -> Patch:
    from torch.autograd.grad_mode import inference_mode

    return Patch(inference_mode, "__enter__", _entering_no_grad)


def _entering_no_grad(own: Callable, inside: Callable[[], bool]) -> Callable:
    import torch

    def enter(self: Any) -> None:
        if not inside():
            return own(self)
        self._inference_mode_context = torch.no_grad() if self.mode else nullcontext()
        self._inference_mode_context.__enter__()
        return None

    return enter


@cache
def _patch() -> Patch:
    from torch._export.passes import replace_set_grad_with_hop_pass

    return Patch(replace_set_grad_with_hop_pass, "_is_set_grad_enabled_sub_mod", _past_autocast)


def _past_autocast(own: Callable, inside: Callable[[], bool]) -> Callable:
    import torch

    def sets_grad(node: Any, omit_if_same_with_ambient: bool = False) -> bool:
        if not inside() or node.op != "call_module":
            return own(node, omit_if_same_with_ambient)
        piece = getattr(node.graph.owning_module, node.target)
        first = next((one for one in piece.graph.nodes if not _enters(one)), None)
        if first is None or first.target is not torch._C._set_grad_enabled:
            return False
        return not omit_if_same_with_ambient or first.args[0] != torch.is_grad_enabled()

    return sets_grad


def _enters(node: Any) -> bool:
    from torch.amp.autocast_mode import _enter_autocast

    return node.op == "placeholder" or node.target is _enter_autocast
