"""torch.cov and torch.corrcoef, said by sums and products: torch's own look at the numbers of weights and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def covariance_functions() -> dict[Any, Callable]:
    """What stands for them."""
    import torch

    return {
        **dict.fromkeys((torch.cov, torch.Tensor.cov), _cov),
        **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _corrcoef),
    }


def _cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    if not (rows.is_floating_point() or rows.is_complex()):
        rows = rows.float()
    weights = fweights if aweights is None or fweights is None else fweights * aweights
    weights = aweights if weights is None else weights
    if weights is None:
        centered = weighted = rows - rows.mean(1, keepdim=True)
        count: Any = max(rows.shape[1] - correction, 0)
    else:
        total = weights.sum()
        centered = rows - (rows * weights).sum(1, keepdim=True) / total
        weighted = centered * weights
        own = 1 if aweights is None else (weights * aweights).sum() / total
        count = (total - correction * own).clamp(min=0)
    return (centered @ weighted.t().conj() / count).squeeze()


def _corrcoef(input: Any) -> Any:
    import torch

    found = _cov(input)
    if found.dim() == 0:
        return found / found
    variances = found.diagonal()
    deviations = (variances.real if found.is_complex() else variances).sqrt()
    found = found / deviations[:, None] / deviations
    if not found.is_complex():
        return found.clamp(-1, 1)
    return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
