"""Functions and modules of torch.nn that ask for values which nothing knows while a module is captured, said without.

`gaussian_nll_loss` asks whether a variance is below 0, to raise an error: that is left out. `BatchNorm` with
momentum=None asks how many batches there were, for the share of a new one in the mean of all: here that is a tensor.
`AdaptiveLogSoftmaxWithLoss` computes the clusters that there are targets of: here all of them, which gives the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from autoshard.frontends.torch.patch import Patch, all_active


def without_values() -> AbstractContextManager[None]:
    """Say them so, in this thread."""
    return all_active(_patches())


@cache
def _patches() -> tuple[Patch, ...]:
    from torch.nn import AdaptiveLogSoftmaxWithLoss, functional
    from torch.nn.modules.batchnorm import _BatchNorm

    return (
        Patch(functional, "gaussian_nll_loss", _unchecked_loss),
        Patch(_BatchNorm, "forward", _counted_norm),
        Patch(AdaptiveLogSoftmaxWithLoss, "forward", _of_all_clusters),
        Patch(AdaptiveLogSoftmaxWithLoss, "predict", _predicted_of_all_clusters),
    )


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


def _predicted_of_all_clusters(own: Callable, inside: Callable[[], bool]) -> Callable:
    def predict(self: Any, input: Any) -> Any:
        """The likeliest class."""
        return self.log_prob(input).argmax(1) if inside() else own(self, input)

    return predict
