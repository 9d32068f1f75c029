"""Small models that `benchmarks.gpu` runs on CPUs: they need torch alone, and plan for any number of ranks."""

from __future__ import annotations

import torch

import autoshard as ash
from autoshard import optim


def forward():
    """A model with example inputs."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.GELU(), torch.nn.LayerNorm(20), torch.nn.Linear(20, 6))
    return net, (torch.randn(10, 12),)


def training():
    """A step of training."""
    net, inputs = forward()
    labels = torch.randn(10, 6)

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}

    return ash.from_torch(WithLoss(), (*inputs, labels), loss="loss", optimizer=lambda params: optim.SGD(params, 0.1))
