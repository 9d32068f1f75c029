"""Code of torch that asks for values which nothing knows while a module is captured, or that its capture fails on, said
without.

What is asked, to raise an error or to choose a kernel, changes no numbers:

- `torch.distributions` look whether parameters and samples are inside of the support;
- `gaussian_nll_loss` whether a variance is below 0;
- `torch.nn.Transformer`, where nobody says that a mask is causal, whether it is.

Others are said by tensors: `BatchNorm` with momentum=None asks how many batches there were, for the share of a new one
in the mean of all, and `AdaptiveLogSoftmaxWithLoss` computes the clusters that there are targets of; here all of them,
which gives the same. A module that converts itself as it runs (`self.classifier.to(dtype)`) to what it is already
stays as it is: torch would exchange the tensors that stand for parameters, which it cannot do in a capture.

torch.export makes a graph of its own of what runs under torch.no_grad(). It looks whether a piece of its trace begins
by turning gradients off; in a region of torch.autocast each piece begins by entering that again, and torch.export then
forgets that gradients are off. Of torch.inference_mode() its trace says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from autoshard.frontends.torch.patch import WHILE_CAPTURING


@WHILE_CAPTURING.replaces("torch.distributions:Distribution", "__init__")
def _without_checks(own: Callable, inside: Callable[[], bool]) -> Callable:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        """Takes (batch_shape, event_shape, validate_args)."""
        if inside():
            args, kwargs = args[:2], {**kwargs, "validate_args": False}
        own(self, *args, **kwargs)

    return init


@WHILE_CAPTURING.replaces("torch.nn.modules.transformer", "_detect_is_causal_mask")
def _as_said(own: Callable, inside: Callable[[], bool]) -> Callable:
    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True if inside() else own(mask, is_causal, size)

    return detect


@WHILE_CAPTURING.replaces("torch.nn.functional", "gaussian_nll_loss")
def _unchecked_loss(own: Callable, inside: Callable[[], bool]) -> Callable:
    import torch

    def gaussian_nll_loss(
        input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
    ) -> Any:
        """Torch's formula, without the question whether `var` is below 0."""
        if isinstance(var, float) or not inside():
            return own(input, target, var, full=full, eps=eps, reduction=reduction)
        if var.shape != input.shape:
            var = _broadcast(input, var)
        # As torch clamps it: what is raised to eps keeps its gradient.
        var = torch.where(var < eps, eps + (var - var.detach()), var)
        loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
        loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"{reduction} is not valid")
        return loss if reduction == "none" else getattr(loss, reduction)()

    return gaussian_nll_loss


def _broadcast(input: Any, var: Any) -> Any:
    """The variance with a dim of size 1 for the last, where it has none or such a one; others are torch's error."""
    if input.shape[:-1] == var.shape:
        return var.unsqueeze(-1)
    if input.ndim == var.ndim and sum(b for a, b in zip(input.shape, var.shape, strict=True) if a != b) == 1:
        return var
    raise ValueError("var is of incorrect size")


@WHILE_CAPTURING.replaces("torch.nn.modules.batchnorm:_BatchNorm", "forward")
def _counted_norm(own: Callable, inside: Callable[[], bool]) -> Callable:
    import torch

    def forward(self: Any, input: Any) -> Any:
        """Torch's, with the share of this batch in the mean of all as a tensor."""
        counts = self.training and self.track_running_stats and self.momentum is None
        if not inside() or not counts or self.num_batches_tracked is None:
            return own(self, input)
        self._check_input_dim(input)
        self.num_batches_tracked.add_(1)
        share = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
        fresh = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        found = torch.nn.functional.batch_norm(input, *fresh, self.weight, self.bias, True, 1.0, self.eps)
        for running, new in zip((self.running_mean, self.running_var), fresh, strict=True):
            running.mul_(1 - share).add_(new * share)
        return found

    return forward


@WHILE_CAPTURING.replaces("torch.nn:AdaptiveLogSoftmaxWithLoss", "forward")
def _of_all_clusters(own: Callable, inside: Callable[[], bool]) -> Callable:
    from torch.nn.modules.adaptive import _ASMoutput

    def forward(self: Any, input_: Any, target_: Any) -> Any:
        """The logarithms of the targets' likelihoods, and the mean of them as a loss."""
        if not inside():
            return own(self, input_, target_)
        if target_.dim() > 1 or input_.dim() != target_.dim() + 1 or input_.shape[:-1] != target_.shape:
            raise RuntimeError(f"input {tuple(input_.shape)} of targets {tuple(target_.shape)}; one vector for each")
        rows, targets = input_.reshape(-1, input_.shape[-1]), target_.reshape(-1, 1)
        found = self.log_prob(rows).gather(1, targets).reshape(target_.shape)
        return _ASMoutput(found, -found.mean())

    return forward


@WHILE_CAPTURING.replaces("torch.nn:AdaptiveLogSoftmaxWithLoss", "predict")
def _predicted_of_all_clusters(own: Callable, inside: Callable[[], bool]) -> Callable:
    def predict(self: Any, input: Any) -> Any:
        """The likeliest class."""
        return self.log_prob(input).argmax(1) if inside() else own(self, input)

    return predict


@WHILE_CAPTURING.replaces("torch.nn:Module", "_apply")
def _applying(own: Callable, inside: Callable[[], bool]) -> Callable:
    def _apply(self: Any, fn: Callable, recurse: bool = True) -> Any:
        if inside() and all(_stays(one, fn(one)) for one in _tensors(self, recurse)):
            return self
        return own(self, fn, recurse)

    return _apply


def _tensors(module: Any, recurse: bool) -> Iterator[Any]:
    yield from module.parameters(recurse)
    yield from module.buffers(recurse)


def _stays(tensor: Any, converted: Any) -> bool:
    return (tensor.dtype, tensor.device) == (converted.dtype, converted.device)


# -- gradients that are off


@WHILE_CAPTURING.replaces("torch.autograd.grad_mode:inference_mode", "__enter__")
def _entering_no_grad(own: Callable, inside: Callable[[], bool]) -> Callable:
    import torch

    def enter(self: Any) -> None:
        if not inside():
            return own(self)
        self._inference_mode_context = torch.no_grad() if self.mode else nullcontext()
        self._inference_mode_context.__enter__()
        return None

    return enter


@WHILE_CAPTURING.replaces("torch._export.passes.replace_set_grad_with_hop_pass", "_is_set_grad_enabled_sub_mod")
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
